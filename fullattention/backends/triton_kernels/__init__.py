"""Attention in Triton: kernels, how they are launched, passes over torch's tensors."""
