"""Local SGD: replicas train independently and average their parameters periodically; SlowMo adds a slow momentum."""
