"""Interval rules of arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskzoo.planning.intervals.bounds import RULES, Bounds, Trace, known, number, rule
from maskzoo.planning.intervals.logic import any_true, are_true, both_true
from maskzoo.planning.intervals.values import LARGEST, NoIntervalRule, Value, linear_value, made, only_integers, scaled


@rule("add __add__ __radd__")
def _add(trace: Trace, a: Any, b: Any, alpha: int = 1) -> Value:
    if are_true(a, b):  # torch adds truth values as "or", and multiplies them as "and"
        return any_true(trace, a, b)
    a, b = known(a), _times(trace, known(b), alpha)
    only_integers(a, b)
    low, high = a.low.long() + b.low.long(), a.high.long() + b.high.long()
    if a.linear is None or b.linear is None:
        return made(low, high, a, b)
    return linear_value(low, high, a.linear, b.linear)


def _times(trace: Trace, value: Value, factor: int) -> Value:
    only_integers(value)
    if trace.exact:
        # A product can wrap past the check of its result: compare in floats first.
        largest = max(abs(float(value.low.min())), abs(float(value.high.max()))) * abs(factor)
        if largest > LARGEST:
            raise OverflowError("mul")
    return scaled(value._replace(low=value.low.long(), high=value.high.long()), factor)


@rule("sub subtract __sub__")
def _subtract(trace: Trace, a: Any, b: Any, alpha: int = 1) -> Value:
    return _add(trace, a, b, -alpha)


@rule("rsub __rsub__")
def _reverse_subtract(trace: Trace, a: Any, b: Any, alpha: int = 1) -> Value:
    return _add(trace, b, a, -alpha)


@rule("mul multiply __mul__ __rmul__")
def _multiply(trace: Trace, a: Any, b: Any) -> Value:
    if are_true(a, b):
        return both_true(trace, a, b)
    for value, factor in ((a, b), (b, a)):
        if not isinstance(factor, Bounds):
            return _times(trace, known(value), number(factor))
    a, b = known(a), known(b)
    only_integers(a, b)
    if trace.exact:
        sizes = [max(abs(float(x.low.min())), abs(float(x.high.max()))) for x in (a, b)]
        if sizes[0] * sizes[1] > LARGEST:
            raise OverflowError("mul")
    products = [x * y for x in (a.low.long(), a.high.long()) for y in (b.low.long(), b.high.long())]
    return made(*_hull(products), a, b)


def _hull(ends: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(torch.broadcast_tensors(*ends))
    return stacked.amin(0), stacked.amax(0)


@rule("neg negative __neg__")
def _negate(trace: Trace, a: Any) -> Value:
    return _times(trace, known(a), -1)


@rule("abs absolute __abs__")
def _absolute(trace: Trace, a: Any) -> Value:
    a = known(a)
    only_integers(a)
    across = (a.low <= 0) & (a.high >= 0)
    ends = a.low.abs(), a.high.abs()
    return made(torch.minimum(*ends).masked_fill(across, 0), torch.maximum(*ends), a)


@rule("floor_divide __floordiv__")
def _floor_divide(trace: Trace, a: Any, b: Any) -> Value:
    return _monotone(trace, a, _divisor(b), lambda end, by: end.div(by, rounding_mode="floor"))


@rule("div divide")
def _divide(trace: Trace, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        raise NoIntervalRule("true division")
    return _monotone(trace, a, _divisor(b), lambda end, by: end.div(by, rounding_mode=rounding_mode))


def _divisor(b: Any) -> int:
    divisor = number(b)
    if divisor == 0:
        raise NoIntervalRule("division by 0")
    return divisor


def _monotone(trace: Trace, a: Any, by: int, function: Callable[[Tensor, int], Tensor]) -> Value:
    a = known(a)
    only_integers(a)
    return made(*_hull([function(a.low.long(), by), function(a.high.long(), by)]), a)


@rule("remainder __mod__")
def _remainder(trace: Trace, a: Any, b: Any) -> Value:
    a, divisor = known(a), _divisor(b)
    only_integers(a)
    turns = [end.long().div(divisor, rounding_mode="floor") for end in (a.low, a.high)]
    ends = [end.long() - turn * divisor for end, turn in zip((a.low, a.high), turns, strict=True)]
    same = turns[0] == turns[1]
    least, most = (0, divisor - 1) if divisor > 0 else (divisor + 1, 0)
    return made(torch.where(same, ends[0], least), torch.where(same, ends[1], most), a)


@rule("__lshift__ bitwise_left_shift")
def _shift_left(trace: Trace, a: Any, b: Any) -> Value:
    return _times(trace, known(a), 1 << _bits(b))


@rule("__rshift__ bitwise_right_shift")
def _shift_right(trace: Trace, a: Any, b: Any) -> Value:
    return _monotone(trace, a, _bits(b), lambda end, by: end >> by)


def _bits(b: Any) -> int:
    count = number(b)
    if not 0 <= count < 63:
        raise NoIntervalRule("a shift by less than 0 or more than 62 bits")
    return count


@rule("minimum")
def _minimum(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    only_integers(a, b)
    return made(torch.minimum(a.low, b.low), torch.minimum(a.high, b.high), a, b)


@rule("maximum")
def _maximum(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    only_integers(a, b)
    return made(torch.maximum(a.low, b.low), torch.maximum(a.high, b.high), a, b)


@rule("clamp clip")
def _clamp(trace: Trace, a: Any, min: Any = None, max: Any = None) -> Value:
    value = known(a)
    only_integers(value)
    for limit, function in ((min, torch.maximum), (max, torch.minimum)):
        if limit is not None:
            bound = known(limit)
            only_integers(bound)
            value = made(function(value.low, bound.low), function(value.high, bound.high), value, bound)
    return value


def _of_two(rule: Callable[..., Value]) -> Callable[..., Value]:
    """`max` and `min`, which reduce when they are given one tensor."""

    def pairwise(trace: Trace, a: Any, b: Any = None, **options: Any) -> Value:
        if not isinstance(b, Tensor) or options:
            raise NoIntervalRule("a maximum or minimum over positions")
        return rule(trace, a, b)

    return pairwise


RULES["max"], RULES["min"] = _of_two(_maximum), _of_two(_minimum)


@rule("clamp_min")
def _clamp_min(trace: Trace, a: Any, min: Any) -> Value:
    return _clamp(trace, a, min=min)


@rule("clamp_max")
def _clamp_max(trace: Trace, a: Any, max: Any) -> Value:
    return _clamp(trace, a, max=max)
