"""`tiled` as an operator of torch's: one call for eager mode, autograd and the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskzoo.kernels.gradients import at_places, or_nothing, without_data
from maskzoo.kernels.nonfinite import all_finite, bad_positions, finite
from maskzoo.kernels.offsets import Arrays, Offsets, arrays, from_arrays
from maskzoo.kernels.tiled.backward import backward
from maskzoo.kernels.tiled.dropout import Dropout
from maskzoo.kernels.tiled.forward import forward
from maskzoo.kernels.tiled.layout import folded, inner, layout, unfolded
from maskzoo.kernels.tiled.lying import Lying
from maskzoo.kernels.tiled.masks import Masks
from maskzoo.kernels.tiled.nonfinite import spoiled
from maskzoo.kernels.tiled.offsets import OffsetBlocks
from maskzoo.kernels.tiles import Runs, Tiles


def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tiles,
    *,
    scale: float,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    offsets: Offsets | None = None,
) -> tuple[Tensor, Tensor]:
    """Same meaning as `reference`; time and memory follow the tiles that hold a visible pair.

    Nothing of the size of the scores is kept between forward and backward, and nothing of Tq × Tk is ever made.
    Softmax and sums are float32, float64 for float64. Equal inputs give equal bits. A visible score
    beyond the range of that type makes its row NaN, as it does in torch's own attention; in `reference` it does not.

    Args:
        q: [B, H, Tq, D].
        k, v: [B, Hkv, Tk, D] and [B, Hkv, Tk, Dv]; Hkv divides H.
        tiles: of Tq queries and Tk keys, never changed in place afterwards.
        scale: factor of the dot products.
        softcap: c, for c · tanh(q·k·scale / c) in place of q·k·scale.
        dropout_p: probability of dropping a weight; which ones follows from torch's default generator.
        offsets: what is added to the scores of visible pairs, with the index of a stored term by tiles; in float32,
            float64 for float64. Its tables and dense tensor get gradients.

    Returns:
        out [B, H, Tq, Dv] in q's dtype, and the binary logarithm of each row's sum, float32 or float64 [B, H, Tq]: −inf
        where a row sees nothing. Both can be differentiated once.
    """
    seed = torch.randint(2**62, (), device="cpu") if dropout_p > 0 else None
    arguments = (q, k, v, tiles.group, *tiles.rows, tiles.patterns, *arrays(offsets))
    return torch.ops.maskzoo.tiled(*arguments, scale, softcap, dropout_p, seed)


DIFFERENTIABLE = (0, 1, 2, 11, 14, 15)
"""Which arguments may get a gradient: q, k, v, both tables and the dense tensor."""


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
    q_code: Tensor | None,
    k_code: Tensor | None,
    code_table: Tensor | None,
    index: Tensor | None,
    place: Tensor | None,
    index_table: Tensor | None,
    dense: Tensor | None,
    scale: float,
    softcap: float | None,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """out, and the binary logarithm of each row's sum: [B, H, Tq], −inf for an empty row, NaN for one that sees NaN."""
    with torch.autocast(q.device.type, enabled=False):
        runs = Runs(start, first, count, pattern)
        fold, blocks = layout(q, k, v, group, runs, patterns.shape[1])
        clean = all_finite(q, k, v)
        rows, keys, values = _operands(q, k, v, fold, clean)
        dropout = _dropout(q, k, dropout_p, seed, fold)
        masks = Masks(patterns, fold, rows.dtype, transposed=False)
        given = q_code, k_code, code_table, index, place, index_table, dense
        added = _added(given, q, k, fold, group, runs, masks)
        out, logsum = forward(rows, keys, values, blocks, masks, added, dropout, scale, softcap)
        if not clean:
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
    grad_sums: Tensor | None,
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
    q_code: Tensor | None,
    k_code: Tensor | None,
    code_table: Tensor | None,
    index: Tensor | None,
    place: Tensor | None,
    index_table: Tensor | None,
    dense: Tensor | None,
    scale: float,
    softcap: float | None,
    dropout_p: float,
    seed: Tensor | None,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, both tables and the dense tensor; empty tensors for those that are not needed."""
    with torch.autocast(q.device.type, enabled=False):
        runs = Runs(start, first, count, pattern)
        fold, blocks = layout(q, k, v, group, runs, patterns.shape[1])
        rows, keys, values = _operands(q, k, v, fold, all_finite(q, k, v))
        slope, mixed, sums = (folded(x, fold) for x in (grad.to(rows.dtype), out, logsum))
        slope_of_sums = None if grad_sums is None else folded(grad_sums, fold)
        silent = ~sums.isfinite()
        if bool(silent.any()):
            # Rows without a visible key, and rows whose result is NaN, neither get nor give a gradient.
            rows, slope, mixed = (x.masked_fill(silent[..., None], 0) for x in (rows, slope, mixed))
            sums = sums.masked_fill(silent, torch.inf)
            slope_of_sums = None if slope_of_sums is None else slope_of_sums.masked_fill(silent, 0)
        dropout = _dropout(q, k, dropout_p, seed, fold)
        masks = Masks(patterns, fold, rows.dtype, transposed=True)
        given = q_code, k_code, code_table, index, place, index_table, dense
        added = _added(given, q, k, fold, group, runs, masks, (needed[3], needed[4], needed[5]))
        wanted = needed[0], needed[1], needed[2]
        given_rows = slope, slope_of_sums, rows, keys, values, mixed, sums
        dq, dk, dv = backward(*given_rows, blocks, masks, added, dropout, scale, softcap, wanted)
        by_term = (None, None, None) if added is None else added.gradients()
        tables = or_nothing(by_term, (code_table, index_table, dense), q)
        return (
            q.new_empty(0) if dq is None else unfolded(dq, fold, q.shape).to(q.dtype),
            k.new_empty(0) if dk is None else dk.view(k.shape).to(k.dtype),
            v.new_empty(0) if dv is None else dv.view(v.shape).to(v.dtype),
            tables[0],
            tables[1],
            tables[2],
        )


@_tiled_backward.register_fake
def _(grad: Tensor, grad_sums: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    # Out and the sums stand between the first three and the others.
    sources = [rest[place if place < 3 else place + 2] for place in DIFFERENTIABLE]
    return without_data(sources, rest[-1], grad)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.softcap, ctx.dropout_p, seed = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:], seed)


def _gradients(ctx: Any, grad: Tensor | None, grad_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "the tiled kernel's gradient cannot be differentiated again (create_graph=True); "
            "attend with backend='reference' where second derivatives are needed"
        )
    needed = [ctx.needs_input_grad[place] for place in DIFFERENTIABLE]
    *tensors, seed = ctx.saved_tensors
    grad = torch.zeros_like(tensors[3]) if grad is None else grad
    options = ctx.scale, ctx.softcap, ctx.dropout_p, seed
    found = torch.ops.maskzoo.tiled_backward(grad, grad_sums, *tensors, *options, needed)
    return tuple(at_places(found, needed, DIFFERENTIABLE, len(ctx.needs_input_grad)))


_tiled.register_autograd(_gradients, setup_context=_setup)


def _operands(q: Tensor, k: Tensor, v: Tensor, fold: int, clean: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Stacks for the passes: [S, rows, D], [Skv, Tk, D], [Skv, Tk, Dv]; finite, keys and values dense."""
    if not clean:
        q, k, v = finite(q), finite(k), finite(v)
    q, k, v = (x.to(inner(x.dtype)) for x in (q, k, v))
    return folded(q, fold), k.flatten(0, 1).contiguous(), v.flatten(0, 1).contiguous()


def _dropout(q: Tensor, k: Tensor, probability: float, seed: Tensor | None, fold: int) -> Dropout | None:
    if seed is None:
        return None
    made = Dropout(probability, int(seed), q.shape[:3], k.shape[:3], q.device)
    made.rows, made.keys = folded(made.rows, fold), made.keys.flatten(0, 1)
    return made


def _added(
    given: Arrays,
    q: Tensor,
    k: Tensor,
    fold: int,
    group: Tensor,
    runs: Runs,
    masks: Masks,
    wanted: tuple[bool, bool, bool] = (False, False, False),
) -> OffsetBlocks | None:
    offsets = from_arrays(given)
    if offsets is None:
        return None
    lying = Lying(q.shape[1] // fold, fold, masks.transposed)
    return OffsetBlocks(offsets, lying, group, runs, masks.size, k.shape[2], inner(q.dtype), wanted)


def _bad(q: Tensor, k: Tensor, v: Tensor, fold: int) -> tuple[Tensor, Tensor]:
    """Rows [S, rows] and keys [Skv, Tk] of positions that hold NaN or inf in any head."""
    query, key = bad_positions(q), bad_positions(k) | bad_positions(v)
    return folded(query.expand(q.shape[:3]), fold), key.expand(k.shape[:3]).flatten(0, 1)
