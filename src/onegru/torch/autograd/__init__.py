"""Autograd functions and operators of PyTorch that call the kernels."""
