"""Where queries are placed against keys."""

import pytest
import torch

import maskzoo as mz
from maskzoo.masks import Causal, Cross
from maskzoo.planning.alignment import aligned

CAUSAL = Causal()


def index_of(q_at, k_at, align=None, mask=CAUSAL):
    return aligned(mask, q_at, k_at, align)[0].index.tolist()


def test_the_end_of_each_segment_is_at_the_end_of_its_keys():
    q_at, k_at = mz.Positions.packed([[1, 2], [3, 0]]), mz.Positions.packed([[4, 2], [1, 5]])
    assert index_of(q_at, k_at) == [[3, 0, 1], [-2, -1, 0]]
    assert index_of(q_at, k_at, "start") == [[0, 0, 1], [0, 1, 2]]
    assert index_of(q_at, k_at, mask=Cross()) == [[0, 0, 1], [0, 1, 2]]


def test_stated_indices_stay_unless_asked():
    q_at, k_at = mz.Positions(index=[[7, 9]]), mz.Positions.tokens(4)
    assert index_of(q_at, k_at) == [[7, 9]]
    assert index_of(q_at, k_at, "end") == [[1, 3]]


@pytest.mark.parametrize("first", [-10, -3, 0, 5, 2**40])
def test_indices_may_be_negative_and_large(first):
    k_at = mz.Positions(index=torch.arange(first, first + 5))
    assert index_of(mz.Positions(index=[[first + 2]]), k_at, "end") == [[first + 4]]


def test_positions_that_are_their_own_keys_stay():
    at = mz.Positions.packed([3, 2])
    assert aligned(CAUSAL, at, at, "end")[0] is at
