"""A tensor of offsets that the user brings."""

import torch
from torch import Tensor

from maskzoo import registry
from maskzoo.biases.base import Bias


@registry.biases.register("dense")  # register_bias asks for an index and a table, of which it has neither
class Dense(Bias):
    """Offsets brought as a tensor that broadcasts to [B, H, Tq, Tk]; made in Python, not in text.

    Gradients flow back to the tensor, summed where it broadcasts.

    Args:
        values: float tensor of at most four dimensions, finite: which pairs are visible is the mask's to say.
        heads: H.
    """

    provider_name = "dense"

    def __init__(self, values: Tensor, *, heads: int) -> None:
        super().__init__(heads)
        if not isinstance(values, Tensor):
            raise ValueError(
                f"dense takes a float tensor, got {type(values).__name__}: it is made in Python, "
                "maskzoo.biases.Dense(tensor, heads=H), and not in text"
            )
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

    @property
    def batch(self) -> int:
        return self.values.shape[0] if self.values.dim() == 4 else 1

    def text(self) -> str:
        return f"dense{list(self.values.shape)}"
