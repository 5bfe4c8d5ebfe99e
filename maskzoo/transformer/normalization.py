"""Normalisation layers by name."""

from torch import nn

NORMALIZATIONS = ("layernorm", "rmsnorm")


def normalization(name: str, width: int) -> nn.Module:
    """torch's LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last dimension, of gain 1."""
    assert name in NORMALIZATIONS, name
    return nn.LayerNorm(width, eps=1e-5) if name == "layernorm" else nn.RMSNorm(width, eps=1e-6)
