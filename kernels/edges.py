"""Attention over a list of pairs: time and memory follow the number of pairs, forward and backward.

The scores of a part of the rows are one sampled product q·kᵀ over its pairs; a softmax over each row's segment turns
them into weights, and sums of rows of v by these weights are the result. The backward computes the weights of each
part again, and turns the part round, by one radix sort, for the gradients of keys and values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskzoo.kernels.gradients import at_places, or_nothing, without_data
from maskzoo.kernels.lookups import add, lookups
from maskzoo.kernels.nonfinite import all_finite, bad_positions, finite
from maskzoo.kernels.offsets import LOG2_E, Offsets, arrays, from_arrays
from maskzoo.kernels.pairs import Pairs
from maskzoo.kernels.segments import Part, parts, products, sums
from maskzoo.kernels.softcap import cap, through_cap


def edges(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pairs: Pairs,
    *,
    scale: float,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    offsets: Offsets | None = None,
) -> tuple[Tensor, Tensor]:
    """Same meaning as `reference`, without the weights; nothing is kept of the pairs between forward and backward.

    Args:
        q: [B, H, Tq, D].
        k, v: [B, Hkv, Tk, D] and [B, Hkv, Tk, Dv]; Hkv divides H.
        pairs: the visible pairs. A row without one gives zeros.
        scale: factor of the dot products.
        softcap: c, for c · tanh(q·k·scale / c) in place of q·k·scale.
        dropout_p: probability of dropping a weight; drawn from a seed that torch's default generator gives.
        offsets: what is added to the scores, with the index of a stored term by pairs; in float32, float64 for
            float64. Its tables and dense tensor get gradients.

    Returns:
        out [B, H, Tq, Dv] in q's dtype, and the binary logarithm of each row's sum, float32 or float64 [B, H, Tq]: −inf
        where a row sees nothing. Computed in float32, or float64 for float64. A visible score beyond the range of that
        type makes its row NaN, as it does in torch's own attention.

    Raises:
        RuntimeError: on a second derivative.
    """
    seed = torch.randint(2**62, ()) if dropout_p else torch.zeros((), dtype=torch.int64)
    terms = arrays(offsets)
    return _forward(q, k, v, pairs.group, pairs.start, pairs.key, *terms, seed, scale, softcap, dropout_p)


DIFFERENTIABLE = (0, 1, 2, 8, 11, 12)
"""Which arguments may get a gradient: q, k, v, both tables and the dense tensor."""


@torch.library.custom_op("maskzoo::edges", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Tensor,
    start: Tensor,
    key: Tensor,
    q_code: Tensor | None,
    k_code: Tensor | None,
    code_table: Tensor | None,
    index: Tensor | None,
    place: Tensor | None,
    index_table: Tensor | None,
    dense: Tensor | None,
    seed: Tensor,
    scale: float,
    softcap: float | None,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Out [B, H, Tq, Dv], and the binary logarithm of each row's sum [B, H, Tq].

    That is −inf where a row sees nothing, and NaN where it sees what is not finite.
    """
    batch, heads, queries, _ = q.shape
    dirty = not all_finite(q, k, v)
    clean_q, clean_k, clean_v = (finite(x) if dirty else x for x in (q, k, v))
    out = q.new_empty(batch * heads, queries, v.shape[3])
    levels = torch.empty(batch * heads, queries, dtype=_inner(q), device=q.device)
    terms = lookups(from_arrays((q_code, k_code, code_table, index, place, index_table, dense)), heads)
    generator = _generator(seed, q.device)
    for part in parts(Pairs(queries, k.shape[2], group, start, key), batch, heads):
        # Powers of two, of which the logarithm's base becomes a part of the scale.
        weights = products(_query_rows(clean_q, part), _key_rows(clean_k, part, heads), part, scale=scale * LOG2_E)
        if softcap is not None:
            cap(weights, softcap)
        for term in terms:
            if term is not None:
                add(term, weights, part)
        bounds = part.start.long()
        peak = torch.segment_reduce(weights, "max", offsets=bounds, unsafe=True)
        # −inf stands where a row sees nothing, or is offset by −inf wherever it does.
        peak.clamp_(min=torch.finfo(peak.dtype).min)
        weights.sub_(peak.index_select(0, part.row)).exp2_()
        total = torch.segment_reduce(weights, "sum", offsets=bounds, unsafe=True)
        level = peak + total.log2()
        if dropout_p:
            weights.mul_(_kept(weights, dropout_p, generator))
        mixed = sums(weights, _key_rows(clean_v, part, heads), part.key, part.start)
        mixed.div_(torch.where(total > 0, total, 1.0)[:, None])
        if dirty:
            spoiled = _spoiled(q, k, v, part)
            level, mixed = level.masked_fill_(spoiled, torch.nan), mixed.masked_fill_(spoiled[:, None], torch.nan)
        _put(out, part, mixed)
        _put(levels, part, level)
    return out.unflatten(0, (batch, heads)), levels.unflatten(0, (batch, heads))


@torch.library.custom_op("maskzoo::edges_backward", mutates_args=())
def _backward(
    grad: Tensor,
    grad_levels: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    levels: Tensor,
    group: Tensor,
    start: Tensor,
    key: Tensor,
    q_code: Tensor | None,
    k_code: Tensor | None,
    code_table: Tensor | None,
    index: Tensor | None,
    place: Tensor | None,
    index_table: Tensor | None,
    dense: Tensor | None,
    seed: Tensor,
    scale: float,
    softcap: float | None,
    dropout_p: float,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, both tables and the dense tensor; an empty tensor where one is not wanted."""
    (batch, heads, queries, _), (want_q, want_k, want_v, *want_terms) = q.shape, wanted
    dirty = not all_finite(q, k, v)
    inputs = [finite(x) if dirty else x for x in (q, k, v)]
    silent = ~levels.isfinite()
    if dirty:
        grad, out = (x.masked_fill(silent[..., None], 0) for x in (grad, out))
    # Rows that see nothing, or what is not finite, have weights of zero.
    levels = levels.masked_fill(silent, torch.inf)
    grad_levels = None if grad_levels is None else grad_levels.masked_fill(silent, 0)
    dq = _gradient(q, want_q, q.dtype).flatten(0, 1)
    dk, dv = (_gradient(x, want, _inner(x)).zero_() for x, want in ((k, want_k), (v, want_v)))
    terms = lookups(from_arrays((q_code, k_code, code_table, index, place, index_table, dense)), heads)
    # One entry of a table may sum the slopes of very many pairs.
    sums_in = torch.float64, torch.float64, _inner(q)
    totals = [
        None if term is None or not want else torch.zeros(term.values.shape, dtype=dtype, device=q.device)
        for term, want, dtype in zip(terms, want_terms, sums_in, strict=True)
    ]
    generator = _generator(seed, q.device)
    for part in parts(Pairs(queries, k.shape[2], group, start, key), batch, heads):
        q_rows, grads = _query_rows(inputs[0], part), _query_rows(grad, part)
        k_rows, v_rows = (_key_rows(x, part, heads) for x in inputs[1:])
        level = _query_rows(levels[..., None], part)[:, 0].neg().index_select(0, part.row)
        weights, capped = products(q_rows, k_rows, part, level if softcap is None else None, scale * LOG2_E), None
        if softcap is not None:
            capped = cap(weights, softcap).clone()
            weights.add_(level)
        for term in terms:
            if term is not None:
                add(term, weights, part)
        weights.exp2_()
        kept = _kept(weights, dropout_p, generator) if dropout_p else None
        if want_v:
            order, row, bounds = part.by_key
            used = weights if kept is None else weights * kept
            _add(dv, part, sums(used.index_select(0, order), grads, row, bounds), heads)
        if want_q or want_k or any(want_terms):
            felt = products(grads, v_rows, part)
            if kept is not None:
                felt.mul_(kept)
            mean = (grads * _query_rows(out, part)).sum(-1)
            if grad_levels is not None:
                mean.sub_(_query_rows(grad_levels[..., None], part)[:, 0], alpha=LOG2_E)
            felt.sub_(mean.index_select(0, part.row)).mul_(weights)
            for term, total in zip(terms, totals, strict=True):
                if term is not None and total is not None:
                    total.view(-1).index_add_(0, term.places(part), felt.to(total.dtype))
            if softcap is not None and capped is not None:
                through_cap(felt, capped, softcap)
            felt.mul_(scale)
        if want_q:
            _put(dq, part, sums(felt, k_rows, part.key, part.start))
        if want_k:
            order, row, bounds = part.by_key
            _add(dk, part, sums(felt.index_select(0, order), q_rows, row, bounds), heads)
    gradients = [dq.unflatten(0, (batch, heads)) if want_q else dq, dk.to(k.dtype), dv.to(v.dtype)]
    if dirty:
        for x, gradient, want in zip((q, k, v), gradients, wanted[:3], strict=True):
            if want:
                gradient.masked_fill_(~x.isfinite(), 0)
    by_term = or_nothing(totals, (code_table, index_table, dense), q)
    return gradients[0], gradients[1], gradients[2], by_term[0], by_term[1], by_term[2]


def _inner(x: Tensor) -> torch.dtype:
    """The dtype of the arithmetic."""
    return torch.promote_types(x.dtype, torch.float32)


def _query_rows(x: Tensor, part: Part) -> Tensor:
    """The part's rows of x [B, H, Tq, D]: [U·n, D], a view where that can be."""
    rows = _chosen(x, part.units)[:, part.block.begin : part.block.end]
    return rows.to(_inner(x)).flatten(0, 1).contiguous()


def _key_rows(x: Tensor, part: Part, heads: int) -> Tensor:
    """The rows of x [B, Hkv, Tk, D] that the part's heads share: [U·Tk, D], a view where that can be."""
    return _chosen(x, _shared(part, heads // x.shape[1])).to(_inner(x)).flatten(0, 1).contiguous()


def _chosen(x: Tensor, units: list[int]) -> Tensor:
    flat = x.flatten(0, 1)
    in_a_row = units == list(range(units[0], units[0] + len(units)))
    return flat[units[0] : units[0] + len(units)] if in_a_row else flat[units]


def _shared(part: Part, sharing: int) -> list[int]:
    """Numbers b·Hkv + h / (H / Hkv) of the heads of keys and values that the units read."""
    return [unit // sharing for unit in part.units]


def _put(total: Tensor, part: Part, rows: Tensor) -> None:
    """Write a part's rows [U·n, …] into [B·H, Tq, …]."""
    for unit, own in zip(part.units, rows.unflatten(0, (len(part.units), -1)), strict=True):
        total[unit, part.block.begin : part.block.end] = own


def _add(total: Tensor, part: Part, rows: Tensor, heads: int) -> None:
    """Add a part's rows of keys [U·Tk, D] to [B, Hkv, Tk, D], one head after the other."""
    flat = total.flatten(0, 1)
    shared = _shared(part, heads // total.shape[1])
    for unit, own in zip(shared, rows.unflatten(0, (len(shared), -1)), strict=True):
        flat[unit] += own


def _gradient(x: Tensor, wanted: bool, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape if wanted else (0,) * x.dim(), dtype=dtype, device=x.device)


def _generator(seed: Tensor, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(int(seed))


def _kept(weights: Tensor, dropout_p: float, generator: torch.Generator) -> Tensor:
    """What dropout multiplies each weight by: 0 or 1 / (1 − p)."""
    return torch.empty_like(weights).uniform_(generator=generator).ge_(dropout_p).mul_(1 / (1 - dropout_p))


def _spoiled(q: Tensor, k: Tensor, v: Tensor, part: Part) -> Tensor:
    """Rows that see, in any head, a position that is not finite: bool [U·n]."""
    bad_query, bad_key = bad_positions(q)[:, 0], (bad_positions(k) | bad_positions(v))[:, 0]
    sequences = [unit // q.shape[1] for unit in part.units]
    by_query, by_key = bad_query[sequences, part.block.begin : part.block.end].flatten(), bad_key[sequences].flatten()
    rows = torch.zeros_like(by_query)
    rows[part.row[by_query[part.row] | by_key[part.key]]] = True
    return rows


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=_inner(q))


@_backward.register_fake
def _(grad: Tensor, grad_levels: Tensor | None, *others: Any) -> tuple[Tensor, ...]:
    # Out and the levels stand between the first three and the others.
    sources = [others[place if place < 3 else place + 2] for place in DIFFERENTIABLE]
    return without_data(sources, others[-1], grad)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.softcap, ctx.dropout_p = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])


def _differentiate(ctx: Any, grad: Tensor | None, grad_levels: Tensor | None) -> tuple[Tensor | None, ...]:
    wanted = [ctx.needs_input_grad[place] for place in DIFFERENTIABLE]
    grad = torch.zeros_like(ctx.saved_tensors[3]) if grad is None else grad
    found = _backward(grad, grad_levels, *ctx.saved_tensors, ctx.scale, ctx.softcap, ctx.dropout_p, wanted)
    return tuple(at_places(found, wanted, DIFFERENTIABLE, len(ctx.needs_input_grad)))


def _no_second(ctx: Any, *_: Tensor) -> None:
    raise RuntimeError("the kernel 'edges' has no second derivative; take backend='reference', which has")


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)
