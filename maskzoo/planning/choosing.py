"""Which kernel a plan is for, from its own counts."""

from __future__ import annotations

import torch

from maskzoo.costs import DENSE_BELOW, Counts, choose
from maskzoo.kernels.pairs import Pairs
from maskzoo.kernels.tiles import Tiles
from maskzoo.kernels.triton import is_at_hand
from maskzoo.planning.visibility import TILE, Visibility

HEADS = 8
"""Heads that a plan is assumed to serve when its rule is the same for all of them."""

SHORT_ROW = 2**11
"""Keys up to which a row is so short that looking for tiles costs more than it saves."""


DENSE_WITH_BIAS_BELOW = 2**15
"""Tq · Tk below which a bias is gathered for all pairs: its table's gradient costs dense more than it costs tiled."""


def is_short(queries: int, keys: int) -> bool:
    """So few pairs that each is read by itself, and all are computed."""
    return queries * keys <= DENSE_BELOW and keys <= SHORT_ROW


def chosen(visibility: Visibility, device: torch.device) -> tuple[str, str]:
    """The kernel for a device, and the reason for it in words."""
    batch, rules, queries, keys = visibility.shape
    if is_short(queries, keys):
        return "dense", f"so few pairs ({queries * keys:,}) that computing all of them costs least"
    found = visibility.found
    assert not isinstance(found, torch.Tensor)  # only short plans are found with every pair written out
    area, lines = _of_pairs(found) if isinstance(found, Pairs) else _of_tiles(found)
    counts = Counts(
        queries=queries,
        keys=keys,
        units=batch * (rules if rules > 1 else HEADS),
        groups=found.groups,
        area=area,
        lines=lines,
        pairs=visibility.count,
        form=visibility.form,
    )
    kernel, reason = choose(counts, device)
    if kernel == "dense" and counts.form == "any" and not visibility.dense_fits:
        return sparse_kernel(device), "every pair written out would take too much memory"
    return kernel, f"{reason}, for {counts.units // batch} heads of width 64"


def sparse_kernel(device: torch.device) -> str:
    """The kernel that goes by tiles on a device."""
    return "triton" if is_at_hand(device) else "tiled"


def _of_tiles(tiles: Tiles) -> tuple[int, int]:
    """Pairs of all tiles that hold a visible one, and lines with a partial tile."""
    area = int(tiles.rows.count.sum()) * tiles.size**2
    partial = (tiles.rows.pattern >= 0).nonzero()[:, 0]
    lines = torch.bucketize(partial, tiles.rows.start, right=True).unique()
    return area, len(lines)


def _of_pairs(pairs: Pairs) -> tuple[int, int]:
    """The same, without making the tiles."""
    group, query = pairs.row // pairs.queries, pairs.row % pairs.queries
    line = group * -(-pairs.queries // TILE) + query // TILE
    tiles = torch.unique(line * -(-pairs.keys // TILE) + pairs.key // TILE)
    return len(tiles) * TILE**2, len(torch.unique(line))
