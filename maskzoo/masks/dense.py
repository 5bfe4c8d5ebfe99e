"""A tensor of pairs that the user brings."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.masks.brought import Brought
from maskzoo.provider import Side


@register_mask("dense")
@dataclass(frozen=True, eq=False)
class Dense(Brought, Mask):
    """Pairs brought as a boolean tensor (True = visible); made in Python, not in text.

    visible(i, j): values[…, i, j], by place in the row (padding counts). The tensor is copied; two are equal when their
    contents are.

    Args:
        values: bool [Tq, Tk] or [B, Tq, Tk]; a dimension of size 1 stands for any size. For one tensor per head, stack
            several: `maskzoo.masks.stack(Dense(first), Dense(second))`.

    Raises:
        ValueError: no boolean tensor, or not of two or three dimensions; when planned, sizes other than the positions'.
    """

    values: Tensor

    def __post_init__(self) -> None:
        values = self.values
        if not isinstance(values, Tensor):
            raise ValueError(
                f"dense takes a boolean tensor, got {type(values).__name__}: it is made in Python, "
                "maskzoo.masks.Dense(tensor), and not in text"
            )
        if values.dtype != torch.bool:
            raise ValueError(
                f"dense takes a boolean tensor (True = visible), got {values.dtype}. Additive masks are read by "
                "maskzoo.adapters.from_additive; for 0 and 1, write values.bool()"
            )
        if values.dim() not in (2, 3) or not values.numel():
            raise ValueError(
                f"dense takes a tensor of shape [Tq, Tk] or [B, Tq, Tk], got {list(values.shape)}; "
                "for one tensor per head, stack several"
            )
        object.__setattr__(self, "values", values.detach().clone())

    @property
    def contents(self) -> Tensor:
        return self.values

    @property
    def needs_sequence(self) -> bool:
        return self.batch > 1

    @property
    def batch(self) -> int:
        return self.values.shape[0] if self.values.dim() == 3 else 1

    def visible(self, q: Side, k: Side) -> Tensor:
        length = (q.slots, k.slots)
        for size, wanted in zip(self.values.shape[-2:], length, strict=True):
            if size not in (1, wanted):
                raise ValueError(
                    f"{self!r} has {self.values.shape[-2]} queries and {self.values.shape[-1]} keys, but the positions "
                    f"have {length[0]} and {length[1]}"
                )
        values = self.values.to(q.slot.device).expand(*self.values.shape[:-2], *length)
        if self.batch > 1:
            return values[q.sequence, q.slot, k.slot]
        return (values if values.dim() == 2 else values[0])[q.slot, k.slot]

    def text(self) -> str:
        return f"dense({list(self.values.shape)})"
