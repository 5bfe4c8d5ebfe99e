"""Offsets of the scores: tables and the index of each pair in them. What biases give and the kernels add."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
    index = term.q_code[:, :, None] - term.k_code[:, None, :]
    return torch.movedim(term.table[:, index], 0, 1)
