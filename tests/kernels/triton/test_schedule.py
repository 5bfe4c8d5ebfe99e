"""What the GPU kernel walks through holds the same pairs as the tiles it was made of."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels.tiles import coarser, from_visible, visible
from maskzoo.kernels.triton.schedule import Side, from_list, scheduled


def written_out(side: Side, size: int, lines: int, places: int) -> torch.Tensor:
    """Every pair of a side, bool [lines · size, places · size], and the rank of each tile [lines, places]."""
    found, rank = torch.zeros(lines * size, places * size, dtype=torch.bool), torch.full((lines, places), -1)
    bits = (side.words[..., None] >> torch.arange(32) & 1).bool().flatten(2)
    for line in range(lines):
        rows = slice(line * size, (line + 1) * size)
        for entry in range(int(side.partial_start[line]), int(side.partial_start[line + 1])):
            tile = int(side.partial_tile[entry])
            assert rank[line, tile] == -1
            found[rows, tile * size : (tile + 1) * size] = bits[side.partial_pattern[entry]]
            rank[line, tile] = side.partial_rank[entry]
        for run in range(int(side.full_start[line]), int(side.full_start[line + 1])):
            for step in range(int(side.full_count[run])):
                tile = int(side.full_first[run]) + step
                assert rank[line, tile] == -1
                found[rows, tile * size : (tile + 1) * size] = True
                rank[line, tile] = side.full_rank[run] + step
    return found, rank


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    density=st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]),
    causal=st.booleans(),
)
def test_both_sides_hold_the_pairs_of_the_tiles(seed, lengths, density, causal):
    torch.manual_seed(seed)
    pairs = torch.rand(2, 1, *lengths) <= density
    pairs[1] = torch.arange(lengths[0])[:, None] >= torch.arange(lengths[1]) if causal else True
    tiles = from_visible(pairs, 32)
    schedule = from_list(scheduled(tiles).as_list())
    n, m = tiles.query_tiles, tiles.key_tiles
    rows, rank = written_out(schedule.rows, 32, 2 * n, m)
    columns, turned = written_out(schedule.columns, 32, 2 * m, n)
    assert torch.equal(rows.unflatten(0, (2, -1))[:, : lengths[0], : lengths[1]], pairs[:, 0])
    assert not rows.unflatten(0, (2, -1))[:, :, lengths[1] :].any(), "no key beyond the last is ever seen"
    assert torch.equal(columns.unflatten(0, (2, -1))[:, : lengths[1], : lengths[0]], pairs[:, 0].mT)
    assert torch.equal(schedule.seen, pairs[:, 0].any(1))
    by_rows = rank.unflatten(0, (2, n)).transpose(1, 2).flatten(0, 1)
    for line, place in (turned >= 0).nonzero().tolist():
        assert schedule.crossing[turned[line, place]] == by_rows[line, place]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    density=st.sampled_from([0.0, 0.02, 0.5, 0.98, 1.0]),
    size=st.sampled_from([16, 32]),
)
def test_coarser_tiles_are_those_that_the_pairs_give(seed, lengths, density, size):
    torch.manual_seed(seed)
    pairs = torch.rand(2, 2, *lengths) <= density
    found, expected = coarser(from_visible(pairs, 8), size), from_visible(pairs, size)
    assert torch.equal(visible(found), pairs)
    assert len(found.patterns) == len(expected.patterns)
    for own, other in ((found.rows, expected.rows), (found.columns, expected.columns)):
        assert all(torch.equal(x, y) for x, y in zip(own[:3], other[:3], strict=True))
        assert torch.equal(own.pattern >= 0, other.pattern >= 0)
        partial = own.pattern >= 0
        assert torch.equal(
            found.patterns[own.pattern[partial].long()], expected.patterns[other.pattern[partial].long()]
        )


@pytest.mark.parametrize("device", ["meta"])
def test_all_arrays_move(device):
    moved = scheduled(from_visible(torch.ones(1, 1, 40, 70, dtype=torch.bool), 32)).to(device)
    assert {array.device.type for array in moved.as_list()} == {device}
    assert moved.bytes > 0
