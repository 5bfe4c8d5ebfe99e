"""The number type that linear layers compute in."""

import torch
from torch import Tensor


def computing_dtype(x: Tensor) -> torch.dtype:
    """The type of a linear layer's output for an input like x: that of autocast where it is on, else x's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
