"""What computes a GRU: the native kernels, or the reference in float64."""
