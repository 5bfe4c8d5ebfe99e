"""Every provider against a slow loop written from its source's formula, over packed and padded positions."""

import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo import Positions, masks, plan
from maskzoo.masks import parse
from maskzoo.registry import masks as registry

Rule = tuple[str, Callable[[int, int], bool]]

small = st.integers(1, 6)
rows = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=2)


def strided(step: int) -> Callable[[int, int], bool]:
    def seen(i: int, j: int) -> bool:
        near = range(max(0, i - step), i + 1)
        columns = [column for column in range(i + 1) if (i - column) % step == 0]
        return j in near or j in columns

    return seen


def hashed(probability: float, seed: int) -> Callable[[int, int], bool]:
    def mixed(x: int) -> int:
        x %= 2**32
        x = ((x ^ x >> 15) * 0x2C1B3C6D) % 2**32
        x = ((x ^ x >> 12) * 0x297A2D39) % 2**32
        return x ^ x >> 15

    return lambda i, j: mixed(mixed(i + mixed(seed + 1)) + mixed(j)) < round(probability * 2**32)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    a, b = draw(small), draw(small)
    p, seed = draw(st.floats(0, 1)), draw(st.integers(0, 2**31 - 1))
    return draw(
        st.sampled_from(
            [
                ("full", lambda i, j: True),
                ("padding", lambda i, j: True),
                ("same_segment", lambda i, j: True),
                ("cross", lambda i, j: True),
                ("causal", lambda i, j: j in range(i + 1)),
                (f"window({a})", lambda i, j: j in range(i - a + 1, i + 1)),
                (f"window({a}, both_sides=True)", lambda i, j: j in range(i - a + 1, i + a)),
                (f"sinks({a})", lambda i, j: j in range(a)),
                (f"prefix({a - 1})", lambda i, j: j in set(range(a - 1)) | set(range(i + 1))),
                (f"dilated({a}, {b})", lambda i, j: j in [i - b * m for m in range(a)]),
                (f"strided({a})", strided(a)),
                (f"block({a})", lambda i, j: j < (i // a + 1) * a),
                (f"wait_k({a})", lambda i, j: j + 1 <= a + (i + 1) - 1),
                (f"random({p!r}, {seed})", hashed(p, seed)),
            ]
        )
    )


def expected(seen: Callable[[int, int], bool], q: Positions, k: Positions, across: bool = False) -> torch.Tensor:
    pairs = torch.zeros(max(q.batch, k.batch), q.length, k.length, dtype=torch.bool)
    for b in range(len(pairs)):
        own = [at.segment[b if at.batch > 1 else 0].tolist() for at in (q, k)]
        index = [at.index[b if at.batch > 1 else 0].tolist() for at in (q, k)]
        for i in range(q.length):
            for j in range(k.length):
                real = own[0][i] >= 0 and own[1][j] >= 0
                together = real and (across or own[0][i] == own[1][j])
                pairs[b, i, j] = together and seen(index[0][i], index[1][j])
    return pairs


def agree(visible: torch.Tensor, pairs: torch.Tensor) -> bool:
    return torch.equal(visible[:, 0].expand_as(pairs), pairs)


@settings(max_examples=100, deadline=None)
@given(rule=rules(), lengths=rows, extra=st.integers(0, 3))
def test_packed_positions_follow_the_formula(rule: Rule, lengths: list[list[int]], extra: int) -> None:
    at = Positions.packed(lengths, padded_to=max(map(sum, lengths)) + extra)
    assert agree(plan(rule[0], at).visible, expected(rule[1], at, at))


@settings(max_examples=40, deadline=None)
@given(
    rule=rules(), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3), side=st.sampled_from(["left", "right"])
)
def test_padded_positions_follow_the_formula(rule: Rule, lengths: list[int], side: str) -> None:
    at = Positions.tokens(lengths, side=side)
    assert agree(plan(rule[0], at).visible, expected(rule[1], at, at))


@settings(max_examples=30, deadline=None)
@given(k=small, targets=rows, data=st.data())
def test_rules_between_sequences_count_both_from_the_start(
    k: int, targets: list[list[int]], data: st.DataObject
) -> None:
    sources = [[data.draw(st.integers(1, 7)) for _ in row] for row in targets]
    at, k_at = Positions.packed(targets), Positions.packed(sources)
    pairs = expected(lambda t, s: s + 1 <= k + t, at, k_at)
    assert agree(plan(f"wait_k({k})", at, k_at=k_at).visible, pairs)
    assert agree(plan("cross", at, k_at=k_at).visible, expected(lambda t, s: True, at, k_at))


@settings(max_examples=40, deadline=None)
@given(rule=rules(), lengths=rows, extra=st.integers(0, 2))
def test_across_segments_lifts_the_boundary(rule: Rule, lengths: list[list[int]], extra: int) -> None:
    at = Positions.packed(lengths, padded_to=max(map(sum, lengths)) + extra)
    own_segment_only = rule[0] in ("same_segment", "cross")
    pairs = expected(rule[1], at, at, across=not own_segment_only)
    assert agree(plan(f"{rule[0]} & across_segments", at).visible, pairs)


@given(rule=rules())
def test_text_round_trip(rule: Rule) -> None:
    mask = parse(rule[0])
    assert parse(repr(mask)) == mask
    assert hash(parse(repr(mask))) == hash(mask)
    assert pickle.loads(pickle.dumps(mask)) == mask


@pytest.mark.parametrize(
    ("text", "parameter", "allowed"),
    [
        ("window(-3)", "size=-3", "at least 1"),
        ("window(size=0)", "size=0", "at least 1"),
        ("window(2.5)", "size=2.5", "integer"),
        ("window(True)", "size=True", "integer"),
        ("window(99999999999999999999)", "size=", "from 1 to 2147483647"),
        ("sinks(0)", "size=0", "at least 1"),
        ("prefix(-1)", "size=-1", "at least 0"),
        ("dilated(0, 2)", "size=0", "at least 1"),
        ("dilated(2, 0)", "step=0", "at least 1"),
        ("strided(0)", "step=0", "at least 1"),
        ("block(0)", "size=0", "at least 1"),
        ("wait_k(0)", "k=0", "at least 1"),
        ("random(1.5)", "probability=1.5", "from 0 to 1"),
        ("random(-0.1)", "probability=-0.1", "from 0 to 1"),
        ("random(True)", "probability=True", "from 0 to 1"),
        ("random('often')", "probability='often'", "from 0 to 1"),
        ("random(0.5, -1)", "seed=-1", "at least 0"),
        ("window(3, both_sides=2)", "both_sides=2", "True or False"),
    ],
)
def test_values_out_of_range_name_parameter_value_and_range(text: str, parameter: str, allowed: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert parameter in str(caught.value)
    assert allowed in str(caught.value)


def test_every_provider_is_listed_with_a_summary() -> None:
    wanted = {
        *("across_segments", "block", "causal", "cross", "dense", "dilated", "full", "padding", "prefix", "random"),
        *("same_segment", "sinks", "strided", "wait_k", "window"),
    }
    assert wanted <= set(registry.names())
    for name in wanted:
        entry = registry.entry(name)
        assert entry.summary and f"{entry.provider.__name__}(" not in entry.summary, name
        assert getattr(masks, entry.provider.__name__) is entry.provider
