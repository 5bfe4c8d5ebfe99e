"""Block-sparse attention in plain torch, with its own backward pass."""

from maskzoo.kernels.tiled.operator import tiled

__all__ = ["tiled"]
