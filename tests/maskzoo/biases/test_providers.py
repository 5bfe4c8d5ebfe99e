"""Every provider against its paper's formula, written out pair by pair, or another implementation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.swin_transformer import get_relative_position_index

import maskzoo as mz


def scores(bias, at, heads=2, k_at=None):
    return mz.plan("full & across_segments", at, bias=bias, heads=heads, k_at=k_at, align="index").scores()


def made(text, heads=2):
    """The bias with random tables."""
    bias = mz.biases.parse(text, heads=heads)
    with torch.no_grad():
        for parameter in bias.parameters():
            parameter.normal_()
    return bias


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
    with torch.no_grad():
        bias.weight.copy_(torch.arange(buckets))
    got = scores(bias, mz.Positions(index=[query]), 1, mz.Positions(index=[key]))
    assert got.item() == t5_bucket(key - query, buckets, max_distance, both_directions)


@pytest.mark.parametrize(
    ("both_directions", "expected"),  # for T5's 32 buckets and distance 128, of the authors' code
    [
        (
            False,
            {0: 0, -1: 1, -15: 15, -16: 16, -20: 17, -32: 21, -64: 26, -112: 30, -113: 31, -128: 31, -1000: 31, 5: 0},
        ),
        (True, {0: 0, -1: 1, -7: 7, -8: 8, -16: 10, -64: 14, -1000: 15, 1: 17, 8: 24, 12: 25, 50: 29, 128: 31}),
    ],
)
def test_relative_buckets_of_t5(both_directions, expected):
    bucket = mz.biases.Relative(both_directions=both_directions, heads=1).bucket(-torch.tensor(list(expected)))
    assert bucket.tolist() == list(expected.values())


def test_clipped_relative():  # Shaw et al. 2018, section 3.2
    bias, at = made("clipped_relative(3)"), mz.Positions.tokens(9)
    got = scores(bias, at)[0]
    for i in range(9):
        for j in range(9):
            assert torch.equal(got[:, i, j], bias.weight[:, max(-3, min(3, j - i)) + 3])


def test_offset():
    bias, at = made("offset(4, 2)"), mz.Positions.tokens(9)
    got = scores(bias, at)[0]
    for i in range(9):
        for j in range(9):
            expected = bias.weight[:, j - i + 4] if -4 <= j - i <= 2 else torch.zeros(2)
            assert torch.equal(got[:, i, j], expected)


@pytest.mark.parametrize(("rows", "cols"), [(7, 7), (3, 5), (1, 4)])
def test_grid_offset_is_swins(rows, cols):  # Liu et al. 2021, section 3.2
    bias = made(f"grid_offset({rows}, {cols})", heads=3)
    got = scores(bias, mz.Positions.grid(rows, cols), 3)
    index = get_relative_position_index(rows, cols)
    assert bias.weight.shape[1] == int(index.max()) + 1 == (2 * rows - 1) * (2 * cols - 1)
    assert torch.equal(got[0], bias.weight[:, index])


def test_grid_offset_of_videos():  # Liu et al. 2022: the index of frames stands before those of rows and columns
    times, rows, cols = 3, 2, 4
    place = torch.cartesian_prod(*map(torch.arange, (times, rows, cols)))
    at = mz.Positions(time=place[:, 0], row=place[:, 1], col=place[:, 2])
    bias = made("grid_offset(2, 4, times=3)")
    got, weight = scores(bias, at)[0], bias.weight.view(2, 2 * times - 1, 2 * rows - 1, 2 * cols - 1)
    apart = place[:, None] - place[None] + torch.tensor([times, rows, cols]) - 1
    assert torch.equal(got, weight[:, apart[..., 0], apart[..., 1], apart[..., 2]])


def test_beyond_its_grid_an_offset_is_that_of_the_edge():
    bias = made("grid_offset(2, 3)")
    got, weight = scores(bias, mz.Positions.grid(6, 6))[0], bias.weight.view(2, 3, 5)
    assert torch.equal(got[:, 0, 35], weight[:, 0, 0]) and torch.equal(got[:, 35, 0], weight[:, 2, 4])
    assert torch.equal(got[:, 0, 1], weight[:, 1, 1])


@pytest.mark.parametrize("decay", ["log", "linear"])
@pytest.mark.parametrize("metric", ["euclidean", "chebyshev"])
@pytest.mark.parametrize("learned", [False, True])
def test_distance(decay, metric, learned):
    at = mz.Positions.grid(4, 5)
    bias = mz.biases.Distance(decay, ("row", "col"), metric, learned, heads=2)
    slopes = torch.tensor([2**-4, 2**-8])
    if learned:
        slopes = slopes * torch.tensor([3.0, 0.5])
        with torch.no_grad():
            bias.log_slope += torch.tensor([3.0, 0.5]).log()
    got = scores(bias, at)[0]
    for i, (r, c) in enumerate(zip(*(at.fields[name][0].tolist() for name in ("row", "col")), strict=True)):
        distance = math.hypot(r - 2, c - 3) if metric == "euclidean" else max(abs(r - 2), abs(c - 3))
        expected = -slopes * (math.log(1 + distance) if decay == "log" else distance)
        torch.testing.assert_close(got[:, i, 13], expected)


def test_distance_along_the_index_is_kerples_logarithm():  # Chi et al. 2022, section 4, with r2 = 1
    got = scores("distance", mz.Positions.tokens(6))[0]
    apart = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    torch.testing.assert_close(got, -torch.tensor([2**-4, 2**-8])[:, None, None] * torch.log(1.0 + apart))
    linear = scores("distance('linear')", mz.Positions.tokens(6))
    torch.testing.assert_close(linear, scores("alibi", mz.Positions.tokens(6)))


def test_segment_pair():
    kinds = [0, 2, 2, 1, 0, 7]
    at = mz.Positions(speaker=kinds, segment=[0, 0, 0, 0, 0, -1])
    bias = made("segment_pair(3, 'speaker')")
    got = scores(bias, at)[0]
    for i in range(5):
        for j in range(5):
            assert torch.equal(got[:, i, j], bias.weight[:, kinds[i] * 3 + kinds[j]])
    with pytest.raises(ValueError, match=r"'speaker' must lie from 0 to 1; it is 2 at place 1 of sequence 0"):
        scores("segment_pair(2, 'speaker')", at)


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (3, 5, 7)])
def test_table(shape):
    relation = torch.randint(0, 300, shape)
    bias = mz.biases.Table(relation, entries=400, heads=2)
    torch.nn.init.normal_(bias.weight)
    got = scores(bias, mz.Positions.tokens(5), k_at=mz.Positions.tokens(7))
    expected = bias.weight[:, relation]
    assert torch.equal(got, expected.movedim(1, 0) if len(shape) == 3 else expected[None])


def test_table_under_sequences_of_equal_positions():
    """Each has its own relation, although nothing else tells the sequences apart."""
    relation = torch.randint(0, 9, (3, 70, 70))
    bias = mz.biases.Table(relation, heads=2)
    torch.nn.init.normal_(bias.weight)
    plan = mz.plan("causal", mz.Positions.tokens([70, 70, 70]), bias=bias)
    index, pairs = plan.offsets("edges").stored, plan.pairs
    row, key = pairs.row % 70, pairs.key.long()
    for b in range(3):
        own = pairs.row // 70 == pairs.group[b, 0]
        expected = bias.weight[:, relation[b, row[own], key[own]]]
        assert torch.equal(index.table[:, index.index[own].long()], expected)


@pytest.mark.parametrize(
    "text",
    ["relative", "clipped_relative(3)", "offset(3, 3)", "grid_offset(2, 2)", "segment_pair(2, 'row')"],
)
def test_learned_tables_start_at_zero(text):
    got = scores(text, mz.Positions.grid(2, 2))
    assert got.requires_grad and (got == 0).all()


def test_fields_that_are_not_there_are_named():
    with pytest.raises(ValueError, match=r"grid_offset\(4, 4\) reads the field 'row'.*They have segment, index"):
        scores("grid_offset(4, 4)", mz.Positions.tokens(16))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mz.biases.Table([[1]], heads=2), "maskzoo.biases.Table"),
        (lambda: mz.biases.Table(torch.zeros(2, 2), heads=2), "integer tensor, got torch.float32"),
        (lambda: mz.biases.Table(torch.zeros(2, dtype=torch.int64), heads=2), r"\[B, Tq, Tk\], got \[2\]"),
        (lambda: mz.biases.Table(torch.tensor([[0, -1]]), heads=2), "reaches from -1 to 0"),
        (lambda: mz.biases.Table(torch.tensor([[0, 4]]), entries=4, heads=2), r"from 0 to 3, but reaches from 0 to 4"),
        (lambda: mz.biases.Dense(1.0, heads=2), "maskzoo.biases.Dense"),
        (lambda: scores(mz.biases.Table(torch.zeros(3, 4).int(), heads=2), mz.Positions.tokens(3)), "have 3 and 3"),
    ],
)
def test_what_a_table_or_tensor_may_not_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()
