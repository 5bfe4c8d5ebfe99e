"""What masks and biases have in common: how they see positions, and how they are written and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from torch import Tensor


class Side(Protocol):
    """The positions on one side of a pair: every field of `Positions` as an int64 tensor.

    A query's fields have shape [B, Tq, 1] and a key's [B, 1, Tk], so that comparing them gives [B, Tq, Tk]. Long rows
    are read a part at a time: B, Tq and Tk are then those of the part, and whole tiles are first read by the bounds of
    their fields (`maskzoo.planning.intervals`), which every operation on elements understands or refuses.

    Besides the fields, `slot` is the place in the row (0 … T − 1, padding included), `sequence` the place of the row in
    the batch ([B, 1, 1]) and `slots` the length T of the whole row.
    """

    index: Tensor
    segment: Tensor
    slot: Tensor
    sequence: Tensor
    slots: int

    def __getattr__(self, name: str) -> Tensor: ...


def provider_text(provider: Any) -> str:
    """The call that builds a provider: leading numbers by place, defaults left out, no empty parentheses."""
    kind: Any = type(provider)
    written = []
    by_place = True
    for parameter in _parameters(kind):
        value = getattr(provider, parameter.name)
        if parameter.kind is parameter.KEYWORD_ONLY or value == parameter.default or isinstance(value, bool):
            by_place = False
        if value != parameter.default and parameter.name != "heads":
            written.append(repr(value) if by_place else f"{parameter.name}={value!r}")
    name = provider.provider_name or kind.__name__
    return f"{name}({', '.join(written)})" if written else name


@cache
def _parameters(provider: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(provider).parameters.values())


LARGEST = 2**31 - 1
"""Of an integer parameter, so that the product of two stays within int64."""


def check_integer(provider: Any, name: str, *, minimum: int, maximum: int = LARGEST) -> None:
    """Range-check an integer parameter of a provider.

    Raises:
        ValueError: the value is no integer or lies outside; the message gives the provider, the parameter, the value
            and the range.
    """
    value = getattr(provider, name)
    rule = provider.provider_name or type(provider).__name__
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        unbounded = maximum == LARGEST and not (isinstance(value, int) and value > LARGEST)
        allowed = f"an integer of at least {minimum}" if unbounded else f"an integer from {minimum} to {maximum}"
        raise ValueError(f"{rule}({name}={value!r}): {name} must be {allowed}")
