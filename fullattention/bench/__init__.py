"""Benchmarks: the workloads people run, and how long each backend takes for them."""
