"""Start ranks, join them by a real or emulated link, watch them, and gather what they leave."""
