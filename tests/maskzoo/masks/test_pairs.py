"""The provider `pairs`: visible pairs brought as a list."""

import pytest
import torch

import maskzoo as mz
from maskzoo.masks import Pairs, stack


def as_list(dense):
    """The pairs [3, E] of bool [B, Tq, Tk]."""
    return dense.nonzero().T


def visible(rule, at, **options):
    return mz.plan(rule, at, **options).visible[:, 0]


def test_two_rows_hold_for_every_sequence_and_a_pair_twice_is_one_pair():
    places = torch.tensor([[2, 0, 2, 1], [0, 1, 0, 1]])
    plan = mz.plan(Pairs(places), mz.Positions.tokens(3))
    assert plan.visible[:, 0].int().tolist() == [[[0, 1, 0], [0, 1, 0], [1, 0, 0]]]
    assert plan.batch == 1
    assert visible(Pairs(places), mz.Positions.tokens([3, 2])).int().tolist() == [
        [[0, 1, 0], [0, 1, 0], [1, 0, 0]],
        [[0, 1, 0], [0, 1, 0], [0, 0, 0]],
    ]


@pytest.mark.parametrize("lengths", [[3, 3], [3, 2], [2, 3]])
@pytest.mark.parametrize("sequence", [0, 1])
def test_three_rows_give_each_sequence_its_own_pairs_and_none_to_the_others(lengths, sequence):  # case B18
    plan = mz.plan(Pairs(torch.tensor([[sequence], [1], [0]])), mz.Positions.tokens(lengths))
    dense = torch.zeros(2, 3, 3, dtype=torch.bool)
    dense[sequence, 1, 0] = True
    assert torch.equal(plan.visible.expand(2, 1, 3, 3)[:, 0], dense)


@pytest.mark.parametrize("named", [[0], [1], [2], [0, 1], [1, 2], []])
def test_a_graph_without_edges_may_stand_anywhere_in_the_batch(named):  # case B18
    places = torch.tensor([[b, 0, 0] for b in named], dtype=torch.int64).reshape(-1, 3).T
    plan = mz.plan(Pairs(places), mz.Positions.tokens([3, 1, 2]))
    assert plan.visible.expand(3, 1, 3, 3)[:, 0].sum((1, 2)).tolist() == [int(b in named) for b in range(3)]


@pytest.mark.parametrize("rows", [2, 3])
def test_no_pair_at_all_is_an_empty_plan(rows):
    plan = mz.plan(Pairs(torch.zeros(rows, 0, dtype=torch.int64)), mz.Positions.tokens(300))
    assert not plan.visible.any() and plan.density == 0 and bool(plan.empty.all())
    assert len(plan.pairs.key) == 0 and len(plan.tiles.rows.first) == 0


@pytest.mark.parametrize(
    "rule",
    [
        lambda pairs: pairs,
        lambda pairs: ~pairs,
        lambda pairs: pairs & mz.masks.Causal(),
        lambda pairs: pairs | mz.masks.Window(5),
        lambda pairs: (pairs & mz.masks.Causal()) | (pairs & mz.masks.Sinks(9)),
        lambda pairs: mz.masks.Window(40) & ~pairs,
        lambda pairs: pairs & ~mz.masks.Random(0.5),
        lambda pairs: stack(pairs, mz.masks.Causal()),
        lambda pairs: stack(pairs, pairs & mz.masks.Causal(), pairs),
        lambda pairs: pairs & mz.masks.AcrossSegments(),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_list_in_the_algebra_is_the_same_array_in_the_algebra(rule, batch):
    dense = torch.rand(batch, 150, 150) < 0.05
    dense[:, :70, 64:128] = True
    at = mz.Positions.packed([[60, 70 + row, 15] for row in range(batch)], padded_to=150)
    places = as_list(dense)[1:] if batch == 1 else as_list(dense)
    places = places[:, torch.randperm(places.shape[1])]
    listed, written_out = mz.plan(rule(Pairs(places)), at), mz.plan(rule(mz.masks.Dense(dense)), at)
    assert torch.equal(listed.visible, written_out.visible)
    assert torch.equal(listed.seen if hasattr(listed, "seen") else listed.visible.sum(-1), written_out.visible.sum(-1))


def test_queries_and_keys_may_be_other_positions():
    q_at, k_at = mz.Positions.tokens([300, 200]), mz.Positions.tokens([70, 90])
    dense = torch.rand(2, 300, 90) < 0.1
    got = visible(Pairs(as_list(dense)), q_at, k_at=k_at)
    assert torch.equal(got, dense & q_at.real[:, :, None] & k_at.real[:, None])


def test_places_count_padding_and_segments_still_part():
    at = mz.Positions.tokens([2, 3], side="left")
    places = torch.tensor([[0, 1, 2], [1, 1, 1]])
    assert visible(Pairs(places), at).int().tolist() == [
        [[0, 0, 0], [0, 1, 0], [0, 1, 0]],
        [[0, 1, 0], [0, 1, 0], [0, 1, 0]],
    ]
    assert visible(Pairs(places), mz.Positions.packed([1, 2])).int().tolist() == [[[0, 0, 0], [0, 1, 0], [0, 1, 0]]]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([[0, 3], [0, 0]], r"pairs\(\[2, 2\]\): pair 1 is \(0, 3, 0\).*3 in query: 0 … 2"),
        ([[0, 0], [0, 400]], r"pair 1 is \(0, 0, 400\).*3 in key: 0 … 2"),
        ([[0, -1], [0, 0]], r"pair 1 is \(0, -1, 0\).*query"),
        ([[0, -1], [0, 0], [0, 0]], r"pair 1 is \(-1, 0, 0\).*sequence"),
        ([[0, 2**62], [0, 0]], r"pair 1 is \(0, 4611686018427387904, 0\).*query"),
    ],
)
def test_a_place_that_does_not_exist_is_named(places, message):
    with pytest.raises(ValueError, match=message):
        mz.plan(Pairs(torch.tensor(places)), mz.Positions.tokens(3))


def test_pairs_of_another_batch_are_named():
    places = torch.tensor([[0, 4], [0, 0], [0, 0]])
    with pytest.raises(ValueError, match=r"pairs\(\[3, 2\]\).*(4|5)"):
        mz.plan(Pairs(places), mz.Positions.tokens([3, 2]))


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (torch.zeros(4, 3).long(), r"\[2, E\].*got \[4, 3\]"),
        (torch.zeros(3).long(), r"got \[3\]"),
        (torch.zeros(2, 3, 1).long(), r"got \[2, 3, 1\]"),
        (torch.zeros(2, 3), "integer places, got torch.float32"),
        (torch.zeros(2, 3).bool(), "integer places, got torch.bool"),
        (torch.zeros(2, 3, dtype=torch.complex64), "complex"),
        ([[0], [1]], "got list"),
    ],
)
def test_what_is_no_list_of_pairs_is_an_error(places, message):
    with pytest.raises(ValueError, match=message):
        Pairs(places)


def test_equal_lists_are_equal_rules_and_share_a_plan():
    places = torch.tensor([[0, 1], [1, 0]])
    first = Pairs(places)
    assert first == Pairs(places.int()) and hash(first) == hash(Pairs(places.clone()))
    assert first != Pairs(places.flip(1)) and first != Pairs(torch.zeros(3, 0).long())
    assert repr(first) == "pairs([2, 2])"
    at = mz.Positions.tokens(4)
    assert mz.plan(first, at) is mz.plan(Pairs(places.int()), at)


def test_the_list_is_copied():
    places = torch.tensor([[0], [1]])
    rule = Pairs(places)
    places[0] = 2
    assert visible(rule, mz.Positions.tokens(3)).nonzero().tolist() == [[0, 0, 1]]


def test_text_cannot_bring_a_tensor():
    with pytest.raises(ValueError, match="pairs"):
        mz.plan("pairs([[0], [1]])", mz.Positions.tokens(3))


def test_a_large_graph_costs_what_its_edges_cost():
    nodes, edges = 1_000_000, 50_000
    places = torch.randint(0, nodes, (2, edges))
    plan = mz.plan(Pairs(places), mz.Positions.tokens(nodes))
    assert plan.bytes < 16 * 2**20
    wanted = torch.unique(places[0] * nodes + places[1])
    assert torch.equal(plan.pairs.row * nodes + plan.pairs.key, wanted)
