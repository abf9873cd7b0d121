"""Our own CUDA C++ kernels: their source, how they are launched, and the passes over arrays."""
