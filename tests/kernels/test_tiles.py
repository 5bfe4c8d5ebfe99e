"""The form in which plans are handed to kernels."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels.tiles import FULL, Tiles, codes, from_visible, packed, runs, unpacked, visible


def blocks_of_pairs(batch, heads, queries, keys, seed):
    """Pairs in blocks, so that full, empty and partial tiles all come up."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, heads, -(-queries // 8), -(-keys // 8), generator=generator)
    coarse = coarse.repeat_interleave(8, 2).repeat_interleave(8, 3)[:, :, :queries, :keys]
    fine = torch.rand(batch, heads, queries, keys, generator=generator) < 0.5
    return (coarse < 0.4) | ((coarse < 0.6) & fine)


CASES = {
    "batch": st.integers(1, 3),
    "heads": st.integers(1, 2),
    "queries": st.sampled_from([1, 2, 7, 8, 9, 16, 31, 65]),
    "keys": st.sampled_from([1, 2, 7, 8, 9, 16, 31, 65]),
    "size": st.sampled_from([8, 16, 64]),
    "seed": st.integers(0, 2**31),
}


@settings(deadline=None, max_examples=80)
@given(**CASES)
def test_pairs_survive_the_way_there_and_back(batch, heads, queries, keys, size, seed):
    pairs = blocks_of_pairs(batch, heads, queries, keys, seed)
    tiles = from_visible(pairs, size)
    assert torch.equal(visible(tiles), pairs)
    assert (tiles.groups, tiles.queries, tiles.keys) == (batch * heads, queries, keys)


@settings(deadline=None, max_examples=80)
@given(**CASES)
def test_lines_are_in_order_merged_and_the_same_from_both_sides(batch, heads, queries, keys, size, seed):
    tiles = from_visible(blocks_of_pairs(batch, heads, queries, keys, seed), size)
    turned = Tiles(size, keys, queries, tiles.group, tiles.columns, tiles.rows, tiles.patterns)
    assert torch.equal(codes(turned).mT, codes(tiles))
    for lines, start, first, count, pattern in (
        (tiles.groups * tiles.query_tiles, *tiles.rows),
        (tiles.groups * tiles.key_tiles, *tiles.columns),
    ):
        assert len(start) == lines + 1 and int(start[0]) == 0 and int(start[-1]) == len(first)
        assert (start.dtype, first.dtype, count.dtype, pattern.dtype) == (torch.int64, *[torch.int32] * 3)
        line = torch.repeat_interleave(torch.arange(lines), start.diff())
        same = line[1:] == line[:-1]
        gap = first[1:] - (first + count)[:-1]
        assert bool((gap[same] >= 0).all()) and bool((count >= 1).all())
        touching = same & (gap == 0) & (pattern[1:] == FULL) & (pattern[:-1] == FULL)
        assert not bool(touching.any())
        assert bool((count[pattern != FULL] == 1).all())
    assert len(torch.unique(tiles.patterns.flatten(1), dim=0)) == len(tiles.patterns)


@settings(deadline=None, max_examples=80)
@given(**CASES)
def test_no_pattern_is_full_or_empty_and_none_reaches_beyond(batch, heads, queries, keys, size, seed):
    tiles = from_visible(blocks_of_pairs(batch, heads, queries, keys, seed), size)
    exists = from_visible(torch.ones(1, 1, queries, keys, dtype=torch.bool), size)
    assert len(exists.patterns) == 0 and exists.rows.count.tolist() == [exists.key_tiles] * exists.query_tiles
    code = codes(tiles)
    seen = unpacked(tiles.patterns).flatten(1).sum(1)
    for group, query_tile, key_tile in (code >= 2).nonzero().tolist():
        pattern = int(code[group, query_tile, key_tile]) - 2
        high, wide = min(size, queries - query_tile * size), min(size, keys - key_tile * size)
        bits = unpacked(tiles.patterns[pattern : pattern + 1])[0]
        assert int(bits[:high, :wide].sum()) == int(seen[pattern])
        assert 0 < int(seen[pattern]) < high * wide


@pytest.mark.parametrize("size", [8, 16, 64])
def test_bits_stand_where_the_contract_puts_them(size):
    pairs = torch.rand(5, size, size) < 0.5
    bits = packed(pairs)
    assert bits.shape == (5, size, size // 8) and bits.dtype == torch.uint8
    assert torch.equal(unpacked(bits), pairs)
    for query, key in ((0, 0), (3, 5), (size - 1, size - 1)):
        assert bool(bits[2, query, key // 8] >> (key % 8) & 1) == bool(pairs[2, query, key])


def test_a_tile_that_reaches_over_the_end_is_full_when_all_that_exists_is_visible():
    tiles = from_visible(torch.ones(1, 1, 9, 10, dtype=torch.bool), 8)
    assert codes(tiles).tolist() == [[[1, 1], [1, 1]]]
    assert tiles.rows.first.tolist() == [0, 0] and tiles.rows.count.tolist() == [2, 2]


def test_nothing_visible_is_no_run_at_all():
    tiles = from_visible(torch.zeros(2, 1, 9, 17, dtype=torch.bool), 8)
    assert len(tiles.rows.first) == len(tiles.columns.first) == len(tiles.patterns) == 0
    assert tiles.rows.start.tolist() == [0] * 5 and tiles.columns.start.tolist() == [0] * 7
    assert not visible(tiles).any() and visible(tiles).shape == (2, 1, 9, 17)


def test_sequences_and_heads_of_one_group_read_the_same_lines():
    tiles = from_visible(blocks_of_pairs(2, 1, 20, 30, 0), 8)
    shared = Tiles(8, 20, 30, torch.tensor([[0, 1], [1, 1], [0, 0]]), tiles.rows, tiles.columns, tiles.patterns)
    own, pairs = visible(tiles)[:, 0], visible(shared)
    assert pairs.shape == (3, 2, 20, 30)
    assert torch.equal(pairs[0, 1], own[1]) and torch.equal(pairs[2, 1], own[0]) and shared.groups == 2


def test_lines_written_out_become_runs():
    code = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [2, 2, 1, 5]], dtype=torch.int32)
    start, first, count, pattern = runs(code)
    assert start.tolist() == [0, 2, 2, 6]
    assert first.tolist() == [0, 3, 0, 1, 2, 3]
    assert count.tolist() == [2, 1, 1, 1, 1, 1]
    assert pattern.tolist() == [FULL, FULL, 0, 0, FULL, 3]


def test_tiles_travel_and_know_their_size():
    tiles = from_visible(blocks_of_pairs(2, 2, 40, 33, 1), 8)
    arrays = [tiles.group, tiles.patterns, *tiles.rows, *tiles.columns]
    assert tiles.bytes == sum(array.numel() * array.element_size() for array in arrays)
    moved = pickle.loads(pickle.dumps(tiles))
    assert torch.equal(visible(moved), visible(tiles)) and torch.equal(visible(tiles.to("cpu")), visible(tiles))
    assert all(array.is_meta for array in (tiles.to("meta").group, *tiles.to("meta").columns))
