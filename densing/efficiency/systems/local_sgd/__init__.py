"""Local SGD, whose replicas train alone and average their parameters now and then; SlowMo adds a slow momentum."""
