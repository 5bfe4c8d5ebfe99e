"""Plans that no batch changes are kept, the least recently used dropped first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from maskzoo.planning.result import Plan
from maskzoo.positions import Positions

MOST_PLANS = 64
MOST_BYTES = 2**28

_kept: OrderedDict[Any, Plan] = OrderedDict()


def kept(key: tuple[Any, ...], q_at: Positions, k_at: Positions, build: Callable[[], Plan]) -> Plan:
    """The plan for a key and positions of batch 1, built at most once while it is kept."""
    if q_at.batch > 1 or k_at.batch > 1:
        return build()
    full_key = (key, q_at.digest, k_at.digest)
    if full_key not in _kept:
        _kept[full_key] = build()
        while len(_kept) > 1 and (len(_kept) > MOST_PLANS or sum(plan.bytes for plan in _kept.values()) > MOST_BYTES):
            _kept.popitem(last=False)
    _kept.move_to_end(full_key)
    return _kept[full_key]


def forget() -> None:
    """Drop every plan that is kept."""
    _kept.clear()
