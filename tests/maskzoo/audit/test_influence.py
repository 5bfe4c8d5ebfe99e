"""Influence by gradient and by substitution, against models whose influence is known."""

import pytest
import torch
from torch import nn

from maskzoo.audit.influence import by_gradient, by_substitution, replaced
from maskzoo.audit.subject import Subject

T = 7


class Mixing(nn.Module):
    """Ids through an embedding, mixed by a given matrix."""

    def __init__(self, mix):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.register_buffer("mix", mix)

    def forward(self, ids):
        return self.mix @ self.embedding(ids)


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_find_the_pairs_that_are_there(seed):
    torch.manual_seed(seed)
    mix = torch.randn(T, T) * (torch.rand(T, T) < 0.4)
    ids, numbers = torch.randint(0, 5, (2, T)), torch.randn(2, T, 3)
    for subject in (Subject(Mixing(mix), ids), Subject(lambda x: mix @ x, numbers)):
        for found in (by_gradient(subject), by_substitution(subject)):
            assert torch.equal(found != 0, (mix != 0).expand(2, T, T))


def test_what_has_no_gradient_is_found_by_substitution():
    subject = Subject(lambda x: x.round().cumsum(1), torch.randn(1, T, 2) * 9)
    assert torch.equal(by_substitution(subject)[0] != 0, torch.ones(T, T).tril().bool())
    assert by_gradient(Subject(lambda ids: ids[..., None].float(), torch.arange(T)[None])) is None


def test_a_number_that_is_hardly_felt_is_found_by_gradient():
    subject = Subject(lambda x: x + 1e-30 * x.flip(1), torch.randn(1, T, 2, dtype=torch.float64))
    assert (by_gradient(subject) != 0)[0].sum() == 2 * T - 1


def test_positions_and_rows_that_are_replaced():
    subject = Subject(lambda x: x, torch.zeros(3, 4, T), axis=2)
    other = replaced(subject, torch.ones(3, 4, T), torch.tensor([1, 5]), torch.tensor([2]))
    assert other.sum() == 8 and (other[2][:, [1, 5]] == 1).all()
    assert subject.watched.sum() == 0
