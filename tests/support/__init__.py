"""What tests share: builders of small inputs, second implementations, scripts that run as processes of their own."""
