"""What operators with optional arguments return as gradients, and where autograd expects them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def at_places(
    found: Sequence[Tensor], wanted: Sequence[bool], places: Sequence[int], count: int
) -> list[Tensor | None]:
    """Gradients of an operator's `count` arguments, of which those at `places` may have one."""
    gradients: list[Tensor | None] = [None] * count
    for place, want, gradient in zip(places, wanted, found, strict=True):
        gradients[place] = gradient if want else None
    return gradients


def without_data(sources: Sequence[Tensor | None], wanted: Sequence[bool], like: Tensor) -> tuple[Tensor, ...]:
    """What stands for the gradients of sources while an operator is traced: empty where one is not wanted."""
    return tuple(
        source.new_empty(source.shape) if source is not None and want else like.new_empty(0)
        for source, want in zip(sources, wanted, strict=True)
    )


def or_nothing(totals: Sequence[Tensor | None], sources: Sequence[Tensor | None], like: Tensor) -> list[Tensor]:
    """Gradients in the dtypes of their sources; empty where there is none."""
    return [
        like.new_empty(0) if total is None or source is None else total.to(source.dtype)
        for total, source in zip(totals, sources, strict=True)
    ]
