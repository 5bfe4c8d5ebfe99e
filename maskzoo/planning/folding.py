"""Folding: all terms of a bias, at given positions, become at most one term of each form that kernels read."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from maskzoo.biases.base import Bias, OffsetBias, picked
from maskzoo.biases.dense import Dense
from maskzoo.kernels.offsets import CodeTerm, ListedTerm, Offsets, StoredTerm, code_scores
from maskzoo.planning.asking import Index, code, index_table, offset_table
from maskzoo.planning.indexing import Reading, Source, Stored, by_all, by_pairs, by_tiles
from maskzoo.planning.visibility import Visibility
from maskzoo.positions import Positions

MOST_DIFFERENCES = 2**22
"""Entries of a table over the differences of one provider's code; a code beyond is stored pair by pair."""

MOST_JOINT_DIFFERENCES = 2**16
"""Entries of a table over the differences of several codes at once."""


@dataclass(frozen=True)
class Column:
    """One integer of every position, of which offsets know the difference q − k.

    Attributes:
        q, k: int64 [B or 1, Tq] and [B or 1, Tk].
        low, high: the ends of all differences within a sequence.
    """

    q: Tensor
    k: Tensor
    low: int
    high: int

    @property
    def size(self) -> int:
        """How many differences there may be."""
        return self.high - self.low + 1

    def __call__(self, sequence: Tensor, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """The difference of any pairs, as a `Source`."""
        q_row, k_row = (sequence if side.shape[0] > 1 else 0 for side in (self.q, self.k))
        return self.q[q_row, q_slot] - self.k[k_row, k_slot]


class Leaf(NamedTuple):
    """How one provider takes part.

    Attributes:
        form: "code", "stored" or "dense".
        columns: the columns of its code; none for a provider with an index.
        flat: its code is one integer [B, T], not C of them [B, T, C].
        differences: for "code", what its table is asked for.
        shape: for "code", the sizes in which its table broadcasts to that of the joint code.
    """

    form: str
    columns: tuple[int, ...] = ()
    flat: bool = False
    differences: Tensor | None = None
    shape: tuple[int, ...] = ()


class Folded:
    """What stays while the tables of a bias change: codes and stored indices at given positions.

    Args:
        bias: the bias; every method takes it again, or one of the same terms with other tables.
        q_at, k_at: positions, of batch 1 or the same batch.

    Raises:
        ValueError: what a provider gives is no code, index or table, or it reads a field that is not there.
    """

    def __init__(self, bias: Bias, q_at: Positions, k_at: Positions) -> None:
        self._q_at, self._k_at = q_at, k_at
        self._columns: list[Column] = []
        self._stored: dict[str, Stored] = {}
        leaves = [self._leaf(leaf) for _, leaf in bias.leaves()]
        chosen = self._chosen(leaves)
        self._leaves = [self._placed(leaf, chosen) for leaf in leaves]
        self._codes = self._joint_code(chosen) if chosen else None
        self._sizes = [self._columns[column].size for column in chosen]
        with torch.no_grad():
            self._code_term(bias, finite=True)

    def offsets(self, bias: Bias, visibility: Visibility, form: str) -> Offsets:
        """What a sparse kernel adds to the scores; differentiable in the tables."""
        term: StoredTerm | ListedTerm | None = None
        stored = self.stored(bias, visibility, form)
        if stored is not None:
            table = self._stored_table(bias, stored)
            if stored.place is None:
                term = ListedTerm(stored.index, table)
            else:
                term = StoredTerm(stored.index, stored.place, table)
        return Offsets(self._code_term(bias), term, self._dense(bias))

    def scores(self, bias: Bias, visibility: Visibility) -> Tensor:
        """The offsets of all pairs: float, broadcasts to [B, H, Tq, Tk]; differentiable in the tables."""
        terms = []
        by_code, stored, dense = self._code_term(bias), self.stored(bias, visibility, "dense"), self._dense(bias)
        if by_code is not None:
            terms.append(code_scores(by_code))
        if stored is not None:
            terms.append(picked(self._stored_table(bias, stored), stored.index.int()).movedim(0, 1))
        if dense is not None:
            terms.append(dense)
        return reduce(add, terms)

    def stored(self, bias: Bias, visibility: Visibility, form: str) -> Stored | None:
        """The index that has to be stored for a kernel's form; None where the codes are enough.

        It is made when first asked for.
        """
        if all(leaf.form != "stored" for leaf in self._leaves):
            return None
        if form not in self._stored:
            with torch.no_grad():
                found = self._found(bias, visibility, form)
                self._stored_table(bias, found, finite=True)
            self._stored[form] = found
        return self._stored[form]

    @property
    def bytes(self) -> int:
        """Memory of codes and indices."""
        arrays = [*(self._codes or ()), *(side for column in self._columns for side in (column.q, column.k))]
        arrays += [leaf.differences for leaf in self._leaves if leaf.differences is not None]
        return sum(array.nbytes for array in arrays) + sum(stored.bytes for stored in self._stored.values())

    def to(self, device: torch.device | str) -> Folded:
        """The same on another device."""
        moved = copy.copy(self)
        moved._q_at, moved._k_at = self._q_at.to(device), self._k_at.to(device)
        moved._columns = [replace(column, q=column.q.to(device), k=column.k.to(device)) for column in self._columns]
        moved._codes = None if self._codes is None else (self._codes[0].to(device), self._codes[1].to(device))
        moved._stored = {form: stored.to(device) for form, stored in self._stored.items()}
        moved._leaves = [
            leaf if leaf.differences is None else leaf._replace(differences=leaf.differences.to(device))
            for leaf in self._leaves
        ]
        return moved

    def _leaf(self, leaf: Bias) -> Leaf:
        if isinstance(leaf, Dense):
            return Leaf("dense")
        if not isinstance(leaf, OffsetBias):
            Index(leaf, self._q_at, self._k_at).check(max(self._q_at.batch, self._k_at.batch, leaf.batch))
            return Leaf("stored")
        q, k = code(leaf, leaf.q_code, self._q_at), code(leaf, leaf.k_code, self._k_at)
        if q.shape[2:] != k.shape[2:]:
            raise ValueError(
                f"{leaf!r}: q_code and k_code must give as many integers, got {list(q.shape)} and {list(k.shape)}"
            )
        flat = q.dim() == 2
        pairs = [(q, k)] if flat else zip(q.unbind(2), k.unbind(2), strict=True)
        return Leaf("code", tuple(self._column(*pair) for pair in pairs), flat)

    def _column(self, q: Tensor, k: Tensor) -> int:
        """The number of a column, which equal codes share."""
        for number, known in enumerate(self._columns):
            if torch.equal(known.q, q) and torch.equal(known.k, k):
                return number
        low, high = (q.amin(1) - k.amax(1)).min(), (q.amax(1) - k.amin(1)).max()
        self._columns.append(Column(q, k, int(low), int(high)))
        return len(self._columns) - 1

    def _entries(self, columns: set[int]) -> int:
        entries = 1
        for column in columns:
            entries *= self._columns[column].size
        return entries

    def _chosen(self, leaves: list[Leaf]) -> list[int]:
        """The columns of the joint code: those of the widest provider, and of others while the table stays small."""
        chosen: set[int] = set()
        codes = [set(leaf.columns) for leaf in leaves if leaf.form == "code"]
        for columns in sorted(codes, key=self._entries, reverse=True):
            most = MOST_JOINT_DIFFERENCES if chosen else MOST_DIFFERENCES
            if self._entries(chosen | columns) <= most:
                chosen |= columns
        return sorted(chosen)

    def _placed(self, leaf: Leaf, chosen: list[int]) -> Leaf:
        if leaf.form != "code":
            return leaf
        if not set(leaf.columns) <= set(chosen):
            return leaf._replace(form="stored")
        own = [column for column in chosen if column in leaf.columns]
        ends = [self._columns[column] for column in own]
        steps = [torch.arange(end.low, end.high + 1, device=self._q_at.device) for end in ends]
        grid = dict(zip(own, torch.meshgrid(*steps, indexing="ij"), strict=True))
        differences = torch.stack([grid[column].flatten() for column in leaf.columns], dim=1)
        shape = tuple(self._columns[column].size if column in own else 1 for column in chosen)
        return leaf._replace(differences=differences[:, 0] if leaf.flat else differences, shape=shape)

    def _joint_code(self, chosen: list[int]) -> tuple[Tensor, Tensor]:
        """The differences as the digits of one, which starts at 0; sums beyond int64 leave its difference right."""
        q_code, k_code = (torch.zeros(1, 1, dtype=torch.int64, device=self._q_at.device) for _ in range(2))
        for number in chosen:
            column = self._columns[number]
            base = column.k.min()
            q_code = q_code * column.size + (column.q - base - column.low)
            k_code = k_code * column.size + (column.k - base)
        return q_code, k_code

    def _found(self, bias: Bias, visibility: Visibility, form: str) -> Stored:
        sources: list[Source] = []
        batch = max(self._q_at.batch, self._k_at.batch)
        for (_, leaf), own in zip(bias.leaves(), self._leaves, strict=True):
            if own.form == "stored":
                batch = max(batch, leaf.batch, visibility.shape[0] if leaf.needs_sequence else 1)
                sources.extend(self._columns[column] for column in own.columns)
                if not own.columns:
                    sources.append(Index(leaf, self._q_at, self._k_at))
        reading = Reading(repr(bias), sources, self._q_at.device)
        if form == "tiled":
            return by_tiles(reading, visibility.tiles)
        if form == "triton":
            return by_tiles(reading, visibility.blocks)
        if form == "edges":
            return by_pairs(reading, visibility.pairs)
        return by_all(reading, batch, self._q_at.length, self._k_at.length)

    def _code_term(self, bias: Bias, finite: bool = False) -> CodeTerm | None:
        if self._codes is None:
            return None
        tables = []
        for (factor, leaf), own in zip(bias.leaves(), self._leaves, strict=True):
            if own.differences is not None:
                assert isinstance(leaf, OffsetBias)
                table = offset_table(leaf, own.differences, finite)
                tables.append(_scaled(table, factor).unflatten(1, own.shape))
        return CodeTerm(*self._codes, reduce(add, tables).expand(-1, *self._sizes).flatten(1))

    def _stored_table(self, bias: Bias, stored: Stored, finite: bool = False) -> Tensor:
        """float [H, M]."""
        tables, first = [], 0
        for (factor, leaf), own in zip(bias.leaves(), self._leaves, strict=True):
            if own.form != "stored":
                continue
            values = stored.values[:, first : first + max(len(own.columns), 1)]
            if isinstance(leaf, OffsetBias):
                table = offset_table(leaf, values[:, 0] if own.flat else values, finite)
            else:
                table = picked(index_table(leaf, stored.largest[first] + 1, values.device, finite), values[:, 0])
            tables.append(_scaled(table, factor))
            first += values.shape[1]
        return reduce(add, tables)

    def _dense(self, bias: Bias) -> Tensor | None:
        """float, broadcasts to [B, H, Tq, Tk]."""
        values = [
            _scaled(leaf.values[(None,) * (4 - leaf.values.dim())], factor)
            for factor, leaf in bias.leaves()
            if isinstance(leaf, Dense)
        ]
        return reduce(add, values) if values else None


def _scaled(table: Tensor, factor: float) -> Tensor:
    return table if factor == 1 else factor * table
