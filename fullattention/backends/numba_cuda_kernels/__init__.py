"""Attention for CUDA, compiled by Numba: kernels, how they are launched, passes over arrays."""
