"""Encodings of where a position stands: all of them read `at.index`, so that every packed document starts at 0."""

from __future__ import annotations

import torch
from torch import Tensor, nn

POSITIONS = ("rotary", "learned", "sinusoidal", "none")


def _angles(index: Tensor, width: int, base: float, dtype: torch.dtype) -> Tensor:
    """index / base^(2r / width) for r = 0 … width/2 - 1: [B, T] int64 to [B, T, width/2], in float32 or better."""
    precise = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, device=index.device, dtype=precise) / width
    return index[..., None].to(precise) / base**exponents


class SinusoidalPositions(nn.Module):
    """Fixed sines and cosines, interleaved (Vaswani et al. 2017, "Attention Is All You Need", section 3.5).

    E[t, 2r] = sin(t / 10000^(2r / width)) and E[t, 2r + 1] = cos of the same.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even width, got {width}")
        self.width = width

    def forward(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """index: [B, T] int64. Returns [B, T, width]."""
        angles = _angles(index, self.width, 10000.0, dtype)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)


class LearnedPositions(nn.Module):
    """One learned vector per index, 0 … context - 1 (Gehring et al. 2017; Devlin et al. 2019)."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(context, width)

    def forward(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """index: [B, T] int64. Returns [B, T, width].

        Raises:
            ValueError: an index outside 0 … context - 1.
        """
        context = self.table.num_embeddings
        if index.numel():
            low, high = (int(bound) for bound in index.aminmax())
            if low < 0 or high >= context:
                wrong = low if low < 0 else high
                raise ValueError(
                    f"index {wrong} has no learned position: they reach from 0 to {context - 1} (context={context})"
                )
        return self.table(index).to(dtype)


class RotaryPositions(nn.Module):
    """The angles by which queries and keys are turned (Su et al. 2021, "RoFormer", section 3.2.2).

    Channel r is paired with channel r + width/2. The score of a turned query and a turned key depends on the difference
    of their indices only.
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        assert width % 2 == 0, width
        self.width, self.base = width, base

    def forward(self, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """index: [B, T] int64. Returns cosines and sines, [B, 1, T, width/2] each, for `rotate`."""
        angles = _angles(index, self.width, self.base, dtype)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of channels of x [B, H, T, D] by the angles of `RotaryPositions`."""
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
