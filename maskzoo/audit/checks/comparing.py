"""When two outputs count as different, and how that is said."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskzoo.audit.finding import KINDS, Finding

# Shares of the largest output. The same sums in another order differ by less in any sound model; a fault moves outputs
# by more, unless it is very small: in float64 it would have to be a billionth.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
COARSE = 5e-2  # for bfloat16 and float16

BY_MODULE = {
    "BatchNorm": "batch normalisation takes mean and variance over all rows and positions in training mode, so that "
    "every row moves with every other; use LayerNorm, or statistics that are fixed",
    "InstanceNorm": "instance normalisation takes mean and variance over all positions",
    "GroupNorm": "group normalisation takes mean and variance over all positions",
    "LayerNorm": "the normalisation runs over an axis that holds positions or rows, not channels alone",
}


class Inapplicable(ValueError):
    """A check does not apply to this model and input; the message is the reason."""


def scale(output: Tensor) -> float:
    """The largest finite number in an output."""
    return float(output.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if output.numel() else 0.0


def tolerance(output: Tensor) -> float:
    """How far outputs may differ when only the order of sums does."""
    return TOLERANCES.get(output.dtype, COARSE) * scale(output)


def difference(before: Tensor, after: Tensor) -> Tensor:
    """The largest change of every output, float64 [B, Tq]: 0 for equal ones and for NaN or inf in the same places,
    inf where a finite number meets NaN or inf. before, after: [B, Tq, F].
    """
    same = (before == after) | (before.isnan() & after.isnan())
    change = (before.double() - after.double()).abs().nan_to_num(torch.inf, torch.inf)
    return change.masked_fill(same, 0.0).flatten(2).amax(dim=2).detach().cpu()


def largest(moved: Tensor) -> tuple[int, int]:
    """Row and position of the largest change in [B, Tq]."""
    row, place = divmod(int(moved.argmax()), moved.shape[1])
    return row, place


def finding(kind: str, message: str, size: float, *, module: str | None = None, **where: Any) -> Finding:
    """A finding with the usual causes of its kind, or those of the class of module where it first appears."""
    cause = next((text for name, text in BY_MODULE.items() if module and name in module), KINDS[kind])
    severity = where.pop("severity", "error")
    return Finding(kind=kind, message=message, cause=cause, size=float(size), severity=severity, **where)


def said(setting: str) -> str:
    """The setting as the end of a sentence."""
    return f", {setting}" if setting else ""
