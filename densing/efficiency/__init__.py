"""Cost: what training runs did with their time, and what techniques would buy."""
