"""How the scores of a call lie in memory, and what of them belongs to which sequences, heads, queries and keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Scores of a unit that are offset in one go.

    Attributes:
        place: of which of the unit's n stacks.
        sequence, sequences: the first sequence, and how many that all have the same offsets.
        heads: stacks of query heads within each sequence.
        queries, keys: positions; keys in one or more ranges.
    """

    place: slice
    sequence: int
    sequences: int
    heads: slice
    queries: slice
    keys: tuple[slice, ...]

    @property
    def bounds(self) -> tuple[int, ...]:
        """Queries and keys as numbers, to tell parts apart."""
        ranges = (self.queries, *self.keys)
        return tuple(edge for span in ranges for edge in (span.start, span.stop))


class Lying(NamedTuple):
    """How scores lie.

    Attributes:
        stacks: stacks of query heads in a sequence.
        fold: query heads whose rows lie beside one another in a stack.
        transposed: whether scores are keys × rows, not rows × keys.
    """

    stacks: int
    fold: int
    transposed: bool

    def opened(self, scores: Tensor, part: Part) -> Tensor:
        """The part's scores: [sequences, stacks, queries, fold, keys], or [sequences, stacks, keys, queries, fold]."""
        _, outer, inner = scores.shape
        sides = (outer, -1, self.fold) if self.transposed else (outer // self.fold, self.fold, inner)
        return scores[part.place].view(part.sequences, part.heads.stop - part.heads.start, *sides)

    def table(self, table: Tensor) -> Tensor:
        """A table [H, N] as it is read: [H, N, 1], or [stacks, N, fold] for transposed scores."""
        return table.unflatten(0, (-1, self.fold)).mT.contiguous() if self.transposed else table.unsqueeze(2)

    def heads(self, part: Part) -> slice:
        """The part's heads among all of a sequence."""
        return slice(part.heads.start * self.fold, part.heads.stop * self.fold)

    def read(self, table: Tensor, part: Part) -> Tensor:
        """The part's heads of what `table` gave."""
        return table[part.heads if self.transposed else self.heads(part)]

    def laid(self, values: Tensor) -> Tensor:
        """Values [heads, queries, keys, 1], or [stacks, keys, queries, fold], as they broadcast to `opened` scores."""
        return values if self.transposed else values.squeeze(3).unflatten(0, (-1, self.fold)).transpose(1, 2)

    def turned(self, x: Tensor) -> Tensor:
        """Any x [sequences, heads, queries, keys] as it broadcasts to `opened` scores."""
        return x.unflatten(1, (-1, self.fold)).permute(0, 1, *((4, 3, 2) if self.transposed else (3, 2, 4)))


def gathered(table: Tensor, index: Tensor) -> Tensor:
    """Entries of a table [heads, N, fold] at an index [outer, inner]: [heads, outer, inner, fold]."""
    return table.index_select(1, index.flatten()).unflatten(1, index.shape)


def scatter(total: Tensor, index: Tensor, slope: Tensor) -> None:
    """Add gradients [stacks, keys, queries, fold] at an index [keys, queries] to those of a table [heads, N].

    Each head's row is summed by one thread, in the order of the index.
    """
    total.index_add_(1, index.flatten(), slope.permute(0, 3, 1, 2).reshape(len(total), -1))


def summed(slope: Tensor) -> Tensor:
    """Gradients of transposed scores, as `opened`, over the sequences: [stacks, keys, queries, fold]."""
    return slope[0] if len(slope) == 1 else slope.sum(0)


def ranges(x: Tensor, spans: tuple[slice, ...]) -> Tensor:
    """The last dimension of x at some ranges; a view if there is one."""
    return x[..., spans[0]] if len(spans) == 1 else torch.cat([x[..., span] for span in spans], -1)
