"""`Bounds`: a tensor of which only bounds are known, so that a rule's own code can be read for a whole tile at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

LARGEST = 2**62 - 1
"""Integers of a rule must stay within ± this, half of what int64 holds, so that no sum of two wraps."""

Linear: TypeAlias = "tuple[tuple[tuple[str, str], int], ...]"
"""Σ coefficient · field, constant left out: (((side, field), coefficient), …), sorted by side and field."""


class NoIntervalRule(Exception):
    """An operation whose bounds are not known here."""


class Value(NamedTuple):
    """What is known of a number or truth value, tile by tile.

    A truth value has bounds too: `low` says that it holds for every pair of the tile, `high` that it does for some.

    Attributes:
        low, high: [P, 1, 1] of one dtype, or zero-dimensional for a constant.
        linear: the value as a linear form of fields, when it is one (a constant is the empty form).
        forms: linear forms that decide the value: pairs with equal forms have equal values. None: not known.
    """

    low: Tensor
    high: Tensor
    linear: Linear | None
    forms: frozenset[Linear] | None


@dataclass
class Trace:
    """What one reading of a predicate leaves behind.

    Attributes:
        exact: check that no integer leaves ±LARGEST.
        comparisons: every comparison that was made.
    """

    exact: bool = False
    comparisons: list[Value] = field(default_factory=list)
    _extremes: dict[int, tuple[Tensor, Extremes]] = field(default_factory=dict)

    def unknown(self, tiles: int, device: torch.device) -> Value:
        """A truth value that may be either for every pair of P tiles."""
        never = torch.zeros(tiles, 1, 1, dtype=torch.bool, device=device)
        value = Value(never, ~never, None, None)
        self.comparisons.append(value)
        return value

    def extremes(self, table: Tensor) -> Extremes:
        """The range minima and maxima of a table, made once."""
        if id(table) not in self._extremes:
            self._extremes[id(table)] = (table, Extremes(table.long()))
        return self._extremes[id(table)][1]


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
        rule = METHODS.get(function) or RULES.get(name)
        if rule is None:
            raise NoIntervalRule(name.strip("_"))
        reading = next(x.reading for x in _flat([*args, *(kwargs or {}).values()]) if isinstance(x, Bounds))
        value = rule(reading, *args, **(kwargs or {}))
        if reading.exact:
            check_range(name.strip("_"), value)
        low, high = torch.broadcast_tensors(value.low, value.high)
        return cls(value._replace(low=low, high=high), reading)

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any) -> Any:  # type: ignore[override]
        raise NoIntervalRule(operation.overloadpacket.__name__)


def _flat(args: Sequence[Any]) -> list[Any]:
    return [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else (arg,))]


def check_range(name: str, value: Value) -> None:
    """Raise `OverflowError(name)` if an integer leaves ±LARGEST."""
    if value.low.dtype == torch.int64 and bool((value.low < -LARGEST).any() | (value.high > LARGEST).any()):
        raise OverflowError(name)


def constant(number: Any) -> Value:
    """A number or truth value that is the same for all pairs."""
    at = torch.as_tensor(number)
    return Value(at, at, (), frozenset())


def known(x: Any) -> Value:
    """Bounds of an operand: of a traced tensor, or of a constant."""
    if isinstance(x, Bounds):
        return x.value
    if isinstance(x, (bool, int, float)) or (isinstance(x, Tensor) and x.dim() == 0):
        return constant(x)
    raise NoIntervalRule(f"an operation with a tensor of shape {list(x.shape)}" if isinstance(x, Tensor) else repr(x))


def _number(x: Any) -> int:
    """An operand that must be one known integer."""
    if isinstance(x, Tensor) and x.dim() == 0 and not isinstance(x, Bounds):
        x = x.item()
    if isinstance(x, bool) or not isinstance(x, int):
        raise NoIntervalRule("an operation that needs a constant integer")
    return x


def _integers(*values: Value) -> None:
    if any(value.low.dtype.is_floating_point for value in values):
        raise NoIntervalRule("arithmetic with floats")


def _joint(*values: Value) -> frozenset[Linear] | None:
    forms: frozenset[Linear] = frozenset()
    for value in values:
        if value.forms is None:
            return None
        forms |= value.forms
    return forms


def _made(low: Tensor, high: Tensor, *sources: Value) -> Value:
    return Value(low, high, None, _joint(*sources))


def _scaled(value: Value, factor: int) -> Value:
    ends = value.low * factor, value.high * factor
    low, high = ends if factor >= 0 else ends[::-1]
    if value.linear is None:
        return _made(low, high, value)
    return _linear(low, high, tuple((term, factor * own) for term, own in value.linear))


def _linear(low: Tensor, high: Tensor, *summands: Linear) -> Value:
    linear = _sum(*summands)
    return Value(low, high, linear, frozenset([linear]) if linear else frozenset())


def _sum(*summands: Linear) -> Linear:
    terms: dict[tuple[str, str], int] = {}
    for term, factor in (pair for summand in summands for pair in summand):
        terms[term] = terms.get(term, 0) + factor
    return tuple(sorted((term, factor) for term, factor in terms.items() if factor))


def _difference(a: Linear, b: Linear) -> frozenset[Linear]:
    linear = _sum(a, tuple((term, -factor) for term, factor in b))
    return frozenset([linear]) if linear else frozenset()


def _add(trace: Trace, a: Any, b: Any, alpha: int = 1) -> Value:
    if _are_true(a, b):  # torch adds truth values as "or", and multiplies them as "and"
        return _any_true(trace, a, b)
    a, b = known(a), _times(trace, known(b), alpha)
    _integers(a, b)
    low, high = a.low.long() + b.low.long(), a.high.long() + b.high.long()
    if a.linear is None or b.linear is None:
        return _made(low, high, a, b)
    return _linear(low, high, a.linear, b.linear)


def _times(trace: Trace, value: Value, factor: int) -> Value:
    _integers(value)
    if trace.exact:
        # A product can wrap past the check of its result: compare in floats first.
        largest = max(abs(float(value.low.min())), abs(float(value.high.max()))) * abs(factor)
        if largest > LARGEST:
            raise OverflowError("mul")
    return _scaled(value._replace(low=value.low.long(), high=value.high.long()), factor)


def _subtract(trace: Trace, a: Any, b: Any, alpha: int = 1) -> Value:
    return _add(trace, a, b, -alpha)


def _reverse_subtract(trace: Trace, a: Any, b: Any, alpha: int = 1) -> Value:
    return _add(trace, b, a, -alpha)


def _multiply(trace: Trace, a: Any, b: Any) -> Value:
    if _are_true(a, b):
        return _both_true(trace, a, b)
    for value, factor in ((a, b), (b, a)):
        if not isinstance(factor, Bounds):
            return _times(trace, known(value), _number(factor))
    a, b = known(a), known(b)
    _integers(a, b)
    if trace.exact:
        sizes = [max(abs(float(x.low.min())), abs(float(x.high.max()))) for x in (a, b)]
        if sizes[0] * sizes[1] > LARGEST:
            raise OverflowError("mul")
    products = [x * y for x in (a.low.long(), a.high.long()) for y in (b.low.long(), b.high.long())]
    return _made(*_hull(products), a, b)


def _hull(ends: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(torch.broadcast_tensors(*ends))
    return stacked.amin(0), stacked.amax(0)


def _negate(trace: Trace, a: Any) -> Value:
    return _times(trace, known(a), -1)


def _absolute(trace: Trace, a: Any) -> Value:
    a = known(a)
    _integers(a)
    across = (a.low <= 0) & (a.high >= 0)
    ends = a.low.abs(), a.high.abs()
    return _made(torch.minimum(*ends).masked_fill(across, 0), torch.maximum(*ends), a)


def _floor_divide(trace: Trace, a: Any, b: Any) -> Value:
    return _monotone(trace, a, _divisor(b), lambda end, by: end.div(by, rounding_mode="floor"))


def _divide(trace: Trace, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        raise NoIntervalRule("true division")
    return _monotone(trace, a, _divisor(b), lambda end, by: end.div(by, rounding_mode=rounding_mode))


def _divisor(b: Any) -> int:
    divisor = _number(b)
    if divisor == 0:
        raise NoIntervalRule("division by 0")
    return divisor


def _monotone(trace: Trace, a: Any, by: int, function: Callable[[Tensor, int], Tensor]) -> Value:
    a = known(a)
    _integers(a)
    return _made(*_hull([function(a.low.long(), by), function(a.high.long(), by)]), a)


def _remainder(trace: Trace, a: Any, b: Any) -> Value:
    a, divisor = known(a), _divisor(b)
    _integers(a)
    turns = [end.long().div(divisor, rounding_mode="floor") for end in (a.low, a.high)]
    ends = [end.long() - turn * divisor for end, turn in zip((a.low, a.high), turns, strict=True)]
    same = turns[0] == turns[1]
    least, most = (0, divisor - 1) if divisor > 0 else (divisor + 1, 0)
    return _made(torch.where(same, ends[0], least), torch.where(same, ends[1], most), a)


def _shift_left(trace: Trace, a: Any, b: Any) -> Value:
    return _times(trace, known(a), 1 << _bits(b))


def _shift_right(trace: Trace, a: Any, b: Any) -> Value:
    return _monotone(trace, a, _bits(b), lambda end, by: end >> by)


def _bits(b: Any) -> int:
    count = _number(b)
    if not 0 <= count < 63:
        raise NoIntervalRule("a shift by less than 0 or more than 62 bits")
    return count


def _minimum(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    _integers(a, b)
    return _made(torch.minimum(a.low, b.low), torch.minimum(a.high, b.high), a, b)


def _maximum(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    _integers(a, b)
    return _made(torch.maximum(a.low, b.low), torch.maximum(a.high, b.high), a, b)


def _clamp(trace: Trace, a: Any, min: Any = None, max: Any = None) -> Value:
    value = known(a)
    _integers(value)
    for limit, function in ((min, torch.maximum), (max, torch.minimum)):
        if limit is not None:
            bound = known(limit)
            _integers(bound)
            value = _made(function(value.low, bound.low), function(value.high, bound.high), value, bound)
    return value


def _compared(trace: Trace, every: Tensor, some: Tensor, a: Value, b: Value) -> Value:
    # Two linear forms compare as their difference does with a constant.
    forms = _joint(a, b) if a.linear is None or b.linear is None else _difference(a.linear, b.linear)
    value = Value(every, some, None, forms)
    trace.comparisons.append(value)
    return value


def _greater_or_equal(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    return _compared(trace, a.low >= b.high, a.high >= b.low, a, b)


def _greater(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    return _compared(trace, a.low > b.high, a.high > b.low, a, b)


def _less_or_equal(trace: Trace, a: Any, b: Any) -> Value:
    return _greater_or_equal(trace, b, a)


def _less(trace: Trace, a: Any, b: Any) -> Value:
    return _greater(trace, b, a)


def _equal(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    one_value = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _compared(trace, one_value, (a.low <= b.high) & (b.low <= a.high), a, b)


def _unequal(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    one_value = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _compared(trace, (a.low > b.high) | (b.low > a.high), ~one_value, a, b)


def _truth(trace: Trace, a: Any) -> Value:
    """An operand as a truth value: integers are true unless they are 0."""
    value = known(a)
    return value if value.low.dtype == torch.bool else _unequal(trace, a, 0)


def _both_true(trace: Trace, a: Any, b: Any) -> Value:
    a, b = _truth(trace, a), _truth(trace, b)
    return _made(a.low & b.low, a.high & b.high, a, b)


def _any_true(trace: Trace, a: Any, b: Any) -> Value:
    a, b = _truth(trace, a), _truth(trace, b)
    return _made(a.low | b.low, a.high | b.high, a, b)


def _one_true(trace: Trace, a: Any, b: Any) -> Value:
    a, b = _truth(trace, a), _truth(trace, b)
    some = (a.high & ~b.low) | (b.high & ~a.low)
    return _made((a.low & ~b.high) | (b.low & ~a.high), some, a, b)


def _not_true(trace: Trace, a: Any) -> Value:
    a = _truth(trace, a)
    return _made(~a.high, ~a.low, a)


def _are_true(*operands: Any) -> bool:
    return all(known(x).low.dtype == torch.bool for x in operands)


def _bitwise_and(trace: Trace, a: Any, b: Any) -> Value:
    if _are_true(a, b):
        return _both_true(trace, a, b)
    a, b = known(a), known(b)
    _integers(a, b)
    # With one side not negative, the result has no bit that this side has not.
    ceilings = [torch.where(x.low >= 0, x.high, torch.iinfo(torch.int64).max) for x in (a, b)]
    if bool(((a.low < 0) & (b.low < 0)).any()):
        raise NoIntervalRule("bitwise_and of numbers that may be negative")
    high = torch.minimum(*ceilings)
    return _made(torch.zeros_like(high), high, a, b)


def _bitwise_or(trace: Trace, a: Any, b: Any) -> Value:
    return _any_true(trace, a, b) if _are_true(a, b) else _within_bits("bitwise_or", known(a), known(b))


def _bitwise_xor(trace: Trace, a: Any, b: Any) -> Value:
    return _one_true(trace, a, b) if _are_true(a, b) else _within_bits("bitwise_xor", known(a), known(b))


def _within_bits(name: str, a: Value, b: Value) -> Value:
    _integers(a, b)
    low, high = torch.minimum(a.low, b.low), torch.maximum(a.high, b.high)
    if bool((low < 0).any()):
        raise NoIntervalRule(f"{name} of numbers that may be negative")
    most = (1 << int(high.max()).bit_length()) - 1
    return _made(torch.zeros_like(low), torch.full_like(high, most), a, b)


def _bitwise_not(trace: Trace, a: Any) -> Value:
    return _not_true(trace, a) if _are_true(a) else _add(trace, -1, a, -1)


def _where(trace: Trace, condition: Any, a: Any, b: Any) -> Value:
    chosen, a, b = _truth(trace, condition), known(a), known(b)
    _integers(a, b)
    never_b, never_a = chosen.low, ~chosen.high
    low = torch.where(never_b, a.low, torch.where(never_a, b.low, torch.minimum(a.low, b.low)))
    high = torch.where(never_b, a.high, torch.where(never_a, b.high, torch.maximum(a.high, b.high)))
    return _made(low, high, chosen, a, b)


def _cast(trace: Trace, a: Any, dtype: Any) -> Value:
    value = known(a)
    if dtype == value.low.dtype:
        return value
    if dtype == torch.bool:
        return _truth(trace, a)
    if dtype == torch.int64:
        return value._replace(low=value.low.long(), high=value.high.long())
    raise NoIntervalRule(f"conversion to {dtype}")


def _filled(fill: int) -> Callable[..., Value]:
    def rule(trace: Trace, like: Any, *, dtype: torch.dtype | None = None, **layout: Any) -> Value:
        shape = known(like).low
        ends = torch.full_like(shape, fill, dtype=dtype or shape.dtype)
        return Value(ends, ends, (), frozenset())

    return rule


def _same(trace: Trace, a: Any, **layout: Any) -> Value:
    return known(a)


class Extremes:
    """Range minima and maxima of a table [N] for any range, in constant time: [levels, N] each."""

    def __init__(self, table: Tensor) -> None:
        low, high = [table], [table]
        reach = 1
        while 2 * reach <= len(table):
            for kept, function in ((low, torch.minimum), (high, torch.maximum)):
                last = kept[-1]
                kept.append(torch.cat([function(last[:-reach], last[reach:]), last[-reach:]]))
            reach *= 2
        self.low, self.high = torch.stack(low), torch.stack(high)

    def between(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Lowest and highest entry of table[first … last]."""
        levels = torch.arange(1, len(self.low), device=first.device)
        level = torch.bucketize(last - first + 1, 1 << levels, right=True)
        second = last + 1 - (1 << level)
        return (
            torch.minimum(self.low[level, first], self.low[level, second]),
            torch.maximum(self.high[level, first], self.high[level, second]),
        )


def _looked_up(trace: Trace, table: Any, index: Any) -> Value:
    indices = index if isinstance(index, tuple) else (index,)
    if isinstance(table, Bounds) or table.dtype.is_floating_point or len(indices) != table.dim():
        raise NoIntervalRule("indexing of this kind")
    places = [known(index) for index in indices]
    for place, size in zip(places, table.shape, strict=True):
        if bool((place.low < 0).any() | (place.high >= size).any()):
            raise NoIntervalRule("indexing from the end of a table or beyond it")
    if table.dim() == 1:
        ends = table.byte() if table.dtype == torch.bool else table.long()
        low, high = trace.extremes(table).between(places[0].low, places[0].high)
        if table.dtype == torch.bool:
            low, high = low.bool(), high.bool()
    else:
        # Exact where a tile reads one entry; otherwise anything that stands in the table.
        one = torch.stack(torch.broadcast_tensors(*(place.low == place.high for place in places))).all(0)
        entry = table[tuple(place.low for place in places)]
        ends = table if table.dtype == torch.bool else table.long()
        low, high = torch.where(one, entry, ends.amin()), torch.where(one, entry, ends.amax())
    value = _made(low, high, *places)
    if table.dtype == torch.bool:
        trace.comparisons.append(value)
    return value


def _taken(trace: Trace, table: Any, index: Any) -> Value:
    return _looked_up(trace, table if isinstance(table, Bounds) else table.flatten(), index)


def _of_two(rule: Callable[..., Value]) -> Callable[..., Value]:
    """`max` and `min`, which reduce when they are given one tensor."""

    def pairwise(trace: Trace, a: Any, b: Any = None, **options: Any) -> Value:
        if not isinstance(b, Tensor) or options:
            raise NoIntervalRule("a maximum or minimum over positions")
        return rule(trace, a, b)

    return pairwise


_NAMES: dict[Callable[..., Value], str] = {
    _add: "add __add__ __radd__",
    _subtract: "sub subtract __sub__",
    _reverse_subtract: "rsub __rsub__",
    _multiply: "mul multiply __mul__ __rmul__",
    _negate: "neg negative __neg__",
    _absolute: "abs absolute __abs__",
    _floor_divide: "floor_divide __floordiv__",
    _divide: "div divide",
    _remainder: "remainder __mod__",
    _shift_left: "__lshift__ bitwise_left_shift",
    _shift_right: "__rshift__ bitwise_right_shift",
    _minimum: "minimum",
    _maximum: "maximum",
    _of_two(_minimum): "min",
    _of_two(_maximum): "max",
    _clamp: "clamp clip",
    lambda trace, a, min: _clamp(trace, a, min=min): "clamp_min",
    lambda trace, a, max: _clamp(trace, a, max=max): "clamp_max",
    _greater_or_equal: "ge greater_equal __ge__",
    _greater: "gt greater __gt__",
    _less_or_equal: "le less_equal __le__",
    _less: "lt less __lt__",
    _equal: "eq __eq__",
    _unequal: "ne not_equal __ne__",
    _bitwise_and: "bitwise_and __and__ __rand__",
    _bitwise_or: "bitwise_or __or__ __ror__",
    _bitwise_xor: "bitwise_xor __xor__ __rxor__",
    _bitwise_not: "bitwise_not __invert__",
    _both_true: "logical_and",
    _any_true: "logical_or",
    _one_true: "logical_xor",
    _not_true: "logical_not",
    _where: "where",
    _cast: "to type",
    lambda trace, a: _cast(trace, a, torch.int64): "long",
    lambda trace, a: _cast(trace, a, torch.bool): "bool",
    _filled(1): "ones_like",
    _filled(0): "zeros_like",
    _same: "clone detach contiguous",
    _looked_up: "__getitem__",
    _taken: "take",
}

RULES = {name: rule for rule, names in _NAMES.items() for name in names.split()}
"""The rule of each function and method of torch, by its name."""

METHODS: dict[Any, Callable[..., Value]] = {Tensor.where: lambda trace, a, condition, b: _where(trace, condition, a, b)}
"""Methods whose operands stand in another order than those of the function of the same name."""
