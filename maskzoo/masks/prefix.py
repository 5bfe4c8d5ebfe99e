"""A prefix that is read both ways, then causal."""

from dataclasses import dataclass

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side, check_integer


@register_mask("prefix")
@dataclass(frozen=True)
class Prefix(Mask):
    """Prefix language model: the first `size` positions see one another both ways, the rest is causal.

    visible(i, j): j ≤ i or j < size, by index. This is `causal | sinks(size)`; `prefix(0)` is `causal`.

    Source: Raffel et al. 2020, *Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer*,
    section 3.2.1, figure 4; Dong et al. 2019, *UniLM*, section 2.3 (its sequence-to-sequence mask).

    Args:
        size: length of the prefix, at least 0.
    """

    size: int

    def __post_init__(self) -> None:
        check_integer(self, "size", minimum=0)

    def visible(self, q: Side, k: Side) -> Tensor:
        return (q.index >= k.index) | (k.index < self.size)
