import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import maskzoo
from maskzoo import Positions
from maskzoo.transformer import Transformer, TransformerConfig
from maskzoo.transformer.block import Block

SMALL = TransformerConfig(layers=2, width=32, heads=4, context=64)


def torch_layer_like(block: Block, config: TransformerConfig) -> nn.TransformerEncoderLayer:
    """torch's own layer with the weights of ours."""
    layer = nn.TransformerEncoderLayer(
        config.width,
        config.heads,
        config.hidden,
        dropout=0.0,
        activation=config.activation,
        batch_first=True,
        norm_first=config.norm_position == "pre",
        dtype=torch.float64,
    )
    layer.load_state_dict(
        {
            "self_attn.in_proj_weight": block.attention.qkv.weight,
            "self_attn.in_proj_bias": block.attention.qkv.bias,
            "self_attn.out_proj.weight": block.attention.out.weight,
            "self_attn.out_proj.bias": block.attention.out.bias,
            "linear1.weight": block.feedforward.fc1.weight,
            "linear1.bias": block.feedforward.fc1.bias,
            "linear2.weight": block.feedforward.fc2.weight,
            "linear2.bias": block.feedforward.fc2.bias,
            "norm1.weight": block.attention_norm.weight,
            "norm1.bias": block.attention_norm.bias,
            "norm2.weight": block.feedforward_norm.weight,
            "norm2.bias": block.feedforward_norm.bias,
        }
    )
    return layer


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_block_equals_torch_encoder_layer(norm_position, activation, mask):
    config = TransformerConfig(width=32, heads=4, activation=activation, norm_position=norm_position, position="none")
    block = Block(config, 0).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # also biases and gains away from 0 and 1
    theirs = torch_layer_like(block, config)
    x = torch.randn(3, 7, 32, dtype=torch.float64)
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if mask == "causal" else None  # True = hidden in that module
    ours = block(x, maskzoo.plan(mask, Positions.tokens(7)))
    assert_close(ours, theirs(x, src_mask=hidden), atol=1e-6, rtol=0)


def test_post_normalisation_ends_in_its_last_block():
    config = replace(SMALL, norm_position="post", activation="relu", position="sinusoidal")
    model, at = Transformer(config).double(), Positions.tokens(5)
    rule = maskzoo.plan("full", at)
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    expected = x + model.added_positions(at.index, x.dtype)
    for block in model.blocks:
        expected = block(expected, rule)
    assert_close(model(x, rule, at), expected)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_initialisation(norm_position):
    config = TransformerConfig(layers=8, width=256, heads=4, norm_position=norm_position)
    block = Transformer(config).blocks[3]
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    residual = 0.02 / math.sqrt(16) if norm_position == "pre" else 0.02
    for layer in (block.attention.out, block.feedforward.fc2):
        assert layer.weight.std().item() == pytest.approx(residual, rel=0.05)
        assert layer.bias.abs().max() == 0
    assert (block.attention_norm.weight == 1).all()


def test_swiglu_has_about_the_weights_of_gelu():
    sizes = [
        sum(p.numel() for p in Block(replace(SMALL, width=384, activation=name), 0).parameters())
        for name in ("gelu", "swiglu")
    ]
    assert sizes[1] / sizes[0] == pytest.approx(1, abs=0.02)
    assert replace(SMALL, width=384, activation="swiglu").hidden == 1024


def test_grouped_query_equals_multi_head_with_repeated_heads():
    grouped = Block(replace(SMALL, kv_heads=2), 0).double()
    full = Block(SMALL, 0).double()
    state = grouped.state_dict()
    for name in ("attention.qkv.weight", "attention.qkv.bias"):
        q, k, v = state[name].split((32, 16, 16))
        k, v = (x.unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1) for x in (k, v))
        state[name] = torch.cat((q, k, v))
    full.load_state_dict(state)
    x, rule = torch.randn(2, 9, 32, dtype=torch.float64), maskzoo.plan("causal", Positions.tokens(9))
    assert_close(grouped(x, rule), full(x, rule))


@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize(
    "options",
    [{}, {"qk_norm": True, "norm": "rmsnorm", "activation": "relu2"}, {"kv_heads": 1, "activation": "swiglu"}],
)
def test_a_packed_document_is_what_it_is_alone(position, options):
    model = Transformer(replace(SMALL, position=position, **options)).double()
    x = torch.randn(1, 12, 32, dtype=torch.float64)

    def run(x, at):
        return model(x, maskzoo.plan("causal", at), at)

    packed = run(x, Positions.packed([7, 5]))
    assert_close(packed[:, :7], run(x[:, :7], Positions.tokens(7)))
    assert_close(packed[:, 7:], run(x[:, 7:], Positions.tokens(5)))


@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize("mask", ["causal", "window(3)"])
def test_rows_stand_where_their_index_says(position, mask):
    """Rows that move together with their indices give the same outputs, moved."""
    model = Transformer(replace(SMALL, position=position)).double()
    x, order = torch.randn(1, 6, 32, dtype=torch.float64), torch.tensor([3, 0, 1, 5, 4, 2])

    def run(x, at):
        return model(x, maskzoo.plan(mask, at), at)

    assert_close(run(x[:, order], Positions(index=order)), run(x, Positions.tokens(6))[:, order])


@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal"])
def test_order_matters_when_there_are_positions_and_not_without(position):
    x = torch.randn(1, 6, 32, dtype=torch.float64)
    order = torch.tensor([3, 0, 1, 5, 4, 2])
    at = Positions.tokens(6)
    rule = maskzoo.plan("full", at)

    def moved(position):
        model = Transformer(replace(SMALL, position=position)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(5)
        return (model(x[:, order], rule, at) - model(x, rule, at)[:, order]).abs().max()

    assert moved("none") < 1e-12
    assert moved(position) > 1e-3


def test_nothing_of_the_future_reaches_the_past_with_every_dropout_on():
    model = Transformer(replace(SMALL, dropout=0.2, attention_dropout=0.2)).train()
    at = Positions.tokens(10)
    x, rule = torch.randn(1, 10, 32), maskzoo.plan("causal", at)
    outputs = []
    for changed in (False, True):
        y = x.clone()
        y[:, 6:] += changed
        torch.manual_seed(0)
        outputs.append(model(y, rule, at))
    assert torch.equal(outputs[0][:, :6], outputs[1][:, :6])
    assert not torch.allclose(outputs[0][:, 6:], outputs[1][:, 6:])


def test_dropout_is_off_in_evaluation():
    model, at = Transformer(replace(SMALL, dropout=0.5, attention_dropout=0.5)), Positions.tokens(10)
    x, rule = torch.randn(1, 10, 32), maskzoo.plan("causal", at)
    assert not torch.equal(model(x, rule, at), model(x, rule, at))
    model.eval()
    assert torch.equal(model(x, rule, at), model(x, rule, at))


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "norm": "rmsnorm"}])
def test_bfloat16_autocast_is_close_and_has_finite_gradients(options):
    model, at = Transformer(replace(SMALL, **options)), Positions.packed([20, 10])
    x, rule = torch.randn(2, 30, 32), maskzoo.plan("causal", at)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x, rule, at)
    assert_close(y.float(), model(x, rule, at), atol=0.1, rtol=0.1)
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_an_empty_row_gives_finite_gradients_two_layers_deep():
    model = Transformer(SMALL)
    at = Positions(index=[[0, 1, 2, 3], [0, 1, 2, 3]], segment=[[-1, -1, 0, 0], [0, 0, 0, 0]])
    x = torch.randn(2, 4, 32, requires_grad=True)
    model(x, maskzoo.plan("window(2)", at), at).sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_wrong_width_names_both():
    at = Positions.tokens(4)
    with pytest.raises(ValueError, match=r"\[B, T, 32\].*got \[1, 4, 16\]"):
        Transformer(SMALL)(torch.randn(1, 4, 16), maskzoo.plan("causal", at), at)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers must be a whole number of at least 1, got 0"),
        ({"heads": 2.0}, "heads must be a whole number"),
        ({"width": True}, "width must be a whole number"),
        ({"width": 30, "heads": 4}, "multiple of heads, got width=30 and heads=4"),
        ({"heads": 4, "kv_heads": 3, "width": 32}, "multiple of kv_heads, got heads=4, kv_heads=3"),
        ({"activation": "gleu"}, "activation must be one of gelu, .*Did you mean 'gelu'"),
        ({"norm": "batchnorm"}, "norm must be one of layernorm, rmsnorm; got 'batchnorm'"),
        ({"norm_position": "before"}, "norm_position must be one of pre, post"),
        ({"position": "rotery"}, "Did you mean 'rotary'"),
        ({"position": "rotary", "width": 36, "heads": 4}, "must be even, got 36 / 4"),
        ({"position": "sinusoidal", "width": 7, "heads": 1}, "even width, got 7"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout must be at least 0"),
        ({"dropout": "much"}, "dropout must be a number, got 'much'"),
        ({"tied": 1}, "tied must be true or false, got 1"),
        ({"rotary_base": 1.0}, "rotary_base must be above 1"),
        ({"feedforward": 0}, "feedforward must be a whole number of at least 1"),
    ],
)
def test_bad_values_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**options)
