"""Do outputs move along when positions are permuted?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskzoo.audit.checks.comparing import Inapplicable, difference, finding, largest, said, tolerance
from maskzoo.audit.finding import Finding
from maskzoo.audit.locating import locate_asymmetry

if TYPE_CHECKING:
    from maskzoo.audit.subject import Subject

EXCHANGES = 64  # neighbours exchanged to name the positions


@torch.no_grad()
def broken_symmetry(
    subject: Subject,
    *,
    permuted: Callable[[Any, Tensor], Any] | None = None,
    setting: str = "",
    draws: int = 3,
    seed: int = 0,
) -> list[Finding]:
    """Permute the positions of the watched input: outputs must be permuted alike, and one pooled output must stay.

    Attention without a mask and without positions is such a model (f(PX) = P f(X)), and so is a graph network when the
    edges are renumbered along. Sums run in another order, so what differs by rounding is no finding.

    Args:
        subject: the model, best in float64.
        permuted: gives all inputs with position `order[i]` in place i, for inputs that must change along (a graph's
            edges). Default: only the watched input is permuted.
        setting: words that the message ends with.
        draws: how many random orders, besides the reverse one.
        seed: of those orders.

    Raises:
        Inapplicable: fewer than two positions, or as many outputs as neither the positions nor one.
    """
    positions = subject.keys
    if positions < 2:
        raise Inapplicable("symmetry needs at least two positions")
    if subject.queries not in (1, positions):
        raise Inapplicable(f"symmetry needs one output, or one for each of {positions} positions: {subject.queries}")
    generator = torch.Generator().manual_seed(seed)
    base = subject.run(subject.watched)
    orders = [torch.arange(positions).flip(0)] + [torch.randperm(positions, generator=generator) for _ in range(draws)]
    astray = [_astray(subject, base, order, permuted) for order in orders]
    allowed = tolerance(base)
    worst = max(range(len(orders)), key=lambda number: float(astray[number].max()))
    size = float(astray[worst].max())
    if size <= allowed:
        return []
    order, key = orders[worst], None
    row, query = largest(astray[worst])
    for first in range(min(positions - 1, EXCHANGES)):
        exchange = torch.arange(positions)
        exchange[[first, first + 1]] = exchange[[first + 1, first]]
        moved = _astray(subject, base, exchange, permuted)
        if moved.max() > allowed:
            order, (row, query), key = exchange, largest(moved), first
            break
    layer, kind = None, None
    if permuted is None:
        place = locate_asymmetry(subject, subject.watched.index_select(_axis(subject), order), order)
        layer, kind = place.layer, place.kind
    what = "positions change places" if key is None else f"inputs {key} and {key + 1} change places"
    message = f"output {query} does not move along when {what}{said(setting)}"
    if subject.queries == 1:
        message = f"the output moves when {what}{said(setting)}"
    wrong = int((torch.stack(astray) > allowed).any(dim=0).sum())
    where: dict[str, Any] = {"row": row, "query": query, "key": key, "layer": layer, "module": kind}
    return [finding("broken symmetry", message, size, pairs=wrong, **where)]


def _axis(subject: Subject) -> int:
    return subject.input_axis


def _astray(subject: Subject, base: Tensor, order: Tensor, permuted: Callable[[Any, Tensor], Any] | None) -> Tensor:
    """How far each output [B, Tq] is from having moved along."""
    order = order.to(subject.watched.device)
    if permuted is None:
        after = subject.run(subject.watched.index_select(_axis(subject), order))
    else:
        after = subject.with_inputs(permuted(subject.inputs, order)).run()
    expected = base if subject.queries == 1 else base.index_select(1, order.to(base.device))
    moved = difference(expected, after)
    if subject.queries == 1:
        return moved
    return torch.zeros_like(moved).index_copy_(1, order.cpu(), moved)
