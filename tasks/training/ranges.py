"""Range checks of configuration values: an error gives the key, the value and the range."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maskzoo.registry import nearest


def check_number(
    key: str,
    value: float | None,
    *,
    above: float | None = None,
    minimum: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
) -> None:
    """Raise ValueError unless `value` is a finite number in the range; None passes (an optional value left out)."""
    if value is None:
        return
    bounds = [(">", above), (">=", minimum), ("<", below), ("<=", maximum)]
    allowed = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
    inside = (
        math.isfinite(value)
        and (above is None or value > above)
        and (minimum is None or value >= minimum)
        and (below is None or value < below)
        and (maximum is None or value <= maximum)
    )
    if not inside:
        raise ValueError(f"{key}={value} is out of range: it must be {allowed}")


def check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    """Raise ValueError unless `value` is one of `choices`; the error suggests the nearest."""
    if value not in choices:
        raise ValueError(
            f"{key}={value!r} is unknown: it must be one of {', '.join(choices)}.{nearest(value, choices)}"
        )
