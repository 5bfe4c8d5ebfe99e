"""The forward pass: an online softmax (Milakov & Gimelshein 2018) over chunks of keys, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E
from maskzoo.kernels.softcap import cap
from maskzoo.kernels.tiled.dropout import Dropout
from maskzoo.kernels.tiled.masks import Masks
from maskzoo.kernels.tiled.offsets import OffsetBlocks
from maskzoo.kernels.tiled.operands import keys_of, put_rows, rows_of
from maskzoo.kernels.tiled.products import product
from maskzoo.kernels.tiled.schedule import Block, Chunk


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: list[Block],
    masks: Masks,
    offsets: OffsetBlocks | None,
    dropout: Dropout | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ·scale + offsets)·v, with the products capped first where softcap says so.

    Args:
        q: [S, rows, D].
        k, v: [Skv, Tk, D] and [Skv, Tk, Dv].
        masks: of scores that lie rows × keys.

    Returns:
        out [S, rows, Dv], and the binary logarithm of each row's sum of powers, [S, rows], −inf where a row sees
        nothing.
    """
    out = q.new_zeros(*q.shape[:2], v.shape[2])
    logsum = q.new_full(q.shape[:2], -torch.inf)
    for block in blocks if offsets is None else offsets.ordered(blocks):
        x = rows_of(q, block) * (scale * LOG2_E)
        row_numbers = None if dropout is None else rows_of(dropout.rows, block)
        peak = total = mixed = None
        for chunk in block.chunks:
            scores = product(x, keys_of(k, block, chunk).mT)
            if softcap is not None:
                cap(scores, softcap)
            if offsets is not None:
                offsets.add(scores, block, chunk)
            weights, peak, shrink = _powers(scores, chunk, masks, peak)
            own_total = weights.sum(-1, keepdim=True)
            if dropout is not None and row_numbers is not None:
                dropout.zero(weights, row_numbers[..., None], keys_of(dropout.keys, block, chunk)[:, None])
            own = product(weights, keys_of(v, block, chunk))
            if shrink is None or total is None or mixed is None:
                total, mixed = own_total, own
            else:
                total = total.mul_(shrink).add_(own_total)
                mixed = mixed.mul_(shrink).add_(own)
        assert peak is not None and total is not None and mixed is not None
        # The largest score of a row adds 1 to its sum: less than that only where a row sees nothing.
        kept = 1 if dropout is None else dropout.kept
        put_rows(out, block, mixed.div_(total.clamp(min=1).mul_(kept)))
        put_rows(logsum, block, peak.add_(total.log2_()).squeeze(-1))
    return out, logsum


def _powers(scores: Tensor, chunk: Chunk, masks: Masks, before: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """2^(scores − peak) in place of the scores, the peak of each row so far, and by how much that shrinks what was."""
    masks.hide(scores, chunk.codes)
    peak = scores.amax(-1, keepdim=True)
    if before is None:
        peak.clamp_(min=torch.finfo(scores.dtype).min)
        return scores.sub_(peak).exp2_(), peak, None
    peak = torch.maximum(before, peak)
    return scores.sub_(peak).exp2_(), peak, before.sub_(peak).exp2_()
