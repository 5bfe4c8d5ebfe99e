import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskzoo import Positions, plan


def test_tokens_pads_on_either_side_and_counts_from_the_first_token() -> None:
    right, left = Positions.tokens([2, 4]), Positions.tokens([2, 4], side="left")
    assert right.segment.tolist() == [[0, 0, -1, -1], [0, 0, 0, 0]]
    assert left.segment.tolist() == [[-1, -1, 0, 0], [0, 0, 0, 0]]
    assert right.index[0, :2].tolist() == left.index[0, 2:].tolist() == [0, 1]
    assert left.real.sum(1).tolist() == [2, 4]


def test_tokens_of_one_length_are_one_row_for_any_batch() -> None:
    at = Positions.tokens(5, padded_to=7)
    assert (at.batch, at.length) == (1, 7)
    assert at.real.sum() == 5


def test_packed_counts_inside_each_segment() -> None:
    at = Positions.packed([[2, 3], [1]], padded_to=6)
    assert at.segment.tolist() == [[0, 0, 1, 1, 1, -1], [0, -1, -1, -1, -1, -1]]
    assert at.index[0, :5].tolist() == [0, 1, 0, 1, 2]
    assert Positions.packed([2, 3]).segment.tolist() == [[0, 0, 1, 1, 1]]


def test_grid_is_in_raster_order() -> None:
    at = Positions.grid(2, 3)
    assert at.fields["row"].tolist() == [[0, 0, 0, 1, 1, 1]]
    assert at.fields["col"].tolist() == [[0, 1, 2, 0, 1, 2]]
    assert at.index.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert Positions.grid(2, 3, batch=4).batch == 4


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), extra=st.integers(0, 4))
def test_a_left_padded_row_sees_what_it_sees_alone(lengths: list[int], extra: int) -> None:
    width = max(lengths) + extra
    padded = plan("causal & (window(3) | sinks(1))", Positions.tokens(lengths, padded_to=width, side="left")).visible
    for row, length in enumerate(lengths):
        own = padded[row if len(padded) > 1 else 0, 0]
        alone = plan("causal & (window(3) | sinks(1))", Positions.tokens(length)).visible[0, 0]
        assert own[-length:, -length:].equal(alone)
        assert own.sum() == alone.sum()


def test_narrow_last_and_joined_keep_the_index() -> None:
    at = Positions.tokens(6)
    assert at.narrow(2, 4).index.tolist() == [[2, 3]]
    assert at.last(2).index.tolist() == [[4, 5]]
    whole = Positions.joined(at.narrow(0, 4), at.last(2))
    assert whole.digest == at.digest
    assert Positions.packed([[2, 3], [4, 1]]).select(torch.tensor([1])).segment.tolist() == [[0, 0, 0, 0, 1]]


def test_with_fields_adds_a_field_that_rules_can_read() -> None:
    at = Positions.tokens(3).with_fields(speaker=[0, 1, 0])
    assert at.fields["speaker"].tolist() == [[0, 1, 0]]
    assert at.counted
    assert Positions.tokens(3).with_fields(segment=[0, 0, 1]).index.tolist() == [[0, 1, 0]]


def test_digest_and_collapse_follow_the_content() -> None:
    assert Positions.tokens(4).digest == Positions.tokens(4).digest != Positions.tokens(5).digest
    assert Positions.tokens([3, 3]).collapsed.batch == 1
    assert Positions.tokens([3, 2]).collapsed.batch == 2


def test_small_integer_dtypes_become_int64() -> None:
    at = Positions(index=torch.arange(3, dtype=torch.int16))
    assert at.index.dtype == at.segment.dtype == torch.int64


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Positions(), "at least one field"),
        (lambda: Positions(index=[[0.5, 1.0]]), "integers"),
        (lambda: Positions(index=[[0, 1]], segment=[[0]]), "same shape"),
        (lambda: Positions(segment=[[0, -2]]), "-2"),
        (lambda: Positions(index=torch.zeros(1, 2, 3).long()), r"\[1, 2, 3\]"),
        (lambda: Positions(index=torch.zeros(2, 0).long()), "at least 1"),
        (lambda: Positions.tokens(-1), "-1"),
        (lambda: Positions.tokens(0), "at least 1"),
        (lambda: Positions.tokens([]), "at least one length"),
        (lambda: Positions.tokens(True), "True"),
        (lambda: Positions.tokens(5, padded_to=4), "padded_to=4"),
        (lambda: Positions.tokens(5, side="up"), "'up'"),
        (lambda: Positions.packed([]), "at least one length"),
        (lambda: Positions.packed([2, 2.5]), "2.5"),
        (lambda: Positions.packed([2, 3], padded_to=4), "padded_to=4"),
        (lambda: Positions.tokens(4).last(5), r"last\(5\)"),
        (lambda: Positions.joined(Positions.tokens(2), Positions.grid(1, 2)), "fields"),
        (lambda: Positions.grid(0, 3), "at least 1"),
    ],
)
def test_mistakes_say_what_was_given(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", ["slot", "slots", "sequence", "listed"])
def test_a_field_cannot_have_the_name_of_something_else(name):
    with pytest.raises(ValueError, match=f"cannot be named {name}"):
        Positions(**{name: [[0, 1]]})
    with pytest.raises(ValueError, match=f"cannot be named {name}"):
        Positions.tokens(2).with_fields(**{name: [[0, 1]]})


def test_a_row_of_a_pack_may_be_empty():  # case B18
    assert Positions.packed([[3], [0]]).segment.tolist() == [[0, 0, 0], [-1, -1, -1]]
    assert Positions.packed([[2], [0]], padded_to=3).segment.tolist() == [[0, 0, -1], [-1, -1, -1]]
