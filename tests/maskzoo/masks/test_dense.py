import pickle
import re

import pytest
import torch

from maskzoo import Positions, plan
from maskzoo.masks import Dense, parse, stack

PAIRS = torch.tensor([[1, 0, 1], [0, 1, 1]]).bool()


def test_reads_the_tensor_by_place() -> None:
    at, k_at = Positions.tokens(2), Positions.tokens(3)
    assert plan(Dense(PAIRS), at, k_at=k_at).visible[0, 0].equal(PAIRS)


def test_place_counts_padding_and_padding_stays_hidden() -> None:
    at = Positions.tokens([2, 3], side="left")
    visible = plan(Dense(torch.ones(3, 3).bool()), at).visible[:, 0]
    assert visible[0].int().tolist() == [[0, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert visible[1].all()


def test_a_tensor_for_each_sequence_of_a_shared_row() -> None:
    values = torch.rand(3, 4, 4) > 0.5
    made = plan(Dense(values) & parse("causal"), Positions.tokens(4))
    assert made.visible[:, 0].equal(values & torch.ones(4, 4).tril().bool())


def test_per_head_tensors_stack() -> None:
    one, two = torch.rand(2, 4, 4) > 0.5, torch.rand(4, 4) > 0.5
    visible = plan(stack(Dense(one), Dense(two)), Positions.tokens(4)).visible
    assert visible[:, 0].equal(one)
    assert visible[:, 1].equal(two.expand(2, 4, 4))


def test_dimensions_of_size_one_broadcast() -> None:
    keys = torch.tensor([[[True, True, False]], [[True, False, False]]])  # (B, 1, S)
    visible = plan(Dense(keys), Positions.tokens(3)).visible
    assert visible.shape == (2, 1, 3, 3)
    assert visible[:, 0].equal(keys.expand(2, 3, 3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (PAIRS.float(), "torch.float32"),
        (PAIRS.long(), "torch.int64"),
        (torch.tensor(True), "[]"),
        (torch.ones(3).bool(), "[3]"),
        (torch.ones(1, 2, 3, 3).bool(), "[1, 2, 3, 3]"),
        (torch.ones(0, 3).bool(), "[0, 3]"),
        ([[True]], "list"),
    ],
)
def test_other_tensors_are_refused(values: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Dense(values)


@pytest.mark.parametrize("length", [2, 3, 4])
def test_other_sizes_name_both(length: int) -> None:
    with pytest.raises(ValueError, match=rf"2 queries and 3 keys.*{length} and {length}"):
        plan(Dense(PAIRS), Positions.tokens(length))


def test_text_states_the_shape_and_cannot_be_read() -> None:
    assert repr(Dense(PAIRS)) == "dense([2, 3])"
    for text in ("dense([2, 3])", "dense([[1, 0], [0, 1]])", "dense"):
        with pytest.raises(ValueError, match="dense"):
            parse(text)


def test_equal_by_content_hashable_and_pickles() -> None:
    same, other = Dense(PAIRS.clone()), Dense(~PAIRS)
    assert Dense(PAIRS) == same and hash(Dense(PAIRS)) == hash(same)
    assert Dense(PAIRS) != other and Dense(PAIRS) != Dense(PAIRS[None]) and Dense(PAIRS) != parse("causal")
    assert pickle.loads(pickle.dumps(same)) == same


def test_later_changes_of_the_tensor_do_not_reach_the_rule() -> None:
    values = PAIRS.clone()
    mask = Dense(values)
    values.fill_(False)
    assert mask == Dense(PAIRS)
