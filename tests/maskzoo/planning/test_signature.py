"""Tiles that are said to be alike hold the same pattern."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskzoo as mz
from maskzoo.planning.effective import effective
from maskzoo.planning.reading import Reader

RULES = [
    "causal",
    "window(20, both_sides=True)",
    "block(12)",
    "strided(9)",
    "dilated(7, 5)",
    "prefix(30)",
    "causal & (window(30) | sinks(5))",
    "~window(11) | block(40)",
    "random(0.5) & window(25)",
]


def numbers_of(rule, q_at, k_at=None, tile=8):
    """The number of every undecided tile, and what it holds."""
    k_at = q_at if k_at is None else k_at
    batch = max(q_at.batch, k_at.batch)
    mask = rule if isinstance(rule, mz.Mask) else effective(mz.masks.parse(rule))
    reader = Reader(mask, repr(mask), q_at, k_at, batch, tile)
    reader.check()
    axes = batch, -(-q_at.length // tile), -(-k_at.length // tile)
    tiles = torch.cartesian_prod(*(torch.arange(n) for n in axes)).T
    tiles = reader._sorted_out(0, [tiles])[1]
    return tiles, reader._alike(tiles), reader._patterns(tiles)[0].flatten(1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "at",
    [
        mz.Positions.tokens(133),
        mz.Positions.tokens([90, 133, 41]),
        mz.Positions.tokens([90, 133], side="left"),
        mz.Positions.packed([[32, 40, 17, 8], [8, 64, 20, 30]]),
        mz.Positions(index=torch.randperm(97)),
        mz.Positions(index=torch.arange(100) // 3 - 20),
        mz.Positions(index=torch.arange(97) * 2**40),
    ],
)
def test_equal_numbers_mean_equal_patterns(rule, at):
    tiles, (kind, first), patterns = numbers_of(rule, at)
    assert tiles.shape[1] == len(kind)
    assert torch.equal(patterns, patterns[first[kind]])
    assert torch.equal(kind[first], torch.arange(len(first)))


def test_tiles_along_a_diagonal_are_one_kind():
    for rule, kinds in (("causal", 1), ("window(40)", 2), ("causal & window(32)", 2)):
        kind = numbers_of(rule, mz.Positions.tokens(8 * 40))[1][0]
        assert len(kind.unique()) == kinds
    assert len(numbers_of("causal", mz.Positions.tokens(8 * 40 + 3))[1][0].unique()) == 2


def test_a_last_tile_that_is_cut_off_is_of_its_own_kind():
    at = mz.Positions(index=[5] * 8 + [5], segment=[0] * 9)
    tiles, (kind, _), patterns = numbers_of("random(0.5)", at)
    assert len(set(kind.tolist())) == tiles.shape[1] or torch.equal(patterns[kind == kind[0]][0], patterns[0])


def test_forms_that_wrap_around_are_not_taken_for_equal(mask_of):
    end = 2**63
    q_at = mz.Positions(big=([0, -end, -10] * 3)[:8] + ([-1, end - 1, -11] * 3)[:8])
    k_at = mz.Positions(big=[-5] * 8 + [-6] * 8)
    rule = mask_of(lambda q, k: q.big >= k.big)
    try:
        _, (kind, first), patterns = numbers_of(rule, q_at, k_at)
    except ValueError as error:
        assert "2⁶²" in str(error)  # a clear error will do as well
    else:
        assert torch.equal(patterns, patterns[first[kind]])


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    other=st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    rule=st.sampled_from(
        [
            lambda q, k: q.index + 2 * k.value < k.index + 3 * q.value,
            lambda q, k: (q.value == k.value) & (q.index >= k.index),
            lambda q, k: (q.value * k.value > 3) ^ (q.index - k.index > 5),
            lambda q, k: torch.where(q.value > k.value, q.index - k.index, k.index) % 5 > 2,
            lambda q, k: ((q.value > 0).long() * 3 + q.index) % 4 > k.index % 3,
            lambda q, k: (q.value // 2 == k.value // 2) == (q.index > k.index),
            lambda q, k: (q.slot - k.slot).abs().clamp(2, 9) + q.sequence * k.value < 6,
        ]
    ),
)
def test_tiles_of_repeating_fields_are_told_apart_where_they_differ(mask_of, steps, other, rule):
    value = torch.tensor([step for step in steps for _ in range(8)])
    index = torch.tensor([step for step in other for _ in range(8)]).cumsum(0)
    length = min(len(value), len(index)) - len(steps) % 3
    at = mz.Positions(index=index[:length], value=value[:length])
    _, (kind, first), patterns = numbers_of(mask_of(rule, needs_sequence=True), at)
    assert torch.equal(patterns, patterns[first[kind]])
