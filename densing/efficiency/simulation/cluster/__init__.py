"""Links, devices, what collectives cost, contention, and calibration from recorded runs."""
