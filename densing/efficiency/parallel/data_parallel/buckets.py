"""Sizes of DDP's buckets that a small sweep tries."""

BUCKETS_MB: tuple[float | None, ...] = (None, 0.5, 1.0, 2.0, 4.0, 8.0, 64.0)
"""MiB; None is torch's default."""
