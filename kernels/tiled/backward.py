"""The backward pass: weights are computed again, chunk by chunk, from the sums that the forward pass left."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.offsets import LOG2_E
from maskzoo.kernels.softcap import cap, through_cap
from maskzoo.kernels.tiled.dropout import Dropout
from maskzoo.kernels.tiled.masks import Masks
from maskzoo.kernels.tiled.offsets import OffsetBlocks
from maskzoo.kernels.tiled.operands import add_keys, keys_of, put_rows, rows_of
from maskzoo.kernels.tiled.products import product
from maskzoo.kernels.tiled.schedule import Block


def backward(
    grad: Tensor,
    grad_sums: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsum: Tensor,
    blocks: list[Block],
    masks: Masks,
    offsets: OffsetBlocks | None,
    dropout: Dropout | None,
    scale: float,
    softcap: float | None,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of q, k and v; those of the offsets are gathered in `offsets`.

    Args:
        grad, grad_sums: gradients of `out` and of `logsum`; None for zeros.
        q, k, v, scale, softcap: as in `forward`.
        out, logsum: from `forward`; where logsum is +inf, a row gets and gives no gradient.
        masks: of scores that lie keys × rows.
        needed: which gradients are wanted, of q, k and v.
    """
    collects = offsets is not None and offsets.collects
    dq, dk, dv = (torch.zeros_like(x) if wanted else None for x, wanted in zip((q, k, v), needed, strict=True))
    for block in blocks if offsets is None else offsets.ordered(blocks):
        x, g = rows_of(q, block) * (scale * LOG2_E), rows_of(grad, block).contiguous()
        own_logsum = rows_of(logsum, block)[:, None]
        own_delta = (g * rows_of(out, block)).sum(-1)[:, None]
        if grad_sums is not None:
            own_delta = own_delta.sub_(rows_of(grad_sums, block)[:, None], alpha=LOG2_E)
        if dropout is not None:
            g = g / dropout.kept
            row_numbers = rows_of(dropout.rows, block)[:, None]
        natural = x / LOG2_E  # times the scale of powers of e
        own_dq = None
        for chunk in block.chunks:
            keys = keys_of(k, block, chunk)
            # Scores lie keys × rows: the gradients of keys and values then are plain products.
            weights, capped = product(keys, x.mT), None
            if softcap is not None:
                capped = cap(weights, softcap).clone()
            if offsets is not None:
                offsets.add(weights, block, chunk)
            weights.sub_(own_logsum).exp2_()
            masks.zero(weights, chunk.codes)
            kept = weights
            if dropout is not None:
                key_numbers = keys_of(dropout.keys, block, chunk)[..., None]
                kept = weights.clone()
                dropout.zero(kept, row_numbers, key_numbers)
            if dv is not None:
                add_keys(dv, block, chunk, product(kept, g))
            if dq is None and dk is None and not collects:
                continue
            slope = product(keys_of(v, block, chunk), g.mT)
            if dropout is not None:
                dropout.zero(slope, row_numbers, key_numbers)
            slope.sub_(own_delta).mul_(weights)
            # Again: in a hidden pair the product may have been inf or NaN.
            masks.zero(slope, chunk.codes)
            if offsets is not None and collects:
                offsets.collect(slope, block, chunk)
            if softcap is not None and capped is not None:
                through_cap(slope, capped, softcap)
            if dk is not None:
                add_keys(dk, block, chunk, product(slope, natural))
            if dq is not None:
                own = product(keys.mT, slope)
                own_dq = own if own_dq is None else own_dq.add_(own)
        if dq is not None and own_dq is not None:
            put_rows(dq, block, own_dq.mul_(scale).mT)
    return dq, dk, dv
