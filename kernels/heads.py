"""Grouped-query attention: fewer key/value heads than query heads."""

from torch import Tensor


def shared_by_group(x: Tensor, heads: int) -> Tensor:
    """Key/value heads [B, Hkv, T, D] repeated for the query heads that share them: [B, heads, T, D]."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)
