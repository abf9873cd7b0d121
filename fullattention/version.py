"""The version of the suite, in one place that everything may import."""

__version__ = "0.1.0"
