"""The number type that matrix products run in."""

import torch

PRECISIONS = ("auto", "32", "bf16")


def multiplies_bf16(device: str) -> bool:
    """Whether a device ("cpu", "cuda", "mps") has instructions for bf16 products, so that autocast pays."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def resolved_precision(precision: str, device: str) -> str:
    """Either "32" or "bf16": what "auto" stands for on this device, and any other choice as it is."""
    if precision != "auto":
        return precision
    return "bf16" if multiplies_bf16(device) else "32"
