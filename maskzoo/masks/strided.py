"""Near keys and every so many beyond."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side, check_integer


@register_mask("strided")
@dataclass(frozen=True)
class Strided(Mask):
    """Sparse Transformer's strided pattern: the last `step` keys, and every `step`-th key before them.

    visible(i, j): j ≤ i and (i − j < step or (i − j) mod step = 0), by index: the union of the paper's two patterns,
    {j : i − step ≤ j ≤ i} and {j : (i − j) mod step = 0, j ≤ i}, in one head (its "merged" form).

    Source: Child et al. 2019, *Generating Long Sequences with Sparse Transformers*, sections 4.2 and 4.3.

    Args:
        step: the stride, at least 1; the paper takes about √T. With 1 the rule is `causal`.
    """

    step: int

    def __post_init__(self) -> None:
        check_integer(self, "step", minimum=1)

    def visible(self, q: Side, k: Side) -> Tensor:
        back = q.index - k.index
        return (back >= 0) & ((back < self.step) | (back % self.step == 0))
