"""Data-parallel methods for a torch loop: DDP, ZeRO, LocalSGD, SlowMo, CO2."""

BUCKETS_MB: tuple[float | None, ...] = (None, 0.5, 1.0, 2.0, 4.0, 8.0, 64.0)
"""Sizes of DDP's buckets in a small sweep, MiB; None is torch's default."""
