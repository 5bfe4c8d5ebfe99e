"""Which undecided tiles must hold the same pattern, found without looking at their elements.

A rule is a combination of comparisons. On a tile, each comparison is decided or depends on linear forms of fields, such
as q.index − k.index. Two tiles on which the same comparisons are decided alike, and on which the forms of the others
take the same values pair by pair, hold the same pattern. A form takes the same values where it is equal at the tile's
first pair and the fields rise alike from there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.planning.intervals import Linear, Value
from maskzoo.planning.sides import Sequences


def alike(comparisons: list[Value], tiles: Tensor, q: Sequences, k: Sequences) -> Tensor:
    """A number below N for each of N tiles [3, N] (sequence, query tile, key tile): equal only for equal patterns."""
    sequence, q_tile, k_tile = tiles
    kind = torch.zeros_like(sequence)
    for all_of, tile in ((q, q_tile), (k, k_tile)):
        beyond = (tile + 1) * all_of.tile > all_of.at.length
        kind = _joined(kind, beyond.long())
    for value in comparisons:
        every, some = value.low.flatten(), value.high.flatten()
        undecided = some & ~every
        kind = _joined(kind, every.long() + 2 * undecided)
        if value.forms is None:
            kind = _joined(kind, torch.arange(len(kind), device=kind.device).where(undecided, kind.new_tensor(-1)))
            continue
        for form in sorted(value.forms):
            for column in _columns(form, sequence, {"q": (q, q_tile), "k": (k, k_tile)}):
                kind = _joined(kind, column * undecided)
    return kind


def _columns(form: Linear, sequence: Tensor, sides: dict[str, tuple[Sequences, Tensor]]) -> list[Tensor]:
    """What decides the values of a linear form on tiles: its value at their first pair, and how its fields rise."""
    at_origin = torch.zeros_like(sequence)
    columns = []
    for (side, name), factor in form:
        if name == "sequence":
            at_origin = at_origin + factor * sequence
            continue
        all_of, tile = sides[side]
        place = all_of.rows(name, sequence), tile
        at_origin = at_origin + factor * all_of.field(name).origin[place]
        columns.append(all_of.field(name).shape[place])
    return [at_origin, *columns]


def _joined(kind: Tensor, column: Tensor) -> Tensor:
    """Numbers that are equal only where both are."""
    names, place = torch.unique(column, return_inverse=True)
    if len(names) == 1:
        return kind
    return torch.unique(kind * len(names) + place, return_inverse=True)[1]
