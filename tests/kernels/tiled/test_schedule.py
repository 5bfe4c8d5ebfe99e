"""The schedule covers every visible pair once, for those who read it, and merges where that is cheaper."""

import pytest
import torch

from maskzoo.kernels.tiled.schedule import FIRST_PATTERN, SCORES, Extent, readers, schedule
from maskzoo.kernels.tiles import from_visible, unpacked


def lists(tiles):
    return tuple(array.tolist() for array in tiles.rows)


def made(visible, size=8, heads=1, large=False, width=64.0):
    """The schedule of a rule [1, 1, Tq, Tk] that all heads share."""
    tiles = from_visible(visible, size)
    fold, reading = readers(tiles.group.tolist(), tiles.groups, 1, heads, heads)
    extent = Extent(size, tiles.queries, tiles.keys, fold, width, large)
    return tiles, schedule(lists(tiles), reading, extent)


def covered(tiles, blocks, heads):
    """How often each pair is worked on and visible: int [heads, Tq, Tk]."""
    times = torch.zeros(heads, tiles.queries, tiles.keys, dtype=torch.int64)
    table = torch.zeros(FIRST_PATTERN, tiles.size, tiles.size, dtype=torch.bool)
    table[1] = True
    table = torch.cat([table, unpacked(tiles.patterns)])
    for block in blocks:
        for chunk in block.chunks:
            for i, (lane, spans) in enumerate(zip(block.lanes, chunk.spans, strict=True)):
                rows = torch.arange(tiles.queries)[lane.rows]
                keys = torch.cat([torch.arange(tiles.keys)[span] for span in spans])
                seen = torch.ones(len(rows), len(keys), dtype=torch.int64)
                if chunk.codes is not None:
                    pairs = table[torch.tensor(chunk.codes[i])].transpose(1, 2).flatten(2, 3).flatten(0, 1)
                    seen = pairs[: len(rows), : len(keys)].long()
                part = times[lane.members.queries]
                part[:, rows[:, None], keys] += seen
    return times


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("density", [1.0, 0.5, 0.03, 0.0])
@pytest.mark.parametrize("lengths", [(1, 1), (100, 75), (300, 520)])
def test_every_visible_pair_once(lengths, density, large):
    visible = torch.rand(1, 1, *lengths) < density
    tiles, blocks = made(visible, heads=3, large=large)
    assert torch.equal(covered(tiles, blocks, 3), visible[0].long().expand(3, -1, -1))


def test_units_stay_in_the_cache():
    _, blocks = made(torch.ones(1, 1, 1000, 1500, dtype=torch.bool), size=64, heads=4)
    for block in blocks:
        members, rows, _ = block.shape
        for chunk in block.chunks:
            keys = sum(span.stop - span.start for span in chunk.spans[0])
            # A chunk is whole tiles.
            assert len(block.lanes) * members * rows * (keys - 64) <= SCORES


def test_neighbours_are_merged_where_they_see_the_same_and_kept_apart_where_not():
    same = torch.ones(1, 1, 64, 16, dtype=torch.bool)
    assert [lane.rows for block in made(same)[1] for lane in block.lanes] == [slice(0, 64)]
    i = torch.arange(2048)
    apart = (i[:, None] // 512 == i // 512)[None, None]
    blocks = made(apart, size=64)[1]
    for block in blocks:
        for lane, spans in zip(block.lanes, block.chunks[0].spans, strict=True):
            assert (lane.rows.stop - 1) // 512 == lane.rows.start // 512
            assert spans[0].stop - spans[0].start <= 512


def test_large_blocks_go_head_by_head_only_where_that_is_faster():
    full = torch.ones(1, 1, 1024, 1024, dtype=torch.bool)
    assert {block.shape[0] for block in made(full, size=64, heads=8, large=True)[1]} == {1}
    assert {block.shape[0] for block in made(full, size=64, heads=8, large=False)[1]} == {8}


def test_small_blocks_of_a_batch_are_stacked():
    """One rule for each of 16 sequences: alike blocks are one unit."""
    fold, reading = readers([[g] for g in range(16)], 16, 16, 4, 4)
    visible = torch.ones(16, 1, 32, 32, dtype=torch.bool)
    tiles = from_visible(visible, 8)
    blocks = schedule(lists(tiles), reading, Extent(8, 32, 32, fold, 64.0, False))
    assert len(blocks) == 1
    assert len(blocks[0].lanes) == 16
    assert blocks[0].chunks[0].codes is None


@pytest.mark.parametrize(
    ("group", "heads", "kv_heads", "fold"),
    [
        ([[0]], 4, 2, 2),
        ([[0, 0, 1, 1]], 4, 2, 2),
        ([[0, 1, 0, 1]], 4, 2, 1),
        ([[0], [1], [0]], 4, 1, 4),
        ([[2, 0, 1, 1], [0, 0, 0, 0], [1, 2, 0, 2]], 4, 2, 1),
        ([[0, 1, 2, 3]], 4, 4, 1),
    ],
)
def test_readers_are_all_heads_once_and_share_no_key_head(group, heads, kv_heads, fold):
    batch = 3
    got, reading = readers(group, 4, batch, heads, kv_heads)
    assert got == fold
    seen = {}
    for own, sets in enumerate(reading):
        for members in sets:
            queries = list(range(batch * heads // fold))[members.queries]
            keys = list(range(batch * kv_heads))[members.keys]
            assert len(queries) == len(keys) == len(set(keys)) == members.count
            for q, k in zip(queries, keys, strict=True):
                assert k == q * fold // (heads // kv_heads)
                assert q not in seen
                seen[q] = own
    for place in range(batch * heads):
        row = group[place // heads % len(group)]
        assert seen[place // fold] == row[place % heads % len(row)]
