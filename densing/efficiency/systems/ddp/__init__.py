"""Distributed data parallel: gradients averaged in buckets, from mid-backward on."""
