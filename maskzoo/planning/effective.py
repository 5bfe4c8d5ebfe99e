"""The rule as it is enforced: what every plan adds to what was asked for."""

from __future__ import annotations

import torch

from maskzoo.masks.across_segments import AcrossSegments
from maskzoo.masks.algebra import And, Or, PerHead
from maskzoo.masks.base import Mask
from maskzoo.masks.same_segment import SameSegment
from maskzoo.positions import Positions


def effective_text(mask: Mask) -> str:
    """The whole rule as text: with `padding`, and `same_segment` unless the rule crosses segments by name."""
    if isinstance(mask, PerHead) and len({_crosses_segments(rule) for rule in mask.rules}) > 1:
        return f"stack({', '.join(map(effective_text, mask.rules))})"
    names = [term.provider_name for term in (mask.terms if isinstance(mask, And) else (mask,))]
    wanted = ("padding",) if _crosses_segments(mask) else ("padding", "same_segment")
    added = [name for name in wanted if name not in names]
    text = f"({mask!r})" if added and isinstance(mask, Or) else repr(mask)
    return " & ".join([text, *added])


def one_segment(q_at: Positions, k_at: Positions) -> bool:
    """Whether all positions are real and of one segment, so that a rule holds as it is."""
    ends = [end for at in (q_at, k_at) for end in torch.aminmax(at.segment)]
    return int(ends[0]) >= 0 and all(int(end) == int(ends[0]) for end in ends)


def effective(mask: Mask) -> Mask:
    """The whole rule of one head: only between real positions, and inside a segment unless the rule crosses by name."""
    real = AcrossSegments()
    return And.of(mask, real) if _crosses_segments(mask) else And.of(mask, real, SameSegment())


def _crosses_segments(mask: Mask) -> bool:
    return any(leaf.crosses_segments for leaf in mask.leaves())
