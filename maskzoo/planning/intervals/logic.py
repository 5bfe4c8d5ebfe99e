"""Interval rules of comparisons, of logic, and of the bits of integers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskzoo.planning.intervals.bounds import METHODS, Trace, known, rule
from maskzoo.planning.intervals.values import (
    NoIntervalRule,
    Value,
    constant,
    difference,
    joint,
    made,
    only_integers,
    scaled,
)


def _compared(trace: Trace, every: Tensor, some: Tensor, a: Value, b: Value) -> Value:
    # Two linear forms compare as their difference does with a constant.
    forms = joint(a, b) if a.linear is None or b.linear is None else difference(a.linear, b.linear)
    value = Value(every, some, None, forms)
    trace.comparisons.append(value)
    return value


@rule("ge greater_equal __ge__")
def _greater_or_equal(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    return _compared(trace, a.low >= b.high, a.high >= b.low, a, b)


@rule("gt greater __gt__")
def _greater(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    return _compared(trace, a.low > b.high, a.high > b.low, a, b)


@rule("le less_equal __le__")
def _less_or_equal(trace: Trace, a: Any, b: Any) -> Value:
    return _greater_or_equal(trace, b, a)


@rule("lt less __lt__")
def _less(trace: Trace, a: Any, b: Any) -> Value:
    return _greater(trace, b, a)


@rule("eq __eq__")
def _equal(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    one_value = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _compared(trace, one_value, (a.low <= b.high) & (b.low <= a.high), a, b)


@rule("ne not_equal __ne__")
def _unequal(trace: Trace, a: Any, b: Any) -> Value:
    a, b = known(a), known(b)
    one_value = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _compared(trace, (a.low > b.high) | (b.low > a.high), ~one_value, a, b)


def truth(trace: Trace, a: Any) -> Value:
    """An operand as a truth value: integers are true unless they are 0."""
    value = known(a)
    return value if value.low.dtype == torch.bool else _unequal(trace, a, 0)


@rule("logical_and")
def both_true(trace: Trace, a: Any, b: Any) -> Value:
    a, b = truth(trace, a), truth(trace, b)
    return made(a.low & b.low, a.high & b.high, a, b)


@rule("logical_or")
def any_true(trace: Trace, a: Any, b: Any) -> Value:
    a, b = truth(trace, a), truth(trace, b)
    return made(a.low | b.low, a.high | b.high, a, b)


@rule("logical_xor")
def _one_true(trace: Trace, a: Any, b: Any) -> Value:
    a, b = truth(trace, a), truth(trace, b)
    some = (a.high & ~b.low) | (b.high & ~a.low)
    return made((a.low & ~b.high) | (b.low & ~a.high), some, a, b)


@rule("logical_not")
def _not_true(trace: Trace, a: Any) -> Value:
    a = truth(trace, a)
    return made(~a.high, ~a.low, a)


def are_true(*operands: Any) -> bool:
    return all(known(x).low.dtype == torch.bool for x in operands)


@rule("bitwise_and __and__ __rand__")
def _bitwise_and(trace: Trace, a: Any, b: Any) -> Value:
    if are_true(a, b):
        return both_true(trace, a, b)
    a, b = known(a), known(b)
    only_integers(a, b)
    # With one side not negative, the result has no bit that this side has not.
    ceilings = [torch.where(x.low >= 0, x.high, torch.iinfo(torch.int64).max) for x in (a, b)]
    if bool(((a.low < 0) & (b.low < 0)).any()):
        raise NoIntervalRule("bitwise_and of numbers that may be negative")
    high = torch.minimum(*ceilings)
    return made(torch.zeros_like(high), high, a, b)


@rule("bitwise_or __or__ __ror__")
def _bitwise_or(trace: Trace, a: Any, b: Any) -> Value:
    return any_true(trace, a, b) if are_true(a, b) else _within_bits("bitwise_or", known(a), known(b))


@rule("bitwise_xor __xor__ __rxor__")
def _bitwise_xor(trace: Trace, a: Any, b: Any) -> Value:
    return _one_true(trace, a, b) if are_true(a, b) else _within_bits("bitwise_xor", known(a), known(b))


def _within_bits(name: str, a: Value, b: Value) -> Value:
    only_integers(a, b)
    low, high = torch.minimum(a.low, b.low), torch.maximum(a.high, b.high)
    if bool((low < 0).any()):
        raise NoIntervalRule(f"{name} of numbers that may be negative")
    most = (1 << int(high.max()).bit_length()) - 1
    return made(torch.zeros_like(low), torch.full_like(high, most), a, b)


@rule("bitwise_not __invert__")
def _bitwise_not(trace: Trace, a: Any) -> Value:
    if are_true(a):
        return _not_true(trace, a)
    negative = scaled(known(a), -1)  # ~a = −a − 1
    return negative._replace(low=negative.low - 1, high=negative.high - 1)


@rule("where")
def _where(trace: Trace, condition: Any, a: Any, b: Any) -> Value:
    chosen, a, b = truth(trace, condition), known(a), known(b)
    only_integers(a, b)
    never_b, never_a = chosen.low, ~chosen.high
    low = torch.where(never_b, a.low, torch.where(never_a, b.low, torch.minimum(a.low, b.low)))
    high = torch.where(never_b, a.high, torch.where(never_a, b.high, torch.maximum(a.high, b.high)))
    return made(low, high, chosen, a, b)


@rule("to type")
def _cast(trace: Trace, a: Any, dtype: Any) -> Value:
    value = known(a)
    if dtype == value.low.dtype:
        return value
    if dtype == torch.bool:
        return truth(trace, a)
    if dtype == torch.int64:
        return value._replace(low=value.low.long(), high=value.high.long())
    raise NoIntervalRule(f"conversion to {dtype}")


@rule("long")
def _long(trace: Trace, a: Any) -> Value:
    return _cast(trace, a, torch.int64)


@rule("bool")
def _bool(trace: Trace, a: Any) -> Value:
    return _cast(trace, a, torch.bool)


@rule("ones_like")
def _ones(trace: Trace, like: Any, **options: Any) -> Value:
    return constant(torch.ones_like(known(like).low, **options))


@rule("zeros_like")
def _zeros(trace: Trace, like: Any, **options: Any) -> Value:
    return constant(torch.zeros_like(known(like).low, **options))


@rule("clone detach contiguous")
def _same(trace: Trace, a: Any, **layout: Any) -> Value:
    return known(a)


METHODS[Tensor.where] = lambda trace, a, condition, b: _where(trace, condition, a, b)
