"""Train, val and test: 90, 5 and 5 parts in a hundred."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


def check_split(name: str) -> None:
    if name not in SPLITS:
        raise ValueError(f"unknown split {name!r}; a data set has train, val and test")


def split_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Names in the order of their hashes, cut at 90 and 95 per cent: alike on every machine, a new name moves few of
    the others, and no part is empty from 20 names on."""
    ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    first, second = cuts(len(ranked))
    return {
        "train": sorted(ranked[:first]),
        "val": sorted(ranked[first:second]),
        "test": sorted(ranked[second:]),
    }


def cuts(length: int) -> tuple[int, int]:
    """Where val and test start in something of this length."""
    return length * 90 // 100, length * 95 // 100


def contiguous(text: bytes, name: str) -> bytes:
    """The part `name` of one text: its first 90 per cent, the next 5, the last 5. Cuts may fall inside a character."""
    first, second = cuts(len(text))
    bounds: dict[str, Sequence[int]] = {"train": (0, first), "val": (first, second), "test": (second, len(text))}
    start, stop = bounds[name]
    return text[start:stop]
