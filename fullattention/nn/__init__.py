"""FullAttention in torch models: a drop-in module, and tools that put it into a model."""

from fullattention.nn.capturing import capture
from fullattention.nn.module import FullAttention
from fullattention.nn.replacing import Replacement, replace

__all__ = ["FullAttention", "Replacement", "capture", "replace"]
