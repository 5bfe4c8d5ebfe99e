"""Dropout: seeded, unbiased, and the same mask in both passes."""

import pytest
import torch

from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiled import tiled
from maskzoo.kernels.tiled.dropout import Dropout
from maskzoo.kernels.tiles import from_visible


def causal(length):
    return torch.ones(1, 1, length, length, dtype=torch.bool).tril()


def dropped_weights(q, k, visible, seed, dropout_p=0.3):
    """The weights after dropout: those that mix an identity."""
    torch.manual_seed(seed)
    eye = torch.eye(k.shape[2], dtype=q.dtype).expand(len(q), k.shape[1], -1, -1)
    return tiled(q, k, eye, from_visible(visible, 8), scale=0.5, dropout_p=dropout_p)[0]


def test_the_seed_decides_and_each_call_draws_anew():
    q, k, v = (torch.randn(1, 2, 40, 4) for _ in range(3))
    tiles = from_visible(causal(40), 8)
    torch.manual_seed(1)
    first, second = (tiled(q, k, v, tiles, scale=0.5, dropout_p=0.5)[0] for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first, tiled(q, k, v, tiles, scale=0.5, dropout_p=0.5)[0])
    assert not torch.equal(first, second)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_kept_weights_are_scaled_and_the_others_zero(kv_heads):
    q, k = torch.randn(2, 4, 64, 4).double(), torch.randn(2, kv_heads, 64, 4).double()
    got = dropped_weights(q, k, causal(64), seed=0)
    _, full, _ = reference(q, k, k, causal(64), scale=0.5)
    kept = got != 0
    torch.testing.assert_close(got, torch.where(kept, full / 0.7, 0.0))
    share = kept.sum() / (2 * 4 * 64 * 65 / 2)
    assert share.item() == pytest.approx(0.7, abs=0.01)
    assert not (got.triu(1)).any()
    assert not torch.equal(kept[0, 0], kept[0, 1])
    assert not torch.equal(kept[0, 0], kept[1, 0])


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("length", [40, 130])
def test_gradients_are_those_of_the_same_dropped_weights(kv_heads, length):
    sources = [torch.randn(2, h, length, 4).double().requires_grad_() for h in (4, kv_heads, kv_heads)]
    visible = causal(length)
    kept = dropped_weights(sources[0].detach(), sources[1].detach(), visible, seed=7) != 0
    torch.manual_seed(7)
    out = tiled(*sources, from_visible(visible, 8), scale=0.5, dropout_p=0.3)[0]
    q, k, v = sources
    k, v = (x.repeat_interleave(4 // kv_heads, 1) for x in (k, v))
    weights = (q @ k.mT * 0.5).masked_fill(~visible, -torch.inf).softmax(-1)
    expected = (weights * kept / 0.7) @ v
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    for got, wanted in zip(*(torch.autograd.grad(x, sources, weight) for x in (out, expected)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_the_mask_does_not_depend_on_how_the_work_is_cut():
    """Which tiles there are decides about blocks, not about the weights that are kept."""
    q, k = (torch.randn(1, 1, 64, 4).double() for _ in range(2))
    everything = dropped_weights(q, k, torch.ones(1, 1, 64, 64, dtype=torch.bool), seed=2) != 0
    part = dropped_weights(q, k, causal(64), seed=2) != 0
    assert torch.equal(part, everything.tril())


def test_the_mean_is_that_without_dropout():
    q, k, v = (torch.randn(1, 1, 16, 4) for _ in range(3))
    tiles = from_visible(causal(16), 8)
    mean = torch.stack([tiled(q, k, v, tiles, scale=0.5, dropout_p=0.3)[0] for _ in range(400)]).mean(0)
    torch.testing.assert_close(mean, tiled(q, k, v, tiles, scale=0.5)[0], atol=0.15, rtol=0)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_kept_pairs_look_independent(probability):
    """Frequencies of each row and key, and products of neighbouring rows and keys, as for independent draws."""
    size = 1024
    dropout = Dropout(probability, 5, (size,), (size,), torch.device("cpu"))
    weights = torch.ones(1, size, size)
    dropout.zero(weights, dropout.rows[None, :, None], dropout.keys[None, None])
    x = (weights[0].double() - (1 - probability)) / (probability * (1 - probability)) ** 0.5
    for mean, count in [
        (x.mean(), size**2),
        (x.mean(0).square().mean().sqrt(), None),
        ((x[1:] * x[:-1]).mean(), size**2),
        ((x[:, 1:] * x[:, :-1]).mean(), size**2),
        ((x[1:, 1:] * x[:-1, :-1]).mean(), size**2),
    ]:
        if count is None:
            assert mean.item() == pytest.approx(size**-0.5, rel=0.1)
        else:
            assert abs(mean.item()) < 5 * count**-0.5
    correlation = x @ x.mT / size  # of every two rows
    off = correlation[~torch.eye(size, dtype=torch.bool)]
    assert off.std().item() == pytest.approx(size**-0.5, rel=0.03)
    assert off.abs().max().item() < 7 * size**-0.5
