"""`Listed`: a provider of the user's own that names its pairs."""

from dataclasses import dataclass

import pytest
import torch

import maskzoo as mz
from maskzoo import registry
from maskzoo.masks import Listed


@pytest.fixture
def parents():
    """A registered provider: every position sees the position named by the field `parent`."""

    @dataclass(frozen=True)
    class Parents(Listed):
        """The parent of each node of a tree."""

        hops: int = 1

        def pairs(self, q, k):
            parent = q.fields["parent"]
            target = parent
            for _ in range(self.hops - 1):
                target = parent.gather(1, target)
            sequence, query = torch.cartesian_prod(torch.arange(q.batch), torch.arange(q.length)).T
            return torch.stack([sequence, query, target[sequence, query]])

    yield mz.register_mask("test_parents")(Parents)
    del registry.masks._entries["test_parents"]


def test_a_registered_list_is_read_from_text_like_any_rule(parents):
    at = mz.Positions.tokens(5).with_fields(parent=[0, 0, 1, 1, 3])
    plan = mz.plan("test_parents", at)
    assert plan.visible[0, 0].nonzero().tolist() == [[0, 0], [1, 0], [2, 1], [3, 1], [4, 3]]
    assert plan.rule == "test_parents & padding & same_segment"
    both = mz.plan("test_parents | test_parents(2)", at)
    assert both.visible[0, 0].nonzero().tolist() == [[0, 0], [1, 0], [2, 0], [2, 1], [3, 0], [3, 1], [4, 1], [4, 3]]


def test_each_sequence_of_a_batch_has_its_own_list(parents):
    parent = torch.stack([torch.arange(200), torch.zeros(200).long(), torch.arange(200).sub(1).clamp(min=0)])
    at = mz.Positions.tokens([200, 150, 200]).with_fields(parent=parent)
    dense = torch.nn.functional.one_hot(parent, 200).bool() & at.real[:, :, None] & at.real[:, None]
    assert torch.equal(mz.plan(parents(), at).visible[:, 0], dense)
    assert torch.equal(mz.plan(~parents(), at).visible[:, 0], ~dense & at.real[:, :, None] & at.real[:, None])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(2, 3).long(), r"Wrong: pairs must be an int64 tensor \[3, E\].*got torch.int64 \[2, 3\]"),
        (torch.zeros(3, 3).int(), r"got torch.int32 \[3, 3\]"),
        (torch.zeros(3, 3), "got torch.float32"),
        ([[0], [0], [0]], "got list"),
        (None, "got NoneType"),
        (torch.tensor([[0], [0], [7]]), r"Wrong: pair 0 is \(0, 0, 7\).*key"),
        (torch.tensor([[1], [0], [0]]), r"Wrong: pair 0 is \(1, 0, 0\).*sequence"),
    ],
)
def test_a_list_that_is_none_is_an_error(returned, message):
    @dataclass(frozen=True)
    class Wrong(Listed):
        def pairs(self, q, k):
            return returned

    with pytest.raises(ValueError, match=message):
        mz.plan(Wrong(), mz.Positions.tokens(3))


def test_a_list_that_raises_names_its_rule():
    @dataclass(frozen=True)
    class Raising(Listed):
        def pairs(self, q, k):
            return torch.zeros(3, 1 // 0).long()

    with pytest.raises(ValueError, match=r"Raising.*ZeroDivisionError"):
        mz.plan(Raising(), mz.Positions.tokens(3))


def test_a_list_that_reads_a_missing_field_names_its_rule(parents):
    with pytest.raises(ValueError, match=r"test_parents.*parent"):
        mz.plan("test_parents", mz.Positions.tokens(3))


def test_a_list_without_pairs_never_runs_unmasked():
    @dataclass(frozen=True)
    class Unwritten(Listed):
        pass

    with pytest.raises((TypeError, ValueError), match="Unwritten is a list of pairs without any"):
        mz.plan(Unwritten(), mz.Positions.tokens(3))


def test_a_list_is_asked_for_once_in_a_plan():
    asked = []

    @dataclass(frozen=True)
    class Counting(Listed):
        def pairs(self, q, k):
            asked.append((q.length, k.length))
            return torch.tensor([[0, 0], [0, 299], [0, 5]])

    listed = Counting()
    plan = mz.plan((listed & mz.masks.Causal()) | (listed & mz.masks.Sinks(2)), mz.Positions.tokens(300))
    assert plan.visible[0, 0].nonzero().tolist() == [[0, 0], [299, 5]]
    assert asked == [(300, 300)]
