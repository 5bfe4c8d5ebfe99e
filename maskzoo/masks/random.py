"""A seeded random choice of pairs."""

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from maskzoo.masks.base import Mask, register_mask
from maskzoo.provider import Side, check_integer

_WORD = 2**32 - 1


@register_mask("random")
@dataclass(frozen=True)
class Random(Mask):
    """Each pair on its own with the given probability, always the same pairs for the same seed.

    visible(i, j): hash(seed, i, j) < probability · 2³², by index. A pure function of the pair: the same on every
    device, for every length, alone or packed with other segments, in training and in decoding.

    Source: the random part of Zaheer et al. 2020, *Big Bird*, section 2, with a chance for each key instead of a fixed
    number of keys. The hash is of xor, shift and multiply, with factors from Wellons' search (*Prospecting for Hash
    Functions*, 2018).

    Args:
        probability: the share of pairs that are visible, 0 to 1.
        seed: 0 to 2³¹ − 1; another seed gives independent pairs.
    """

    probability: float
    seed: int = 0

    def __post_init__(self) -> None:
        share = self.probability
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ValueError(f"random(probability={share!r}): probability must be a number from 0 to 1")
        check_integer(self, "seed", minimum=0)

    def visible(self, q: Side, k: Side) -> Tensor:
        start = _mixed(self.seed + 1)  # never 0, which the hash maps to 0: (i, j) and (j, i) must differ
        return _mixed(_mixed(q.index + start) + _mixed(k.index)) < round(self.probability * 2**32)


Word = TypeVar("Word", int, Tensor)


def _mixed(x: Word) -> Word:
    """A hash of the low 32 bits. Both factors are below 2³¹, so that no product leaves the range of int64."""
    x = x & _WORD
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & _WORD
    x = (x ^ (x >> 12)) * 0x297A2D39 & _WORD
    return x ^ (x >> 15)
