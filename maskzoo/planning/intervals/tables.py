"""Interval rules of look-ups in tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskzoo.planning.intervals.bounds import Bounds, Trace, known, rule
from maskzoo.planning.intervals.values import NoIntervalRule, Value, made


class Extremes:
    """Range minima and maxima of a table [N] for any range, in constant time: [levels, N] each."""

    def __init__(self, table: Tensor) -> None:
        low, high = [table], [table]
        reach = 1
        while 2 * reach <= len(table):
            for kept, function in ((low, torch.minimum), (high, torch.maximum)):
                last = kept[-1]
                kept.append(torch.cat([function(last[:-reach], last[reach:]), last[-reach:]]))
            reach *= 2
        self.low, self.high = torch.stack(low), torch.stack(high)

    def between(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Lowest and highest entry of table[first … last]."""
        levels = torch.arange(1, len(self.low), device=first.device)
        level = torch.bucketize(last - first + 1, 1 << levels, right=True)
        second = last + 1 - (1 << level)
        return (
            torch.minimum(self.low[level, first], self.low[level, second]),
            torch.maximum(self.high[level, first], self.high[level, second]),
        )


def _extremes(trace: Trace, table: Tensor) -> Extremes:
    """The range minima and maxima of a table, made once."""
    if id(table) not in trace.tables:
        trace.tables[id(table)] = table, Extremes(table.long())  # the table too: its id stays its own
    found: Extremes = trace.tables[id(table)][1]
    return found


@rule("__getitem__")
def _looked_up(trace: Trace, table: Any, index: Any) -> Value:
    indices = index if isinstance(index, tuple) else (index,)
    if isinstance(table, Bounds) or table.dtype.is_floating_point or len(indices) != table.dim():
        raise NoIntervalRule("indexing of this kind")
    places = [known(index) for index in indices]
    for place, size in zip(places, table.shape, strict=True):
        if bool((place.low < 0).any() | (place.high >= size).any()):
            raise NoIntervalRule("indexing from the end of a table or beyond it")
    if table.dim() == 1:
        low, high = _extremes(trace, table).between(places[0].low, places[0].high)
        if table.dtype == torch.bool:
            low, high = low.bool(), high.bool()
    else:
        # Exact where a tile reads one entry; otherwise anything that stands in the table.
        one = torch.stack(torch.broadcast_tensors(*(place.low == place.high for place in places))).all(0)
        entry = table[tuple(place.low for place in places)]
        ends = table if table.dtype == torch.bool else table.long()
        low, high = torch.where(one, entry, ends.amin()), torch.where(one, entry, ends.amax())
    value = made(low, high, *places)
    if table.dtype == torch.bool:
        trace.comparisons.append(value)
    return value


@rule("take")
def _taken(trace: Trace, table: Any, index: Any) -> Value:
    return _looked_up(trace, table if isinstance(table, Bounds) else table.flatten(), index)
