from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from maskzoo import Positions
from maskzoo.transformer import Cache, LanguageModel, TransformerConfig

SMALL = TransformerConfig(layers=2, width=32, heads=4, context=64)
VOCABULARY = 13
RULES = [
    "causal",
    "window(5)",
    "causal & (window(4) | sinks(2))",
    "stack(causal, window(3), causal & (window(2) | sinks(1)), causal & ~window(2))",
]


@torch.no_grad()
def decoded(model, tokens, first, at=None):
    """Logits by the cache: `first` tokens at once, then one by one."""
    cache = model.new_cache(*tokens.shape)
    T = tokens.shape[1]
    pieces = [(0, first)] + [(t, t + 1) for t in range(first, T)]
    return torch.cat([model(tokens[:, a:b], None if at is None else at.narrow(a, b), cache) for a, b in pieces], dim=1)


@pytest.mark.parametrize("shape", [(3, 5, 2, 7, 16), (1, 1, 4, 1, 8)])
def test_bytes_follow_the_formula(shape):  # case A8
    B, L, H, T, d = shape
    config = TransformerConfig(layers=L, heads=8, kv_heads=H, width=8 * d, context=64)
    for dtype, s in ((torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 8)):
        assert Cache(config, B, T, dtype=dtype).bytes() == 2 * B * L * T * H * d * s


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_decoding_equals_the_whole_prefix(rule, position, kv_heads):
    model = LanguageModel(replace(SMALL, position=position, kv_heads=kv_heads), VOCABULARY, mask=rule).eval()
    for length, first in ((1, 1), (17, 1), (24, 11)):
        tokens = torch.randint(VOCABULARY, (2, length))
        assert_close(decoded(model, tokens, first), model(tokens), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "options", [{"qk_norm": True}, {"norm": "rmsnorm", "activation": "swiglu"}, {"norm_position": "post"}]
)
@pytest.mark.parametrize("bias", [None, "alibi + relative(buckets=8, max_distance=16)"])
def test_decoding_equals_the_whole_prefix_with_other_parts(options, bias):
    model = LanguageModel(replace(SMALL, **options), VOCABULARY, bias=bias).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = torch.randint(VOCABULARY, (2, 20))
    assert_close(decoded(model, tokens, 6), model(tokens), atol=1e-5, rtol=1e-5)


def test_decoding_in_bfloat16_stays_close():
    model = LanguageModel(SMALL, VOCABULARY, mask="window(8)").eval()
    tokens = torch.randint(VOCABULARY, (2, 24))
    with torch.autocast("cpu", torch.bfloat16):
        logits = decoded(model, tokens, 5)
    assert_close(logits.float(), model(tokens), atol=0.05, rtol=0)


def test_packed_documents_and_left_padding_decode_by_the_same_rule():
    model = LanguageModel(SMALL, VOCABULARY, mask="window(6)").double().eval()
    tokens = torch.randint(VOCABULARY, (2, 20))
    at = Positions(
        index=[[*range(8), *range(12)], [0, 0, 0, *range(17)]], segment=[[0] * 8 + [1] * 12, [-1] * 3 + [0] * 17]
    )
    assert_close(decoded(model, tokens, 4, at), model(tokens, at))


def test_several_tokens_at_once_continue_the_prefix():
    model = LanguageModel(SMALL, VOCABULARY).eval()
    tokens = torch.randint(VOCABULARY, (2, 20))
    cache = model.new_cache(2, 20)
    with torch.no_grad():
        pieces = [model(tokens[:, a:b], cache=cache) for a, b in ((0, 7), (7, 12), (12, 20))]
    assert cache.length == 20
    assert_close(torch.cat(pieces, dim=1), model(tokens), atol=1e-5, rtol=0)


def test_a_row_that_starts_shared_may_continue_apart():
    model = LanguageModel(SMALL, VOCABULARY).eval()
    tokens = torch.randint(VOCABULARY, (2, 6))
    cache = model.new_cache(2, 6)
    with torch.no_grad():
        model(tokens[:, :5], Positions.tokens(5), cache)
        logits = model(tokens[:, 5:], Positions(index=[[5], [5]], segment=[[0], [-1]]), cache)
    assert_close(logits[0], model(tokens)[0, 5:], atol=1e-5, rtol=0)


def test_a_full_cache_refuses_and_stays_as_it_was():
    model = LanguageModel(SMALL, VOCABULARY).eval()
    cache = model.new_cache(1, 4)
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.int64), cache=cache)
        with pytest.raises(ValueError, match="room for 4 positions and holds 3: 2 more do not fit"):
            model(torch.zeros(1, 2, dtype=torch.int64), cache=cache)
    assert cache.length == 3


def test_the_cache_checks_what_it_is_given():
    model = LanguageModel(SMALL, VOCABULARY)
    token = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"torch\.no_grad"):
        model(token, cache=model.new_cache(1, 4))
    with torch.no_grad(), pytest.raises(ValueError, match=r"holds torch.float64.*in torch.float32"):
        model(token, cache=Cache(SMALL, 1, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="2 rows and the new positions have 3"):
        Cache(SMALL, 2, 4).extend(Positions.tokens([1, 1, 1]))
    with pytest.raises(ValueError, match="batch=0"):
        Cache(SMALL, 0, 4)


def test_positions_that_only_count_cannot_continue_a_cache():
    cache = Cache(SMALL, 1, 4)
    cache.extend(Positions.tokens(2))
    with pytest.raises(ValueError, match="must state their index"):
        cache.extend(Positions.tokens(1))
    assert cache.following(2).index.tolist() == [[2, 3]]
