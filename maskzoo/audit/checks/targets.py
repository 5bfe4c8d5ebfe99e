"""Is an answer among the inputs of the output that has to give it?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskzoo.audit.checks.comparing import Inapplicable, difference, finding, said, tolerance
from maskzoo.audit.finding import Finding
from maskzoo.audit.subject import Subject

IGNORED = -100  # a target that no loss counts


def target_alignment(
    model: nn.Module | Callable[..., Any],
    example: Any,
    batch_of: Callable[[Any], tuple[Any, Tensor]],
    *,
    values: Sequence[int] | None = None,
    samples: int = 64,
    setting: str = "",
    seed: int = 0,
    **subject: Any,
) -> list[Finding]:
    """Change one element of the raw example: outputs whose target changes with it must not move.

    Whatever happens between the raw example and the model (tokenizing, shifting, packing, masking out) is the user's
    own code, and so no assumption about it can be wrong.

    Args:
        model: any model or function.
        example: what `batch_of` takes: a tensor, text, bytes, a list of numbers, or a list of such documents.
        batch_of: gives the model's inputs and the targets, [B, Tq] or [B] for one output a row, of an example. It runs
            with the same random numbers each time, and must give the same shapes for another value.
        values: other values an element may take. Default: those seen in the example, or those near them.
        samples: how many elements are changed at most, spread over the example at random.
        setting: words that the message ends with.
        seed: of the choices.
        subject: what `Subject` takes besides: watch, output, axis.

    Raises:
        Inapplicable: no change of an element gave a batch of the same shapes and another target.
    """
    chooser = random.Random(seed)
    raw = _Raw(example, values, chooser)
    state = torch.get_rng_state()

    def batch(changed: Any) -> tuple[Any, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            return batch_of(changed)

    inputs, targets = batch(example)
    run = Subject(model, inputs, **subject)
    base, aims = _run(run), _shaped(targets)
    if aims.shape[:2] != base.shape[:2]:
        raise ValueError(f"targets are {list(targets.shape)}, but there are {list(base.shape[:2])} outputs")
    worst, found, wrong, judged = 0.0, None, 0, 0
    for place in raw.places(samples):
        other_inputs, other_targets = batch(raw.changed(place))
        other = _shaped(other_targets)
        if other.shape != aims.shape:
            continue
        asked = ((other != aims) & (aims != IGNORED)).flatten(2).any(dim=2)
        if not asked.any():
            continue
        after = _run(run.with_inputs(other_inputs))
        if after.shape != base.shape:
            continue
        judged += int(asked.sum())
        moved = difference(base, after).masked_fill(~asked, 0.0)
        wrong += int((moved > tolerance(base) * 1e-3).sum())
        if float(moved.max()) > max(worst, tolerance(base) * 1e-3):
            worst = float(moved.max())
            found = (place, *divmod(int(moved.argmax()), moved.shape[1]))
    if not judged:
        raise Inapplicable("target alignment: no change of the example changed a target and kept every shape")
    if found is None:
        return []
    place, row, query = found
    message = f"output {query} of row {row} moves with its own answer, {raw.said(place)} of the example{said(setting)}"
    return [finding("target misalignment", message, worst, pairs=wrong, row=row, query=query)]


@torch.no_grad()
def aligned_targets(
    subject: Subject, targets: Tensor, *, setting: str = "", draws: int = 3, seed: int = 0
) -> list[Finding]:
    """The same where only inputs and targets are at hand: which input a target repeats is read from their values.

    Of all shifts s, that under which most targets equal the input s places on is taken for the one the data was made
    with; then output i must not move with input i + s. This is a guess, which the other form need not make.

    Args:
        subject: the model; its watched input holds token ids [B, T].
        targets: int [B, T]; −100 is ignored.
        setting: words that the message ends with.
        draws: how many other values each input takes.
        seed: of the values.

    Raises:
        Inapplicable: no one shift explains the targets.
    """
    ids = subject.watched
    if ids.shape != targets.shape or ids.is_floating_point() or ids.ndim != 2:
        raise Inapplicable(
            f"target alignment needs token ids and targets of one shape [B, T], got {list(targets.shape)}"
        )
    targets = targets.to(ids.device)
    shift = shift_of(ids, targets)
    base, length = subject.run(ids), ids.shape[1]
    generator = torch.Generator().manual_seed(seed)
    moved = torch.zeros(base.shape[:2], dtype=torch.float64)
    repeats = (targets != IGNORED).cpu() & (_shifted(ids, shift) == targets).cpu()
    floor = 4 * difference(base, subject.run(ids))
    for values in subject.substitutes(draws, generator):
        for query in range(max(0, -shift), min(length, length - shift)):
            changed = ids.clone()
            changed[:, query + shift] = values[:, query + shift]
            change = difference(base[:, query : query + 1], subject.run(changed)[:, query : query + 1])[:, 0]
            moved[:, query] = torch.maximum(moved[:, query], torch.where(change > floor[:, query], change, 0.0))
    moved.masked_fill_(~repeats, 0.0)
    wrong = moved > tolerance(base) * 1e-3
    if not wrong.any():
        return []
    row, query = divmod(int(moved.argmax()), length)
    message = f"output {query} of row {row} moves with input {query + shift}, which is its own answer{said(setting)}"
    where: dict[str, Any] = {"row": row, "query": query, "key": query + shift, "pairs": int(wrong.sum())}
    return [finding("target misalignment", message, float(moved.max()), **where)]


def shift_of(ids: Tensor, targets: Tensor) -> int:
    """How many places after input i target i stands: 1 in a usual language model, 0 where targets are not shifted.

    Raises:
        Inapplicable: less than nine in ten targets fit any shift, or several shifts fit as well (a text that repeats).
    """
    length = ids.shape[1]
    counted = targets != IGNORED
    fits: dict[int, float] = {}
    for shift in range(1 - length, length):
        inside = torch.zeros_like(counted)
        inside[:, max(0, -shift) : min(length, length - shift)] = True
        inside &= counted
        if int(inside.sum()) >= max(2, int(counted.sum()) // 2):
            fits[shift] = float((_shifted(ids, shift) == targets)[inside].double().mean())
    best = max(fits.values(), default=0.0)
    likeliest = [shift for shift, share in fits.items() if share == best]
    if best < 0.9 or len(likeliest) > 1:
        raise Inapplicable("target alignment: the targets do not follow the inputs by one shift; give the raw example")
    return likeliest[0]


def _shifted(ids: Tensor, shift: int) -> Tensor:
    """Input i + shift in place i; wrong at the ends, which callers leave out, and −1 there."""
    shifted = ids.roll(-shift, dims=1)
    if shift > 0:
        shifted[:, -shift:] = -1
    elif shift < 0:
        shifted[:, :-shift] = -1
    return shifted


def _shaped(targets: Tensor) -> Tensor:
    """[B, Tq, …]: one target for each output."""
    return targets[:, None, None] if targets.ndim == 1 else targets.reshape(*targets.shape[:2], -1)


def _run(subject: Subject) -> Tensor:
    with torch.no_grad():
        return subject.run()


class _Raw:
    """An example whose elements can be changed one at a time."""

    def __init__(self, example: Any, values: Sequence[int] | None, chooser: random.Random) -> None:
        self.example, self.chooser = example, chooser
        self.nested = isinstance(example, list | tuple) and bool(example) and not isinstance(example[0], int | float)
        documents = example if self.nested else [example]
        self.sizes = [document.numel() if isinstance(document, Tensor) else len(document) for document in documents]
        self.values = values
        seen = {one for document in documents for one in _elements(document)}
        self.seen = sorted(seen, key=repr)

    def places(self, most: int) -> list[tuple[int, int] | int]:
        """At most so many elements: (document, element), or the element alone."""
        every: list[tuple[int, int] | int] = [
            (number, place) if self.nested else place for number, size in enumerate(self.sizes) for place in range(size)
        ]
        return every if len(every) <= most else sorted(self.chooser.sample(every, most))

    def said(self, place: tuple[int, int] | int) -> str:
        """The element in words."""
        if not isinstance(place, int):
            return f"element {place[1]} of document {place[0]}"
        if not isinstance(self.example, Tensor) or self.example.ndim < 2:
            return f"element {place}"
        index = torch.unravel_index(torch.tensor(place), self.example.shape)
        return f"element {[int(one) for one in index]}"

    def changed(self, place: tuple[int, int] | int) -> Any:
        """A copy with another value there."""
        if isinstance(place, int):
            return self._with(self.example, place)
        documents = list(self.example)
        documents[place[0]] = self._with(documents[place[0]], place[1])
        return documents if isinstance(self.example, list) else tuple(documents)

    def _with(self, document: Any, place: int) -> Any:
        if isinstance(document, Tensor):
            flat = document.clone().flatten()
            if document.is_floating_point():
                flat[place] += float(document.std(correction=0)) + 1.0
            else:
                flat[place] = self._other(int(flat[place]))
            return flat.view(document.shape)
        other = self._other(document[place])
        if isinstance(document, bytes):
            return document[:place] + bytes([other]) + document[place + 1 :]
        if isinstance(document, str):
            return document[:place] + other + document[place + 1 :]
        copy = list(document)
        copy[place] = other
        return copy if isinstance(document, list) else tuple(copy)

    def _other(self, value: Any) -> Any:
        """Another value than this one."""
        others = [one for one in (self.values if self.values is not None else self.seen) if one != value]
        if others:
            return self.chooser.choice(others)
        if isinstance(value, str):
            return "a" if value != "a" else "b"
        return value - 1 if value > 0 else value + 1


def _elements(document: Any) -> list[Any]:
    if isinstance(document, Tensor):
        return [] if document.is_floating_point() else document.unique().tolist()
    return list(document)
