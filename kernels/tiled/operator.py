"""`tiled` as an operator of torch's: one call for eager mode, autograd and the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskzoo.kernels.tiled.backward import backward
from maskzoo.kernels.tiled.dropout import Dropout
from maskzoo.kernels.tiled.forward import forward
from maskzoo.kernels.tiled.layout import folded, inner, layout, unfolded
from maskzoo.kernels.tiled.masks import Masks
from maskzoo.kernels.tiled.nonfinite import spoiled
from maskzoo.kernels.tiles import Runs, Tiles


def tiled(q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, *, scale: float, dropout_p: float = 0.0) -> Tensor:
    """Same meaning as `reference`; time and memory follow the tiles that hold a visible pair.

    Nothing of the size of the scores is kept between forward and backward, and nothing of Tq × Tk is ever made.
    Softmax and sums are float32, float64 for float64. Equal inputs give equal bits.

    Args:
        q: [B, H, Tq, D].
        k, v: [B, Hkv, Tk, D] and [B, Hkv, Tk, Dv]; Hkv divides H.
        tiles: of Tq queries and Tk keys, never changed in place afterwards.
        scale: factor of the dot products.
        dropout_p: probability of dropping a weight; which ones follows from torch's default generator.

    Returns:
        out [B, H, Tq, Dv] in q's dtype. It can be differentiated once.
    """
    seed = torch.randint(2**62, (), device="cpu") if dropout_p > 0 else None
    return torch.ops.maskzoo.tiled(q, k, v, tiles.group, *tiles.rows, tiles.patterns, scale, dropout_p, seed)[0]


@torch.library.custom_op("maskzoo::tiled", mutates_args=())
def _tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Tensor,
    start: Tensor,
    first: Tensor,
    count: Tensor,
    pattern: Tensor,
    patterns: Tensor,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """out, and the binary logarithm of each row's sum: [B, H, Tq], −inf for an empty row, NaN for one that sees NaN."""
    with torch.autocast(q.device.type, enabled=False):
        fold, blocks = layout(q, k, v, group, Runs(start, first, count, pattern), patterns.shape[1])
        finite = _all_finite(q, k, v)
        rows, keys, values = _operands(q, k, v, fold, finite)
        dropout = _dropout(q, k, dropout_p, seed, fold)
        masks = Masks(patterns, fold, rows.dtype, transposed=False)
        out, logsum = forward(rows, keys, values, blocks, masks, dropout, scale)
        if not finite:
            seen = spoiled(*_bad(q, k, v, fold), blocks, masks)
            out.masked_fill_(seen[..., None], torch.nan)
            logsum.masked_fill_(seen, torch.nan)
        return unfolded(out, fold, q.shape).to(q.dtype), unfolded(logsum, fold, q.shape)


@_tiled.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=inner(q.dtype))


@torch.library.custom_op("maskzoo::tiled_backward", mutates_args=())
def _tiled_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsum: Tensor,
    group: Tensor,
    start: Tensor,
    first: Tensor,
    count: Tensor,
    pattern: Tensor,
    patterns: Tensor,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; empty tensors for those that are not needed."""
    with torch.autocast(q.device.type, enabled=False):
        fold, blocks = layout(q, k, v, group, Runs(start, first, count, pattern), patterns.shape[1])
        rows, keys, values = _operands(q, k, v, fold, _all_finite(q, k, v))
        slope, mixed, sums = (folded(x, fold) for x in (grad.to(rows.dtype), out, logsum))
        silent = ~sums.isfinite()
        if bool(silent.any()):
            # Rows without a visible key, and rows whose result is NaN, neither get nor give a gradient.
            rows, slope, mixed = (x.masked_fill(silent[..., None], 0) for x in (rows, slope, mixed))
            sums = sums.masked_fill(silent, torch.inf)
        dropout = _dropout(q, k, dropout_p, seed, fold)
        masks = Masks(patterns, fold, rows.dtype, transposed=True)
        wanted = needed[0], needed[1], needed[2]
        dq, dk, dv = backward(slope, rows, keys, values, mixed, sums, blocks, masks, dropout, scale, wanted)
        return (
            q.new_empty(0) if dq is None else unfolded(dq, fold, q.shape).to(q.dtype),
            k.new_empty(0) if dk is None else dk.view(k.shape).to(k.dtype),
            v.new_empty(0) if dv is None else dv.view(v.shape).to(v.dtype),
        )


@_tiled_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(
        x.new_empty(x.shape) if wanted else x.new_empty(0) for x, wanted in zip((q, k, v), rest[-1], strict=True)
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.dropout_p, seed = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:], seed)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "the tiled kernel's gradient cannot be differentiated again (create_graph=True); "
            "attend with backend='reference' where second derivatives are needed"
        )
    needed = ctx.needs_input_grad[:3]
    *tensors, seed = ctx.saved_tensors
    gradients = torch.ops.maskzoo.tiled_backward(grad, *tensors, ctx.scale, ctx.dropout_p, seed, needed)
    return *(x if wanted else None for x, wanted in zip(gradients, needed, strict=True)), *[None] * 9


_tiled.register_autograd(_gradients, setup_context=_setup)


def _operands(q: Tensor, k: Tensor, v: Tensor, fold: int, finite: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Stacks for the passes: [S, rows, D], [Skv, Tk, D], [Skv, Tk, Dv]; finite, keys and values dense."""
    if not finite:
        q, k, v = (torch.where(x.isfinite(), x, 0) for x in (q, k, v))
    q, k, v = (x.to(inner(x.dtype)) for x in (q, k, v))
    return folded(q, fold), k.flatten(0, 1).contiguous(), v.flatten(0, 1).contiguous()


def _dropout(q: Tensor, k: Tensor, probability: float, seed: Tensor | None, fold: int) -> Dropout | None:
    if seed is None:
        return None
    made = Dropout(probability, int(seed), q.shape[:3], k.shape[:3], q.device)
    made.rows, made.keys = folded(made.rows, fold), made.keys.flatten(0, 1)
    return made


def _all_finite(*inputs: Tensor) -> bool:
    """One cheap reduction each; a sum that overflows only sends finite inputs the longer way round."""
    sums = [x.sum(dtype=inner(x.dtype)) for x in inputs]
    return bool(torch.stack(sums).isfinite().all())


def _bad(q: Tensor, k: Tensor, v: Tensor, fold: int) -> tuple[Tensor, Tensor]:
    """Rows [S, rows] and keys [Skv, Tk] of positions that hold NaN or inf in any head."""
    query, key = _not_finite(q), _not_finite(k) | _not_finite(v)
    return folded(query.expand(q.shape[:3]), fold), key.expand(k.shape[:3]).flatten(0, 1)


def _not_finite(x: Tensor) -> Tensor:
    return (~x.isfinite()).any(-1).any(1, keepdim=True)
