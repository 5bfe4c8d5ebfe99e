"""Does an output depend on what shares the batch with it: other rows, padding, packed neighbours?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from maskzoo.audit.checks.comparing import Inapplicable, difference, finding, largest, said, tolerance
from maskzoo.audit.checks.coupling import other_companions
from maskzoo.audit.finding import Finding
from maskzoo.positions import PADDING, Positions

if TYPE_CHECKING:
    from maskzoo.audit.subject import Subject

MOST = 8  # rows, or documents, that run alone
EXTRA = (1, 3)  # positions of padding that are added

VISIBLE_MASKS = ("attention_mask", "padding_mask", "mask")
HIDDEN_MASKS = ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask")


@torch.no_grad()
def alone(subject: Subject, *, setting: str = "") -> list[Finding]:
    """Run rows alone, and all rows in reverse order: their outputs must be those of the whole batch.

    Other shapes choose other kernels, so what differs by rounding is no finding; float64 tells the two apart best.

    Args:
        subject: the model in evaluation mode, with at least two rows.
        setting: words that the message ends with.

    Raises:
        Inapplicable: there is only one row, the model draws random numbers, as many as there are rows, or rows move
            with the values in others, which is what `batch_coupling` finds.
    """
    if subject.batch < 2:
        raise Inapplicable("rows alone and together need at least two rows")
    if draws_random_numbers(subject):
        raise Inapplicable("rows alone and together: the model draws random numbers even in evaluation mode")
    base = subject.run(subject.watched)
    moved = torch.zeros(base.shape[:2], dtype=torch.float64)
    for row in range(min(subject.batch, MOST)):
        moved[row] = difference(base[row : row + 1], subject.rows(torch.tensor([row])).run())[0]
    message = "output {query} of row {row} differs when the row runs alone" + said(setting)
    if not moved.max() > tolerance(base):
        reverse = torch.arange(subject.batch - 1, -1, -1)
        moved = difference(base, subject.rows(reverse).run().flip(0))
        message = "output {query} of row {row} differs when the rows are in another order" + said(setting)
    found = _found(moved, base, message)
    if found and _coupled(subject, base, largest(moved)[0]):
        raise Inapplicable("rows alone and together: rows move with the values in others")
    return found


def _coupled(subject: Subject, base: Tensor, row: int) -> bool:
    others = subject.substitutes(2, torch.Generator().manual_seed(0))
    return any(
        bool(difference(base, subject.run(changed))[row].max() > tolerance(base))
        for changed in other_companions(subject, row, others)
    )


@torch.no_grad()
def padding_values(
    subject: Subject, real: Tensor, *, setting: str = "", draws: int = 3, seed: int = 0
) -> list[Finding]:
    """Put other values in padding places: real outputs must not move.

    Args:
        subject: the model, which is told of its padding by an input of its own (not by the values in it).
        real: bool [B or 1, Tk], positions that are no padding; outputs are judged at the same positions.
        setting: words that the message ends with.
        draws: how many times.
        seed: of the values.

    Raises:
        Inapplicable: there is no padding, or outputs do not stand at the inputs' positions.
    """
    real = _real_rows(subject, real)
    base = subject.run(subject.watched)
    axis = subject.input_axis
    shape = [1] * subject.watched.ndim
    shape[0], shape[axis] = real.shape
    places = real.reshape(shape).to(subject.watched.device)
    generator = torch.Generator().manual_seed(seed)
    floor = 4 * difference(base, subject.run(subject.watched))
    moved = torch.zeros(base.shape[:2], dtype=torch.float64)
    for values in subject.substitutes(draws, generator):
        after = subject.run(torch.where(places, subject.watched, values))
        change = difference(base, after)
        moved = torch.maximum(moved, torch.where(change > floor, change, 0.0))
    message = "output {query} of row {row} moves with the values in padding" + said(setting)
    return _found(moved.masked_fill(~real, 0.0), base, message)


@torch.no_grad()
def more_padding(
    subject: Subject,
    real: Tensor,
    *,
    longer: Callable[[int], Any] | None = None,
    side: str | None = None,
    setting: str = "",
) -> list[Finding]:
    """Make every row longer by padding: real outputs must not move by more than rounding.

    Args:
        subject: the model.
        real: bool [B or 1, Tk], positions that are no padding.
        longer: gives the inputs with so many more positions of padding. Default: every input that has the positions'
            axis is made longer, a padding mask by what it holds for padding.
        side: where the padding is added, "left" or "right". Default: where there is some, else right.
        setting: words that the message ends with.

    Raises:
        Inapplicable: the model does not take longer inputs, or they cannot be made.
    """
    real = _real_rows(subject, real, needed=False)
    base = subject.run(subject.watched)
    left = side == "left" if side is not None else bool((~real[:, 0]).any())
    moved = torch.zeros(base.shape[:2], dtype=torch.float64)
    for extra in EXTRA:
        inputs = longer(extra) if longer is not None else _longer(subject, real, extra, left)
        after = _other_length(subject, inputs, f"more padding: the model does not take {extra} more positions")
        if after.shape[1] != base.shape[1] + extra:
            raise Inapplicable(
                f"more padding: {base.shape[1]} outputs became {after.shape[1]} with {extra} more inputs"
            )
        moved = torch.maximum(moved, difference(base, after[:, extra:] if left else after[:, : base.shape[1]]))
    message = f"output {{query}} of row {{row}} moves with the amount of padding on the {'left' if left else 'right'}"
    return _found(moved.masked_fill(~real, 0.0), base, message + said(setting))


@torch.no_grad()
def packing(subject: Subject, segment: Tensor, permission: Tensor | None = None, *, setting: str = "") -> list[Finding]:
    """Run every document of a packed row alone: its outputs must be those of the packed run, but for rounding.

    Args:
        subject: the model; every input that has the positions' axis is cut along, Positions keep their fields.
        segment: int [B or 1, T], the document of each position; −1 is padding.
        permission: bool [B or 1, T, T]; documents that may see others are not judged. Without it, none may.
        setting: words that the message ends with.

    Raises:
        Inapplicable: no row holds two documents, or outputs do not stand at the inputs' positions.
    """
    if subject.queries != subject.keys:
        raise Inapplicable("packing needs one output for each position")
    segment = segment.cpu().expand(subject.batch, -1)
    base = subject.run(subject.watched)
    moved, ran = torch.zeros(base.shape[:2], dtype=torch.float64), 0
    for row, document in _documents(segment):
        inside = segment[row] == document
        seen = None if permission is None else permission[row if len(permission) > 1 else 0].cpu()
        if ran == MOST or inside.all() or (seen is not None and bool(seen[inside][:, ~inside].any())):
            continue
        places = inside.nonzero()[:, 0]
        inputs = _mapped(subject.inputs, partial(_cut, subject, row, places))
        after = _other_length(subject, inputs, f"packing: the model does not take {len(places)} positions alone")
        moved[row, places] = difference(base[row : row + 1, places.to(base.device)], after)[0]
        ran += 1
    if not ran:
        raise Inapplicable("packing: no row holds two documents that may not see one another")
    message = "output {query} of row {row} differs when its document runs alone" + said(setting)
    return _found(moved, base, message)


def real_positions(inputs: Any, length: int) -> Tensor | None:
    """Which positions are no padding, bool [B or 1, T], by the inputs themselves; None where they do not say.

    Read are Positions, and inputs by the names that libraries use: attention_mask (true or 1 is real), and
    key_padding_mask, src_key_padding_mask and the like (true is padding).
    """
    values = list(inputs.values()) if isinstance(inputs, Mapping) else _listed(inputs)
    for value in values:
        if isinstance(value, Positions) and value.length == length:
            return value.real
    if isinstance(inputs, Mapping):
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] == length:
                if name in VISIBLE_MASKS and not value.is_floating_point():
                    return value.bool()
                if name in HIDDEN_MASKS and value.dtype == torch.bool:
                    return ~value
    return None


def draws_random_numbers(subject: Subject) -> bool:
    """Whether a run of the model draws from the random generators."""
    watching = _Drawing(subject.watched.device)
    with watching:
        subject.run(subject.watched)
    return watching.drew


class _Drawing(TorchDispatchMode):
    """Watches, operation by operation, whether a random generator moves on."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.drew = device, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.drew:
            return func(*args, **(kwargs or {}))
        before = self._state()
        result = func(*args, **(kwargs or {}))
        self.drew = not torch.equal(before, self._state())
        return result

    def _state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()


def _other_length(subject: Subject, inputs: Any, refusal: str) -> Tensor:
    try:
        return subject.with_inputs(inputs).run()
    except Exception as error:  # whatever a model raises for a length it does not take
        raise Inapplicable(f"{refusal} ({error})") from error


def _found(moved: Tensor, base: Tensor, message: str) -> list[Finding]:
    """The largest change beyond rounding, and how many outputs there are."""
    wrong = moved > tolerance(base)
    if not wrong.any():
        return []
    row, query = largest(moved)
    text = message.format(row=row, query=query)
    return [finding("companion dependence", text, float(moved.max()), pairs=int(wrong.sum()), row=row, query=query)]


def _real_rows(subject: Subject, real: Tensor, needed: bool = True) -> Tensor:
    if subject.queries != subject.keys:
        raise Inapplicable("padding needs one output for each position")
    real = real.bool().cpu().expand(subject.batch, -1)
    if real.shape[1] != subject.keys:
        raise ValueError(f"real has {real.shape[1]} positions and the input {subject.keys}")
    if needed and bool(real.all()):
        raise Inapplicable("there is no padding")
    return real


def _documents(segment: Tensor) -> list[tuple[int, int]]:
    """Row and number of every document."""
    return [(row, int(one)) for row in range(len(segment)) for one in segment[row].unique() if one != PADDING]


def _listed(inputs: Any) -> list[Any]:
    return list(inputs) if isinstance(inputs, list | tuple) else [inputs]


def _mapped(inputs: Any, change: Callable[[Any], Any]) -> Any:
    """The inputs, each of them changed."""
    if isinstance(inputs, Mapping):
        return {name: change(value) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return tuple(change(value) for value in inputs)
    return change(inputs)


def _along(subject: Subject, value: Tensor) -> list[int]:
    """The axes of an input that stand for positions."""
    if value is subject.watched or (value.shape == subject.watched.shape and value.dtype == subject.watched.dtype):
        return [subject.input_axis]
    after_batch = value.ndim > 1 and value.shape[0] in (1, subject.batch)
    axes = [axis for axis in range(1 if after_batch else 0, value.ndim) if value.shape[axis] == subject.keys]
    if not after_batch and value.ndim == 2 and len(axes) == 2:
        return axes  # [T, T], one for all rows
    return axes[:2] if value.ndim >= 3 and value.shape[-1] == value.shape[-2] == subject.keys else axes[:1]


def _cut(subject: Subject, row: int, places: Tensor, value: Any) -> Any:
    """One row of an input, at some positions only."""
    if isinstance(value, Positions):
        if value.length != subject.keys:
            return value
        fields = {
            name: field[row if len(field) > 1 else 0][places.to(field.device)] for name, field in value.fields.items()
        }
        return Positions(**fields)
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    if value.shape[0] == subject.batch and value.ndim > 1:
        axes = _along(subject, value)
        value = value[row : row + 1]
    else:
        axes = _along(subject, value)
    for axis in axes:
        value = value.index_select(axis, places.to(value.device))
    return value


def _longer(subject: Subject, real: Tensor, extra: int, left: bool) -> Any:
    """The inputs with `extra` more positions of padding."""

    def change(value: Any) -> Any:
        if isinstance(value, Positions):
            return _longer_positions(value, extra, left) if value.length == subject.keys else value
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        axes = _along(subject, value)
        if len(axes) == 2:
            raise Inapplicable("more padding: an input holds a value for every pair of positions; give `longer`")
        for axis in axes:
            value = _extended(value, axis, extra, left, real)
        return value

    return _mapped(subject.inputs, change)


def _longer_positions(at: Positions, extra: int, left: bool) -> Positions:
    def extended(name: str, values: Tensor) -> Tensor:
        more = torch.full((len(values), extra), PADDING if name == "segment" else 0, device=values.device)
        return torch.cat([more, values] if left else [values, more], dim=1)

    kept = {name: values for name, values in at.fields.items() if name != "index" or not at.counted}
    return Positions(**{name: extended(name, values) for name, values in kept.items()})


def _extended(value: Tensor, axis: int, extra: int, left: bool, real: Tensor) -> Tensor:
    """A tensor made longer by what it holds in padding; a mask by what it says of padding; else by its edge."""
    is_mask = value.ndim == 2 and value.shape == real.shape and not value.is_floating_point()
    read = value.cpu()
    edge = value.narrow(axis, 0 if left else value.shape[axis] - 1, 1)
    if is_mask and bool((read.bool() == real).all()) and int(read.max()) <= 1:
        edge = torch.zeros_like(edge)
    elif is_mask and value.dtype == torch.bool and bool((read == ~real).all()):
        edge = torch.ones_like(edge)
    more = edge.expand(*[extra if a == axis else n for a, n in enumerate(edge.shape)])
    return torch.cat([more, value] if left else [value, more], dim=axis)
