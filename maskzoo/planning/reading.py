"""Reading one rule: which blocks of pairs are empty, which are full, and what the undecided tiles hold.

The rule's own `visible` is called on the bounds of blocks, large ones first; only undecided blocks are cut further.
Tiles that stay undecided are read by their elements, once for all tiles that must be alike.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from maskzoo.kernels.tiles import packed
from maskzoo.masks.algebra import And, Not, Or
from maskzoo.masks.base import Mask
from maskzoo.masks.listed import Listed
from maskzoo.planning.bounds import Bounds, NoIntervalRule, Trace, Value
from maskzoo.planning.fields import BRANCH
from maskzoo.planning.lists import Lists
from maskzoo.planning.sides import Blocks, Elements, MissingField, Sequences
from maskzoo.planning.signature import alike
from maskzoo.positions import Positions

PAIRS_AT_ONCE = 2**22
"""Pairs that a predicate is evaluated for at once: its int64 intermediate results then stay within 32 MiB each."""

BLOCKS_AT_ONCE = 2**18
"""Blocks that a predicate is evaluated for at once."""

FIRST_BLOCKS = 2**12
"""Reading starts at the finest level that has no more blocks than this."""

MOST_TILES = 2**24
"""Undecided blocks that a plan may hold at any level."""

MOST_PATTERNS = 2**30
"""Bytes that the tiles read by their elements may take, as bits."""


class Decided(NamedTuple):
    """What a rule is on the tiles of its positions.

    Attributes:
        full: int64 [4, F]: level, sequence, query block, key block of every full block.
        partial: int64 [3, N]: sequence, query tile, key tile of every tile that is neither full nor empty.
        pattern: int64 [N]: the pattern of each partial tile.
        patterns: uint8 [P, tile, tile / 8]: the distinct patterns.
    """

    full: Tensor
    partial: Tensor
    pattern: Tensor
    patterns: Tensor


class Reader:
    """One effective rule over given positions.

    Args:
        mask: the effective rule, no stack.
        rule: its text, for errors.
        q_at, k_at: positions of batch 1 or `batch`.
        batch: B, the sequences that differ.
        tile: side of a tile.
    """

    def __init__(self, mask: Mask, rule: str, q_at: Positions, k_at: Positions, batch: int, tile: int) -> None:
        self.mask, self.rule, self.batch, self.tile = mask, rule, batch, tile
        self.queries, self.keys = q_at.length, k_at.length
        self.device = q_at.device
        self._q, self._k = Sequences(rule, q_at, tile), Sequences(rule, k_at, tile)
        self._lists = Lists(q_at, k_at, tile)
        self._trace = Trace()

    def elements(self, sequence: Tensor, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """The rule for single pairs: sequence [P, 1, 1], query places [P, n, 1], key places [P, 1, m] -> [P, n, m]."""
        q = Elements(self._q, sequence, q_slot, self._lists.hold)
        k = Elements(self._k, sequence, k_slot, self._lists.hold)
        shape = torch.broadcast_shapes(sequence.shape, q_slot.shape, k_slot.shape)
        return _walk(self.mask, lambda leaf: self._leaf(leaf, q, k, shape))

    def _leaf(self, leaf: Mask, q: Elements, k: Elements, shape: torch.Size) -> Tensor:
        self._q.rule = self._k.rule = repr(leaf)
        try:
            visible = leaf.visible(q, k)
        except ValueError:
            raise
        except Exception as error:
            if type(leaf).visible is Mask.visible:
                raise
            raise ValueError(f"{leaf!r}: visible raised {type(error).__name__}: {error}") from error
        if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
            got = visible.dtype if isinstance(visible, Tensor) else type(visible).__name__
            raise ValueError(f"{leaf!r}: visible must return a boolean tensor (True = visible), got {got}")
        try:
            return visible.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"{leaf!r}: visible must broadcast to [B, Tq, Tk] = {list(shape)}, got {list(visible.shape)}"
            ) from None

    def decided(self) -> Decided:
        """Every tile of the rule."""
        level, sequence, q_block, k_block = self._first_blocks()
        full = []
        while True:
            every, some = self._bounds(level, sequence, q_block, k_block)
            full.append(torch.stack([torch.full_like(sequence, level), sequence, q_block, k_block])[:, every])
            undecided = some & ~every
            sequence, q_block, k_block = sequence[undecided], q_block[undecided], k_block[undecided]
            self._check_count(level, len(sequence))
            if level == 0:
                break
            sequence, q_block, k_block = self._children(level, sequence, q_block, k_block)
            level -= 1
        more, partial, pattern, patterns = self._read_tiles(torch.stack([sequence, q_block, k_block]))
        return Decided(torch.cat([*full, more], dim=1), partial, pattern, patterns)

    def _check_count(self, level: int, count: int) -> None:
        if count > MOST_TILES:
            raise ValueError(
                f"the rule {self.rule} over {self.queries:,} queries × {self.keys:,} keys × {self.batch} leaves "
                f"{count:,} blocks of {self.tile * BRANCH**level} × {self.tile * BRANCH**level} partly visible; a plan "
                f"holds at most {MOST_TILES:,}. Use shorter rows, or give the pairs as a list (maskzoo.masks.Pairs)"
            )

    def _count(self, level: int) -> tuple[int, int]:
        size = self.tile * BRANCH**level
        return -(-self.queries // size), -(-self.keys // size)

    def _first_blocks(self) -> tuple[int, Tensor, Tensor, Tensor]:
        level = 0
        while self.batch * self._count(level)[0] * self._count(level)[1] > FIRST_BLOCKS and max(self._count(level)) > 1:
            level += 1
        axes = [torch.arange(n, device=self.device) for n in (self.batch, *self._count(level))]
        sequence, q_block, k_block = torch.cartesian_prod(*axes).unbind(1)
        return level, sequence, q_block, k_block

    def _children(self, level: int, sequence: Tensor, q_block: Tensor, k_block: Tensor) -> tuple[Tensor, ...]:
        step = torch.arange(BRANCH, device=self.device)
        q_child, k_child = torch.broadcast_tensors(
            (q_block * BRANCH)[:, None, None] + step[:, None], (k_block * BRANCH)[:, None, None] + step
        )
        most_q, most_k = self._count(level - 1)
        exists = (q_child < most_q) & (k_child < most_k)
        return sequence[:, None, None].expand_as(exists)[exists], q_child[exists], k_child[exists]

    def _bounds(self, level: int, *blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the rule holds for every, and for some, pair of blocks [P]."""
        parts = [
            self._read_bounds(level, *part) for part in zip(*(x.split(BLOCKS_AT_ONCE) for x in blocks), strict=True)
        ]
        every, some = zip(*((value.low.flatten(), value.high.flatten()) for value, _ in parts), strict=True)
        return torch.cat(every), torch.cat(some)

    def _read_bounds(self, level: int, sequence: Tensor, q_block: Tensor, k_block: Tensor) -> tuple[Value, list[Value]]:
        """The rule's bounds on blocks [P], and those of each comparison in it, all [P, 1, 1]."""
        self._trace.comparisons = []
        q = Blocks("q", self._q, sequence, q_block, level, self._trace, self._lists.hold_in)
        k = Blocks("k", self._k, sequence, k_block, level, self._trace, self._lists.hold_in)
        made = _walk(self.mask, lambda leaf: self._leaf_bounds(leaf, q, k))
        assert isinstance(made, Bounds)
        shape = (len(sequence), 1, 1)
        whole = [
            value._replace(low=value.low.expand(shape), high=value.high.expand(shape))
            for value in (made.value, *self._trace.comparisons)
        ]
        return whole[0], whole[1:]

    def _leaf_bounds(self, leaf: Mask, q: Blocks, k: Blocks) -> Bounds:
        made = len(self._trace.comparisons)
        self._q.rule = self._k.rule = repr(leaf)
        try:
            visible = leaf.visible(q, k)
            if isinstance(visible, Bounds) and visible.dtype == torch.bool:
                return visible
            lacking = "a result that is not computed from the positions"
        except (OverflowError, MissingField):
            raise
        except NoIntervalRule as error:
            lacking = str(error)
        except Exception as error:  # whatever a predicate may do with something that is not quite a tensor
            lacking = f"{type(error).__name__} ({error})"
        if not self._trace.exact:
            _say_once(type(leaf), repr(leaf), lacking)
        del self._trace.comparisons[made:]
        return Bounds(self._trace.unknown(q.sequence.shape[0], self.device), self._trace)

    def dense(self) -> Tensor:
        """Every pair by itself: bool [B, Tq, Tk]."""
        q_slot = torch.arange(self.queries, device=self.device)[None, :, None]
        k_slot = torch.arange(self.keys, device=self.device)[None, None]
        step = max(1, PAIRS_AT_ONCE // (self.queries * self.keys))
        sequences = torch.arange(self.batch, device=self.device)[:, None, None].split(step)
        return torch.cat([self.elements(sequence, q_slot, k_slot) for sequence in sequences])

    def listed(self) -> Tensor | None:
        """The visible pairs one by one where a list bounds the rule, else None: int64 [3, E] in ascending order."""
        pairs = self._candidates(self.mask)
        if pairs is None:
            return None
        kept = [
            part[:, self.elements(*part[..., None, None].unbind(0)).flatten()]
            for part in pairs.split(PAIRS_AT_ONCE, dim=1)
        ]
        return torch.cat(kept, dim=1)

    def _candidates(self, mask: Mask) -> Tensor | None:
        """Pairs outside which the rule lets nothing be seen; None if no list bounds it."""
        if isinstance(mask, Listed):
            return self._lists.pairs(mask)
        if not isinstance(mask, (And, Or)):
            return None
        found = [self._candidates(term) for term in mask.terms]
        bounded = [pairs for pairs in found if pairs is not None]
        if isinstance(mask, And):
            return min(bounded, key=lambda pairs: pairs.shape[1], default=None)
        return self._lists.union(bounded) if len(bounded) == len(found) else None

    def check(self) -> None:
        """The rule is a function of the pair alone, and computes nothing beyond the integers, at these positions.

        Raises:
            ValueError: it is not, or it does.
        """
        foreign = [leaf for leaf in self.mask.leaves() if not type(leaf).__module__.startswith("maskzoo.masks.")]
        # Our own rules add and multiply few numbers of at most 31 bits.
        if foreign or not (self._q.small and self._k.small):
            self._check_range()
        if foreign:
            self._check_pure(foreign)

    def _check_pure(self, leaves: list[Mask]) -> None:
        """Read some pairs all at once, and each alone."""
        sequence = torch.tensor([0, self.batch - 1], device=self.device).unique()[:, None, None]
        q_slot, k_slot = (
            torch.linspace(0, length - 1, min(length, 12), device=self.device).long()[order]
            for length, order in ((self.queries, slice(None)), (self.keys, slice(None)))
        )
        together = sequence, q_slot.flip(0)[None, :, None], k_slot[None, None]
        alone = [x.reshape(-1, 1, 1) for x in torch.broadcast_tensors(*together)]
        for leaf in leaves:
            reader = copy.copy(self)
            reader.mask = leaf
            differ = reader.elements(*together).flatten() != reader.elements(*alone).flatten()
            if bool(differ.any()):
                b, i, j = (int(x.flatten()[differ.nonzero()[0]]) for x in alone)
                raise ValueError(
                    f"{leaf!r} is not a function of the pair alone: key {j} is visible to query {i} of sequence {b} or "
                    "not, depending on which other pairs are asked for with it. Compute visible(q, k) element by "
                    "element from the fields of q and k; a random rule needs a hash of q.index and k.index, as the "
                    "mask random has"
                )

    def _check_range(self) -> None:
        zero = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        level = 0
        while max(self._count(level)) > 1:
            level += 1
        self._trace.exact = True
        try:
            self._read_bounds(level, torch.arange(self.batch, device=self.device), zero, zero)
        except OverflowError as error:
            ranges = ", ".join(
                f"{side}.{name} {int(field.values.min())} … {int(field.values.max())}"
                for side, all_of in (("q", self._q), ("k", self._k))
                for name, field in all_of.read.items()
            )
            raise ValueError(
                f"{self.rule}: the operation {error} leaves the integers that a rule can compute with (±2⁶²). "
                f"The fields it reads are {ranges}"
            ) from None
        finally:
            self._trace.exact = False

    def _read_tiles(self, tiles: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Undecided tiles [3, N] by their elements: the four arrays of `Decided`."""
        kind, first = self._alike(tiles)
        if len(first) * self.tile**2 // 8 > MOST_PATTERNS:
            raise ValueError(
                f"the rule {self.rule} over {self.queries:,} queries × {self.keys:,} keys × {self.batch} has "
                f"{len(first):,} different partly visible tiles, {len(first) * self.tile**2 // 8:,} bytes; at most "
                f"{MOST_PATTERNS:,} are allowed. Use shorter rows, or give the pairs as a list (maskzoo.masks.Pairs)"
            )
        read, exists = self._patterns(tiles[:, first])
        distinct, pattern = torch.unique(read.flatten(1), dim=0, return_inverse=True)
        some, every = (read != 0).flatten(1).any(1), (read == exists).flatten(1).all(1)
        full, partial = every[kind], (some & ~every)[kind]
        kept, pattern = torch.unique(pattern[kind[partial]], return_inverse=True)
        level = torch.zeros_like(tiles[:1, full])
        return (
            torch.cat([level, tiles[:, full]]),
            tiles[:, partial],
            pattern,
            distinct[kept].view(-1, self.tile, self.tile // 8),
        )

    def _alike(self, tiles: Tensor) -> tuple[Tensor, Tensor]:
        """A number for each tile, equal only where all pairs must be alike, and the first tile of each number."""
        if tiles.shape[1] == 0:
            return tiles[0], tiles[0]
        kinds = []
        for part in tiles.split(BLOCKS_AT_ONCE, dim=1):
            comparisons = self._read_bounds(0, *part)[1]
            kinds.append(alike(comparisons, part, self._q, self._k))
        if len(kinds) > 1:  # parts are told apart, never mistaken for each other
            kinds = [kind + number * BLOCKS_AT_ONCE for number, kind in enumerate(kinds)]
        names, kind = torch.unique(torch.cat(kinds), return_inverse=True)
        first = torch.full_like(names, tiles.shape[1]).scatter_reduce(
            0, kind, torch.arange(len(kind), device=kind.device), "amin"
        )
        return kind, first

    def _patterns(self, tiles: Tensor) -> tuple[Tensor, Tensor]:
        """Every pair of tiles [3, N], and which pairs exist at all, as bits: uint8 [N, tile, tile / 8]."""
        read, exist = [], []
        inside = torch.arange(self.tile, device=self.device)
        for part in tiles.split(PAIRS_AT_ONCE // self.tile**2, dim=1):
            sequence, q_tile, k_tile = part[..., None, None].unbind(0)
            q_slot, k_slot = q_tile * self.tile + inside[:, None], k_tile * self.tile + inside
            exists = (q_slot < self.queries) & (k_slot < self.keys)
            visible = self.elements(sequence, q_slot.clamp(max=self.queries - 1), k_slot.clamp(max=self.keys - 1))
            read.append(packed(visible & exists))
            exist.append(packed(exists))
        return torch.cat(read), torch.cat(exist)


def _walk(mask: Mask, leaf: Callable[[Mask], Tensor]) -> Tensor:
    """The algebra over what its providers say."""
    if isinstance(mask, And):
        return functools.reduce(Tensor.__and__, (_walk(term, leaf) for term in mask.terms))
    if isinstance(mask, Or):
        return functools.reduce(Tensor.__or__, (_walk(term, leaf) for term in mask.terms))
    if isinstance(mask, Not):
        return ~_walk(mask.term, leaf)
    return leaf(mask)


_said: set[tuple[type[Mask], str]] = set()


def _say_once(provider: type[Mask], rule: str, lacking: str) -> None:
    if (provider, lacking) not in _said:
        _said.add((provider, lacking))
        warnings.warn(
            f"the mask {rule} cannot be read by intervals because of {lacking}: every pair that the rest of the rule "
            "leaves open is read by itself, which takes longer and gives the same plan",
            stacklevel=2,
        )
