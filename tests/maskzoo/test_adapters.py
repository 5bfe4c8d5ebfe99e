"""The adapters, tried on the real modules of torch."""

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maskzoo import Positions, adapters, attend, plan
from maskzoo.masks import Dense, parse

B, H, T, D = 2, 2, 6, 4
LOWER = torch.ones(T, T).tril().bool()
PADDED = Positions.tokens([4, 6], side="left")


def attention(q: torch.Tensor, visible: torch.Tensor, offsets: torch.Tensor | float = 0.0) -> torch.Tensor:
    """[B, H, T, D] self-attention, written out; rows that see nothing are zero."""
    scores = (q @ q.mT / q.shape[-1] ** 0.5 + offsets).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ q


def by_heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (H, D)).transpose(1, 2)


@pytest.fixture
def module() -> nn.MultiheadAttention:
    """Projections that change nothing, so that only the mask can."""
    made = nn.MultiheadAttention(H * D, H, batch_first=True, bias=False)
    with torch.no_grad():
        made.in_proj_weight.copy_(torch.eye(H * D).repeat(3, 1))
        made.out_proj.weight.copy_(torch.eye(H * D))
    return made.eval()


def multihead(
    module: nn.MultiheadAttention, x: torch.Tensor, **masks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    out, weights = module(x, x, x, need_weights=True, average_attn_weights=False, **masks)
    return by_heads(out), weights


def ours(mask: object, x: torch.Tensor, at: Positions) -> tuple[torch.Tensor, torch.Tensor]:
    q = by_heads(x)
    return attend(q, q, q, plan(mask, at), return_weights=True)


def test_conventions_of_torch_are_opposites(module: nn.MultiheadAttention) -> None:  # case A15
    made, x = plan("causal", Positions.tokens(T)), torch.randn(B, T, H * D)
    assert torch.equal(adapters.to_sdpa(made)[0, 0], LOWER)
    assert torch.equal(adapters.to_multihead(made), ~LOWER)
    assert torch.equal(adapters.to_multihead(made), nn.Transformer.generate_square_subsequent_mask(T) == -torch.inf)
    _, weights = multihead(module, x, attn_mask=adapters.to_multihead(made))
    assert torch.equal(weights != 0, LOWER.expand_as(weights))


@pytest.mark.parametrize("text", ["causal", "window(2, both_sides=True)", "causal & (window(2) | sinks(1))"])
def test_to_sdpa_gives_our_attention(text: str) -> None:
    q = torch.randn(B, H, T, D)
    made = plan(text, PADDED)
    out = F.scaled_dot_product_attention(q, q, q, attn_mask=adapters.to_sdpa(made))
    torch.testing.assert_close(out, attend(q, q, q, made))
    torch.testing.assert_close(out, attention(q, made.visible))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    batch=st.sampled_from([1, B]),
    heads=st.sampled_from([1, H]),
    rows=st.sampled_from([1, T]),
)
def test_from_sdpa_gives_torch_s_attention(seed: int, batch: int, heads: int, rows: int) -> None:
    torch.manual_seed(seed)
    mask, q = torch.rand(batch, heads, rows, T) > 0.4, torch.randn(B, H, T, D)
    mask[0, 0, 0, 0] = True
    made = plan(adapters.from_sdpa(mask), Positions.tokens(T))
    assert torch.equal(adapters.to_sdpa(made).expand(B, H, T, T), mask.expand(B, H, T, T))
    torch.testing.assert_close(
        attend(q, q, q, made), F.scaled_dot_product_attention(q, q, q, attn_mask=mask).nan_to_num()
    )


def test_source_padding_broadcasts_as_b11s_and_target_rules_as_b1tt() -> None:  # case A5
    source_ids = torch.tensor([[5, 9, 3, 0, 0], [7, 2, 4, 8, 1]])
    target_ids = torch.tensor([[3, 4, 6], [8, 5, 0]])
    source, target = (adapters.from_padding((ids != 0).long()) for ids in (source_ids, target_ids))
    source_rule = (source_ids != 0)[:, None, None, :]  # (B, 1, 1, S)
    target_rule = (target_ids != 0)[:, None, None, :] & torch.ones(3, 3).tril().bool()  # (B, 1, T, T)
    seen = adapters.to_sdpa(plan("cross", target, k_at=source))
    assert seen.shape == (2, 1, 3, 5)
    real = target.real[:, None, :, None]
    assert torch.equal(seen, (source_rule & real).expand(2, 1, 3, 5))
    assert torch.equal(adapters.to_sdpa(plan("causal", target)), target_rule & real)
    assert torch.equal(plan(adapters.from_sdpa(source_rule), target, k_at=source).visible, seen)


@pytest.mark.parametrize("text", ["causal", "window(3, both_sides=True)", "stack(causal, window(2, both_sides=True))"])
@pytest.mark.parametrize("at", [Positions.tokens(T), Positions.packed([[2, 4], [5, 1]])], ids=["shared", "packed"])
def test_to_multihead_gives_our_attention(module: nn.MultiheadAttention, text: str, at: Positions) -> None:
    x, made = torch.randn(B, T, H * D), plan(text, at)
    mask = adapters.to_multihead(made, heads=H)
    if mask.dim() == 3 and len(mask) == H:  # torch wants one for each sequence and head
        mask = mask.repeat(B, 1, 1)
    out, weights = multihead(module, x, attn_mask=mask)
    expected_out, expected_weights = ours(text, x, at)
    torch.testing.assert_close(out, expected_out)
    torch.testing.assert_close(weights, expected_weights)


def test_from_multihead_gives_the_module_s_attention(module: nn.MultiheadAttention) -> None:
    x = torch.randn(B, T, H * D)
    hidden = torch.rand(T, T) > 0.6
    hidden.fill_diagonal_(False)
    padding = torch.tensor([[False] * T, [False] * 4 + [True] * 2])
    hidden[:, 0] = False
    per_head = torch.rand(B * H, T, T) > 0.6
    per_head[:, :, 0] = False
    for masks in (
        {"attn_mask": hidden},
        {"key_padding_mask": padding},
        {"attn_mask": hidden, "key_padding_mask": padding},
        {"attn_mask": per_head},
        {"attn_mask": per_head, "key_padding_mask": padding},
    ):
        out, weights = multihead(module, x, **masks)
        expected_out, expected_weights = ours(adapters.from_multihead(**masks, heads=H), x, Positions.tokens(T))
        torch.testing.assert_close(out, expected_out)
        torch.testing.assert_close(weights, expected_weights)
        assert torch.equal(weights != 0, expected_weights != 0)


def test_to_multihead_warns_of_rows_that_torch_makes_nan(module: nn.MultiheadAttention) -> None:
    with pytest.warns(UserWarning, match="2 query rows see no key"):
        mask = adapters.to_multihead(plan("causal", PADDED), heads=H)
    out, _ = multihead(module, torch.randn(B, T, H * D), attn_mask=mask)
    assert out.isnan().any(-1).any(1).sum() == 2


def test_to_multihead_needs_the_heads_where_sequences_differ() -> None:
    with pytest.raises(ValueError, match="needs heads="):
        adapters.to_multihead(plan("causal", Positions.packed([[2, 4], [6]])))
    with pytest.raises(ValueError, match="heads=3"):
        adapters.to_multihead(plan("stack(causal, full)", Positions.tokens(4)), heads=3)


LOWEST = [torch.finfo(dtype).min for dtype in (torch.float16, torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("value", [-torch.inf, -1e9, -1e10, -1e4, *LOWEST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_additive_masks_of_any_depth_and_dtype_hide_the_same(value: float, dtype: torch.dtype) -> None:
    values = torch.zeros(T, T).masked_fill(~LOWER, value).to(dtype)
    assert adapters.from_additive(values) == Dense(LOWER)


def test_planes_that_add_to_infinity_compose_as_booleans() -> None:  # case B6
    lowest = torch.finfo(torch.float32).min
    padding = torch.zeros(B, 1, 1, T)
    padding[0, ..., :2] = lowest
    both = torch.zeros(T, T).masked_fill(~LOWER, lowest) + padding
    assert both.isinf().any()
    made = plan(adapters.from_additive(both), Positions.tokens(T))
    apart = plan(adapters.from_additive(padding) & parse("causal"), Positions.tokens(T))
    assert torch.equal(made.visible, apart.visible)
    q = 100 * torch.randn(B, H, T, D)
    _, weights = attend(q, q, q, made, return_weights=True)
    assert (weights.masked_select(~made.visible) == 0).all()


def test_logits_of_minus_20000_beat_no_finite_mask_here() -> None:
    values = torch.zeros(T, T).masked_fill(~LOWER, -1e4)
    bias = torch.full((T, T), -2e4).masked_fill(~LOWER, 0.0)
    q = torch.randn(1, 1, T, D)
    naive = (q @ q.mT / D**0.5 + bias + values).softmax(-1)
    assert naive[0, 0, 0, 1:].sum() > 0.99  # the fault: what is hidden takes all the weight
    made = plan(adapters.from_additive(values), Positions.tokens(T), bias=bias, heads=1)
    _, weights = attend(q, q, q, made, return_weights=True)
    assert (weights[0, 0].masked_select(~LOWER) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, T))


def test_to_additive_is_zero_or_minus_infinity_and_comes_back() -> None:
    made = plan("causal & window(3)", PADDED)
    values = adapters.to_additive(made)
    assert torch.equal(values == 0, made.visible) and torch.equal(values == -torch.inf, ~made.visible)
    assert torch.equal(plan(adapters.from_additive(values), Positions.tokens(T)).visible, made.visible)
    assert adapters.to_additive(made, dtype=torch.bfloat16).dtype == torch.bfloat16
    q = torch.randn(B, H, T, D)
    out = F.scaled_dot_product_attention(q, q, q, attn_mask=values)
    torch.testing.assert_close(out.nan_to_num(), attend(q, q, q, made))


def test_a_bias_travels_in_additive_masks_alone() -> None:
    bias = torch.randn(H, T, T, requires_grad=True)
    made = plan("causal", Positions.tokens(T), bias=bias, heads=H)
    values = adapters.to_additive(made)
    q = torch.randn(B, H, T, D)
    torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q, attn_mask=values), attend(q, q, q, made))
    values.masked_fill(values == -torch.inf, 0).sum().backward()
    assert torch.equal(bias.grad, LOWER.float().expand(H, T, T))
    for writer in (adapters.to_sdpa, adapters.to_multihead):
        with pytest.raises(ValueError, match="cannot carry the bias"):
            writer(made)
    mask, offsets = adapters.split_additive(values.detach())
    assert torch.equal(plan(mask, Positions.tokens(T)).visible, LOWER.expand(1, H, T, T))
    again = plan(mask, Positions.tokens(T), bias=offsets, heads=H)
    torch.testing.assert_close(attend(q, q, q, again), attend(q, q, q, made))


def test_offsets_in_an_additive_mask_are_not_dropped() -> None:
    values = torch.zeros(T, T).masked_fill(~LOWER, -torch.inf)
    values[3, 1] = -2.5
    with pytest.raises(ValueError, match=r"\[3, 1\] is -2\.5.*split_additive"):
        adapters.from_additive(values)
    mask, bias = adapters.split_additive(values)
    assert mask == Dense(LOWER)
    assert bias[3, 1] == -2.5 and bias.count_nonzero() == 1
    assert adapters.from_additive(torch.zeros(2, 2).fill_diagonal_(-500.0), hidden_below=-500.0) == Dense(
        ~torch.eye(2).bool()
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_masks_become_positions_and_come_back(side: str) -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    mask = mask.flip(1) if side == "left" else mask
    at = adapters.from_padding(mask)
    assert torch.equal(at.segment, Positions.tokens([4, 2, 0, 1], side=side).segment)
    assert torch.equal(at.index[at.real], torch.tensor([0, 1, 2, 3, 0, 1, 0]))
    assert torch.equal(adapters.to_padding(at), mask)
    assert adapters.to_padding(at).dtype == torch.int64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: adapters.from_sdpa(torch.zeros(T, T)), "True = visible), got torch.float32"),
        (lambda: adapters.from_sdpa(LOWER.long()), "got torch.int64"),
        (lambda: adapters.from_sdpa([[True]]), "got list"),
        (lambda: adapters.from_sdpa(LOWER[None]), "mask[:, None]"),
        (lambda: adapters.from_sdpa(~torch.ones(T, T).bool()), "the other way round"),
        (lambda: adapters.from_multihead(LOWER.float()), "True = hidden), got torch.float32"),
        (lambda: adapters.from_multihead(torch.ones(T, T).bool()), "the other way round"),
        (lambda: adapters.from_multihead(key_padding_mask=torch.ones(B, T).bool()), "the other way round"),
        (lambda: adapters.from_multihead(key_padding_mask=torch.ones(B, T).long()), "got torch.int64"),
        (lambda: adapters.from_multihead(key_padding_mask=torch.zeros(T).bool()), "must be [B, Tk], got [6]"),
        (lambda: adapters.from_multihead(), "needs attn_mask"),
        (lambda: adapters.from_multihead(~LOWER.expand(4, T, T)), "give heads="),
        (lambda: adapters.from_multihead(~LOWER.expand(4, T, T), heads=3), "heads=3"),
        (lambda: adapters.from_multihead(~LOWER, torch.zeros(B, T + 1).bool()), "[6, 6] and [2, 7]"),
        (lambda: adapters.from_additive(LOWER), "got torch.bool"),
        (lambda: adapters.from_additive(torch.zeros(T)), "got [6]"),
        (lambda: adapters.from_additive(torch.full((T, T), torch.nan)), "NaN"),
        (lambda: adapters.from_additive(torch.full((T, T), torch.inf)), "+inf"),
        (lambda: adapters.from_additive(torch.full((T, T), -torch.inf)), "the other way round"),
        (lambda: adapters.from_additive(LOWER.float()), "[0, 0] is 1"),
        (lambda: adapters.from_additive(torch.zeros(T, T), hidden_below=3.0), "below 0"),
        (lambda: adapters.to_additive(plan("causal", PADDED), dtype=torch.int64), "float dtype"),
        (lambda: adapters.from_padding(torch.ones(B, T).bool()), "(~mask).long()"),
        (lambda: adapters.from_padding(torch.ones(B, T)), "got torch.float32"),
        (lambda: adapters.from_padding(torch.ones(T).long()), "got [6]"),
        (lambda: adapters.from_padding([[1, 0]]), "got list"),
        (lambda: adapters.from_padding(torch.tensor([[1, 2]])), "0 and 1 only"),
        (lambda: adapters.from_padding(torch.zeros(B, T).long()), "the other way round"),
        (lambda: adapters.from_padding(torch.tensor([[1, 1, 1], [1, 0, 1]])), "row 1 has padding between"),
        (lambda: adapters.to_padding(Positions.packed([[6], [2, 3]])), "row 1 packs several segments"),
    ],
)
def test_no_convention_is_guessed(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
