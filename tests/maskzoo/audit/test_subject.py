"""Any model made uniform, and left as it was."""

import copy
import random

import pytest
import torch
from torch import nn

from maskzoo.audit.subject import Setting, Subject
from maskzoo.positions import Positions


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.dropout = nn.Embedding(7, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, ids, scale=None):
        x = self.embedding(ids)
        x = x if scale is None else x * scale
        return self.dropout(self.norm(x.transpose(1, 2)).transpose(1, 2))


IDS = torch.tensor([[0, 1, 2, 3, 4], [5, 6, 0, 1, 2]])


def test_model_inputs_and_random_states_stay_as_they_are():
    model = Model().train()
    before, ids = copy.deepcopy(model.state_dict()), IDS.clone()
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(3), random.random()
    torch.manual_seed(5)
    random.seed(5)
    subject = Subject(model, ids, setting=Setting(training=True, dtype=torch.float64, noise=0.1))
    first = subject.run()
    assert torch.equal(first, subject.run()), "the same dropout, and statistics that were put back"
    assert first.dtype == torch.float64 and (first == 0).any()
    assert torch.equal(torch.rand(3), expected[0]) and random.random() == expected[1]
    assert model.training and torch.equal(ids, IDS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_may_write_into_its_inputs():
    def writes(x):
        return x.mul_(2)

    x = torch.ones(1, 3, 2)
    subject = Subject(writes, x)
    assert torch.equal(subject.run(), subject.run()) and torch.equal(x, torch.ones(1, 3, 2))


def test_noise_moves_trained_parameters_only():
    model = nn.Linear(3, 3)
    nn.init.zeros_(model.weight)
    model.bias.requires_grad_(False)
    noised = Subject(model, torch.zeros(1, 2, 3), setting=Setting(noise=0.02)).module
    assert (noised.weight != 0).all() and torch.equal(noised.bias, model.bias)


@pytest.mark.parametrize("count", [1, 4])
def test_other_values_are_others_and_allowed(count):
    generator = torch.Generator().manual_seed(0)
    ids = Subject(Model(), IDS)
    assert ids.embedding is ids.module.embedding
    drawn = ids.substitutes(count, generator)
    assert drawn.shape == (count, 2, 5) and (drawn != IDS).all() and drawn.min() >= 0 and drawn.max() <= 6
    seen = Subject(lambda x: x[..., None].float(), torch.tensor([[3, 9, 3]])).substitutes(count, generator)
    assert set(seen.unique().tolist()) <= {3, 9} and (seen != torch.tensor([[3, 9, 3]])).all()
    truths = Subject(lambda x: x.float(), torch.tensor([[[True], [False]]]), watch=None).substitutes(count, generator)
    assert torch.equal(truths[0], torch.tensor([[[False], [True]]]))
    numbers = torch.randn(2, 500, 3) * 5 + 100
    drawn = Subject(lambda x: x, numbers).substitutes(count, generator)
    assert abs(float(drawn.mean()) - 100) < 1 and abs(float(drawn.std()) - 5) < 1


def test_rows_and_shorter_inputs_are_cut_in_every_input():
    at = Positions.tokens([5, 3])
    subject = Subject(lambda ids, scale, at: ids[..., None] * scale, (IDS, torch.rand(2, 5, 3), at))
    short = subject.shortened(2)
    assert [short.inputs[0].shape, short.inputs[1].shape, short.inputs[2].length] == [(2, 2), (2, 2, 3), 2]
    assert torch.equal(short.run(), subject.run()[:, :2])
    one = subject.rows(torch.tensor([1]))
    assert one.batch == 1 and torch.equal(one.run(), subject.run()[1:]) and one.inputs[2].batch == 1
    assert one.passes == subject.passes, "counted together"


@pytest.mark.parametrize(
    ("returned", "axis", "shape"),
    [
        (lambda x: x, 1, (2, 5, 3)),
        (lambda x: {"logits": x}, 1, (2, 5, 3)),
        (lambda x: (x[:, :4], None), 1, (2, 4, 3)),
        (lambda x: x.mean(1), (1, None), (2, 1, 3)),
        (lambda x: x.mT, (1, 2), (2, 5, 3)),
        (lambda x: x[..., 0], 1, (2, 5, 1)),
        (lambda x: torch.complex(x, x), 1, (2, 5, 6)),
    ],
)
def test_outputs_of_any_form(returned, axis, shape):
    subject = Subject(returned, torch.rand(2, 5, 3), axis=axis)
    assert subject.run().shape == shape and subject.queries == shape[1]


@pytest.mark.parametrize(
    ("model", "inputs", "options", "message"),
    [
        (lambda x: x, "text", {}, "must be a tensor, a tuple or a dictionary, got str"),
        (lambda x: x, (torch.rand(3),), {}, "say with watch= which"),
        (lambda x: x, torch.rand(2, 3), {"axis": 2}, "an axis 2 of positions"),
        (lambda x: x.mean(1), torch.rand(2, 3, 4), {"axis": (1, 2)}, r"no axis 2 of positions.*axis=\(1, None\)"),
        (lambda x: x.sum(), torch.rand(2, 3, 4), {}, "must be the 2 rows of the batch"),
        (lambda x: None, torch.rand(2, 3, 4), {}, "returned no tensor but NoneType"),
    ],
)
def test_what_cannot_be_watched(model, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        Subject(model, inputs, **options).run()
