"""`Bounds`: a tensor of which only bounds are known, so that a rule's own code can be read for a whole tile at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from maskzoo.planning.intervals.values import NoIntervalRule, Value, check_range, constant

Rule: TypeAlias = Callable[..., Value]
"""From a `Trace` and the operands of an operation to what is known of its result."""

RULES: dict[str, Rule] = {}
"""The rule of each function and method of torch, by its name."""

METHODS: dict[Any, Rule] = {}
"""Rules of methods whose operands stand in another order than those of the function of the same name."""


def rule(names: str) -> Callable[[Rule], Rule]:
    """Decorator that enters the rule of an operation under the names that torch has for it."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return enter


@dataclass
class Trace:
    """What one reading of a predicate leaves behind.

    Attributes:
        exact: check that no integer leaves ±LARGEST.
        comparisons: every comparison that was made.
        tables: what was worked out once for each table that the predicate reads, by its id.
    """

    exact: bool = False
    comparisons: list[Value] = field(default_factory=list)
    tables: dict[int, Any] = field(default_factory=dict)

    def unknown(self, tiles: int, device: torch.device) -> Value:
        """A truth value that may be either for every pair of P tiles."""
        never = torch.zeros(tiles, 1, 1, dtype=torch.bool, device=device)
        value = Value(never, ~never, None, None)
        self.comparisons.append(value)
        return value


class Bounds(Tensor):
    """A tensor [P, 1, 1] that stands for all values in P tiles; operations on it give the bounds of their result.

    Operations without a rule here raise `NoIntervalRule`.
    """

    value: Value
    reading: Trace

    @staticmethod
    def __new__(cls, value: Value, trace: Trace) -> Bounds:
        made = Tensor._make_wrapper_subclass(cls, value.low.shape, dtype=value.low.dtype, device=value.low.device)
        made.value, made.reading = value, trace
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Bounds({self.value.low.flatten().tolist()}, {self.value.high.flatten().tolist()})"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = function.__name__
        if name in ("__get__", "dim", "size"):  # attributes, the same for all values
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        found = METHODS.get(function) or RULES.get(name)
        if found is None:
            raise NoIntervalRule(name.strip("_"))
        reading = next(x.reading for x in _flat([*args, *(kwargs or {}).values()]) if isinstance(x, Bounds))
        value = found(reading, *args, **(kwargs or {}))
        if reading.exact:
            check_range(name.strip("_"), value)
        low, high = torch.broadcast_tensors(value.low, value.high)
        return cls(value._replace(low=low, high=high), reading)

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any) -> Any:
        raise NoIntervalRule(operation.overloadpacket.__name__)


def _flat(args: Sequence[Any]) -> list[Any]:
    return [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else (arg,))]


def known(x: Any) -> Value:
    """Bounds of an operand: of a traced tensor, or of a constant."""
    if isinstance(x, Bounds):
        return x.value
    if isinstance(x, (bool, int, float)) or (isinstance(x, Tensor) and x.dim() == 0):
        return constant(x)
    raise NoIntervalRule(f"an operation with a tensor of shape {list(x.shape)}" if isinstance(x, Tensor) else repr(x))


def number(x: Any) -> int:
    """An operand that must be one known integer."""
    if isinstance(x, Tensor) and x.dim() == 0 and not isinstance(x, Bounds):
        x = x.item()
    if isinstance(x, bool) or not isinstance(x, int):
        raise NoIntervalRule("an operation that needs a constant integer")
    return x
