"""maskzoo: masked attention over tokens, patches and graphs.

Write a rule once (`Mask`, `Bias`), let `plan` work it out for given `Positions`, and `attend` under it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskzoo import adapters, audit, biases, masks
    from maskzoo.attention import attend
    from maskzoo.biases.base import Bias, OffsetBias, register_bias
    from maskzoo.checkpoint import load
    from maskzoo.drawing import draw, draw_bias, draw_weights
    from maskzoo.masks.base import Mask, register_mask
    from maskzoo.planning import Plan, plan
    from maskzoo.positions import Positions

__version__ = "0.1.0"

__all__ = [
    "Bias",
    "Mask",
    "OffsetBias",
    "Plan",
    "Positions",
    "adapters",
    "attend",
    "audit",
    "biases",
    "draw",
    "draw_bias",
    "draw_weights",
    "load",
    "masks",
    "plan",
    "register_bias",
    "register_mask",
]

# Each name is imported when it is first asked for: `maskzoo --help` needs no torch, and attention no matplotlib.
_PLACES = {
    "Bias": "maskzoo.biases.base",
    "Mask": "maskzoo.masks.base",
    "OffsetBias": "maskzoo.biases.base",
    "Plan": "maskzoo.planning",
    "Positions": "maskzoo.positions",
    "attend": "maskzoo.attention",
    "draw": "maskzoo.drawing",
    "draw_bias": "maskzoo.drawing",
    "draw_weights": "maskzoo.drawing",
    "load": "maskzoo.checkpoint",
    "plan": "maskzoo.planning",
    "register_bias": "maskzoo.biases.base",
    "register_mask": "maskzoo.masks.base",
}
_MODULES = ("adapters", "audit", "biases", "masks")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"maskzoo.{name}")
    if name in _PLACES:
        found = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
        return found
    raise AttributeError(f"module 'maskzoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
