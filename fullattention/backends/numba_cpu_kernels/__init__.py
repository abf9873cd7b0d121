"""Attention on the CPU, compiled by Numba: `docs/cpu-kernels.md` explains it."""
