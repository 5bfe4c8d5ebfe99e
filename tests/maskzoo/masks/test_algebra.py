import functools
import operator
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo import Mask, Positions, plan
from maskzoo.masks import parse, stack
from maskzoo.masks.algebra import Not

LEAVES = [
    *("full", "causal", "padding", "same_segment", "across_segments", "sinks(2)", "prefix(3)", "window(2)"),
    *("window(2, both_sides=True)", "dilated(2, 3)", "strided(3)", "block(2)", "random(0.5, 7)"),
]
AT = Positions.packed([[5, 4], [3, 7]], padded_to=11)

leaves = st.sampled_from(LEAVES).map(parse)
rules = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner), st.builds(operator.or_, inner, inner), st.builds(operator.invert, inner)
    ),
    max_leaves=8,
)


def same(one: Mask, other: Mask) -> bool:
    return plan(one, AT).visible.equal(plan(other, AT).visible)


@settings(max_examples=40, deadline=None)
@given(a=rules, b=rules, c=rules)
def test_laws(a: Mask, b: Mask, c: Mask) -> None:
    assert same(~(a & b), ~a | ~b)
    assert same(~(a | b), ~a & ~b)
    assert same(a & (b | c), (a & b) | (a & c))
    assert same(a | (b & c), (a | b) & (a | c))
    assert same(a & b, b & a)
    assert same(a | b, b | a)
    assert same(~~a, a)
    assert same(a & a, a)


@settings(max_examples=100, deadline=None)
@given(mask=rules)
def test_text_round_trip(mask: Mask) -> None:
    read = parse(repr(mask))
    assert read == mask and hash(read) == hash(mask) and repr(read) == repr(mask)
    assert pickle.loads(pickle.dumps(mask)) == mask


@settings(max_examples=40, deadline=None)
@given(mask=rules)
def test_the_effective_rule_is_a_rule_that_changes_nothing(mask: Mask) -> None:
    assert same(parse(plan(mask, AT).rule), mask)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("causal", "causal & padding & same_segment"),
        ("causal | window(2)", "(causal | window(2)) & padding & same_segment"),
        ("causal | padding", "(causal | padding) & padding & same_segment"),
        ("causal & padding", "causal & padding & same_segment"),
        ("causal & (sinks(1) | window(2))", "causal & (sinks(1) | window(2)) & padding & same_segment"),
        ("causal & across_segments", "causal & across_segments & padding"),
        ("stack(causal, full)", "stack(causal, full) & padding & same_segment"),
        (
            "stack(causal & across_segments, full)",
            "stack(causal & across_segments & padding, full & padding & same_segment)",
        ),
    ],
)
def test_effective_rule(text: str, rule: str) -> None:
    assert plan(text, AT).rule == rule


def test_one_head_that_crosses_segments_does_not_open_the_others() -> None:
    visible = plan("stack(causal & across_segments, causal)", AT).visible
    assert visible[:, :1].equal(plan("causal & across_segments", AT).visible)
    assert visible[:, 1:].equal(plan("causal", AT).visible)


def test_and_or_not_are_refused() -> None:
    causal, window = parse("causal"), parse("window(2)")
    for use in (lambda: causal and window, lambda: causal or window, lambda: not causal, lambda: bool(causal & window)):
        with pytest.raises(TypeError, match=r"&, \| and ~"):
            use()
    with pytest.raises(TypeError):
        causal & True


def test_equal_by_value() -> None:
    assert parse("causal & window(2)") == parse("(causal) & window(size=2)")
    assert parse("causal & window(2)") != parse("window(2) & causal")
    assert parse("window(2)") != parse("window(3)")
    assert len({parse("causal"), parse("causal"), parse("~causal")}) == 2


def test_stacks_hold_one_rule_per_head() -> None:
    mask = parse("stack(causal, window(2) | sinks(1))")
    assert parse(repr(mask)) == mask
    assert plan(mask, AT).visible.shape[1] == 2
    for build in (
        lambda: mask & parse("causal"),
        lambda: parse("causal") | mask,
        lambda: ~mask,
        stack,
        lambda: stack(mask),
    ):
        with pytest.raises(ValueError, match="stack"):
            build()


def test_ten_thousand_terms_join_flat() -> None:
    terms = [parse(f"window({size})") for size in range(1, 10_001)]
    mask = functools.reduce(operator.or_, terms)
    assert len(mask.terms) == 10_000
    assert plan(mask, Positions.tokens(3)).visible.equal(plan("causal", Positions.tokens(3)).visible)


def test_a_negated_rule_is_written_with_parentheses_where_needed() -> None:
    assert repr(Not(parse("causal | window(2)"))) == "~(causal | window(2))"
    assert repr(~parse("window(2)")) == "~window(2)"
