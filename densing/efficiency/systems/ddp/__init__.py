"""Distributed data parallel: gradients are averaged in buckets, starting during the backward pass."""
