"""PowerSGD: gradients of matrices as two thin factors, each summed over the replicas."""
