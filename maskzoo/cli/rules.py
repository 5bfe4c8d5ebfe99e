"""Rules read from the configuration; an error starts with the key and the value."""

from __future__ import annotations

from maskzoo import biases, masks
from maskzoo.biases.base import Bias
from maskzoo.masks.base import Mask


def checked_mask(text: str) -> Mask:
    """The mask that `mask=text` asks for."""
    try:
        return masks.parse(text)
    except ValueError as error:
        raise ValueError(f"mask={text}: {error}") from error


def checked_bias(text: str | None, heads: int) -> Bias | None:
    """The bias that `bias=text` asks for."""
    try:
        return biases.parse(text, heads=heads)
    except ValueError as error:
        raise ValueError(f"bias={text}: {error}") from error
