import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from maskzoo import Positions
from maskzoo.masks import parse
from maskzoo.transformer import LanguageModel, TransformerConfig

SMALL = TransformerConfig(layers=2, width=32, heads=4, context=32)
VOCABULARY = 11


@pytest.fixture
def tokens():
    return torch.randint(VOCABULARY, (2, 9))


def test_untrained_logits_are_nearly_uniform(tokens):
    targets = torch.randint(VOCABULARY, tokens.shape)
    loss = F.cross_entropy(LanguageModel(SMALL, VOCABULARY)(tokens).flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(math.log(VOCABULARY), abs=0.2)


def test_tied_output_layer_is_the_embedding(tokens):
    tied, untied = (LanguageModel(replace(SMALL, tied=choice), VOCABULARY) for choice in (True, False))
    assert tied.head.weight is tied.embedding.weight
    assert untied.head.weight is not untied.embedding.weight
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert count[1] - count[0] == VOCABULARY * SMALL.width
    hidden = []
    tied.transformer.register_forward_hook(lambda module, given, out: hidden.append(out))
    assert_close(tied(tokens), hidden[0] @ tied.embedding.weight.T)


def test_sinusoidal_positions_do_not_drown_the_embeddings(tokens):
    model = LanguageModel(replace(SMALL, position="sinusoidal"), VOCABULARY)
    seen = []
    model.transformer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(tokens)
    assert_close(seen[0], model.embedding(tokens) * 32**0.5)


def test_the_future_does_not_reach_the_past(tokens):
    model = LanguageModel(SMALL, VOCABULARY).double().eval()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCABULARY
    assert_close(model(tokens)[:, :5], model(changed)[:, :5], atol=0, rtol=0)
    assert not torch.allclose(model(tokens)[:, 5:], model(changed)[:, 5:])


def test_the_window_bounds_the_reach_over_the_depth():
    """Two layers of window(3) reach 1 + 2 * 2 = 5 positions."""
    model = LanguageModel(SMALL, VOCABULARY, mask="window(3)").double()
    inputs = []
    model.transformer.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    logits = model(torch.randint(VOCABULARY, (1, 12)))
    (gradient,) = torch.autograd.grad(logits[0, -1].square().sum(), inputs[0])
    assert gradient[0].abs().sum(-1).nonzero().flatten().tolist() == [7, 8, 9, 10, 11]


def test_a_mask_object_and_its_text_are_the_same_model(tokens):
    model = LanguageModel(SMALL, VOCABULARY, mask=parse("causal & window(4)"))
    other = LanguageModel(SMALL, VOCABULARY, mask=repr(model.mask))
    other.load_state_dict(model.state_dict())
    assert other.mask == model.mask
    assert_close(other(tokens), model(tokens), atol=0, rtol=0)


def test_a_learned_bias_is_a_parameter_that_gets_gradients(tokens):
    model = LanguageModel(SMALL, VOCABULARY, bias="alibi + relative(buckets=8, max_distance=16)")
    tables = {name: p for name, p in model.named_parameters() if name.startswith("bias.")}
    model(tokens).square().sum().backward()
    assert len(tables) == 1
    assert all(p.grad.abs().max() > 0 for p in tables.values())


def test_each_layer_may_have_tables_of_its_own(tokens):
    shared = LanguageModel(SMALL, VOCABULARY, bias="relative(buckets=8) + alibi").eval()
    own = LanguageModel(replace(SMALL, bias_per_layer=True), VOCABULARY, bias="relative(buckets=8) + alibi").eval()
    tables = [p for name, p in own.named_parameters() if "bias" in name and name.endswith("terms.0.weight")]
    assert [p.shape for p in tables] == [(4, 8)] * SMALL.layers
    own.load_state_dict(shared.state_dict(), strict=False)
    assert_close(own(tokens), shared(tokens), atol=0, rtol=0)
    torch.nn.init.normal_(tables[1], std=3.0)
    before, after = (model.attention_weights(tokens) for model in (shared, own))
    assert_close(after[0], before[0], atol=0, rtol=0)
    assert (after[1] - before[1]).abs().max() > 0.01
    own(tokens).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in tables) and not torch.equal(tables[0].grad, tables[1].grad)


def test_layers_share_what_depends_on_positions(tokens):
    model = LanguageModel(replace(SMALL, bias_per_layer=True), VOCABULARY, bias="relative(buckets=8)")
    seen = []
    for block in model.transformer.blocks:
        block.register_forward_pre_hook(lambda module, given: seen.append(given[1]))
    model(tokens)
    assert seen[0].folded is seen[1].folded and seen[0].visibility is seen[1].visibility
    assert seen[0].bias is model.bias and seen[1].bias is model.further_biases[0]


@torch.no_grad()
def test_decoding_with_tables_of_each_layer(tokens):
    model = LanguageModel(replace(SMALL, bias_per_layer=True), VOCABULARY, bias="relative(buckets=8)").eval()
    for bias in (model.bias, *model.further_biases):
        torch.nn.init.normal_(bias.weight)
    cache = model.new_cache(2, 9)
    steps = [model(part, cache=cache) for part in tokens.split([4, 1, 4], dim=1)]
    assert_close(torch.cat(steps, dim=1), model(tokens), atol=1e-4, rtol=1e-4)


def test_tables_of_each_layer_need_a_bias():
    with pytest.raises(ValueError, match=r"bias_per_layer=true.*there is no bias"):
        LanguageModel(replace(SMALL, bias_per_layer=True), VOCABULARY)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal", "none"])
def test_padding_changes_nothing(side, position):
    model = LanguageModel(replace(SMALL, position=position), VOCABULARY).double().eval()
    texts = [torch.randint(VOCABULARY, (n,)) for n in (31, 32, 29)]
    padded = torch.full((3, 32), 7)
    at = Positions.tokens([31, 32, 29], side=side)
    padded[at.real] = torch.cat(texts)
    logits = model(padded, at)
    for row, text in enumerate(texts):
        assert_close(logits[row, at.real[row]], model(text[None])[0])


def test_attention_weights_are_those_of_the_rule(tokens):
    model = LanguageModel(replace(SMALL, attention_dropout=0.5, dropout=0.5), VOCABULARY, mask="window(3)").train()
    weights = model.attention_weights(tokens)
    assert model.training
    assert [list(w.shape) for w in weights] == [[2, 4, 9, 9]] * 2
    visible = model.plan(Positions.tokens(9)).visible.expand(2, 4, 9, 9)
    for layer in weights:
        assert (layer[~visible] == 0).all()
        assert (layer[visible] > 0).all()
        assert_close(layer.sum(-1), torch.ones(2, 4, 9))


def test_compiled_blocks_give_the_same_model():
    model = LanguageModel(replace(SMALL, kv_heads=2), VOCABULARY, mask="window(4)")
    tokens = torch.randint(VOCABULARY, (2, 9))
    expected, names = model(tokens), list(model.state_dict())
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    for block in model.transformer.blocks:
        block.compile(backend=backend)
    logits = model(tokens)
    logits.square().sum().backward()
    assert graphs
    assert list(model.state_dict()) == names
    assert_close(logits, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert_close(parameter.grad, gradient)

    compiled = len(graphs)
    cache = model.new_cache(2, 9)
    with torch.no_grad():
        steps = [model(tokens[:, t : t + 1], cache=cache) for t in range(9)]
    assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=0)
    assert len(graphs) == compiled  # no step of decoding is compiled


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            torch.tensor([[0, 3, 11]]),
            r"token id 11 at row 0, place 2 is outside the vocabulary: ids reach from 0 to 10",
        ),
        (torch.tensor([[0, 3], [-1, 2]]), r"token id -1 at row 1, place 0"),
        (torch.zeros(1, 3), "whole numbers.*float32"),
        (torch.zeros(3, dtype=torch.int64), r"shape \[B, T\].*got \[3\]"),
        (torch.zeros(1, 0, dtype=torch.int64), "at least one token"),
    ],
)
def test_bad_tokens_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        LanguageModel(SMALL, VOCABULARY)(given)


def test_positions_must_fit_the_tokens(tokens):
    with pytest.raises(ValueError, match=r"shape \[2, 9\] and their positions \[1, 8\]"):
        LanguageModel(SMALL, VOCABULARY)(tokens, Positions.tokens(8))


def test_learned_positions_bound_the_length():
    model = LanguageModel(replace(SMALL, position="learned"), VOCABULARY)
    with pytest.raises(ValueError, match="index 32 has no learned position"):
        model(torch.zeros(1, 33, dtype=torch.int64))
    assert model(torch.zeros(1, 33, dtype=torch.int64), Positions.packed([30, 3])).shape == (1, 33, VOCABULARY)


@pytest.mark.parametrize("vocabulary", [0, 2.5, True])
def test_vocabulary_is_checked(vocabulary):
    with pytest.raises(ValueError, match="vocabulary must be a whole number"):
        LanguageModel(SMALL, vocabulary)


def test_an_unknown_rule_is_refused_when_the_model_is_built():
    with pytest.raises(ValueError, match="unknown mask 'casual'"):
        LanguageModel(SMALL, VOCABULARY, mask="casual")
