"""Data-parallel methods for a torch loop: DDP, ZeRO, LocalSGD, SlowMo, CO2."""
