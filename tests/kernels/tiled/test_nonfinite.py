"""What is not finite is felt by the rows that see it, and by no others."""

import math

import pytest
import torch

from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiled import tiled
from maskzoo.kernels.tiles import from_visible


def poisoned(value, places, dtype=torch.float64, heads=(4, 2), length=50):
    """q, k, v with `value` at (which of them, batch, head, position)."""
    sources = [torch.randn(2, h, length, 6).to(dtype) for h in (heads[0], heads[1], heads[1])]
    for which, batch, head, position in places:
        sources[which][batch, head, position, 2] = value
    return [x.requires_grad_() for x in sources]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rule", ["shared", "per batch", "per head", "full"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_same_rows_and_gradients_as_the_reference(value, rule, dtype):
    shape = {"shared": (1, 1), "per batch": (2, 1), "per head": (1, 4), "full": (1, 1)}[rule]
    visible = torch.rand(*shape, 50, 50) > (0.9 if rule != "full" else -1.0)
    visible[..., 7, :] = rule == "full"
    sources = poisoned(value, [(0, 0, 1, 4), (0, 1, 0, 7), (1, 0, 1, 9), (2, 1, 0, 30)], dtype)
    exact = [x.detach().double().requires_grad_() for x in sources]
    expected = reference(*exact, visible, scale=0.4)[0]
    out = tiled(*sources, from_visible(visible, 8), scale=0.4)[0]
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    assert out.isnan().any()
    torch.testing.assert_close(out.double(), expected, equal_nan=True, atol=tolerance, rtol=tolerance)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, exact, weight)
    got = torch.autograd.grad(out, sources, weight.to(dtype))
    for one, other in zip(got, wanted, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38, -3e38])
@pytest.mark.parametrize("scale", [0.4, 3.0])
@pytest.mark.parametrize("length", [50, 600])
def test_hidden_garbage_changes_no_bit(value, scale, length):
    """The last documents of keys and queries are padding: hidden from the rest, and seeing nothing."""
    real = length * 2 // 3
    visible = torch.zeros(1, 1, length, length, dtype=torch.bool)
    visible[..., :real, :real] = torch.ones(real, real, dtype=torch.bool).tril()
    tiles = from_visible(visible, 16)
    clean = poisoned(0.0, [], torch.float32, length=length)
    dirty = [x.detach().clone() for x in clean]
    for x in dirty:
        x[:, :, real:] = value
        x.requires_grad_()
    results = []
    for sources in (clean, dirty):
        out = tiled(*sources, tiles, scale=scale)[0]
        results.append([out, *torch.autograd.grad(out[:, :, :real].sum(), sources)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_scores_that_overflow_in_hidden_pairs_of_a_seen_tile(dropout_p):
    """The last keys of the tile give scores and slopes of inf and NaN; no row sees them."""
    q, k, v = poisoned(0.0, [], torch.float32, (1, 1), 16)
    visible = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
    visible[..., 12:] = False
    results = []
    for garbage in (0.0, 3e38):
        with torch.no_grad():
            k[:, :, 12:] = garbage
            v[:, :, 12:] = -garbage
            q[:, :, :, 0] = 1e3
        torch.manual_seed(0)
        out = tiled(q, k, v, from_visible(visible, 16), scale=0.4, dropout_p=dropout_p)[0]
        grads = torch.autograd.grad(out, (q, k, v), torch.full_like(out, 1e3))
        assert all(x.isfinite().all() for x in (out, *grads))
        results.append([out, *grads])
    assert (q.detach() @ k.detach().mT * 0.4).isinf().any()
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
