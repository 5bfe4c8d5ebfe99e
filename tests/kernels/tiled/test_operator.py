"""`tiled` against `reference`: values and gradients, and what the operator promises besides."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiled import tiled
from maskzoo.kernels.tiles import from_visible

LENGTHS = [1, 2, 127, 128, 129, 257]


def rule(name, queries, keys, batch=1, heads=1):
    """A rule as bool [batch, heads, queries, keys]."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    return {
        "full": lambda: torch.ones(queries, keys, dtype=torch.bool),
        "causal": lambda: i >= j,
        "window": lambda: (i >= j) & (i - j < 40),
        "documents": lambda: (i >= j) & (i // 50 == j // 50),
        "dilated": lambda: (i - j) % 67 == 0,
        "dense": lambda: torch.rand(batch, heads, queries, keys) > 0.4,
        "sparse": lambda: torch.rand(batch, heads, queries, keys) > 0.99,
    }[name]().expand(batch, heads, queries, keys)


def inputs(batch, heads, lengths, widths, dtype=torch.float64):
    """q, k, v for (H, Hkv), (Tq, Tk) and (D, Dv)."""
    shapes = [(heads[0], lengths[0], widths[0]), (heads[1], lengths[1], widths[0]), (heads[1], lengths[1], widths[1])]
    return [torch.randn(batch, *shape).to(dtype).requires_grad_() for shape in shapes]


def assert_equals_reference(sources, visible, size, scale=0.3, **tolerance):
    """Values and all gradients; those of `reference` from the same numbers in float64."""
    exact = [x.detach().double().requires_grad_() for x in sources]
    expected = reference(*exact, visible, scale=scale)[0]
    out = tiled(*sources, from_visible(visible, size), scale=scale)[0]
    assert out.dtype == sources[0].dtype
    weight = torch.randn_like(expected)
    wanted = [expected, *torch.autograd.grad(expected, exact, weight)]
    got = [out, *torch.autograd.grad(out, sources, weight.to(out.dtype))]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, **tolerance)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["full", "causal", "window", "documents", "dilated", "dense", "sparse"])
def test_equals_reference_on_every_rule_and_length(name, length):
    sources = inputs(1, (2, 2), (length, length), (8, 8))
    assert_equals_reference(sources, rule(name, length, length), 16 if length > 2 else 8)


@pytest.mark.parametrize("size", [8, 16, 64])
@pytest.mark.parametrize("lengths", [(1, 129), (200, 65), (64, 128)])
def test_equals_reference_across_lengths_and_sizes_of_tile(lengths, size):
    assert_equals_reference(inputs(2, (2, 1), lengths, (43, 24)), rule("dense", *lengths, batch=2), size)
    assert_equals_reference(inputs(2, (2, 1), lengths, (43, 24)), rule("sparse", *lengths, batch=2), size)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 2), (4, 1)]),
    batch=st.integers(1, 3),
    shared=st.tuples(st.booleans(), st.booleans()),
    density=st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]),
)
def test_equals_reference_whoever_shares_the_tiles(seed, lengths, heads, batch, shared, density):
    torch.manual_seed(seed)
    own = 1 if shared[0] else batch, 1 if shared[1] else heads[0]
    visible = torch.rand(*own, *lengths) < density
    assert_equals_reference(inputs(batch, heads, lengths, (5, 3)), visible, 8)


def test_equals_reference_where_groups_are_shared_in_any_order():
    """Sequences and heads that share a group need not be neighbours, nor evenly spaced."""
    rules = torch.rand(3, 40, 40) > 0.5
    group = torch.tensor([[0, 1, 0, 2], [1, 1, 0, 0], [2, 2, 2, 2]])
    tiles = from_visible(rules[None], 8)
    sources = inputs(3, (4, 2), (40, 40), (6, 6))
    out = tiled(*sources, type(tiles)(**{**vars(tiles), "group": group}), scale=0.4)[0]
    expected = reference(*sources, rules[group], scale=0.4)[0]
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    for got, wanted in zip(*(torch.autograd.grad(x, sources, weight) for x in (out, expected)), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["causal", "sparse"])
def test_other_dtypes_are_computed_in_float32(dtype, name):
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    sources = inputs(2, (4, 2), (129, 129), (16, 8), dtype)
    assert_equals_reference(sources, rule(name, 129, 129), 16, atol=tolerance, rtol=tolerance)


def test_large_blocks_equal_reference():
    """Long enough for products one head at a time and for several chunks of keys."""
    sources = inputs(1, (2, 2), (700, 1500), (64, 64), torch.float32)
    assert_equals_reference(sources, rule("full", 700, 1500), 64, scale=0.125, atol=2e-5, rtol=1e-4)
    i, j = torch.arange(700)[:, None], torch.arange(1500)
    assert_equals_reference(sources, (i + 800 >= j)[None, None], 64, scale=0.125, atol=2e-5, rtol=1e-4)


def test_gradients_in_float64():
    visible = rule("causal", 11, 11).clone()
    visible[..., 4, :] = False
    tiles = from_visible(visible, 8)
    assert torch.autograd.gradcheck(lambda *x: tiled(*x, tiles, scale=0.5)[0], inputs(1, (2, 1), (11, 11), (3, 4)))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_some_of_the_gradients_are_those_of_all(wanted):
    sources, tiles = inputs(1, (2, 2), (40, 40), (4, 4)), from_visible(rule("causal", 40, 40), 8)
    every = torch.autograd.grad(tiled(*sources, tiles, scale=0.5)[0].sin().sum(), sources)
    some = [x if i in wanted else x.detach() for i, x in enumerate(sources)]
    got = torch.autograd.grad(tiled(*some, tiles, scale=0.5)[0].sin().sum(), [some[i] for i in wanted])
    assert all(torch.equal(one, every[i]) for one, i in zip(got, wanted, strict=True))


def test_rows_without_a_key_are_zero_and_pass_nothing_on():
    visible = rule("dense", 40, 40).clone()
    visible[..., 3, :] = visible[..., 16:32, :] = False
    sources = inputs(1, (1, 1), (40, 40), (4, 4), torch.float32)
    out = tiled(*sources, from_visible(visible, 8), scale=0.5)[0]
    empty = ~visible.any(-1)[0, 0]
    assert (out[:, :, empty] == 0).all()
    assert (out[:, :, ~empty] != 0).all()
    weight = torch.ones_like(out).masked_fill(empty[:, None], math.nan)
    dq, dk, dv = torch.autograd.grad(out, sources, weight)
    assert (dq[:, :, empty] == 0).all()
    assert dq.isfinite().all()
    assert dk.isfinite().all()
    assert dv.isfinite().all()


def test_no_tile_at_all():
    sources = inputs(1, (1, 1), (20, 30), (4, 4))
    out = tiled(*sources, from_visible(torch.zeros(1, 1, 20, 30, dtype=torch.bool), 8), scale=0.5)[0]
    assert (out == 0).all()
    assert all((grad == 0).all() for grad in torch.autograd.grad(out.sum(), sources))


def test_any_strides():
    dense = [x.detach() for x in inputs(2, (2, 2), (40, 40), (8, 8))]
    tiles = from_visible(rule("window", 40, 40), 8)
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in dense]
    contiguous = [x.requires_grad_() for x in dense]
    results = []
    for sources in (swapped, contiguous):
        out = tiled(*sources, tiles, scale=0.5)[0]
        results.append([out, *torch.autograd.grad(out, sources, torch.ones(1, 1, 1, 8).double().expand_as(out))])
    assert not swapped[0].is_contiguous()
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    single = dense[1].detach()[:1, :1]
    assert torch.equal(
        tiled(dense[0], single.expand(2, 2, -1, -1), dense[2], tiles, scale=0.5)[0],
        tiled(dense[0], single.repeat(2, 2, 1, 1), dense[2], tiles, scale=0.5)[0],
    )


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
def test_two_runs_give_the_same_bits(dropout_p):
    sources = inputs(2, (4, 2), (257, 257), (16, 16), torch.float32)
    tiles = from_visible(rule("dilated", 257, 257), 16)
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        out = tiled(*sources, tiles, scale=0.25, dropout_p=dropout_p)[0]
        runs.append([out, *torch.autograd.grad(out.square().sum(), sources)])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_a_second_derivative_is_an_error_that_names_the_way_out():
    sources = inputs(1, (1, 1), (8, 8), (4, 4))
    out = tiled(*sources, from_visible(rule("causal", 8, 8), 8), scale=0.5)[0]
    with pytest.raises(RuntimeError, match="backend='reference'"):
        torch.autograd.grad(out.sum(), sources, create_graph=True)


def test_autocast_does_not_reach_inside():
    sources = inputs(1, (2, 2), (40, 40), (8, 8), torch.float32)
    tiles = from_visible(rule("causal", 40, 40), 8)
    expected = tiled(*sources, tiles, scale=0.5)[0]
    wanted = torch.autograd.grad(expected.sum(), sources)
    with torch.autocast("cpu", torch.bfloat16):
        out = tiled(*sources, tiles, scale=0.5)[0]
        got = torch.autograd.grad(out.sum(), sources)
    assert torch.equal(out, expected)
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_compiles_into_one_graph_once_for_all_tiles():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, backend=backend)
    def step(q, k, v, tiles):
        return tiled(q.sin(), k, v, tiles, scale=0.5, dropout_p=0.0)[0] * 2

    sources = inputs(1, (2, 1), (40, 40), (8, 8))
    for name in ("causal", "window", "sparse", "dense", "documents"):
        visible = rule(name, 40, 40)
        out = step(*sources, from_visible(visible, 8))
        torch.testing.assert_close(out, reference(sources[0].sin(), *sources[1:], visible, scale=0.5)[0] * 2)
    assert len(graphs) <= 2  # at most once again, for numbers of runs that vary


def test_compiled_training_step_equals_eager():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q, k, v, tiles):
        return tiled(q * 2, k, v, tiles, scale=0.5, dropout_p=0.1)[0].square().sum()

    sources, tiles = inputs(1, (2, 1), (40, 40), (8, 8)), from_visible(rule("causal", 40, 40), 8)
    torch.manual_seed(5)
    got = torch.autograd.grad(step(*sources, tiles), sources)
    torch.manual_seed(5)
    q, k, v = sources
    wanted = torch.autograd.grad(tiled(q * 2, k, v, tiles, scale=0.5, dropout_p=0.1)[0].square().sum(), sources)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_the_operator_keeps_what_it_tells_torch():
    """Schema, shapes and strides without data, registration of the gradient, tracing of both passes."""
    q, k, v = inputs(2, (4, 2), (20, 30), (8, 5), torch.float32)
    tiles = from_visible(rule("dense", 20, 30), 8)
    arguments = (q.transpose(0, 1).contiguous().transpose(0, 1), k, v, tiles.group, *tiles.rows, tiles.patterns)
    nothing = [None] * 7
    checks = torch.library.opcheck(torch.ops.maskzoo.tiled.default, (*arguments, *nothing, 0.5, None, 0.0, None))
    assert set(checks.values()) == {"SUCCESS"}


def test_an_empty_batch_has_an_empty_result():
    sources = inputs(0, (4, 2), (20, 20), (8, 8))
    out = tiled(*sources, from_visible(rule("causal", 20, 20), 8), scale=0.5)[0]
    assert out.shape == (0, 4, 20, 8)
    grads = torch.autograd.grad(out.sum(), sources)
    assert [grad.shape for grad in grads] == [x.shape for x in sources]


def test_works_in_inference_mode():
    with torch.inference_mode():
        q, k, v = (torch.randn(1, 1, 20, 4) for _ in range(3))
        visible = rule("causal", 20, 20)
        out = tiled(q, k, v, from_visible(visible, 8), scale=0.5)[0]
        expected = reference(q, k, v, visible, scale=0.5)[0]
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("name", ["full", "window"])
@pytest.mark.parametrize("poison", [0.0, math.nan])
def test_nothing_of_queries_by_keys_is_made(name, poison):
    length = 2048
    tiles = from_visible(rule(name, length, length), 64)
    sources = [torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3)]
    with torch.no_grad():
        sources[1][0, 0, 5, 0] = poison
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        torch.autograd.grad(tiled(*sources, tiles, scale=0.5)[0].sum(), sources)
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert 4 * length < largest <= 4 * length * length / 8
