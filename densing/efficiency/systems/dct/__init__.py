"""DCT: of every gradient what reaches a threshold that is seldom renewed; Top-K, which chooses anew in every step."""
