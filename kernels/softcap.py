"""Softcap: scores that approach a limit instead of passing it (Gemma Team 2024, *Gemma 2*, section 2)."""

from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E


def cap(scores: Tensor, softcap: float) -> Tensor:
    """softcap · tanh(scores / softcap), in place; scores and result are binary logarithms, softcap is a natural one."""
    limit = softcap * LOG2_E
    return scores.div_(limit).tanh_().mul_(limit)


def through_cap(slope: Tensor, capped: Tensor, softcap: float) -> Tensor:
    """The gradient of the scores from that of what `cap` made of them, in place."""
    return slope.sub_((capped / (softcap * LOG2_E)).square_().mul_(slope))
