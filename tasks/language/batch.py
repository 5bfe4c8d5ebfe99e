"""What a language model trains on: tokens, their shifted targets and the positions they stand at."""

import numpy as np
import torch

from maskzoo.positions import Positions
from maskzoo.tasks.language.packing import IGNORED, Block


class TokenBatch:
    """Rows of tokens with the token that each has to predict.

    tokens   int64 [B, T]; padding holds 0
    targets  int64 [B, T]: the next token of the same document; -100 where nothing is predicted
    at       Positions of the rows, with batch B, or batch 1 when the same positions serve every row
    target_count  how many targets count (an EOS does)
    target_bytes  how many bytes of the original text the counted targets stand for (an EOS stands for none):
                  bits per byte = summed nats / ln 2 / target_bytes

    Not a dataclass on purpose: Lightning takes dataclasses apart and copies them on the way to the device.
    """

    def __init__(
        self, tokens: torch.Tensor, targets: torch.Tensor, at: Positions, target_count: int, target_bytes: int
    ) -> None:
        if tokens.shape != targets.shape or tokens.ndim != 2:
            raise ValueError(
                f"tokens and targets are both [B, T]; given {tuple(tokens.shape)} and {tuple(targets.shape)}"
            )
        self.tokens, self.targets, self.at = tokens, targets, at
        self.target_count, self.target_bytes = target_count, target_bytes

    @classmethod
    def from_block(cls, block: Block, byte_lengths: np.ndarray) -> "TokenBatch":
        """Tensors of a block of rows; `byte_lengths` [vocabulary] says how many bytes each token stands for."""
        counted = block.targets[block.targets != IGNORED]
        return cls(
            torch.from_numpy(block.tokens),
            torch.from_numpy(block.targets),
            Positions(segment=torch.from_numpy(block.segment)),
            target_count=len(counted),
            target_bytes=int(byte_lengths[counted].sum()),
        )

    def to(self, device: torch.device | str) -> "TokenBatch":
        return TokenBatch(
            self.tokens.to(device),
            self.targets.to(device),
            self.at.to(device),
            self.target_count,
            self.target_bytes,
        )

    def __repr__(self) -> str:
        rows, length = self.tokens.shape
        return f"TokenBatch({rows} rows of {length}, {self.target_count} targets, {self.target_bytes} bytes)"
