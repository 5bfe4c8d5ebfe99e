"""What `attend` promises, on every backend."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskzoo as mz

IN_DOUBLE = ["reference", "dense", "tiled", "edges"]
BACKENDS = [*IN_DOUBLE, "triton"]


def random_inputs(batch=2, heads=2, length=8, width=4, *, kv_heads=None, keys=None, dtype=torch.float32, grad=False):
    shapes = [(batch, heads, length, width)] + [(batch, kv_heads or heads, keys or length, width)] * 2
    return [torch.randn(*shape, dtype=dtype).requires_grad_(grad) for shape in shapes]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_that_sees_nothing_gives_zero_two_layers_deep(backend):  # case B1
    at = mz.Positions(segment=[[-1, -1, 0, 0], [0, 0, 0, 0]])
    plan = mz.plan("window(1)", at)
    x = torch.randn(2, 2, 4, 4, requires_grad=True)
    first = mz.attend(x, x, x, plan, backend=backend)
    out = mz.attend(first, first, first, plan, backend=backend)
    assert (out[0, :, :2] == 0).all()
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    assert grad.isfinite().all()
    assert (grad[0, :, :2] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_see_nothing_agree_in_boolean_and_additive_form(backend):  # case B2
    visible = torch.ones(8, 8, dtype=torch.bool)
    visible[4:] = False
    additive = torch.zeros(8, 8).masked_fill(~visible, -math.inf)
    q, k, v = random_inputs()
    at = mz.Positions.tokens(8)
    outs = [
        mz.attend(q, k, v, mz.plan(mask, at), backend=backend)
        for mask in (mz.masks.Dense(visible), mz.adapters.from_additive(additive))
    ]
    torch.testing.assert_close(outs[0], outs[1], atol=0, rtol=0)
    assert (outs[0][:, :, 4:] == 0).all() and (outs[0][:, :, :4] != 0).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_not_a_number_in_padding_reaches_nothing(backend):  # case B3
    at = mz.Positions.tokens([5, 8])
    q, k, v = random_inputs(grad=True)
    expected = mz.attend(q, k, v, mz.plan("full", at), backend=backend)
    with torch.no_grad():
        for x in (q, k, v):
            x[0, :, 5:] = math.nan
    out = mz.attend(q, k, v, mz.plan("full", at), backend=backend)
    torch.testing.assert_close(out, expected)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), [q, k, v]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [[31, 32, 33], [287, 288, 289, 290]])
def test_left_padding_changes_no_row(backend, lengths):  # case B4
    width = max(lengths)
    q, k, v = random_inputs(len(lengths), length=width)
    out = mz.attend(q, k, v, mz.plan("causal", mz.Positions.tokens(lengths, side="left")), backend=backend)
    for row, length in enumerate(lengths):
        alone = [x[row : row + 1, :, width - length :] for x in (q, k, v)]
        expected = mz.attend(*alone, mz.plan("causal", mz.Positions.tokens(length)), backend=backend)
        torch.testing.assert_close(out[row : row + 1, :, width - length :], expected)
        assert (out[row, :, : width - length] == 0).all()


@pytest.mark.parametrize("length", [1, 127, 129, 257, 1025])
def test_lengths_beside_the_usual_tiles(length):  # case B7
    q, k, v = random_inputs(1, 1, length, dtype=torch.float64, grad=True)
    slot = torch.arange(length, dtype=torch.float64)
    offset = (slot[:, None] - slot[None, :]).requires_grad_()
    at = mz.Positions.tokens(length)
    results = []
    for backend in IN_DOUBLE:
        out = mz.attend(q, k, v, mz.plan("causal", at, bias=0.01 * offset, heads=1), backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v, offset])])
    for expected, *others in zip(*results, strict=True):
        for got in others:
            torch.testing.assert_close(got, expected)


def test_a_plan_for_other_lengths_is_refused():  # case B8
    plan = mz.plan("causal", mz.Positions.tokens(64))
    q, k, v = random_inputs(length=32)
    with pytest.raises(ValueError, match="64 queries and 64 keys"):
        mz.attend(q, k, v, plan)


@pytest.mark.parametrize("backend", IN_DOUBLE)
@pytest.mark.parametrize("kind", ["scalar", "linear", "window"])
def test_learned_biases_have_their_gradient(backend, kind):  # case B9
    at = mz.Positions.grid(4, 4)
    q, k, v = random_inputs(2, 3, 16, dtype=torch.float64)
    if kind == "scalar":
        parameter = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

        def bias():
            return parameter
    elif kind == "linear":
        parameter = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        features = torch.randn(16, 16, 5, dtype=torch.float64)

        def bias():
            return (features @ parameter.T).movedim(-1, 0)
    else:
        parameter = torch.randn(3, 7, 7, dtype=torch.float64, requires_grad=True)
        row, col = at.fields["row"][0], at.fields["col"][0]

        def bias():
            return parameter[:, row[:, None] - row[None] + 3, col[:, None] - col[None] + 3]

    weight = torch.randn(2, 3, 16, 4, dtype=torch.float64)

    def loss(backend):
        return (mz.attend(q, k, v, mz.plan("full", at, bias=bias(), heads=3), backend=backend) * weight).sum()

    (grad,) = torch.autograd.grad(loss(backend), parameter)
    place = (0,) * parameter.dim()
    step = 1e-5
    with torch.no_grad():
        parameter[place] += step
        above = loss("reference")
        parameter[place] -= 2 * step
        below = loss("reference")
    assert grad[place].item() == pytest.approx(((above - below) / (2 * step)).item(), abs=1e-7)
    if kind != "scalar":  # a constant shifts every score alike, and softmax does not feel it
        assert grad.abs().max() > 1e-3


@pytest.mark.parametrize("backend", IN_DOUBLE)
@pytest.mark.parametrize("shape", [(16, 1), (2, 1, 43), (1, 43), (3, 1, 1, 1), (3, 2, 16, 43), ()])
def test_a_bias_broadcasts_and_its_gradient_sums(backend, shape):  # case B10
    q, k, v = random_inputs(3, 2, 16, keys=43, dtype=torch.float64)
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    whole = torch.broadcast_to(bias.detach(), (3, 2, 16, 43)).clone().requires_grad_()
    at, k_at = mz.Positions.tokens(16), mz.Positions.tokens(43)
    weight = torch.randn(3, 2, 16, 4, dtype=torch.float64)
    grads = []
    for values in (bias, whole):
        plan = mz.plan("cross", at, k_at=k_at, bias=values, heads=2)
        grads += torch.autograd.grad((mz.attend(q, k, v, plan, backend=backend) * weight).sum(), values)
    torch.testing.assert_close(grads[0], grads[1].sum_to_size(shape))


def test_a_bias_that_does_not_broadcast_is_refused():
    with pytest.raises(ValueError, match=r"\[2, 5\] does not broadcast.*\[1, 2, 8, 8\]"):
        mz.plan("full", mz.Positions.tokens(8), bias=torch.zeros(2, 5), heads=2)


@pytest.mark.parametrize("options", [{"dropout_p": 0.5}, {"return_weights": True}, {"backend": "reference"}, {}])
def test_no_option_lets_the_future_in(options):  # case B13
    q, k, v = random_inputs()
    plan = mz.plan("causal", mz.Positions.tokens(8))
    outs = []
    for _ in range(2):
        torch.manual_seed(7)
        out = mz.attend(q, k, v, plan, **options)
        outs.append(out[0] if options.get("return_weights") else out)
        k[:, :, 5:], v[:, :, 5:] = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 3, 4)
    torch.testing.assert_close(outs[0][:, :, :5], outs[1][:, :, :5], atol=0, rtol=0)
    assert not torch.equal(outs[0][:, :, 5:], outs[1][:, :, 5:])


def test_three_dimensional_input_is_refused_rather_than_read_wrongly():  # case B13
    q = torch.randn(2, 8, 4)
    with pytest.raises(ValueError, match=r"\[B, H, T, D\]"):
        mz.attend(q, q, q, mz.plan("causal", mz.Positions.tokens(8)))


def test_weights_are_those_that_multiplied_the_values():
    q, k, v = random_inputs(heads=4, kv_heads=2)
    plan = mz.plan("causal & window(3)", mz.Positions.packed([3, 5]))
    out, weights = mz.attend(q, k, v, plan, return_weights=True, dropout_p=0.4)
    torch.testing.assert_close(weights @ v.repeat_interleave(2, 1), out)
    assert (weights[~plan.visible.expand_as(weights)] == 0).all()


@pytest.mark.parametrize("permuted_positions", [True, False])
def test_permuting_rows_moves_outputs_along(permuted_positions):  # case A6
    order = torch.randperm(8)
    q, k, v = random_inputs(1, dtype=torch.float64)
    at = mz.Positions.tokens(8)
    moved = mz.Positions(index=at.index[:, order]) if permuted_positions else at

    def moves_along(rule):
        plan, moved_plan = mz.plan(rule, at), mz.plan(rule, moved)
        expected = mz.attend(q, k, v, plan)[:, :, order]
        got = mz.attend(q[:, :, order], k[:, :, order], v[:, :, order], moved_plan)
        return torch.allclose(got, expected)

    assert moves_along("full")
    assert moves_along("causal") == permuted_positions
    assert not torch.allclose(
        mz.attend(q, k, v, mz.plan("full", at))[:, :, order], mz.attend(q, k, v, mz.plan("full", at))
    )


@settings(max_examples=30, deadline=None)
@given(
    rule=st.sampled_from(["causal", "window(3, both_sides=True)", "causal & ~window(2)", "stack(causal, full)"]),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any),
    kv_heads=st.sampled_from([1, 2]),
    bias=st.sampled_from([None, "alibi", "relative(buckets=8)"]),
)
def test_backends_agree_on_packed_rows_and_their_gradients(rule, lengths, kv_heads, bias):
    at = mz.Positions.packed(lengths, padded_to=sum(lengths) + 2)
    plan = mz.plan(rule, at, bias=bias, heads=2)
    inputs = random_inputs(2, 2, at.length, kv_heads=kv_heads, dtype=torch.float64, grad=True)
    results = []
    for backend in IN_DOUBLE:
        out = mz.attend(*inputs, plan, backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for expected, *others in zip(*results, strict=True):
        for got in others:
            torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)  # alibi's table is float32


def test_segments_of_a_pack_give_what_they_give_alone():
    lengths = [3, 1, 4]
    q, k, v = random_inputs(1, length=8)
    out = mz.attend(q, k, v, mz.plan("causal", mz.Positions.packed(lengths)))
    start = 0
    for length in lengths:
        alone = [x[:, :, start : start + length] for x in (q, k, v)]
        expected = mz.attend(*alone, mz.plan("causal", mz.Positions.tokens(length)))
        torch.testing.assert_close(out[:, :, start : start + length], expected)
        start += length


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "dens"}, "Did you mean 'dense'"),
        ({"backend": "dense", "return_weights": True}, "never forms the weights"),
        ({"dropout_p": 1.0}, "below 1"),
        ({"dropout_p": -0.1}, "at least 0"),
    ],
)
def test_options_out_of_range_are_refused(change, message):
    q, k, v = random_inputs()
    with pytest.raises(ValueError, match=message):
        mz.attend(q, k, v, mz.plan("causal", mz.Positions.tokens(8)), **change)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda q, k, v: (q.double(), k, v), "share one float dtype"),
        (lambda q, k, v: (q.int(), k.int(), v.int()), "share one float dtype"),
        (lambda q, k, v: (q, k[:, :, :4], v), "do not fit each other"),
        (lambda q, k, v: (q[..., :2], k, v), "do not fit each other"),
        (lambda q, k, v: (q.repeat(1, 2, 1, 1)[:, :3], k, v), "multiple of the 2 key/value heads"),
        (lambda q, k, v: (q[:, :, :4], k, v), "8 queries and 8 keys"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        mz.attend(*inputs(*random_inputs()), mz.plan("causal", mz.Positions.tokens(8)))


def test_a_plan_made_for_a_batch_or_for_heads_fits_no_other():
    q, k, v = random_inputs(3)
    with pytest.raises(ValueError, match="batch of 2"):
        mz.attend(q, k, v, mz.plan("causal", mz.Positions.tokens([5, 8])))
    with pytest.raises(ValueError, match="3 heads"):
        mz.attend(q, k, v, mz.plan("stack(causal, full, causal)", mz.Positions.tokens(8)))


@pytest.mark.parametrize(
    ("rule", "at"),
    [
        ("causal", mz.Positions.tokens(8)),
        ("full", mz.Positions.tokens(8)),
        ("causal & window(3)", mz.Positions.packed([3, 5])),
        ("full", mz.Positions.tokens([5, 8])),
    ],
)
@pytest.mark.parametrize("poisoned", [False, True])
def test_attention_compiles_into_one_graph_and_stays_the_same(rule, at, poisoned):
    plan = mz.plan(rule, at, bias="relative(buckets=8)" if "window" in rule else None, heads=2)
    inputs = random_inputs(grad=True)
    if poisoned:
        with torch.no_grad():
            inputs[1][:, :, 6] = math.nan

    def doubled(q, k, v):
        return 2 * mz.attend(q + 1, k, v, plan)

    compiled = torch.compile(doubled, backend="aot_eager", fullgraph=True)
    results = []
    for function in (doubled, compiled):
        out = function(*inputs)
        seen = out[out.isfinite()].sum()
        results.append([out, *torch.autograd.grad(seen, inputs)] if seen.requires_grad else [out])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
    assert out.isnan().any() == poisoned
    assert all(grad.isfinite().all() for grad in results[1][1:])


@pytest.mark.parametrize(("rule", "kernel"), [("causal & window(200)", "tiled"), ("random(0.002)", "edges")])
def test_sparse_kernels_are_compiled_into_one_graph(rule, kernel):
    attend = torch.compile(lambda q, k, v, plan: mz.attend(q, k, v, plan), fullgraph=True, backend="aot_eager")
    for lengths in ([300, 212], [211, 301], [512]):
        plan = mz.plan(rule, mz.Positions.packed(lengths))
        assert plan.kernel == kernel
        q, k, v = (torch.randn(2, 4, 512, 16, requires_grad=True) for _ in range(3))
        out = attend(q, k, v, plan)
        expected = mz.attend(q, k, v, plan, backend="reference")
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
        for got, wanted in zip(gradients, torch.autograd.grad(expected.square().sum(), (q, k, v)), strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-3)
