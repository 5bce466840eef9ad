"""PowerSGD: a matrix gradient is sent as two thin factors, each summed over the replicas."""
