"""Which kernel a plan is for, from its own counts."""

from __future__ import annotations

from maskzoo.planning.visibility import Visibility


def is_short(queries: int, keys: int) -> bool:
    """So few pairs that each is read by itself, and all are computed."""
    return queries * keys <= 2**16 and keys <= 2**11


def chosen(visibility: Visibility) -> tuple[str, str]:
    """The kernel and the reason for it, in words."""
    if is_short(*visibility.shape[2:]):
        return "dense", "so few pairs that computing all of them costs least"
    return "tiled", ""
