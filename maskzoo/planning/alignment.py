"""Where the queries stand against the keys, when their index was only counted."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.masks.base import Mask
from maskzoo.positions import Positions

ALIGNMENTS = ("end", "start", "index")


def aligned(mask: Mask, q_at: Positions, k_at: Positions, align: str | None) -> tuple[Positions, str]:
    """The query positions as the rule is to read them, and how they were placed, in words."""
    if q_at is k_at:
        return q_at, "queries are the keys"
    if align is None and not q_at.counted:
        align = "index"
    if align is None:
        align = "start" if any(leaf.between_sequences for leaf in mask.leaves()) else "end"
    if align != "end":
        return q_at, "queries at their own index" if align == "index" else "queries and keys counted from the start"
    return q_at.shifted(_last_index(q_at, k_at) - _last_index(q_at, q_at)), "queries at the end of the keys"


def _last_index(q_at: Positions, of: Positions) -> Tensor:
    """The highest index that each query's segment reaches in `of`: int64 [B, Tq] (−1: nowhere)."""
    batch = max(q_at.batch, of.batch)
    q_segment, segment = q_at.segment.expand(batch, -1), of.segment.expand(batch, -1)
    names, places = torch.unique(torch.cat([q_segment, segment], dim=1), return_inverse=True)
    q_place, place = places.split([q_at.length, of.length], dim=1)
    last = torch.full((batch, len(names)), -1, device=of.device)
    return last.scatter_reduce(1, place, of.index.expand(batch, -1), "amax", include_self=False).gather(1, q_place)
