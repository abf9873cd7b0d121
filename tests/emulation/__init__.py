"""CUDA C++ on the CPU: the kernels' own source, compiled by the host's compiler and run there."""
