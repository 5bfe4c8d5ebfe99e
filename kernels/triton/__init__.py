"""The fused GPU kernel, in Triton: forward and backward from a plan's arrays alone.

Its modules other than `schedule` import Triton, and are imported only where the kernel is used.
"""

from importlib.util import find_spec

import torch

WIDEST = 256
"""Largest width of a head."""


def is_at_hand(device: torch.device) -> bool:
    """Whether the kernel is what a device's tensors are best given to."""
    return device.type == "cuda" and find_spec("triton") is not None
