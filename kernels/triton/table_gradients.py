"""Gradients of the offsets, gathered in whole numbers: their sums are equal in any order, so that equal inputs give
equal bits without any program waiting for another."""

from __future__ import annotations

import triton
import triton.language as tl

from maskzoo.kernels.triton.tile import code_index, stored_index

FEW = tl.constexpr(16)
"""Different numbers of a stored index in a tile up to which each is summed by itself."""

LARGEST = tl.constexpr(2**31 - 1)


@triton.jit
def collect(
    into, copy, slope, visible, code, stored, heads, sequence, head, rank, first_row, first_key, Tq, Tk,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Take in the gradient of a tile's scores, float32 [BLOCK_M, BLOCK_N] with zeros in hidden pairs."""
    rows, keys = first_row + tl.arange(0, BLOCK_M), first_key + tl.arange(0, BLOCK_N)
    if into.code is not None:
        own = into.code + (copy * heads + head) * code.entries
        _collect_code(own, into.unit, slope, code, sequence, rows, keys, Tq, Tk, BLOCK_M, BLOCK_N)
    if into.stored is not None:
        own = into.stored + (copy * heads + head) * stored.entries
        _collect_stored(own, into.unit, slope, visible, stored, rank, rows, keys, SIZE)
    if into.dense is not None:
        _collect_dense(into, slope, sequence, head, rows, keys, Tq, Tk)


@triton.jit
def _whole(x, unit):
    return tl.floor(x * tl.load(unit) + 0.5).to(tl.int64)


@triton.jit
def _collect_code(
    own, unit, slope, code, sequence, rows, keys, Tq, Tk, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    line, place = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    by_row = tl.load(code.q + sequence * code.q_b + tl.minimum(rows, Tq - 1)).to(tl.int32) - line
    by_key = tl.load(code.k + sequence * code.k_b + tl.minimum(keys, Tk - 1)).to(tl.int32) - place
    row_first, row_last = tl.min(tl.where(rows < Tq, by_row, LARGEST)), tl.max(tl.where(rows < Tq, by_row, -LARGEST))
    key_first, key_last = tl.min(tl.where(keys < Tk, by_key, LARGEST)), tl.max(tl.where(keys < Tk, by_key, -LARGEST))
    if (row_first == row_last) & (key_first == key_last):
        _add_by_diagonal(own, unit, slope, row_first - key_first, code.entries, BLOCK_M, BLOCK_N)
    else:
        _add_by_pair(own, unit, slope, code_index(code, sequence, rows[:, None], keys[None, :], Tq, Tk))


@triton.jit
def _add_by_diagonal(own, unit, slope, first, entries, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Both codes rise by one: pair (i, j) has the index first + i − j, so that each diagonal has one."""
    line, place = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    # With line i turned by i places diagonals are columns, one for each time that a line went round.
    turned = line[:, None] + place[None, :]
    lying = tl.gather(slope, turned % BLOCK_N, 1)
    for turn in tl.static_range((BLOCK_M + BLOCK_N - 2) // BLOCK_N + 1):
        total = tl.sum(tl.where(turned // BLOCK_N == turn, lying, 0.0), 0)
        index = first - place + turn * BLOCK_N
        inside = (index >= 0) & (index < entries)
        tl.atomic_add(own + index, _whole(total, unit), mask=inside & (total != 0), sem="relaxed")


@triton.jit
def _add_by_pair(own, unit, slope, index):
    tl.atomic_add(own + index, _whole(slope, unit), mask=slope != 0, sem="relaxed")


@triton.jit
def _collect_stored(own, unit, slope, visible, stored, rank, rows, keys, SIZE: tl.constexpr):
    index = stored_index(stored, rank, rows[:, None], keys[None, :], SIZE)
    low, high = index, index
    if visible is not None:
        low, high = tl.where(visible, index, LARGEST), tl.where(visible, index, -1)
    first, last = tl.min(low), tl.max(high)
    if last - first < FEW:
        for number in range(first, last + 1):
            total = tl.sum(tl.where(index == number, slope, 0.0))
            tl.atomic_add(own + number, _whole(total, unit), sem="relaxed")
    else:
        _add_by_pair(own, unit, slope, index)


@triton.jit
def _collect_dense(into, slope, sequence, head, rows, keys, Tq, Tk):
    own = into.dense + sequence * into.dense_b + head * into.dense_h
    if into.dense_q is None and into.dense_k is None:
        tl.atomic_add(own, _whole(tl.sum(slope), into.unit), sem="relaxed")
    elif into.dense_q is None:
        at = own + keys.to(tl.int64) * into.dense_k
        tl.atomic_add(at, _whole(tl.sum(slope, 0), into.unit), mask=keys < Tk, sem="relaxed")
    elif into.dense_k is None:
        at = own + rows.to(tl.int64) * into.dense_q
        tl.atomic_add(at, _whole(tl.sum(slope, 1), into.unit), mask=rows < Tq, sem="relaxed")
    else:
        at = own + rows.to(tl.int64)[:, None] * into.dense_q + keys.to(tl.int64)[None, :] * into.dense_k
        inside = (rows < Tq)[:, None] & (keys < Tk)[None, :]
        if into.dense.dtype.element_ty == tl.float32:
            tl.store(at, slope, mask=inside)
        else:
            tl.atomic_add(at, _whole(slope, into.unit), mask=inside & (slope != 0), sem="relaxed")
