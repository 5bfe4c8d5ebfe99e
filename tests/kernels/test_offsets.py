"""Offsets as operators take them, and the dense form of a code term."""

import pytest
import torch

from maskzoo.kernels.offsets import CodeTerm, ListedTerm, Offsets, StoredTerm, arrays, code_scores, from_arrays

CODE = CodeTerm(torch.tensor([[2, 3]]), torch.tensor([[0, 1, 2]]), torch.arange(8.0).view(2, 4))
STORED = StoredTerm(torch.zeros(1, 8, 8).byte(), torch.zeros(1).int(), torch.ones(2, 3))
LISTED = ListedTerm(torch.zeros(4).byte(), torch.ones(2, 3))
DENSE = torch.ones(2, 3)


@pytest.mark.parametrize(
    "offsets",
    [Offsets(CODE), Offsets(stored=STORED), Offsets(stored=LISTED), Offsets(dense=DENSE), Offsets(CODE, STORED, DENSE)],
)
def test_arrays_and_back(offsets):
    again = from_arrays(arrays(offsets))
    assert again is not None and again is not offsets
    assert type(again.stored) is type(offsets.stored)
    assert all(one is other for one, other in zip(arrays(again), arrays(offsets), strict=True))


@pytest.mark.parametrize("offsets", [None, Offsets()])
def test_nothing_stays_nothing(offsets):
    assert arrays(offsets) == (None,) * 7
    assert from_arrays(arrays(offsets)) is None


def test_scores_of_a_code_term():
    got = code_scores(CODE)
    assert got.tolist() == [[[[2.0, 1.0, 0.0], [3.0, 2.0, 1.0]], [[6.0, 5.0, 4.0], [7.0, 6.0, 5.0]]]]
