"""Pairs in compressed rows, some at a time: products of rows and weighted sums of rows, at a cost per pair."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from maskzoo.kernels.pairs import Pairs

PAIRS_AT_ONCE = 2**17
"""Pairs times heads that are worked on at once; a single query may see more."""


@dataclass(frozen=True)
class Block:
    """Some rows of one group of pairs: queries begin … end − 1, n of them.

    Attributes:
        keys: Tk.
        begin, end: range of queries.
        first: which of all pairs is its first.
        start: int32 [n + 1]: the row's pairs.
        key, row: int32 [E]: key and row (query − begin) of each pair.
    """

    keys: int
    begin: int
    end: int
    first: int
    start: Tensor
    key: Tensor
    row: Tensor

    @cached_property
    def by_key(self) -> tuple[Tensor, Tensor, Tensor]:
        """The block turned round: order int32 [E] and row int32 [E] of pairs by key, start int32 [Tk + 1]."""
        key, order = torch.sort(self.key, stable=True)
        bounds = torch.arange(self.keys + 1, dtype=torch.int32, device=key.device)
        return order.int(), self.row.index_select(0, order), torch.searchsorted(key, bounds, out_int32=True)


@dataclass(frozen=True)
class Part:
    """A block for U units (heads of sequences), as one layout of U·n rows over U·Tk keys with U·E pairs.

    Attributes:
        units: their numbers, b·H + h.
        start, key, row: as in `Block`, of all units.
    """

    block: Block
    units: list[int]

    @cached_property
    def start(self) -> Tensor:
        return _bounds(self.block.start, len(self.units))

    @cached_property
    def key(self) -> Tensor:
        return _repeated(self.block.key, len(self.units), self.block.keys)

    @cached_property
    def row(self) -> Tensor:
        return _repeated(self.block.row, len(self.units), self.block.end - self.block.begin)

    @property
    def by_key(self) -> tuple[Tensor, Tensor, Tensor]:
        """The part turned round, as in `Block`."""
        order, row, start = self.block.by_key
        units, rows = len(self.units), self.block.end - self.block.begin
        return _repeated(order, units, len(order)), _repeated(row, units, rows), _bounds(start, units)


def parts(pairs: Pairs, batch: int, heads: int) -> Iterator[Part]:
    """All rows of all heads of all sequences, a constant number of pairs at a time, always in the same order."""
    owner = pairs.group.expand(batch, heads).flatten().tolist()
    for group in dict.fromkeys(owner):
        units = [unit for unit, own in enumerate(owner) if own == group]
        for block in _blocks(pairs, group):
            step = max(1, PAIRS_AT_ONCE // max(len(block.key), block.end - block.begin, block.keys))
            for first in range(0, len(units), step):
                yield Part(block, units[first : first + step])


def _blocks(pairs: Pairs, group: int) -> Iterator[Block]:
    bounds = pairs.start[group * pairs.queries : (group + 1) * pairs.queries + 1]
    begin = 0
    while begin < pairs.queries:
        fits = int(torch.searchsorted(bounds, bounds[begin] + PAIRS_AT_ONCE, right=True)) - 1
        end = max(begin + 1, min(fits, pairs.queries))
        first, last = int(bounds[begin]), int(bounds[end])
        start = (bounds[begin : end + 1] - first).int()
        row = torch.arange(end - begin, dtype=torch.int32, device=start.device)
        row = torch.repeat_interleave(row, start.diff(), output_size=last - first)
        yield Block(pairs.keys, begin, end, first, start, pairs.key[first:last], row)
        begin = end


def _repeated(numbers: Tensor, times: int, stride: int) -> Tensor:
    """int32 numbers once for each unit, each time `stride` higher."""
    if times == 1:
        return numbers
    return (numbers + stride * torch.arange(times, dtype=torch.int32, device=numbers.device)[:, None]).flatten()


def _bounds(start: Tensor, times: int) -> Tensor:
    """Where rows begin in a layout that is repeated for each unit: a unit's end is the next one's beginning."""
    return torch.cat([start[:1], _repeated(start[1:], times, int(start[-1]))])


def products(x: Tensor, y: Tensor, part: Part, added: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """x[row] · y[key] · scale + added, for each pair: [U·E]. `added` is written over."""
    values = x.new_zeros(len(part.key)) if added is None else added
    if x.is_cpu and not torch.backends.mkl.is_available():
        bags = torch.ops.aten._embedding_bag_per_sample_weights_backward
        return values.add_(bags(x, y, part.key, part.start[:-1], part.row, 0), alpha=scale)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        sampled = torch.sparse_csr_tensor(part.start, part.key, values, (len(x), len(y)), check_invariants=False)
    torch.sparse.sampled_addmm(sampled, x, y.mT, alpha=scale, out=sampled)
    return values


def sums(weights: Tensor, x: Tensor, which: Tensor, start: Tensor) -> Tensor:
    """Σ weights · x[which] over the pairs of each row: [rows, D]. No sum over rows in torch is faster on CPU."""
    return torch.ops.aten._embedding_bag_forward_only(x, which, start, False, 0, False, weights, True)[0]
