"""Decided blocks become lines of tiles."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels.tiles import FULL, Tiles, codes, from_visible, packed, visible
from maskzoo.planning.assembling import assembled
from maskzoo.planning.reading import Decided

SIZE = 8


def decided(dense, coarse):
    """What a reader would hand over for bool [B, Tq, Tk]: full blocks of level 1 where `coarse`, then of level 0."""
    tiles = from_visible(dense[:, None], SIZE)
    code = codes(tiles)
    full = [torch.zeros(4, 0).long()]
    if coarse:
        _batch, _lines, _across = code.shape
        for b, i, j in torch.cartesian_prod(
            *(torch.arange(-(-n // s)) for n, s in zip(code.shape, (1, 8, 8), strict=False))
        ).tolist():
            block = code[b, i * 8 : i * 8 + 8, j * 8 : j * 8 + 8]
            if bool((block == 1).all()):
                full.append(torch.tensor([[1], [b], [i], [j]]))
                block[:] = 0
    rest = (code == 1).nonzero().T
    full.append(torch.cat([torch.zeros_like(rest[:1]), rest]))
    full = torch.cat(full, 1)
    partial = (code >= 2).nonzero().T
    order = torch.randperm(partial.shape[1])
    partial, shuffled = partial[:, order], torch.randperm(full.shape[1])
    pattern = (code[tuple(partial)] - 2).long()
    return Decided(full[:, shuffled], partial, pattern, tiles.patterns)


def blocks_of_pairs(batch, queries, keys, generator):
    coarse = torch.rand(batch, -(-queries // 64), -(-keys // 64), generator=generator)
    coarse = coarse.repeat_interleave(64, 1).repeat_interleave(64, 2)[:, :queries, :keys]
    tile = torch.rand(batch, -(-queries // 8), -(-keys // 8), generator=generator)
    tile = tile.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, :queries, :keys]
    few = torch.arange(queries)[:, None] % 3 == torch.arange(keys) % 2
    return (coarse < 0.3) | ((coarse < 0.7) & ((tile < 0.3) | ((tile < 0.6) & few)))


@settings(deadline=None, max_examples=60)
@given(
    rules=st.integers(1, 3),
    batch=st.integers(1, 2),
    queries=st.sampled_from([1, 8, 9, 64, 65, 130]),
    keys=st.sampled_from([1, 8, 9, 64, 65, 130]),
    coarse=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_several_rules_become_one_plan_of_groups(rules, batch, queries, keys, coarse, seed):
    generator = torch.Generator().manual_seed(seed)
    dense = [blocks_of_pairs(batch, queries, keys, generator) for _ in range(rules)]
    group = torch.randint(0, rules * batch, (3, 2), generator=generator)
    tiles = assembled([decided(one, coarse) for one in dense], group, batch, SIZE, queries, keys)
    assert torch.equal(visible(tiles), torch.cat(dense)[group])
    turned = Tiles(SIZE, keys, queries, group, tiles.columns, tiles.rows, tiles.patterns)
    assert torch.equal(codes(turned).mT, codes(tiles))
    assert len(torch.unique(tiles.patterns.flatten(1), dim=0)) == len(tiles.patterns)
    if rules == 1:
        own = from_visible(dense[0][:, None], SIZE)
        for mine, other in ((tiles.rows, own.rows), (tiles.columns, own.columns)):
            assert [x.tolist() for x in mine[:3]] == [x.tolist() for x in other[:3]]
            assert mine.pattern.dtype == mine.first.dtype == mine.count.dtype == torch.int32


def test_full_blocks_of_any_level_become_one_run():
    full = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 8, 9]])
    nothing = torch.zeros(3, 0).long()
    tiles = assembled(
        [Decided(full, nothing, nothing[0], torch.zeros(0, 8, 1, dtype=torch.uint8))],
        torch.zeros(1, 1).long(),
        1,
        8,
        60,
        77,
    )
    assert tiles.rows.first.tolist() == [0] * 8 and tiles.rows.count.tolist() == [10, *[8] * 7]
    assert tiles.rows.pattern.tolist() == [FULL] * 8
    assert tiles.columns.count.tolist() == [8] * 8 + [1, 1]


@pytest.mark.parametrize("rules", [1, 2])
def test_nothing_decided_is_an_empty_plan(rules):
    nothing = torch.zeros(3, 0).long()
    empty = Decided(torch.zeros(4, 0).long(), nothing, nothing[0], torch.zeros(0, 8, 1, dtype=torch.uint8))
    tiles = assembled([empty] * rules, torch.zeros(1, rules).long(), 1, 8, 20, 30)
    assert not visible(tiles).any() and tiles.rows.start.tolist() == [0] * (3 * rules + 1)


def test_equal_patterns_of_two_rules_are_kept_once():
    triangle = packed(torch.ones(1, 8, 8, dtype=torch.bool).tril())
    one = Decided(torch.zeros(4, 0).long(), torch.tensor([[0], [0], [0]]), torch.tensor([0]), triangle)
    tiles = assembled([one, one], torch.tensor([[0, 1]]), 1, 8, 8, 8)
    assert len(tiles.patterns) == 1 and tiles.rows.pattern.tolist() == [0, 0]
