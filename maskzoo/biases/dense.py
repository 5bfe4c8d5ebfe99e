"""A tensor of offsets that the user brings."""

import torch
from torch import Tensor

from maskzoo.biases.base import Bias, Indices
from maskzoo.provider import Side


class Dense(Bias):
    """Offsets brought as a tensor that broadcasts to [B, H, Tq, Tk].

    Gradients flow back to the tensor, summed where it broadcasts.

    Args:
        values: float tensor of at most four dimensions, finite: which pairs are visible is the mask's to say.
        heads: H.
    """

    def __init__(self, values: Tensor, *, heads: int) -> None:
        super().__init__(heads)
        if not values.dtype.is_floating_point or values.dim() > 4:
            raise ValueError(
                "a dense bias must be a float tensor that broadcasts to [B, H, Tq, Tk]; "
                f"got {values.dtype} of shape {list(values.shape)}"
            )
        if not torch.isfinite(values.detach()).all():
            raise ValueError(
                "a dense bias must be finite. To hide pairs by -inf, make a mask of it: "
                "maskzoo.adapters.from_additive(tensor)"
            )
        self.values = values

    def indices(self, q: Side, k: Side) -> Indices:
        return ()

    def scores(self, indices: Indices) -> Tensor:
        return self.values[(None,) * (4 - self.values.dim())]

    def text(self) -> str:
        return f"dense{list(self.values.shape)}"
