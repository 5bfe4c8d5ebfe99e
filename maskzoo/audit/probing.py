"""Leaks by groups: all inputs that an output may not see get other values at once, and the output must stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskzoo.audit.checks.comparing import difference
from maskzoo.audit.influence import replaced, rounding
from maskzoo.audit.subject import Subject


@dataclass(frozen=True)
class Leak:
    """A pair that is not permitted and has influence, and the changed input that shows it.

    Attributes:
        outputs: how many outputs showed a leak.
    """

    row: int
    query: int
    key: int
    size: float
    outputs: int
    changed: Tensor


@torch.no_grad()
def probed(
    subject: Subject, permitted: Tensor, queries: Sequence[int], *, seed: int = 0, draws: int = 1
) -> Leak | None:
    """Probe some outputs, and name a pair of the one that moves the most.

    All rows of the batch are probed at once; what that finds must also show when inputs of one row alone are changed.

    Args:
        permitted: bool [B or 1, Tq, Tk].
        queries: which outputs; all others that may see none of the same inputs are watched along.
        draws: how many values the inputs get.
    """
    found = _probed(subject, permitted, queries, seed, draws, None)
    if found is None or subject.batch == 1:
        return found
    by_row = [_probed(subject, permitted, queries, seed, draws, row) for row in range(subject.batch)]
    return max((leak for leak in by_row if leak is not None), key=lambda leak: leak.size, default=None)


def _probed(
    subject: Subject, permitted: Tensor, queries: Sequence[int], seed: int, draws: int, only: int | None
) -> Leak | None:
    permitted = permitted.expand(subject.batch, -1, -1)
    if only is not None:
        permitted = permitted | (torch.arange(subject.batch) != only)[:, None, None]
    base = subject.run()
    allowed = max(rounding(base), 4 * float(difference(base, subject.run()).max()))
    worst, found, wrong = allowed, None, torch.zeros(base.shape[:2], dtype=torch.bool)
    sets = torch.stack([~permitted[:, query] for query in queries]) if len(queries) else permitted.new_empty(0)
    generator = torch.Generator().manual_seed(seed)
    for hidden in torch.unique(sets, dim=0) if len(sets) else ():  # [B, Tk]
        if not hidden.any():
            continue
        untouched = ~(permitted & hidden[:, None]).any(-1)  # [B, Tq]
        if only is not None:
            untouched &= (torch.arange(subject.batch) == only)[:, None]
        for values in subject.substitutes(draws, generator):
            changed = _mixed(subject, values, hidden)
            moved = difference(base, subject.run(changed)).masked_fill(~untouched, 0.0)
            wrong |= moved > allowed
            if moved.max() > worst:
                worst = float(moved.max())
                row, query = divmod(int(moved.argmax()), moved.shape[1])
                found = row, query, values, hidden
    if found is None:
        return None
    row, query, values, hidden = found
    keys = hidden[row].nonzero()[:, 0]
    key = _narrowed(subject, base, values, row, query, keys, allowed)
    changed = replaced(subject, values, torch.tensor([key]), torch.tensor([row]))
    if not difference(base, subject.run(changed))[row, query] > allowed:
        changed = _mixed(subject, values, hidden)  # only all of them together move it
    return Leak(row, query, key, worst, int(wrong.sum()), changed)


def _mixed(subject: Subject, values: Tensor, hidden: Tensor) -> Tensor:
    """The watched input with other values where hidden, bool [B, Tk]."""
    shape = [1] * subject.watched.ndim
    shape[0], shape[subject.input_axis] = hidden.shape
    return torch.where(hidden.reshape(shape).to(values.device), values, subject.watched)


def _narrowed(
    subject: Subject, base: Tensor, values: Tensor, row: int, query: int, keys: Tensor, allowed: float
) -> int:
    """One of the keys that moves the output: the half that moves it more, and again the half of that."""
    while len(keys) > 1:
        halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
        moved = [
            float(difference(base, subject.run(replaced(subject, values, half, torch.tensor([row]))))[row, query])
            for half in halves
        ]
        keys = halves[1] if moved[1] >= moved[0] else halves[0]
    return int(keys[0])
