"""Do rows of a batch move with one another?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskzoo.audit.checks.comparing import Inapplicable, difference, finding, largest, said, tolerance
from maskzoo.audit.finding import Finding
from maskzoo.audit.locating import locate_coupling

if TYPE_CHECKING:
    from maskzoo.audit.subject import Subject

ROWS = 4  # rows that are held while the others change


@torch.no_grad()
def batch_coupling(subject: Subject, *, setting: str = "", draws: int = 2, seed: int = 0) -> list[Finding]:
    """Hold one row, give all others other values, and see whether its output moves.

    Shapes and the state of random generators stay the same, so a sound model gives the same bits; what moves less than
    rounding (a billionth in float64) is no finding, because rows that are sorted into groups change the order of sums.
    The others become random rows, and copies of the held one, which fill the places of a router that has too few.

    Args:
        subject: the model, in the mode (training or not) and number type in question; at least two rows.
        setting: words for that mode, which the message ends with.
        draws: how many sets of random rows.
        seed: of those rows.

    Raises:
        Inapplicable: there is only one row.
    """
    if subject.batch < 2:
        raise Inapplicable("batch coupling needs at least two rows")
    generator = torch.Generator().manual_seed(seed)
    base = subject.run(subject.watched)
    floor = 4 * float(difference(base, subject.run(subject.watched)).max())  # of kernels that vary by themselves
    allowed = max(tolerance(base), floor)
    others = subject.substitutes(draws, generator)
    worst, found, rows = 0.0, None, set()
    for row in _spread(subject.batch, ROWS):
        for changed in other_companions(subject, row, others):
            moved = difference(base, subject.run(changed))[row]
            if moved.max() > allowed:
                rows.add(row)
                if moved.max() > worst:
                    worst, found = float(moved.max()), (row, largest(moved[None])[1], changed)
    if found is None:
        return []
    row, query, changed = found
    place = locate_coupling(subject, changed)
    message = f"output {query} of row {row} moves with other rows of the batch{said(setting)}"
    where: dict[str, Any] = {"row": row, "query": query, "layer": place.layer, "module": place.kind}
    return [finding("batch coupling", message, worst, pairs=len(rows), **where)]


def other_companions(subject: Subject, row: int, others: Tensor) -> Iterator[Tensor]:
    """The watched input with one row as it is, and all others random (`others`, [n, *shape]) or copies of that row."""
    for values in [*others, subject.watched[row : row + 1].expand_as(subject.watched)]:
        changed = values.clone()
        changed[row] = subject.watched[row]
        yield changed


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` numbers, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(number * (count - 1) / (most - 1)) for number in range(most)})
