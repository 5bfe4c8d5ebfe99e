"""What the kernels have to know of the device they run on."""

from __future__ import annotations

import os
from functools import cache

import torch
import triton
from torch import Tensor

from maskzoo.kernels.triton import WIDEST

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def is_interpreted() -> bool:
    """Whether Triton interprets its kernels on the processor: TRITON_INTERPRET=1 in the environment."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def check(q: Tensor, v: Tensor) -> None:
    """Whether the kernels can take these inputs.

    Raises:
        ValueError: a device, dtype or width of heads that they cannot.
    """
    if q.device.type != "cuda" and not is_interpreted():
        raise ValueError(
            f"the kernel 'triton' runs on GPUs, and the inputs are on {q.device}; use backend='auto', or set "
            "TRITON_INTERPRET=1 before Python starts to run it on the processor, slowly, as tests do"
        )
    if q.dtype not in DTYPES:
        raise ValueError(f"the kernel 'triton' takes bfloat16, float16 and float32, got {q.dtype}; use backend='tiled'")
    widest = max(q.shape[3], v.shape[3])
    if widest > WIDEST:
        raise ValueError(
            f"the kernel 'triton' takes heads of at most {WIDEST} numbers, got {widest}; use backend='tiled'"
        )


def precision(q: Tensor) -> str:
    """How products of float32 are taken: as `torch.backends.cuda.matmul` allows for torch's own."""
    if is_interpreted():
        return "interpreted"
    if torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return "ieee" if torch.version.hip else "tf32x3"


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    if device.type != "cuda":
        return 2**18
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(properties["max_shared_mem"])


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs run side by side, at least."""
    return 4 if device.type != "cuda" else torch.cuda.get_device_properties(device).multi_processor_count
