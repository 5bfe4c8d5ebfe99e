"""Both kernels against values worked by hand and against attention written as loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels.dense import dense
from maskzoo.kernels.reference import reference


def run_dense(q, k, v, visible, bias=None, *, scale, dropout_p=0.0):
    visible = visible.expand(*([1] * (4 - visible.dim())), *visible.shape)
    empty = ~visible.any(-1)
    return dense(q, k, v, visible, empty if empty.any() else None, bias, scale=scale, dropout_p=dropout_p)


def run_reference(q, k, v, visible, bias=None, *, scale, dropout_p=0.0):
    return reference(q, k, v, visible, bias, scale=scale, dropout_p=dropout_p)[0]


KERNELS = [pytest.param(run_reference, id="reference"), pytest.param(run_dense, id="dense")]


def from_scores(scores):
    """q and k whose products are exactly the given [Tq, Tk] scores."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    q = scores[None, None]
    k = torch.eye(scores.shape[1], dtype=torch.float64)[None, None]
    return q, k


def looped(q, k, v, visible, bias, scale):
    """Attention by the definition, one query at a time."""
    groups = q.shape[1] // k.shape[1]
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(k.shape[2]) if visible[b, h, i, j]]
                if not seen:
                    continue
                scores = torch.stack(
                    [q[b, h, i].double() @ k[b, h // groups, j].double() * scale + bias[b, h, i, j] for j in seen]
                )
                weights = torch.softmax(scores, 0)
                out[b, h, i] = sum(w * v[b, h // groups, j].double() for w, j in zip(weights, seen, strict=True))
    return out


@pytest.mark.parametrize("kernel", KERNELS)
def test_three_scores_without_a_mask(kernel):  # case A1
    q, k = from_scores([[0.0, math.log(2), math.log(4)]])
    v = torch.tensor([2.0, 7.0, 99.0], dtype=torch.float64)[None, None, :, None]
    out = kernel(q, k, v, torch.ones(1, 3, dtype=torch.bool), scale=1.0)
    assert out.item() == pytest.approx(412 / 7, abs=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_three_scores_with_the_third_masked(kernel):  # case A2
    q, k = from_scores([[0.0, math.log(2), math.log(4)]])
    v = torch.tensor([2.0, 7.0, 99.0], dtype=torch.float64)[None, None, :, None]
    out = kernel(q, k, v, torch.tensor([[True, True, False]]), scale=1.0)
    assert out.item() == pytest.approx(16 / 3, abs=1e-12)
    assert out.item() != pytest.approx(16 / 7, abs=0.1)


def test_weights_of_the_first_two_cases():  # cases A1, A2
    q, k = from_scores([[0.0, math.log(2), math.log(4)]])
    v = torch.zeros(1, 1, 3, 1, dtype=torch.float64)
    _, weights, _ = reference(q, k, v, torch.ones(1, 3, dtype=torch.bool), scale=1.0)
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([1, 2, 4]).double() / 7)
    _, weights, _ = reference(q, k, v, torch.tensor([[True, True, False]]), scale=1.0)
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([1, 2, 0]).double() / 3)


def test_causal_weights():  # case A3
    q, k = from_scores([[2, 1.5, 3], [1, 2.5, 0.5], [0.5, 1, 2]])
    v = torch.eye(3, dtype=torch.float64)[None, None]
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    out, weights, _ = reference(q, k, v, causal, scale=1.0)
    expected = torch.tensor([[1, 0, 0], [0.182, 0.818, 0], [0.140, 0.231, 0.629]], dtype=torch.float64)
    torch.testing.assert_close(weights[0, 0], expected, atol=5e-4, rtol=0)
    assert (weights[0, 0].triu(1) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 3, dtype=torch.float64))
    torch.testing.assert_close(run_dense(q, k, v, causal, scale=1.0), out)


def test_dot_products_have_the_variance_of_their_width():  # case A14
    width = 64
    q, k = torch.randn(4000, width, dtype=torch.float64), torch.randn(4000, width, dtype=torch.float64)
    products = (q * k).sum(-1)
    assert products.var().item() == pytest.approx(width, rel=0.1)
    assert (products * width**-0.5).var().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    lengths=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    widths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    with_bias=st.booleans(),
)
def test_equals_the_definition(kernel, data, lengths, heads, widths, with_bias):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    tq, tk = lengths

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = draw(2, heads[0], tq, widths[0]), draw(2, heads[1], tk, widths[0])
    v = draw(2, heads[1], tk, widths[1])
    visible = draw(2, heads[0], tq, tk) > 0.3
    bias = draw(2, heads[0], tq, tk) if with_bias else torch.zeros(2, heads[0], tq, tk, dtype=torch.float64)
    out = kernel(q, k, v, visible, bias if with_bias else None, scale=0.7)
    torch.testing.assert_close(out, looped(q, k, v, visible, bias, 0.7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_dense_equals_reference_with_gradients(dtype, with_bias):
    inputs = [torch.randn(2, h, 33, 16).to(dtype).requires_grad_() for h in (4, 2, 2)]
    bias = torch.randn(1, 4, 33, 33).requires_grad_() if with_bias else None
    visible = torch.rand(2, 1, 33, 33) > 0.6
    visible[:, :, 3] = False
    weight = torch.randn(2, 4, 33, 16).to(dtype)
    results = []
    for kernel in (run_reference, run_dense):
        out = kernel(*inputs, visible, bias, scale=0.25)
        sources = [*inputs, bias] if with_bias else inputs
        results.append([out, *torch.autograd.grad((out * weight).sum(), sources)])
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 1e-2}[dtype]
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_in_float64(kernel):
    q, k, v = (torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    visible[2] = False
    assert torch.autograd.gradcheck(lambda *x: kernel(*x[:3], visible, x[3], scale=0.5), (q, k, v, bias))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_not_finite_stays_where_it_is_visible(kernel, poison, dtype):  # case B3
    clean = [torch.randn(1, 2, 6, 4).to(dtype) for _ in range(3)]
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    expected = kernel(*clean, causal, scale=0.5)
    poisoned = [x.clone() for x in clean]
    for x in poisoned:
        x[:, :, 4, 1] = poison
        x.requires_grad_()
    out = kernel(*poisoned, causal, scale=0.5)
    torch.testing.assert_close(out[:, :, :4], expected[:, :, :4])
    assert out[:, :, 4:].isnan().all()  # rows that see it say so
    grads = torch.autograd.grad(out[:, :, :4].float().sum(), poisoned)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_far_apart_keep_finite_gradients(kernel):  # case B5
    q, k, v = (torch.randn(1, 1, 4, 4, requires_grad=True) for _ in range(3))
    bias = torch.full((1, 1, 4, 4), -100.0, requires_grad=True)
    out = kernel(q, k, v, torch.ones(4, 4, dtype=torch.bool).tril(), bias, scale=0.5)
    grads = torch.autograd.grad(out.sum(), [q, k, v, bias])
    torch.testing.assert_close(
        out, kernel(q, k, v, torch.ones(4, 4, dtype=torch.bool).tril(), None, scale=0.5), atol=1e-5, rtol=1e-5
    )
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_logit_is_large_enough_to_be_seen_through_the_mask(kernel):  # case B6
    q, k = from_scores([[-2e4, 2e4, 3e4]])
    v = torch.tensor([5.0, 1e30, 1e30], dtype=torch.float64)[None, None, :, None]
    bias = torch.tensor([[0.0, 1e9, 1e9]], dtype=torch.float64)[None, None]
    out = kernel(q, k, v, torch.tensor([[True, False, False]]), bias, scale=1.0)
    assert out.item() == 5.0


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_keeps_the_mask_and_the_mean(kernel):  # case B13
    torch.manual_seed(1)
    q, k = torch.randn(1, 1, 8, 4), torch.randn(1, 1, 8, 4)
    v = torch.eye(8)[None, None]
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    drawn = torch.stack([kernel(q, k, v, causal, scale=0.5, dropout_p=0.3) for _ in range(600)])
    assert (drawn.triu(1) == 0).all()
    assert (drawn[:, 0, 0].tril() == 0).any()
    torch.testing.assert_close(drawn.mean(0), kernel(q, k, v, causal, scale=0.5), atol=0.08, rtol=0)
