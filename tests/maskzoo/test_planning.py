"""What a plan says is visible, and what it refuses."""

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch

import maskzoo as mz


def visible(rule, at, **options):
    return mz.plan(rule, at, **options).visible[:, 0].int().tolist()


@pytest.mark.parametrize(
    ("queries", "keys", "expected"),
    [
        (1, 8, [[1] * 8]),
        (2, 5, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        (5, 2, [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]),
    ],
)
def test_by_default_queries_stand_at_the_end_of_the_keys(queries, keys, expected):  # case B11
    at, k_at = mz.Positions.tokens(queries), mz.Positions.tokens(keys)
    assert visible("causal", at, k_at=k_at) == [expected]
    assert "queries at the end of the keys" in mz.plan("causal", at, k_at=k_at).explain()


def test_alignment_is_an_option():  # case B11
    at, k_at = mz.Positions.tokens(2), mz.Positions.tokens(5)
    assert visible("causal", at, k_at=k_at, align="start") == [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]]
    stated = mz.Positions(index=[[1, 2]])
    assert visible("causal", stated, k_at=k_at) == [[[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]]
    assert visible("causal", stated, k_at=k_at, align="end") == visible("causal", at, k_at=k_at)
    assert visible("wait_k(1)", at, k_at=k_at) == visible("causal", at, k_at=k_at, align="start")
    with pytest.raises(ValueError, match="Did you mean 'start'"):
        mz.plan("causal", at, k_at=k_at, align="strat")


def test_each_segment_of_a_pack_is_aligned_to_its_own_end():
    at, k_at = mz.Positions.packed([1, 2]), mz.Positions.packed([3, 2])
    assert visible("causal", at, k_at=k_at) == [[[1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]]


def test_the_last_positions_see_what_they_see_in_the_whole():
    at = mz.Positions.tokens([4, 6, 3], side="left")
    whole = mz.plan("causal & window(3)", at).visible
    assert torch.equal(mz.plan("causal & window(3)", at.last(2), k_at=at).visible, whole[:, :, -2:])


def test_padding_and_segments_always_belong_to_the_rule():
    at = mz.Positions(segment=[[0, 0, 1, -1]])
    assert visible("full", at) == [[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
    assert visible("~causal", at) == [[[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]]
    assert mz.plan("full | causal", at).rule == "(full | causal) & padding & same_segment"


def test_segments_are_crossed_only_by_name():
    at = mz.Positions(segment=[[0, 0, 1, -1]])
    assert visible("across_segments", at) == [[[1, 1, 1, 0]] * 3 + [[0, 0, 0, 0]]]
    assert mz.plan("causal & across_segments", at).rule == "causal & across_segments & padding"


def test_heads_of_a_stack_have_their_own_rule():
    plan = mz.plan("stack(causal, window(1))", mz.Positions.tokens(3), heads=2)
    assert plan.visible[0].int().tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]]
    with pytest.raises(ValueError, match="2 rules, one per head, but there are 4 heads"):
        mz.plan("stack(causal, window(1))", mz.Positions.tokens(3), heads=4)


def test_queries_that_see_nothing_can_be_an_error():
    at = mz.Positions.tokens([2, 4])
    assert mz.plan("causal", at, empty_rows="error").empty is not None  # padding alone is no error
    with pytest.raises(ValueError, match=r"~causal.*sequence 0, head 0, query 1"):
        mz.plan("~causal", at, empty_rows="error")


@pytest.mark.parametrize(
    ("rule", "at", "form"),
    [
        ("causal", mz.Positions.tokens(5), "causal"),
        ("causal", mz.Positions.packed([2, 3]), "any"),
        ("causal", mz.Positions.tokens([3, 5]), "any"),
        ("full", mz.Positions.tokens(5), "full"),
        ("window(2)", mz.Positions.tokens(5), "any"),
        ("window(5)", mz.Positions.tokens(5), "causal"),
    ],
)
def test_the_form_of_the_whole_is_recognised(rule, at, form):
    assert mz.plan(rule, at).form == form


def test_rows_that_are_the_same_for_the_whole_batch_are_kept_once():
    assert mz.plan("causal", mz.Positions.tokens([4, 4, 4])).batch == 1
    assert mz.plan("causal", mz.Positions.tokens([4, 4, 3])).batch == 3
    first = mz.plan("causal & window(3)", mz.Positions.tokens(40))
    assert mz.plan("causal & window(3)", mz.Positions.tokens([40, 40])) is first


def test_plans_of_equal_rules_over_other_positions_are_not_confused():
    assert (
        mz.plan("causal", mz.Positions.packed([2, 3])).density != mz.plan("causal", mz.Positions.packed([1, 4])).density
    )


def test_a_field_that_is_missing_is_named():
    @dataclass(frozen=True)
    class SameSpeaker(mz.Mask):
        def visible(self, q, k):
            return q.speaker == k.speaker

    at = mz.Positions.tokens(3)
    assert visible(SameSpeaker(), at.with_fields(speaker=[[0, 1, 0]])) == [[[1, 0, 1], [0, 1, 0], [1, 0, 1]]]
    with pytest.raises(ValueError, match=r"SameSpeaker reads the field 'speaker'.*segment, index.*with_fields"):
        mz.plan(SameSpeaker(), at)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda q, k: (q.index - k.index).float(), "boolean tensor.*torch.float32"),
        (lambda q, k: True, "boolean tensor.*bool"),
        (lambda q, k: torch.ones(2, 2, dtype=torch.bool), r"broadcast to \[B, Tq, Tk\] = \[1, 3, 3\], got \[2, 2\]"),
    ],
)
def test_a_predicate_that_is_none_is_refused(returned, message):
    @dataclass(frozen=True)
    class Wrong(mz.Mask):
        def visible(self, q, k):
            return returned(q, k)

    with pytest.raises(ValueError, match=message):
        mz.plan(Wrong(), mz.Positions.tokens(3))


def test_a_mask_without_a_rule_never_runs_unmasked():  # case B14
    @dataclass(frozen=True)
    class Unwritten(mz.Mask):
        pass

    with pytest.raises(TypeError, match="Unwritten is a mask without a rule"):
        mz.plan(Unwritten(), mz.Positions.tokens(3))
    with pytest.raises(ValueError, match="own visible"):
        mz.register_mask("unwritten")(Unwritten)


def test_a_rule_that_is_no_value_is_refused():
    @dataclass
    class Changing(mz.Mask):
        size: int

        def visible(self, q, k):
            return q.index - k.index < self.size

    with pytest.raises(ValueError, match=r"Changing cannot be hashed.*frozen=True"):
        mz.plan(Changing(3), mz.Positions.tokens(3))


def test_pairs_are_written_out_only_where_they_fit():
    plan = mz.plan("causal", mz.Positions.tokens(40_000))
    with pytest.raises(ValueError, match=r"causal.*40,000 queries × 40,000 keys.*1,600,000,000 bytes"):
        print(plan.visible.shape)


def test_plans_travel():
    at = mz.Positions.tokens([3, 5])
    plan = mz.plan("causal", at, bias="relative(buckets=8)", heads=2)
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), plan.to("cpu")):
        assert torch.equal(other.visible, plan.visible) and other.rule == plan.rule
        assert torch.equal(other.scores(), plan.scores())


@pytest.mark.parametrize(("length", "mebibytes"), [(4096, 32), (8192, 128)])
def test_what_stored_weights_would_take(length, mebibytes):  # case A9
    plan = mz.plan("full", mz.Positions.tokens(length))
    assert plan.stored_weights_bytes(torch.float16) == mebibytes * 2**20
    small = mz.plan("causal", mz.Positions.tokens(100))
    weights = mz.attend(*[torch.zeros(1, 1, 100, 8)] * 3, small, return_weights=True)[1]
    assert small.stored_weights_bytes(torch.float32) == weights.nbytes


def test_explain_says_what_runs():
    text = mz.plan("causal & window(4)", mz.Positions.packed([7, 3]), bias="alibi", heads=2).explain()
    for part in (
        "causal & window(4) & padding & same_segment",
        "alibi",
        "10 queries × 10 keys",
        "density    0.28 ",
        "dense",
    ):
        assert part in text


def test_a_bias_needs_to_know_the_heads():
    at = mz.Positions.tokens(3)
    with pytest.raises(ValueError, match="heads="):
        mz.plan("causal", at, bias="alibi")
    with pytest.raises(ValueError, match="made for 2 heads, but there are 4"):
        mz.plan("causal", at, bias=mz.biases.parse("alibi", heads=2), heads=4)
    assert mz.plan("causal", at, bias="none", heads=2).bias is None
