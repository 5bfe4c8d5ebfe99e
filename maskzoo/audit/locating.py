"""Where in a model an influence first appears: the module, and the head where it can be told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

if TYPE_CHECKING:
    from maskzoo.audit.subject import Subject

HEAD_NAMES = ("num_heads", "heads", "n_heads", "n_head", "num_attention_heads", "nhead")
ROUNDING = 64  # units in the last place of a tensor's largest value that do not count as moved, at first


@dataclass(frozen=True)
class Place:
    """The innermost module whose inputs obey and whose output does not, its head and its class; None where unknown."""

    layer: str | None = None
    head: int | None = None
    kind: str | None = None


NOWHERE = Place()


def locate(subject: Subject, changed: Tensor, permission: Tensor | None = None, query: int | None = None) -> Place:
    """Where the influence of changed inputs on outputs that may not see them first appears.

    The model runs twice, on its own watched input and on `changed`, with hooks on every module; they are compared call
    by call, in the order in which calls end.

    Args:
        subject: the model and its inputs.
        changed: the watched input with other values in some positions.
        permission: bool [T, T], the rule of one layer (or of all together) where queries and keys are the same
            positions; None where they are not. A call is at fault when its output moves where the rule gives no way
            from the moved inputs.
        query: an output position that may not move. Without a permission, or where it tells nothing, a call is at fault
            when its output moves there and its inputs do not.

    Returns:
        The place; nothing in it where the model is made of no modules or no call shows the fault.
    """
    if permission is None and query is None:
        raise ValueError("locate needs a permission, or the query that may not move")
    place = NOWHERE
    if permission is not None:
        permission = permission.cpu() | torch.eye(len(permission), dtype=torch.bool)
        source = _moved(subject.watched, changed, subject.input_axis)
        place = _search(subject, changed, _Reach({len(permission)}, permission, source))
    if place == NOWHERE and query is not None:
        place = _search(subject, changed, _Row({subject.queries}, query))
    return place


def locate_coupling(subject: Subject, changed: Tensor) -> Place:
    """Where rows of the batch first move with other rows; `changed` has other values in some of them."""
    moved = _moved(subject.watched, changed, 0)
    identity = torch.eye(subject.batch, dtype=torch.bool)
    return _search(subject, changed, _Reach({subject.batch}, identity, moved, rows=True))


def locate_asymmetry(subject: Subject, changed: Tensor, order: Tensor) -> Place:
    """Where outputs first stop moving along with their inputs; `changed` holds position `order[i]` in place i."""
    return _search(subject, changed, _Permuted({len(order)}, order))


@dataclass
class Call:
    """One call of a module: its tensors in an unchanged run."""

    name: str
    module: nn.Module
    begin: int
    inputs: list[Tensor]
    outputs: list[Tensor] = field(default_factory=list)
    parent: Call | None = None
    spreads: int = 0  # how many mixing steps this call holds

    def within(self, other: Call) -> bool:
        """Whether this call was made inside another one."""
        call = self.parent
        while call is not None and call is not other:
            call = call.parent
        return call is other


class _Judge(ABC):
    """What it means that a call's inputs obey, and that its output does not."""

    rows = False

    def __init__(self, lengths: set[int]) -> None:
        self.lengths = lengths

    @abstractmethod
    def fault(self, before: Call, after: Call, tolerance: float) -> Tensor | None:
        """Which places of the output are at fault, bool [L]; None where none is or it cannot be told."""

    @abstractmethod
    def tainted(self, before: Call, after: Call, tolerance: float) -> bool:
        """Whether the inputs already disobey."""

    def axis(self, before: Tensor, after: Tensor) -> int | None:
        return _axis(before, after, self.lengths, rows=self.rows)

    def places(self, before: list[Tensor], after: list[Tensor], tolerance: float) -> tuple[list[Tensor], bool]:
        """Where each tensor moved, bool [L] each, and whether one moved whose places are unknown."""
        moved, unknown = [], False
        for one, other in zip(before, after, strict=False):
            if one.shape != other.shape:
                unknown = True
            elif differs(one, other, tolerance).any():
                axis = self.axis(one, other)
                if axis is None:
                    unknown = True
                else:
                    moved.append(_moved(one, other, axis, tolerance))
        return moved, unknown


class _Reach(_Judge):
    """Outputs may move where the rule, once for each mixing step, leads from a moved input."""

    def __init__(self, lengths: set[int], permission: Tensor, source: Tensor, *, rows: bool = False) -> None:
        super().__init__(lengths)
        self.permission, self.source, self.rows = permission.float(), source, rows

    def _reached(self, inputs: list[Tensor], steps: int) -> Tensor:
        reached = self.source.clone()
        for places in inputs:
            reached |= places
        for _ in range(0 if self.rows else steps):
            reached = self.permission @ reached.float() > 0
        return reached

    def fault(self, before: Call, after: Call, tolerance: float) -> Tensor | None:
        inputs, unknown = self.places(before.inputs, after.inputs, tolerance)
        outputs, _ = self.places(before.outputs, after.outputs, tolerance)
        wrong = None
        if outputs and not unknown:
            spread = outputs[0] & ~self._reached(inputs, 0)
            before.spreads = before.spreads or int(spread.any())
            wrong = outputs[0] & ~self._reached(inputs, before.spreads)
        if before.parent is not None:
            before.parent.spreads += before.spreads
        return wrong if wrong is not None and wrong.any() else None

    def tainted(self, before: Call, after: Call, tolerance: float) -> bool:
        inputs, _ = self.places(before.inputs, after.inputs, tolerance)
        return any(bool((places & ~self._reached([], 1)).any()) for places in inputs)


class _Row(_Judge):
    """One place may not move."""

    def __init__(self, lengths: set[int], query: int) -> None:
        super().__init__(lengths)
        self.query = query

    def fault(self, before: Call, after: Call, tolerance: float) -> Tensor | None:
        outputs, _ = self.places(before.outputs, after.outputs, tolerance)
        if not outputs or not outputs[0][self.query] or self.tainted(before, after, tolerance):
            return None
        wrong = torch.zeros_like(outputs[0])
        wrong[self.query] = True
        return wrong

    def tainted(self, before: Call, after: Call, tolerance: float) -> bool:
        inputs, _ = self.places(before.inputs, after.inputs, tolerance)
        return any(bool(places[self.query]) for places in inputs)


class _Permuted(_Judge):
    """Tensors move along with the order of the positions."""

    def __init__(self, lengths: set[int], order: Tensor) -> None:
        super().__init__(lengths)
        self.order = order

    def _astray(self, before: Tensor, after: Tensor, tolerance: float) -> Tensor | None:
        """Which places disobey, bool [L]; None where all obey or there is no such axis."""
        if before.shape != after.shape or not differs(before, after, tolerance).any():
            return None
        axes = _candidates(before, self.lengths, rows=False)
        if not axes:
            return None
        moved = [_moved(before.index_select(a, self.order.to(before.device)), after, a, tolerance) for a in axes]
        best = min(moved, key=lambda places: int(places.sum()))
        return best if best.any() else None

    def fault(self, before: Call, after: Call, tolerance: float) -> Tensor | None:
        if self.tainted(before, after, tolerance):
            return None
        for one, other in zip(before.outputs, after.outputs, strict=False):
            if (wrong := self._astray(one, other, tolerance)) is not None:
                return wrong
        return None

    def tainted(self, before: Call, after: Call, tolerance: float) -> bool:
        pairs = zip(before.inputs, after.inputs, strict=False)
        return any(self._astray(one, other, tolerance) is not None for one, other in pairs)


def _search(subject: Subject, changed: Tensor, judge: _Judge) -> Place:
    with torch.no_grad():
        roots = _roots(subject)
        if not roots:
            return NOWHERE
        before = _record(subject, subject.watched, roots)
        after = _record(subject, changed, roots)
    pairs = list(_matched(before, after))
    for units in (ROUNDING, 0):
        for call, _ in pairs:
            call.spreads = 0
        for call, other in pairs:
            wrong = judge.fault(call, other, units)
            if wrong is not None:
                name, head = _name(call, before, pairs, judge, units), _head(call, other, wrong, pairs, judge)
                return Place(name, head, type(call.module).__name__)
    return NOWHERE


def _name(call: Call, calls: list[Call], pairs: list[tuple[Call, Call]], judge: _Judge, units: float) -> str:
    """The module's name; for the outermost one, where in its own code the influence first shows."""
    if call.parent is None and call.name == "":
        inner = sorted((one for one in pairs if one[0].within(call)), key=lambda pair: pair[0].begin)
        first = next((one for one, other in inner if judge.tainted(one, other, units)), None)
        return "the model's own forward" if first is None else f"the model's own forward, before {first.name}"
    times = [one for one in sorted(calls, key=lambda one: one.begin) if one.module is call.module]
    return call.name if len(times) == 1 else f"{call.name} (call {times.index(call) + 1})"


def _head(call: Call, other: Call, wrong: Tensor, pairs: list[tuple[Call, Call]], judge: _Judge) -> int | None:
    """The head that brings the influence; None where all do or heads cannot be told apart."""
    module = call.module
    heads = next((n for name in HEAD_NAMES if isinstance(n := getattr(module, name, None), int) and n > 1), None)
    if heads is None or judge.rows or isinstance(judge, _Permuted):
        return None
    if isinstance(module, nn.MultiheadAttention):
        # Its heads are never seen by a hook, but its output projection can be undone.
        weight = module.out_proj.weight.detach().double()
        change = (other.outputs[0].double() - call.outputs[0].double()).nan_to_num()
        axis = judge.axis(call.outputs[0], other.outputs[0])
        if axis is None:
            return None
        change = change.movedim(axis, 0)[wrong.to(change.device)].flatten(0, -2)
        moved = torch.linalg.lstsq(weight, change.T).solution  # [heads * D, places]
        precise = call.outputs[0].dtype == torch.float64
        return _only(moved.unflatten(0, (heads, -1)).abs().amax(dim=(1, 2)), 1e-6 if precise else 1e-2)
    inside = [
        (one.inputs[0], two.inputs[0])
        for one, two in pairs
        if one.parent is call and one.inputs and getattr(one.module, "weight", None) is not None
    ]
    for one, two in [*reversed(inside), (call.outputs[0], other.outputs[0])]:
        sizes = _by_head(one, two, heads, wrong, judge)
        if sizes is not None and sizes.any():
            return _only(sizes, 1e-9)
    return None


def _by_head(before: Tensor, after: Tensor, heads: int, wrong: Tensor, judge: _Judge) -> Tensor | None:
    """How far each head's output moved at the places at fault, [heads]."""
    if before.shape != after.shape:
        return None
    change = (after.double() - before.double()).abs().nan_to_num(1.0)
    if before.ndim == 3 and before.shape[2] % heads == 0:  # [B, T, heads * D]
        change = change.unflatten(2, (heads, -1))
    elif before.ndim != 4:
        return None
    axis = next((a for a in (1, 2) if change.shape[a] == len(wrong) and change.shape[3 - a] == heads), None)
    if axis is None:
        return None
    return change.movedim(axis, 0)[wrong.to(change.device)].movedim(2, 0).flatten(1).amax(dim=1)


def _only(sizes: Tensor, share: float) -> int | None:
    moved = sizes > share * sizes.max()
    return None if moved.all() else int(sizes.argmax())


def differs(before: Tensor, after: Tensor, units: float = 0.0) -> Tensor:
    """Which elements are not the same; NaN is the same as NaN. `units`: how many in the last place do not count."""
    different = before != after
    if not before.is_floating_point() and not before.is_complex():
        return different
    different &= ~(before.isnan() & after.isnan())
    if units:
        finite = before.abs().nan_to_num(0.0, 0.0, 0.0)
        allowed = units * torch.finfo(before.dtype).eps * finite.max() if finite.numel() else 0.0
        different &= ~((before - after).abs() <= allowed)
    return different


def _moved(before: Tensor, after: Tensor, axis: int, units: float = 0.0) -> Tensor:
    """Which places along an axis hold different values, bool [L] on the CPU."""
    return differs(before, after, units).movedim(axis, 0).flatten(1).any(dim=1).cpu()


def _candidates(tensor: Tensor, lengths: set[int], rows: bool) -> list[int]:
    """The axes that may be the positions' (or the batch's), the likeliest first."""
    if rows:
        order = list(range(tensor.ndim))
    else:
        if tensor.ndim >= 4 and tensor.shape[-1] == tensor.shape[-2] and tensor.shape[-1] in lengths:
            return []  # every pair of positions: neither axis says whose values these are
        order = [*range(1, tensor.ndim), 0] if tensor.ndim > 1 else [0]
    return [axis for axis in order if axis < tensor.ndim and tensor.shape[axis] in lengths]


def _axis(before: Tensor, after: Tensor, lengths: set[int], rows: bool = False) -> int | None:
    """The axis of positions. Of several that are long enough, the one along which fewest places move."""
    axes = _candidates(before, lengths, rows)
    if not axes:
        return None
    if rows or len(axes) == 1:
        return axes[0]
    inner = [axis for axis in axes if axis] or axes
    return min(inner, key=lambda axis: int(_moved(before, after, axis).sum()))


def _matched(before: list[Call], after: list[Call]) -> Iterator[tuple[Call, Call]]:
    """The calls of both runs that belong together, in the order in which they ended."""
    found: dict[tuple[str, int], Call] = {}
    counts: Counter[str] = Counter()
    for call in after:
        found[call.name, counts[call.name]] = call
        counts[call.name] += 1
    counts.clear()
    for call in before:
        other = found.get((call.name, counts[call.name]))
        counts[call.name] += 1
        if other is not None:
            yield call, other


def _roots(subject: Subject) -> dict[str, nn.Module]:
    """The outermost modules by name: the model, or those that a function calls."""
    if subject.module is not None:
        return {"": subject.module}
    roots: list[nn.Module] = []
    depth = [0]

    def enter(module: nn.Module, _: Any) -> None:
        if depth[0] == 0 and all(module is not root for root in roots):
            roots.append(module)
        depth[0] += 1

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        depth[0] -= 1

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        subject.run(subject.watched)
    finally:
        for handle in handles:
            handle.remove()
    names = Counter(type(root).__name__ for root in roots)
    return {
        type(root).__name__ if names[type(root).__name__] == 1 else f"{type(root).__name__}[{number}]": root
        for number, root in enumerate(roots)
    }


def _record(subject: Subject, watched: Tensor, roots: Mapping[str, nn.Module]) -> list[Call]:
    """Every call of a run, in the order in which they end."""
    ended: list[Call] = []
    open_calls: list[Call] = []
    begun = [0]

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            parent = open_calls[-1] if open_calls else None
            open_calls.append(Call(name, module, begun[0], _tensors([args, kwargs]), parent=parent))
            begun[0] += 1

        return hook

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = open_calls.pop()
        call.outputs = _tensors(output)
        ended.append(call)

    with _hooked(roots, enter, leave):
        subject.run(watched)
    return ended


@contextmanager
def _hooked(
    roots: Mapping[str, nn.Module], enter: Callable[[str], Callable[..., None]], leave: Callable[..., None]
) -> Iterator[None]:
    handles = []
    seen: set[int] = set()
    try:
        for name, module in _named(roots):
            # Scripted modules take no hooks: a fault in one is found in the module around it.
            if id(module) not in seen and not isinstance(module, torch.jit.ScriptModule):
                seen.add(id(module))
                handles.append(module.register_forward_pre_hook(enter(name), with_kwargs=True))
                handles.append(module.register_forward_hook(leave, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _named(roots: Mapping[str, nn.Module]) -> Iterable[tuple[str, nn.Module]]:
    for prefix, root in roots.items():
        yield from root.named_modules(prefix=prefix)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in what a module takes or gives, copied, so that later changes in place do not show."""
    if isinstance(value, Tensor):
        return [] if value.is_nested or value.is_sparse else [value.detach().clone()]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    return []
