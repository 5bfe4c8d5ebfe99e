"""Bias providers against their papers' formulas, the algebra and the text form."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskzoo as mz


def scores(text, at, heads, k_at=None):
    return mz.plan("full", at, bias=text, heads=heads, k_at=k_at).scores()


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (8, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_slopes(heads, slopes):  # Press et al. 2022, section 3
    got = scores("alibi", mz.Positions.tokens(4), heads)
    distance = (torch.arange(4)[:, None] - torch.arange(4)).abs()
    torch.testing.assert_close(got[0], -torch.tensor(slopes)[:, None, None] * distance)


def t5_bucket(distance, buckets, max_distance, both_directions):
    """Key position minus query position to bucket, one number at a time (Raffel et al. 2020, section 2.1)."""
    bucket = 0
    if both_directions:
        buckets //= 2
        if distance > 0:
            bucket += buckets
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return bucket + distance
    far = exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact))
    return bucket + min(far, buckets - 1)


@settings(max_examples=40, deadline=None)
@given(
    buckets=st.sampled_from([4, 8, 32]),
    max_distance=st.integers(20, 200),
    both_directions=st.booleans(),
    query=st.integers(0, 400),
    key=st.integers(0, 400),
)
def test_relative_buckets(buckets, max_distance, both_directions, query, key):
    bias = mz.biases.Relative(buckets, max_distance, both_directions, heads=1)
    at, k_at = mz.Positions(index=[query]), mz.Positions(index=[key])
    index = mz.plan("full", at, k_at=k_at, bias=bias).indices
    assert index.rows.item() == t5_bucket(key - query, buckets, max_distance, both_directions)


def test_a_learned_table_gets_the_sum_of_its_pairs_gradients():
    bias = mz.biases.parse("relative(buckets=8)", heads=2)
    at = mz.Positions.packed([9, 7])
    plan = mz.plan("causal", at, bias=bias)
    q, k, v = (torch.randn(3, 2, 16, 4, dtype=torch.float64) for _ in range(3))
    whole = plan.scores().detach().double().expand(3, 2, 16, 16).clone().requires_grad_()
    mz.attend(q, k, v, plan).square().sum().backward()
    mz.attend(q, k, v, mz.plan("causal", at, bias=whole, heads=2)).square().sum().backward()
    expected = torch.zeros(2, 8).double()
    for bucket in range(8):
        expected[:, bucket] = whole.grad.sum(0)[:, plan.indices.rows[0] == bucket].sum(-1)
    torch.testing.assert_close(bias.weight.grad.double(), expected, atol=1e-5, rtol=1e-5)
    assert bias.weight.grad.abs().max() > 1e-3


def test_biases_add_and_scale():
    at = mz.Positions.tokens(5)
    both = scores("alibi + 0.5 * alibi", at, 4)
    torch.testing.assert_close(both, 1.5 * scores("alibi", at, 4))
    learned = mz.biases.parse("2 * (relative(buckets=8) + alibi)", heads=4)
    assert repr(learned) == "2 * (relative(8) + alibi)"
    with torch.no_grad():
        learned.term.terms[0].weight.normal_()
    alone = mz.plan("full", at, bias=learned.term.terms[0]).scores()
    torch.testing.assert_close(mz.plan("full", at, bias=learned).scores(), 2 * alone + 2 * scores("alibi", at, 4))


@pytest.mark.parametrize(
    "text", ["alibi", "relative", "relative(8)", "relative(max_distance=64)", "alibi + relative(8)", "3 * alibi"]
)
def test_text_comes_back(text):
    assert repr(mz.biases.parse(text, heads=2)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alibbi", "Did you mean 'alibi'"),
        ("relative(bucket=8)", "Did you mean 'buckets'"),
        ("relative(buckets=3)", "positive multiple of 2"),
        ("relative(buckets=32, max_distance=16)", "above 16"),
        ("relative(heads=3)", "no parameter 'heads'"),
        ("alibi & alibi", "is no rule"),
        ("alibi * alibi", "is no rule"),
        ("", "must be a rule such as"),
    ],
)
def test_what_is_no_bias_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        mz.biases.parse(text, heads=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), "float tensor"),
        (torch.zeros(1, 1, 1, 1, 1), "float tensor"),
        (torch.tensor([0.0, -math.inf]), "from_additive"),
        (torch.tensor([math.nan]), "finite"),
    ],
)
def test_a_tensor_that_is_no_bias_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        mz.plan("full", mz.Positions.tokens(2), bias=values, heads=1)
