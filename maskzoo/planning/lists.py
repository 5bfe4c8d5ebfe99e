"""Listed rules over given positions: sorted codes of their pairs, and of the blocks that hold some."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.masks.listed import Listed
from maskzoo.planning.fields import BRANCH
from maskzoo.positions import Positions


class Lists:
    """The pairs of the listed rules in a rule, each list asked for once."""

    def __init__(self, q_at: Positions, k_at: Positions, tile: int) -> None:
        self._q_at, self._k_at, self._tile = q_at, k_at, tile
        self._pairs: dict[Listed, Tensor] = {}
        self._blocks: dict[tuple[Listed, int], tuple[Tensor, Tensor]] = {}

    def pairs(self, rule: Listed) -> Tensor:
        """The rule's distinct pairs in ascending order: int64 [3, E].

        Raises:
            ValueError: no int64 [3, E], or a place that does not exist.
        """
        if rule not in self._pairs:
            listed = rule.pairs(self._q_at, self._k_at)
            self._check(rule, listed)
            self._pairs[rule] = _decoded(
                torch.unique(_coded(listed, self._q_at.length, self._k_at.length)),
                self._q_at.length,
                self._k_at.length,
            )
        return self._pairs[rule]

    def _check(self, rule: Listed, pairs: Tensor) -> None:
        if not isinstance(pairs, Tensor) or pairs.dtype != torch.int64 or pairs.dim() != 2 or len(pairs) != 3:
            got = f"{pairs.dtype} {list(pairs.shape)}" if isinstance(pairs, Tensor) else type(pairs).__name__
            raise ValueError(f"{rule!r}: pairs must be an int64 tensor [3, E] (sequence, query, key), got {got}")
        batch = max(self._q_at.batch, self._k_at.batch)
        for name, places, most in zip(
            ("sequence", "query", "key"), pairs, (batch, self._q_at.length, self._k_at.length), strict=True
        ):
            wrong = (places < 0) | (places >= most)
            if bool(wrong.any()):
                first = int(wrong.nonzero()[0])
                raise ValueError(
                    f"{rule!r}: pair {first} is {tuple(pairs[:, first].tolist())} (sequence, query, key), but there "
                    f"are {most} in {name}: 0 … {most - 1} are allowed"
                )

    def union(self, lists: list[Tensor]) -> Tensor:
        """All pairs of several lists, in ascending order: int64 [3, E]."""
        lengths = (self._q_at.length, self._k_at.length)
        return _decoded(torch.unique(torch.cat([_coded(pairs, *lengths) for pairs in lists])), *lengths)

    def hold(self, rule: Listed, sequence: Tensor, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """Whether the rule names these pairs."""
        lengths = (self._q_at.length, self._k_at.length)
        return _among(_coded(self.pairs(rule), *lengths), (sequence * lengths[0] + q_slot) * lengths[1] + k_slot)

    def hold_in(
        self, rule: Listed, sequence: Tensor, q_block: Tensor, k_block: Tensor, level: int
    ) -> tuple[Tensor, Tensor]:
        """Whether the rule names every, and some, pair of these blocks."""
        size = self._tile * BRANCH**level
        lengths = tuple(-(-at.length // size) for at in (self._q_at, self._k_at))
        if (rule, level) not in self._blocks:
            sequences, queries, keys = self.pairs(rule)
            blocks = torch.stack([sequences, queries // size, keys // size])
            self._blocks[rule, level] = torch.unique(_coded(blocks, *lengths), return_counts=True)
        codes, counts = self._blocks[rule, level]
        wanted = (sequence * lengths[0] + q_block) * lengths[1] + k_block
        some = _among(codes, wanted)
        exist = [
            torch.clamp(at.length - block * size, max=size)
            for at, block in ((self._q_at, q_block), (self._k_at, k_block))
        ]
        found = counts[torch.searchsorted(codes, wanted).clamp(max=max(len(codes) - 1, 0))] if len(codes) else 0
        return some & (found == exist[0] * exist[1]), some


def _coded(pairs: Tensor, queries: int, keys: int) -> Tensor:
    return (pairs[0] * queries + pairs[1]) * keys + pairs[2]


def _decoded(codes: Tensor, queries: int, keys: int) -> Tensor:
    return torch.stack([codes // (queries * keys), codes // keys % queries, codes % keys])


def _among(codes: Tensor, wanted: Tensor) -> Tensor:
    if len(codes) == 0:
        return torch.zeros_like(wanted, dtype=torch.bool)
    return codes[torch.searchsorted(codes, wanted).clamp(max=len(codes) - 1)] == wanted
