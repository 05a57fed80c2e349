"""The engines that compute a GRU: the native kernels, and the reference in float64."""
