"""What the kernels take: tensors with their strides, as named tuples of pointers and numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from maskzoo.kernels.offsets import CodeTerm, StoredTerm
from maskzoo.kernels.triton.schedule import Side


class Heads(NamedTuple):
    """A tensor [B, H, T, D] and its strides."""

    at: Any
    b: Any
    h: Any
    t: Any
    d: Any


class Lines(NamedTuple):
    """The tiles of each line: the group that a sequence and head reads, and one side of a schedule."""

    group: Any
    group_b: Any
    group_h: Any
    partial_start: Any
    partial_tile: Any
    partial_pattern: Any
    partial_rank: Any
    full_start: Any
    full_first: Any
    full_count: Any
    full_rank: Any
    words: Any


class Code(NamedTuple):
    """A code term: codes int64 [B or 1, T], their strides, and the table, float32 [H, entries]."""

    q: Any
    k: Any
    q_b: Any
    k_b: Any
    table: Any
    entries: Any


class Stored(NamedTuple):
    """A stored term: tiles of indices, the one of each rank of a visible tile, and the table, float32 [H, entries]."""

    index: Any
    place: Any
    table: Any
    entries: Any


class Dense(NamedTuple):
    """A dense term, float, with strides that are 0 where it broadcasts to [B, H, Tq, Tk]."""

    at: Any
    b: Any
    h: Any
    q: Any
    k: Any


class Dropout(NamedTuple):
    """A seed int64 [1], the hash below which a weight is kept, and the share of weights that are."""

    seed: Any
    below: Any
    kept: Any


class Bad(NamedTuple):
    """What is not finite: positions uint8 [B, Tq] and [B, Tk], and int32 [1], whether there is any."""

    query: Any
    key: Any
    any: Any


class Collected(NamedTuple):
    """Where gradients go, in whole multiples of 1/unit; None for those that are not wanted.

    `code` and `stored` are int64 [copies, H, entries]; copies are added up afterwards and keep programs apart that
    would have to wait for one another. `dense` is int64, or float32 where each element belongs to one pair only; its
    strides are 0 where it broadcasts over sequences or heads, and None where it does over queries or keys.
    """

    unit: Any
    copies: Any
    code: Any
    stored: Any
    dense: Any
    dense_b: Any
    dense_h: Any
    dense_q: Any
    dense_k: Any


def heads(x: Tensor | None) -> Heads:
    """x: [B, H, T, D], any strides; None where it is not wanted."""
    return Heads(None, 0, 0, 0, 0) if x is None else Heads(x, *x.stride())


def lines(group: Tensor, side: Side) -> Lines:
    """One side of a schedule, in the order in which `Side` has its arrays."""
    strides = [0 if length == 1 else stride for length, stride in zip(group.shape, group.stride(), strict=True)]
    return Lines(group, *strides, *side.arrays)


def code(term: CodeTerm | None) -> Code:
    """Its table as float32; all None where there is no term."""
    if term is None:
        return Code(None, None, 0, 0, None, 0)
    q_code, k_code, table = term.q_code.contiguous(), term.k_code.contiguous(), term.table.float().contiguous()
    q_b, k_b = (0 if len(codes) == 1 else codes.stride(0) for codes in (q_code, k_code))
    return Code(q_code, k_code, q_b, k_b, table, table.shape[1])


def stored(term: StoredTerm | None, place: Tensor | None) -> Stored:
    """Its table as float32, with places in the order of one side's ranks; all None where there is no term."""
    if term is None:
        return Stored(None, None, None, 0)
    table = term.table.float().contiguous()
    return Stored(term.index.contiguous(), place, table, table.shape[1])


def dense(term: Tensor | None, shape: tuple[int, ...]) -> Dense:
    """A tensor that broadcasts to shape [B, H, Tq, Tk]; all None where there is none."""
    return Dense(None, 0, 0, 0, 0) if term is None else Dense(term, *term.expand(shape).stride())
