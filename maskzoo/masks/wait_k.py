"""As much of the source as has come in."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side, check_integer


@register_mask("wait_k")
@dataclass(frozen=True)
class WaitK(Mask):
    """Streaming source: the target waits for `k` source tokens, then one more comes in with each step.

    visible(t, s): s < t + k, target and source both counted from 0 (give the source as `k_at`): the paper's
    g(t) = min(k + t − 1, |x|) with t from 1. The first target token sees k source tokens.

    Source: Ma et al. 2019, *STACL: Simultaneous Translation with Implicit Anticipation and Controllable Latency using
    Prefix-to-Prefix Framework*, section 3.2, equation 5.

    Args:
        k: source tokens read before the first target token, at least 1.
    """

    between_sequences: ClassVar[bool] = True

    k: int

    def __post_init__(self) -> None:
        check_integer(self, "k", minimum=1)

    def visible(self, q: Side, k: Side) -> Tensor:
        return k.index < q.index + self.k
