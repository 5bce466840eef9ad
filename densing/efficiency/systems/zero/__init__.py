"""ZeRO: optimizer state, gradients and parameters split over the data-parallel ranks."""
