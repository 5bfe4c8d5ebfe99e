"""Which inputs move which outputs: by gradient, and by putting other values in place."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from maskzoo.audit.checks.comparing import difference, scale
from maskzoo.audit.subject import Subject

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
COARSE = 3e-2
"""What counts as rounding, as a share of the largest: sums in another order, such as a Fourier transform's."""


def rounding(output: Tensor) -> float:
    """How far an output may move by rounding alone."""
    return ROUNDING.get(output.dtype, COARSE) * scale(output)


def by_gradient(subject: Subject, directions: int = 1, seed: int = 0) -> Tensor | None:
    """The largest |gradient| of a random sum of each output at each input: float64 [B, Tq, Tk]; exactly 0 for none.

    None where the watched input has no gradient. One backward pass for each output and direction.
    """
    found = subject.differentiable()
    if found is None or not found[0].requires_grad:
        return None
    outputs, leaf = found
    generator = torch.Generator().manual_seed(seed)
    axis = subject.input_axis if subject.watched.is_floating_point() else 1
    total = torch.zeros(subject.batch, outputs.shape[1], subject.keys, dtype=torch.float64)
    for query in range(outputs.shape[1]):
        for _ in range(directions):
            weight = torch.randn(outputs[:, query].shape, generator=generator, dtype=torch.float64).to(outputs)
            (gradient,) = torch.autograd.grad(outputs[:, query], leaf, weight, retain_graph=True, allow_unused=True)
            subject.count_pass()
            if gradient is not None:
                size = gradient.detach().abs().movedim(axis, 1).reshape(subject.batch, subject.keys, -1).amax(2)
                own = size.double().nan_to_num(torch.inf).cpu()
                total[:, query] = torch.maximum(total[:, query], own)
    return total


@torch.no_grad()
def by_substitution(subject: Subject, draws: int = 1, seed: int = 0, keys: Iterable[int] | None = None) -> Tensor:
    """The largest change of each output when one input has another value: float64 [B, Tq, Tk]; exactly 0 for none.

    One run for each input and draw.
    """
    base = subject.run()
    floor = 4 * difference(base, subject.run())  # of kernels that vary by themselves
    total = torch.zeros(*base.shape[:2], subject.keys, dtype=torch.float64)
    for values in subject.substitutes(draws, torch.Generator().manual_seed(seed)):
        for key in range(subject.keys) if keys is None else keys:
            change = difference(base, subject.run(replaced(subject, values, torch.tensor([key]))))
            total[:, :, key] = torch.maximum(total[:, :, key], torch.where(change > floor, change, 0.0))
    return total


def replaced(subject: Subject, values: Tensor, keys: Tensor, rows: Tensor | None = None) -> Tensor:
    """The watched input with other values at some positions, in all rows of the batch or some."""
    other, axis = subject.watched.detach().clone(), subject.input_axis
    chosen = torch.arange(other.shape[0]) if rows is None else rows
    view, source = other.movedim(axis, 1), values.movedim(axis, 1)
    grid = chosen[:, None].to(other.device), keys[None].to(other.device)
    view[grid] = source[grid]
    return other
