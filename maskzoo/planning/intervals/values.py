"""What is known of a number or truth value on a tile, and the arithmetic of that knowledge."""

from __future__ import annotations

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


def check_range(name: str, value: Value) -> None:
    """Raise `OverflowError(name)` if an integer leaves ±LARGEST."""
    if value.low.dtype == torch.int64 and bool((value.low < -LARGEST).any() | (value.high > LARGEST).any()):
        raise OverflowError(name)


def constant(number: Any) -> Value:
    """A number or truth value that is the same for all pairs."""
    at = torch.as_tensor(number)
    return Value(at, at, (), frozenset())


def only_integers(*values: Value) -> None:
    if any(value.low.dtype.is_floating_point for value in values):
        raise NoIntervalRule("arithmetic with floats")


def joint(*values: Value) -> frozenset[Linear] | None:
    forms: frozenset[Linear] = frozenset()
    for value in values:
        if value.forms is None:
            return None
        forms |= value.forms
    return forms


def made(low: Tensor, high: Tensor, *sources: Value) -> Value:
    return Value(low, high, None, joint(*sources))


def scaled(value: Value, factor: int) -> Value:
    ends = value.low * factor, value.high * factor
    low, high = ends if factor >= 0 else ends[::-1]
    if value.linear is None:
        return made(low, high, value)
    return linear_value(low, high, tuple((term, factor * own) for term, own in value.linear))


def linear_value(low: Tensor, high: Tensor, *summands: Linear) -> Value:
    linear = _sum(*summands)
    return Value(low, high, linear, frozenset([linear]) if linear else frozenset())


def _sum(*summands: Linear) -> Linear:
    terms: dict[tuple[str, str], int] = {}
    for term, factor in (pair for summand in summands for pair in summand):
        terms[term] = terms.get(term, 0) + factor
    return tuple(sorted((term, factor) for term, factor in terms.items() if factor))


def difference(a: Linear, b: Linear) -> frozenset[Linear]:
    linear = _sum(a, tuple((term, -factor) for term, factor in b))
    return frozenset([linear]) if linear else frozenset()
