"""Listed rules by their pairs and by blocks of them."""

from dataclasses import dataclass

import pytest
import torch

from maskzoo import Positions
from maskzoo.masks import Listed, Pairs
from maskzoo.planning.fields import BRANCH
from maskzoo.planning.lists import Lists


def dense_and_lists(batch=2, queries=90, keys=75, share=0.2):
    dense = torch.rand(batch, queries, keys) < share
    dense[:, 8:24, 64:] = True
    dense[-1, :64, :64] = True
    dense[:, 80:] = False
    places = dense.nonzero().T
    rule = Pairs(places[:, torch.randint(0, places.shape[1], (2 * places.shape[1],))])  # any order, some twice
    kept = torch.zeros_like(dense)
    kept[tuple(rule.places)] = True
    return kept, rule, Lists(Positions.tokens([queries] * batch), Positions.tokens([keys] * batch), 8)


def test_pairs_are_distinct_and_in_ascending_order():
    dense, rule, lists = dense_and_lists()
    assert torch.equal(lists.pairs(rule), dense.nonzero().T)
    assert lists.pairs(rule) is lists.pairs(Pairs(rule.places))


def test_each_pair_is_held_or_not():
    dense, rule, lists = dense_and_lists()
    sequence, query, key = (torch.arange(n) for n in dense.shape)
    held = lists.hold(rule, sequence[:, None, None], query[None, :, None], key[None, None])
    assert torch.equal(held, dense)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_blocks_are_full_or_hold_some_as_their_pairs_are(level):
    dense, rule, lists = dense_and_lists()
    size = 8 * BRANCH**level
    blocks = torch.cartesian_prod(*(torch.arange(n) for n in (2, -(-90 // size), -(-75 // size))))
    every, some = lists.hold_in(rule, *blocks.T, level)
    for n, (sequence, i, j) in enumerate(blocks.tolist()):
        block = dense[sequence, i * size : (i + 1) * size, j * size : (j + 1) * size]
        assert (bool(every[n]), bool(some[n])) == (bool(block.all()), bool(block.any()))


def test_a_list_without_pairs_holds_nothing():
    lists = Lists(Positions.tokens(9), Positions.tokens(9), 8)
    rule = Pairs(torch.zeros(2, 0).long())
    zero = torch.zeros(3, 1, 1).long()
    assert lists.pairs(rule).shape == (3, 0) and not lists.hold(rule, zero, zero, zero).any()
    assert not any(ends.any() for ends in lists.hold_in(rule, *zero[:, 0].T.expand(3, -1), 0))


def test_the_union_of_lists_has_every_pair_once():
    _dense, rule, lists = dense_and_lists()
    half = lists.pairs(rule)[:, ::2]
    assert torch.equal(lists.union([half, lists.pairs(rule), half]), lists.pairs(rule))


def test_each_list_is_asked_for_once():
    asked = []

    @dataclass(frozen=True)
    class Counting(Listed):
        def pairs(self, q, k):
            asked.append(1)
            return torch.tensor([[0], [1], [2]])

    lists = Lists(Positions.tokens(9), Positions.tokens(9), 8)
    one = torch.ones(1, 1, 1).long()
    assert lists.hold(Counting(), one - 1, one, one + 1).item() and not lists.hold(Counting(), one - 1, one, one).item()
    assert asked == [1]
