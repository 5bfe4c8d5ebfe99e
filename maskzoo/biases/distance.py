"""Penalties that grow with a distance."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskzoo.biases.alibi import alibi_slopes
from maskzoo.biases.base import OffsetBias, register_bias
from maskzoo.provider import Side
from maskzoo.registry import nearest

DECAYS = ("log", "linear")
METRICS = ("euclidean", "chebyshev")


@register_bias("distance")
class Distance(OffsetBias):
    """A penalty that grows with the logarithm of the distance, or linearly, at a slope per head.

    score(h, i, j) += −slope(h) · log(1 + distance(i, j)), or without the logarithm. The slopes are positive: those of
    ALiBi (Press et al. 2022, section 3), or learned from there as exp(log_slope).

    Args:
        decay: "log" or "linear".
        fields: the coordinates between which the distance is taken: "index", or for patches ["row", "col"].
        metric: "euclidean" (the straight line) or "chebyshev" (the largest difference); for one field they are the
            same.
        learned: whether the slopes are learned.

    Source: Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", NeurIPS 2022,
    section 4: its logarithmic kernel with r₂ = 1 and its power kernel with exponent 1, r₁ being the slope.
    """

    slopes: Tensor

    def __init__(
        self,
        decay: str = "log",
        fields: str | tuple[str, ...] = "index",
        metric: str = "euclidean",
        learned: bool = False,
        *,
        heads: int,
    ) -> None:
        super().__init__(heads)
        for name, value, known in (("decay", decay, DECAYS), ("metric", metric, METRICS)):
            if value not in known:
                raise ValueError(
                    f"distance({name}={value!r}): {name} must be one of {', '.join(known)}.{nearest(str(value), known)}"
                )
        self.names = (fields,) if isinstance(fields, str) else tuple(fields)
        if not self.names or not all(isinstance(name, str) and name.isidentifier() for name in self.names):
            raise ValueError(f"distance(fields={fields!r}): fields must be the name of a field, or several")
        if not isinstance(learned, bool):
            raise ValueError(f"distance(learned={learned!r}): learned must be True or False")
        self.decay, self.fields, self.metric, self.learned = decay, fields, metric, learned
        slopes = alibi_slopes(heads)
        if learned:
            self.log_slope = nn.Parameter(slopes.log())
        else:
            self.register_buffer("slopes", slopes, persistent=False)

    def code(self, at: Side) -> Tensor:
        return torch.stack([getattr(at, name) for name in self.names], dim=-1)

    def table(self, differences: Tensor) -> Tensor:
        slopes = self.log_slope.exp() if self.learned else self.slopes
        across = differences.to(torch.float64)  # a difference of positions may have more digits than float32 has
        distance = across.norm(dim=1) if self.metric == "euclidean" else across.abs().amax(1)
        grown = distance.log1p() if self.decay == "log" else distance
        return -slopes[:, None] * grown.to(slopes.dtype)
