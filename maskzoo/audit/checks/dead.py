"""Are there outputs that no input moves, or that are no numbers?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskzoo.audit.checks.comparing import difference, finding, said
from maskzoo.audit.finding import Finding

if TYPE_CHECKING:
    from maskzoo.audit.subject import Subject

MORE = 8  # draws for outputs that have not moved: among few ids the same may be drawn again


@torch.no_grad()
def dead_queries(
    subject: Subject,
    permission: Tensor | None = None,
    *,
    real: Tensor | None = None,
    setting: str = "",
    draws: int = 3,
    seed: int = 0,
) -> list[Finding]:
    """Give all inputs other values; every output that may see one must move, and none may be NaN.

    An infinity in some features of an output is allowed (logits that are ruled out), in all of them it is not.

    Args:
        subject: the model; with noise on its parameters, so that layers which start at zero are not dead.
        permission: bool [B or 1, Tq, Tk]: outputs that may see nothing are not judged.
        real: bool [B or 1, Tq]: outputs in padding are not judged.
        setting: words that the message ends with.
        draws: how many times all inputs are replaced.
        seed: of their values.
    """
    generator = torch.Generator().manual_seed(seed)
    base = subject.run(subject.watched)
    shape = base.shape[:2]
    judged = torch.ones(shape, dtype=torch.bool)
    if permission is not None:
        judged &= permission.cpu().any(dim=-1)
    if real is not None:
        judged &= real.cpu()
    moved, broken = torch.zeros(shape, dtype=torch.bool), _broken(base)
    for number, values in enumerate(subject.substitutes(draws + MORE, generator)):
        if number >= draws and bool((moved | broken | ~judged).all()):
            break
        after = subject.run(values)
        broken |= _broken(after)
        moved |= difference(base, after) > 0
    findings = []
    if (wrong := broken & judged).any():
        row, query = wrong.nonzero()[0].tolist()
        message = f"output {query} of row {row} is no finite number{said(setting)}"
        where: dict[str, Any] = {"row": row, "query": query, "pairs": int(wrong.sum())}
        findings.append(finding("dead query", message, torch.inf, severity="error", **where))
    if (wrong := ~moved & ~broken & judged).any():
        row, query = wrong.nonzero()[0].tolist()
        zero = "is zero and " if not base[row, query].any() else ""
        message = f"output {query} of row {row} {zero}does not move with any input{said(setting)}"
        where = {"row": row, "query": query, "pairs": int(wrong.sum())}
        findings.append(finding("dead query", message, 0.0, severity="warning", **where))
    return findings


def _broken(output: Tensor) -> Tensor:
    """Outputs with a NaN, or with nothing but infinities, bool [B, Tq]."""
    flat = output.flatten(2)
    return (flat.isnan().any(dim=2) | flat.isinf().all(dim=2)).cpu()
