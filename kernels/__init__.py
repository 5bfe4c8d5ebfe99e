"""Attention kernels: plain tensors in, plain tensors out. Nothing here knows a mask by its name."""
