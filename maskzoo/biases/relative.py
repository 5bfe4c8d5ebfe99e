"""Learned offsets for buckets of relative positions."""

import math

import torch
from torch import Tensor, nn

from maskzoo.biases.base import OffsetBias, picked, register_bias
from maskzoo.provider import Side


@register_bias("relative")
class Relative(OffsetBias):
    """A learned offset for each bucket of distances: exact when near, logarithmic when far.

    Args:
        buckets: rows of the learned table, which starts at zero.
        max_distance: from here on all distances share the last bucket.
        both_directions: half of the buckets are for keys after the query; otherwise those share bucket 0.

    Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    JMLR 2020, section 2.1.
    """

    def __init__(
        self, buckets: int = 32, max_distance: int = 128, both_directions: bool = False, *, heads: int
    ) -> None:
        super().__init__(heads)
        one_way = buckets // 2 if both_directions else buckets
        if isinstance(buckets, bool) or not isinstance(buckets, int) or one_way < 2 or one_way % 2:
            multiple = 4 if both_directions else 2
            raise ValueError(f"relative(buckets={buckets!r}): buckets must be a positive multiple of {multiple}")
        if not isinstance(max_distance, int) or max_distance <= one_way // 2:
            raise ValueError(
                f"relative(max_distance={max_distance!r}): max_distance must be an integer above {one_way // 2}, "
                f"the distances that have a bucket each when buckets={buckets}"
            )
        self.buckets, self.max_distance, self.both_directions = buckets, max_distance, both_directions
        self.weight = nn.Parameter(torch.zeros(heads, buckets))

    def code(self, at: Side) -> Tensor:
        return at.index

    def table(self, differences: Tensor) -> Tensor:
        return picked(self.weight, self.bucket(differences))

    def bucket(self, back: Tensor) -> Tensor:
        """The column of `weight` for each difference query − key."""
        one_way = self.buckets // 2 if self.both_directions else self.buckets
        start = torch.where(back < 0, one_way, 0) if self.both_directions else torch.zeros_like(back)
        distance = back.abs() if self.both_directions else back.clamp(min=0)
        exact = one_way // 2
        growth = torch.log(distance.clamp(min=1).double() / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (one_way - exact)).long()).clamp(max=one_way - 1)
        return start + torch.where(distance < exact, distance, far)
