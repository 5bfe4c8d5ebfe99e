"""Offsets of the scores: tables and the index of each pair in them. What biases give and the kernels add."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

LOG2_E = math.log2(math.e)
"""The sparse kernels take powers of 2, which are faster than powers of e: scores and offsets are scaled by this."""


@dataclass(frozen=True)
class CodeTerm:
    """The offset of a pair is table[h, q_code[i] − k_code[j]].

    Attributes:
        q_code: int64 [B or 1, Tq].
        k_code: int64 [B or 1, Tk]; no difference of a pair of one sequence, visible or not, lies outside 0 … N − 1.
        table: float [H, N]; may require a gradient.
    """

    q_code: Tensor
    k_code: Tensor
    table: Tensor


@dataclass(frozen=True)
class StoredTerm:
    """The offset of a pair is table[h, index of the pair], with the index stored for visible tiles only.

    Attributes:
        index: uint8, int16 or int32 [P, size, size]: each distinct tile of indices, queries by keys; 0 where no pair
            is visible.
        place: int32 [N]: for every visible tile, in the order of `Tiles.rows` with its runs unfolded, which of them.
        table: float [H, M]; may require a gradient.
    """

    index: Tensor
    place: Tensor
    table: Tensor


@dataclass(frozen=True)
class ListedTerm:
    """The offset of a pair is table[h, index of the pair], with the index stored for each pair of a list.

    Attributes:
        index: uint8, int16 or int32 [E], in the order of `Pairs.key`.
        table: float [H, M]; may require a gradient.
    """

    index: Tensor
    table: Tensor


@dataclass(frozen=True)
class Offsets:
    """All that is added to the scores; at most one term of each kind.

    Attributes:
        code: a term by difference of codes.
        stored: a term with a stored index, by tiles for `tiled`, by pairs for `edges`.
        dense: float, broadcasts to [B, H, Tq, Tk]; may require a gradient, which is summed where it broadcasts.
    """

    code: CodeTerm | None = None
    stored: StoredTerm | ListedTerm | None = None
    dense: Tensor | None = None


def code_scores(term: CodeTerm) -> Tensor:
    """The code term of every pair: [B or 1, H, Tq, Tk], differentiable in the table."""
    index = term.q_code.int()[:, :, None] - term.k_code.int()[:, None]
    # Its gradient is summed in a fixed order on CPUs, which that of advanced indexing is not.
    return term.table.index_select(1, index.flatten()).unflatten(1, index.shape).movedim(0, 1)


Arrays = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def arrays(offsets: Offsets | None) -> Arrays:
    """Offsets as an operator takes them: both codes and their table, index, place and their table, dense tensor."""
    offsets = offsets or Offsets()
    code, stored = offsets.code, offsets.stored
    of_code = (None, None, None) if code is None else (code.q_code, code.k_code, code.table)
    place = stored.place if isinstance(stored, StoredTerm) else None
    of_index = (None, None, None) if stored is None else (stored.index, place, stored.table)
    return *of_code, *of_index, offsets.dense


def from_arrays(given: Arrays) -> Offsets | None:
    """The way back from `arrays`; None where nothing is added."""
    q_code, k_code, code_table, index, place, index_table, dense = given
    code: CodeTerm | None = None
    stored: StoredTerm | ListedTerm | None = None
    if q_code is not None and k_code is not None and code_table is not None:
        code = CodeTerm(q_code, k_code, code_table)
    if index is not None and index_table is not None:
        stored = ListedTerm(index, index_table) if place is None else StoredTerm(index, place, index_table)
    return None if code is None and stored is None and dense is None else Offsets(code, stored, dense)
