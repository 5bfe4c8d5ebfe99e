"""maskzoo: masked attention over tokens, patches and graphs.

Write a rule once (`Mask`, `Bias`), let `plan` work it out for given `Positions`, and `attend` under it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from maskzoo import biases, masks
from maskzoo.attention import attend
from maskzoo.biases.base import Bias, register_bias
from maskzoo.masks.base import Mask, register_mask
from maskzoo.plan import Plan, plan
from maskzoo.positions import Positions

if TYPE_CHECKING:
    from maskzoo import adapters
    from maskzoo.checkpoint import load
    from maskzoo.drawing import draw, draw_weights

__version__ = "0.1.0"

__all__ = [
    "Bias",
    "Mask",
    "Plan",
    "Positions",
    "adapters",
    "attend",
    "biases",
    "draw",
    "draw_weights",
    "load",
    "masks",
    "plan",
    "register_bias",
    "register_mask",
]

# What not every user of attention needs is imported when it is first asked for.
_LAZY = {
    "adapters": ("maskzoo.adapters", None),
    "draw": ("maskzoo.drawing", "draw"),
    "draw_weights": ("maskzoo.drawing", "draw_weights"),
    "load": ("maskzoo.checkpoint", "load"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'maskzoo' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = importlib.import_module(module)
    return loaded if attribute is None else getattr(loaded, attribute)
