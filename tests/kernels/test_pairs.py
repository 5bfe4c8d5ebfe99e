import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels import pairs as pair_lists
from maskzoo.kernels import tiles as tilings
from maskzoo.kernels.pairs import Pairs


def listed(visible):
    """Pairs by the definition, one query at a time."""
    batch, heads, queries, keys = visible.shape
    seen = [row.nonzero()[:, 0].int() for row in visible.reshape(-1, keys)]
    start = torch.tensor([0, *map(len, seen)]).cumsum(0)
    return Pairs(queries, keys, torch.arange(batch * heads).view(batch, heads), start, torch.cat(seen))


def assert_same_pairs(a, b):
    assert (a.queries, a.keys) == (b.queries, b.keys)
    for name in ("group", "start", "key"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0, msg=name)


def assert_same_tiles(a, b):
    """Equal but for the order of the patterns, which is free."""
    for mine, other in ((a.rows, b.rows), (a.columns, b.columns)):
        for name in ("start", "first", "count"):
            torch.testing.assert_close(getattr(mine, name), getattr(other, name), rtol=0, atol=0, msg=name)
        assert torch.equal(mine.pattern == tilings.FULL, other.pattern == tilings.FULL)
        full = mine.pattern == tilings.FULL
        assert torch.equal(a.patterns[mine.pattern[~full].long()], b.patterns[other.pattern[~full].long()])
    assert a.patterns.shape == b.patterns.shape and a.patterns.dtype == torch.uint8


RULES = {
    "nothing": lambda i, j: i < 0,
    "everything": lambda i, j: i >= 0,
    "causal": lambda i, j: i >= j,
    "window": lambda i, j: (i >= j) & (i - j < 20),
    "stripes": lambda i, j: (i - j) % 3 == 0,
    "one key": lambda i, j: j == 17,
    "last query": lambda i, j: i == i.max(),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lengths", [(1, 1), (2, 40), (127, 128), (128, 128), (129, 127), (64, 20)])
def test_pairs_and_tiles_turn_into_one_another(rule, lengths):
    queries, keys = (torch.arange(length) for length in lengths)
    visible = RULES[rule](queries[:, None], keys[None]).expand(lengths)[None, None]
    tiles = tilings.from_visible(visible, 16)
    pairs = pair_lists.from_tiles(tiles)
    assert_same_pairs(pairs, listed(visible))
    assert torch.equal(pair_lists.visible(pairs), visible)
    assert_same_tiles(pair_lists.tiles_from(pairs, 16), tiles)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 50), st.integers(1, 50)),
    density=st.sampled_from([0.0, 0.02, 0.3, 0.95, 1.0]),
    size=st.sampled_from([8, 16, 32]),
    seed=st.integers(0, 2**31),
)
def test_random_pairs_and_tiles_turn_into_one_another(shape, density, size, seed):
    visible = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density
    tiles = tilings.from_visible(visible, size)
    pairs = pair_lists.from_tiles(tiles)
    assert_same_pairs(pairs, listed(visible))
    assert_same_tiles(pair_lists.tiles_from(pairs, size), tiles)


def test_shared_groups_stay_shared():
    visible = torch.rand(1, 2, 20, 30) < 0.5
    own = listed(visible)
    shared = Pairs(20, 30, torch.tensor([[0, 1, 0], [1, 1, 0]]), own.start, own.key)
    assert shared.groups == 2
    expected = visible[0, [[0, 1, 0], [1, 1, 0]]]
    assert torch.equal(pair_lists.visible(shared), expected)
    tiles = pair_lists.tiles_from(shared, 8)
    assert tiles.groups == 2 and torch.equal(tilings.visible(tiles), expected)
    assert_same_pairs(pair_lists.from_tiles(tiles), shared)


def test_tiles_are_unfolded_a_few_lines_at_a_time(monkeypatch):
    visible = torch.rand(2, 1, 75, 90) < 0.3
    visible[:, :, 16:64] = True
    tiles = tilings.from_visible(visible, 16)
    monkeypatch.setattr(pair_lists, "BITS_AT_ONCE", 16 * 16 * 9)
    assert_same_pairs(pair_lists.from_tiles(tiles), listed(visible))


def test_equal_partial_tiles_are_stored_once():
    length = 64 * 40
    queries = torch.arange(length)
    keys = torch.stack([queries - 1, queries], 1).clamp(min=0)
    start = torch.cat([torch.tensor([0]), torch.where(queries > 0, 2, 1).cumsum(0)])
    pairs = Pairs(length, length, torch.zeros(1, 1, dtype=torch.int64), start, keys.flatten()[1:].int())
    tiles = pair_lists.tiles_from(pairs, 64)
    # Two diagonals in a tile: without the first of them in the corner tile, and the one pair left of the tile.
    assert len(tiles.patterns) == 2
    assert len(tiles.rows.first) == 2 * 40 - 1
    assert_same_pairs(pair_lists.from_tiles(tiles), pairs)


def test_long_lists_need_no_dense_array():
    length = 2**20
    queries = torch.arange(length)
    start, key = torch.arange(length + 1), (queries * 7919 % length).int()
    pairs = Pairs(length, length, torch.zeros(1, 1, dtype=torch.int64), start, key)
    tiles = pair_lists.tiles_from(pairs, 64)  # 2⁴⁰ pairs would not fit
    assert tiles.rows.count.sum() <= length and tiles.bytes < 2**27
    narrow = Pairs(length, length, pairs.group, start, (queries // 4).int())
    assert_same_pairs(pair_lists.from_tiles(pair_lists.tiles_from(narrow, 64)), narrow)


def test_sums_that_fall_together_do_not_confuse_patterns(monkeypatch):
    drawn = torch.randint
    calls = []

    def alike_at_first(*args, **options):
        calls.append(1)
        values = drawn(*args, **options)
        return values if len(calls) > 1 else torch.ones_like(values)

    visible = torch.rand(1, 1, 64, 64) < 0.05
    expected = tilings.from_visible(visible, 8)
    monkeypatch.setattr(torch, "randint", alike_at_first)
    got = pair_lists.tiles_from(listed(visible), 8)
    assert len(calls) == 2
    assert_same_tiles(got, expected)


def test_bytes_and_device():
    pairs = listed(torch.ones(1, 1, 3, 4, dtype=torch.bool))
    assert pairs.bytes == 8 + 8 * 4 + 4 * 12
    assert pairs.to("meta").key.is_meta and pairs.to("meta").queries == 3
