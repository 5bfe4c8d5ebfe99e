"""Reading one rule: which blocks of pairs are empty, which are full, and what the undecided tiles hold.

The rule's own `visible` is called on the bounds of blocks, large ones first; only undecided blocks are cut further.
Tiles that stay undecided are read by their elements, once for all tiles that must be alike.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from maskzoo.kernels.tiles import packed, unique_rows
from maskzoo.masks.algebra import And, Not, Or
from maskzoo.masks.base import Mask
from maskzoo.masks.listed import Listed
from maskzoo.planning.fields import BRANCH
from maskzoo.planning.intervals import Bounds, NoIntervalRule, Trace, Value
from maskzoo.planning.lists import Lists
from maskzoo.planning.sides import Blocks, Elements, MissingField, Sequences
from maskzoo.planning.signature import alike
from maskzoo.positions import Positions

PAIRS_AT_ONCE = 2**17
"""Pairs that a predicate is evaluated for at once: its intermediate results, 1 MiB each, then stay in the cache."""

BLOCKS_AT_ONCE = 2**12
"""Blocks that are cut into their BRANCH² children, and those read, at once."""

TILES_AT_ONCE = 2**18
"""Undecided tiles that are compared with each other."""

FIRST_BLOCKS = 2**12
"""Reading starts at the finest level that has no more blocks than this."""

MOST_TILES = 2**21
MOST_LARGE_BLOCKS = 2**19
"""Undecided tiles that a plan may hold, and undecided larger blocks on the way to them."""

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
        self._q, self._k = Sequences(mask, q_at, tile), Sequences(mask, k_at, tile)
        self._lists = Lists(q_at, k_at, tile)
        self._trace = Trace()

    def elements(self, sequence: Tensor, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """The rule for single pairs: sequence [P, 1, 1], query places [P, n, 1], key places [P, 1, m] -> [P, n, m]."""
        q = Elements(self._q, sequence, q_slot, self._lists.hold)
        k = Elements(self._k, sequence, k_slot, self._lists.hold)
        shape = torch.broadcast_tensors(sequence, q_slot, k_slot)[0].shape
        return _walk(self.mask, lambda leaf: self._leaf(leaf, q, k, shape))

    def _read_by(self, leaf: Mask) -> None:
        for side in (self._q, self._k):
            side.reader, side.tells_sequences_apart = leaf, leaf.needs_sequence

    def _leaf(self, leaf: Mask, q: Elements, k: Elements, shape: torch.Size) -> Tensor:
        self._read_by(leaf)
        try:
            visible = leaf.visible(q, k)
        except MissingField:
            raise
        except Exception as error:
            if type(leaf).visible is Mask.visible or (isinstance(error, ValueError) and repr(leaf) in str(error)):
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
        level, blocks = self._first_blocks()
        full, open_blocks = self._sorted_out(level, [blocks])
        found = [full]
        while level > 0:
            level -= 1
            full, open_blocks = self._sorted_out(level, self._children(level, open_blocks))
            found.append(full)
        full, partial, pattern, patterns = self._read_tiles(open_blocks)
        return Decided(torch.cat([*found, full], dim=1), partial, pattern, patterns)

    def _sorted_out(self, level: int, parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Of blocks [3, P], part by part: the full ones with their level, int64 [4, F], and the undecided, [3, U]."""
        none = torch.empty(3, 0, dtype=torch.int64, device=self.device)
        full, undecided, count = [none], [none], 0
        for blocks in parts:
            if blocks.shape[1] == 0:
                continue
            value, _ = self._read_bounds(level, *blocks)
            every, some = value.low.flatten(), value.high.flatten()
            full.append(blocks[:, every])
            undecided.append(blocks[:, some & ~every])
            count += undecided[-1].shape[1]
            if count > (MOST_TILES if level == 0 else MOST_LARGE_BLOCKS):
                size = self.tile * BRANCH**level
                raise ValueError(
                    f"the rule {self.rule} over {self.queries:,} queries × {self.keys:,} keys × {self.batch} "
                    f"leaves more than {count - 1:,} blocks of {size} × {size} partly visible, "
                    "too many for a plan. Use shorter rows, or give the pairs as a list (maskzoo.masks.Pairs)"
                )
        found = torch.cat(full, dim=1)
        return torch.cat([torch.full_like(found[:1], level), found]), torch.cat(undecided, dim=1)

    def _count(self, level: int) -> tuple[int, int]:
        size = self.tile * BRANCH**level
        return -(-self.queries // size), -(-self.keys // size)

    def _first_blocks(self) -> tuple[int, Tensor]:
        """The level at which reading starts, and all its blocks [3, P]: sequence, query block, key block."""
        level = 0
        while self.batch * self._count(level)[0] * self._count(level)[1] > FIRST_BLOCKS and max(self._count(level)) > 1:
            level += 1
        axes = [torch.arange(n, device=self.device) for n in (self.batch, *self._count(level))]
        return level, torch.cartesian_prod(*axes).T

    def _children(self, level: int, blocks: Tensor) -> Iterator[Tensor]:
        """The blocks of this level inside larger ones [3, P], a part at a time."""
        step = torch.arange(BRANCH, device=self.device)
        most_q, most_k = self._count(level)
        for sequence, q_block, k_block in (part[..., None, None] for part in blocks.split(BLOCKS_AT_ONCE, dim=1)):
            q_child, k_child = q_block * BRANCH + step[:, None], k_block * BRANCH + step
            children = torch.stack(torch.broadcast_tensors(sequence, q_child, k_child))
            yield children[:, (children[1] < most_q) & (children[2] < most_k)]

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
        self._read_by(leaf)
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
        return Bounds(self._trace.unknown(len(q.block), self.device), self._trace)

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
        """Read some pairs all at once, and each query's pairs apart from the others."""
        sequence = torch.tensor([0, self.batch - 1], device=self.device).unique()[:, None, None]
        q_slot, k_slot = (
            torch.linspace(0, length - 1, min(length, 12), device=self.device).long()
            for length in (self.queries, self.keys)
        )
        together = sequence, q_slot.flip(0)[None, :, None], k_slot[None, None]
        alone = [x.reshape(-1, 1, 1) for x in torch.broadcast_tensors(*together)]
        for leaf in leaves:
            reader = copy.copy(self)
            reader.mask = leaf
            at_once = reader.elements(*together).flatten()
            apart = [reader.elements(*own) for own in zip(*(x.split(len(k_slot)) for x in alone), strict=True)]
            differ = at_once != torch.cat(apart).flatten()
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
                f"{self.rule}: {error} leaves the integers that a rule can compute with (below 2⁶² in size). "
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
        read, every = self._patterns(tiles[:, first])
        distinct, pattern = unique_rows(read.flatten(1))
        some = (read != 0).flatten(1).any(1)
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
        for part in tiles.split(TILES_AT_ONCE, dim=1):
            comparisons = self._read_bounds(0, *part)[1]
            kinds.append(alike(comparisons, part, self._q, self._k))
        if len(kinds) > 1:  # parts are told apart, never mistaken for each other
            kinds = [kind + number * TILES_AT_ONCE for number, kind in enumerate(kinds)]
        names, kind = torch.unique(torch.cat(kinds), return_inverse=True)
        first = torch.full_like(names, tiles.shape[1]).scatter_reduce(
            0, kind, torch.arange(len(kind), device=kind.device), "amin"
        )
        return kind, first

    def _patterns(self, tiles: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs of tiles [3, N] as bits, uint8 [N, tile, tile / 8], and whether all that exist are visible."""
        bits = tiles.new_empty(tiles.shape[1], self.tile, self.tile // 8, dtype=torch.uint8)
        every = tiles.new_empty(tiles.shape[1], dtype=torch.bool)
        inside = torch.arange(self.tile, device=self.device)
        step = max(1, PAIRS_AT_ONCE // self.tile**2)
        for begin in range(0, tiles.shape[1], step):
            sequence, q_tile, k_tile = tiles[:, begin : begin + step, None, None].unbind(0)
            q_slot, k_slot = q_tile * self.tile + inside[:, None], k_tile * self.tile + inside
            exists = (q_slot < self.queries) & (k_slot < self.keys)
            visible = self.elements(sequence, q_slot.clamp(max=self.queries - 1), k_slot.clamp(max=self.keys - 1))
            bits[begin : begin + step] = packed(visible & exists)
            every[begin : begin + step] = (visible | ~exists).flatten(1).all(1)
        return bits, every


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
            "leaves open is read by itself, which takes longer and gives the same plan (that no integer of it wraps is "
            "not checked)",
            stacklevel=2,
        )
