"""From the decided blocks of every rule to the lines of tiles that kernels read."""

from __future__ import annotations

import torch
from torch import Tensor

from maskzoo.kernels.tiles import FULL, Runs, Tiles, merged, unique_rows
from maskzoo.planning.fields import BRANCH
from maskzoo.planning.reading import Decided


def assembled(decided: list[Decided], group: Tensor, batch: int, tile: int, queries: int, keys: int) -> Tiles:
    """One plan of several rules.

    Args:
        decided: what each distinct rule is on the tiles of each of `batch` distinct sequences.
        group: int64 [B or 1, H or 1]: rule · batch + sequence.
    """
    sizes = [len(one.patterns) for one in decided]
    full = torch.cat([_in_group(one.full, 1, rule * batch) for rule, one in enumerate(decided)], dim=1)
    partial = torch.cat([_in_group(one.partial, 0, rule * batch) for rule, one in enumerate(decided)], dim=1)
    pattern = torch.cat([one.pattern + sum(sizes[:rule]) for rule, one in enumerate(decided)])
    patterns = torch.cat([one.patterns for one in decided])
    if len(decided) > 1 and len(patterns):
        distinct, place = unique_rows(patterns.flatten(1))
        patterns, pattern = distinct.view(-1, *patterns.shape[1:]), place[pattern]
    lines, across = -(-queries // tile), -(-keys // tile)
    groups = len(decided) * batch
    return Tiles(
        size=tile,
        queries=queries,
        keys=keys,
        group=group,
        rows=_runs(full, partial, pattern, groups, lines, across),
        columns=_runs(full[[0, 1, 3, 2]], partial[[0, 2, 1]], pattern, groups, across, lines),
        patterns=patterns,
    )


def _in_group(blocks: Tensor, row: int, first: int) -> Tensor:
    shift = torch.zeros_like(blocks[:, :1])
    shift[row] = first
    return blocks + shift


def _runs(full: Tensor, partial: Tensor, pattern: Tensor, groups: int, lines: int, across: int) -> Runs:
    """Runs along one side: full blocks int64 [4, F] and partial tiles int64 [3, N], this side before the other."""
    level, group, block, other = full
    reach = (BRANCH ** torch.arange(int(level.max()) + 1, device=level.device))[level] if len(level) else level
    first_line = block * reach
    own = torch.minimum(reach, lines - first_line)
    source = torch.repeat_interleave(torch.arange(len(own), device=own.device), own)
    place = torch.arange(len(source), device=own.device) - (own.cumsum(0) - own)[source]
    line = torch.cat([(group * lines + first_line)[source] + place, partial[0] * lines + partial[1]])
    first = torch.cat([(other * reach)[source], partial[2]])
    count = torch.cat([torch.minimum(reach, across - other * reach)[source], torch.ones_like(pattern)])
    pattern = torch.cat([torch.full_like(source, FULL), pattern])
    order = torch.argsort(line * across + first)
    return merged(line[order], first[order], count[order], pattern[order], groups * lines)
