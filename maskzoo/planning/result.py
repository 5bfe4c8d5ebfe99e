"""`Plan`: mask and bias for given positions, worked out once and used by every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maskzoo.biases.base import Bias
from maskzoo.kernels.offsets import Offsets
from maskzoo.kernels.pairs import Pairs
from maskzoo.kernels.tiles import Tiles
from maskzoo.kernels.triton.schedule import Schedule
from maskzoo.planning.folding import Folded
from maskzoo.planning.visibility import MOST_DENSE_PAIRS, Visibility


@dataclass(frozen=True)
class Plan:
    """Which pairs are visible, and their bias, for positions of given lengths. Made by `maskzoo.plan`.

    Attributes:
        rule: the whole effective rule, as text.
        visibility: the visible pairs, as tiles, as a list, or written out.
        alignment: how query indices were placed against the keys', in words.
        kernel: the kernel that `attend(backend="auto")` takes when no weights are asked for.
        reason: why that kernel, in words.
        bias: the bias, whose table may be learned.
        folded: the bias's codes and indices for these positions.
    """

    rule: str
    visibility: Visibility
    alignment: str
    kernel: str
    reason: str
    bias: Bias | None = None
    folded: Folded | None = None

    def __post_init__(self) -> None:
        # What the kernel reads is made now, so that a compiled model finds it in its place.
        if self.kernel == "tiled":
            self.tiles  # noqa: B018
        elif self.kernel == "triton":
            self.schedule  # noqa: B018
        elif self.kernel == "edges":
            self.pairs  # noqa: B018
        elif self.form == "any" or self.bias is not None or self.empty is not None:
            self.visible  # noqa: B018
        if self.bias is not None and self.folded is not None:
            self.folded.stored(self.bias, self.visibility, self.kernel)

    @property
    def query_length(self) -> int:
        """Tq."""
        return self.visibility.shape[2]

    @property
    def key_length(self) -> int:
        """Tk."""
        return self.visibility.shape[3]

    @property
    def batch(self) -> int:
        """B; 1 serves any batch."""
        made_for = () if self.bias is None else (leaf.batch for _, leaf in self.bias.leaves())
        return max(self.visibility.shape[0], *made_for, 1)

    @property
    def rules(self) -> int:
        """H where heads have rules of their own, else 1."""
        return self.visibility.shape[1]

    @property
    def heads(self) -> int | None:
        """H where the rule or the bias is made for a number of heads, else None."""
        if self.bias is not None:
            return self.bias.heads
        return self.rules if self.rules > 1 else None

    @property
    def device(self) -> torch.device:
        """Where the plan's arrays are."""
        return self.visibility.device

    @property
    def visible(self) -> Tensor:
        """Every pair: bool [B or 1, H or 1, Tq, Tk].

        Raises:
            ValueError: more pairs than may be written out.
        """
        batch, rules, queries, keys = self.visibility.shape
        if not self.visibility.dense_fits:
            raise ValueError(
                f"the rule {self.rule} over {queries:,} queries × {keys:,} keys × {batch * rules} would take "
                f"{batch * rules * queries * keys:,} bytes with every pair written out, as backend='dense', "
                f"'reference' and returned weights need it; at most {MOST_DENSE_PAIRS:,} are allowed. Use "
                "backend='tiled' or 'edges', shorter rows or a smaller batch"
            )
        return self.visibility.dense

    @property
    def tiles(self) -> Tiles:
        """Visible pairs as runs of tiles."""
        return self.visibility.tiles

    @property
    def schedule(self) -> Schedule:
        """Visible pairs as the GPU kernel walks through them."""
        return self.visibility.schedule

    @property
    def pairs(self) -> Pairs:
        """Visible pairs as a list."""
        return self.visibility.pairs

    @property
    def empty(self) -> Tensor | None:
        """bool [B or 1, H or 1, Tq]: queries that see nothing; None when there are none."""
        return self.visibility.empty

    @property
    def form(self) -> str:
        """What is known of the whole: "full" (every pair), "causal" (the lower triangle of a square) or "any"."""
        return self.visibility.form

    @property
    def density(self) -> float:
        """The share of all pairs that are visible."""
        return self.visibility.seen.double().mean().item() / self.key_length

    @property
    def bytes(self) -> int:
        """Memory of the plan's arrays."""
        return self.visibility.bytes + (0 if self.folded is None else self.folded.bytes)

    def stored_weights_bytes(self, dtype: torch.dtype = torch.float16) -> int:
        """What one head's attention weights for one sequence would take if they were stored, as no fast kernel does."""
        return self.query_length * self.key_length * dtype.itemsize

    def scores(self) -> Tensor | None:
        """The bias of all pairs, float, broadcasts to [B, H, Tq, Tk]; differentiable in its table."""
        return None if self.bias is None or self.folded is None else self.folded.scores(self.bias, self.visibility)

    def offsets(self, form: str) -> Offsets | None:
        """The bias as the kernel "tiled", "triton" or "edges" reads it; differentiable in its tables."""
        if self.bias is None or self.folded is None:
            return None
        return self.folded.offsets(self.bias, self.visibility, form)

    def with_bias(self, bias: Bias) -> Plan:
        """This plan with a bias of the same terms but other tables: what depends on the positions is shared.

        Raises:
            ValueError: the plan has no bias, or one of other terms.
        """
        if self.bias is None or not _of_same_terms(self.bias, bias):
            raise ValueError(f"the plan was made for the bias {self.bias!r}; {bias!r} is not of the same terms")
        return replace(self, bias=bias)

    def to(self, device: torch.device | str) -> Plan:
        """This plan on another device; the bias is a module and moves with its model."""
        if torch.device(device) == self.device:
            return self
        folded = None if self.folded is None else self.folded.to(device)
        return replace(self, visibility=self.visibility.to(device), folded=folded)

    def explain(self) -> str:
        """The effective rule, its tiles, size and density, and the kernel with the reason for it, as lines of text."""
        batch, rules, queries, keys = self.visibility.shape
        empty = 0 if self.empty is None else int(self.empty.sum())
        lines = [
            f"rule       {self.rule}",
            f"bias       {'none' if self.bias is None else repr(self.bias)}",
            f"positions  {queries:,} queries × {keys:,} keys, {self.alignment}",
            f"shared     {'by the whole batch' if batch == 1 else f'no: {batch} different rows'}, "
            f"{'by all heads' if rules == 1 else f'{rules} rules, one per head'}",
            f"density    {self.density:.4g} of the pairs visible, {empty:,} of {batch * rules * queries:,} rows empty",
            self._tiles_line(),
            f"memory     {self.bytes:,} bytes; stored weights would take "
            f"{self.stored_weights_bytes():,} bytes a head and sequence in half precision",
            f"kernel     {self.kernel}: {self.reason}",
        ]
        return "\n".join(lines)

    def _tiles_line(self) -> str:
        if isinstance(self.visibility.found, Pairs):
            return f"pairs      {len(self.pairs.key):,} in a list, {_alike(self.pairs.groups)}"
        tiles = self.tiles
        partial = int((tiles.rows.pattern >= 0).sum())
        full = int(tiles.rows.count.sum()) - partial
        empty = tiles.groups * tiles.query_tiles * tiles.key_tiles - full - partial
        return (
            f"tiles      {tiles.size} × {tiles.size}: {empty:,} empty, {full:,} full, {partial:,} partial with "
            f"{len(tiles.patterns):,} pattern{'' if len(tiles.patterns) == 1 else 's'}, {_alike(tiles.groups)}"
        )


def _alike(groups: int) -> str:
    return "alike for all sequences and heads" if groups == 1 else f"{groups} kinds of sequences and heads"


def _of_same_terms(one: Bias, other: Bias) -> bool:
    leaves = [[(factor, type(leaf), leaf.heads, repr(leaf)) for factor, leaf in bias.leaves()] for bias in (one, other)]
    return leaves[0] == leaves[1]
