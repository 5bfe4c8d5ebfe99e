"""Faults planted in caches, each beside the sound decoding."""

import pytest
import torch
from torch import nn

import maskzoo
from maskzoo.transformer import LanguageModel, TransformerConfig

LENGTH, VOCABULARY, WIDTH = 10, 13, 16


class Attention(nn.Module):
    """One causal layer with positions that are turned into queries and keys, and a cache by hand."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def turned(self, x, start):
        place = torch.arange(start, start + x.shape[1], dtype=x.dtype)[:, None]
        rate = 0.5 ** torch.arange(WIDTH // 2, dtype=x.dtype)
        a, b = x.chunk(2, -1)
        cos, sin = (place * rate).cos(), (place * rate).sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def attend(self, q, k, v, visible):
        return (q @ k.transpose(1, 2) / 4).masked_fill(~visible, float("-inf")).softmax(-1) @ v

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self.attend(self.turned(q, 0), self.turned(k, 0), v, visible)


def stepwise(query_place=lambda t: t, key_place=lambda t: t, kept=lambda t: slice(0, t + 1), room=False):
    """A decoding of Attention, position by position, with one thing that can be wrong."""

    def decode(model, x):
        keys, values = torch.zeros_like(x), torch.zeros_like(x)
        for t in range(x.shape[1]):
            q, k, v = model.qkv(x[:, t : t + 1]).chunk(3, -1)
            keys[:, t], values[:, t] = model.turned(k, key_place(t))[:, 0], v[:, 0]
            inside = slice(None) if room else kept(t)
            seen = torch.ones(keys[:, inside].shape[1], dtype=torch.bool)
            yield model.attend(model.turned(q, query_place(t)), keys[:, inside], values[:, inside], seen)[:, 0]

    return decode


def case(decode):
    rule = {"permits": "causal", "layers": 1, "decode": decode}
    return {"model": Attention(), "inputs": torch.randn(2, LENGTH, WIDTH), **rule}


def stale_position():
    return case(stepwise(query_place=lambda t: max(t - 1, 0)))


def rotary_offset_missing():
    return case(stepwise(query_place=lambda t: 0, key_place=lambda t: 0))


def room_not_masked():
    return case(stepwise(room=True))


def last_key_missing():
    return case(stepwise(kept=lambda t: slice(0, max(t, 1))))


def first_key_lost_when_the_cache_is_full():
    return case(stepwise(kept=lambda t: slice(max(0, t - 7), t + 1)))


def recurrent_state_not_carried():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0]

    def decode(model, x):
        for t in range(x.shape[1]):
            yield model.rnn(x[:, t : t + 1])[0][:, 0]

    return {**case(decode), "model": Recurrent()}


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3)

    def forward(self, x):
        return self.convolution(nn.functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)


def convolution(kept):
    def decode(model, x):
        buffer = x.new_zeros(len(x), WIDTH, 3)
        for t in range(x.shape[1]):
            buffer = torch.cat([buffer[..., 1:], x[:, t, :, None]], dim=-1) if kept(t) else buffer
            yield model.convolution(buffer)[..., 0]

    return {**case(decode), "model": Convolution(), "permits": "window(3)"}


def convolution_buffer_one_behind():
    return convolution(lambda t: t != 4)


def language_model(kind):
    model = kind(TransformerConfig(layers=2, width=16, heads=2, context=64), VOCABULARY)
    return {"model": model, "inputs": torch.randint(0, VOCABULARY, (2, LENGTH)), "permits": "causal", "layers": 2}


def own_cache_with_a_stale_position():
    """Positions that are given to a cached step are one behind."""

    class Stale(LanguageModel):
        def forward(self, tokens, at=None, cache=None, weights=None):
            if cache is not None and cache.length > 3:
                at = cache.following(tokens.shape[1])
                at = at.with_fields(index=at.index - 1)
            return super().forward(tokens, at, cache, weights)

    return language_model(Stale)


def own_cache_that_forgets_a_layer():
    class Forgetful(LanguageModel):
        def forward(self, tokens, at=None, cache=None, weights=None):
            if cache is not None and cache.length > 4:
                cache.keys[1, :, :, 2] = 0
            return super().forward(tokens, at, cache, weights)

    return language_model(Forgetful)


FAULTS = {
    stale_position: ("decode mismatch", {"query": 1}),
    rotary_offset_missing: ("decode mismatch", {"query": 1}),
    room_not_masked: ("decode mismatch", {"query": 0}),
    last_key_missing: ("decode mismatch", {"query": 1}),
    first_key_lost_when_the_cache_is_full: ("decode mismatch", {"query": 8}),
    recurrent_state_not_carried: ("decode mismatch", {"query": 1}),
    convolution_buffer_one_behind: ("decode mismatch", {"query": 4}),
    own_cache_with_a_stale_position: ("decode mismatch", {}),
    own_cache_that_forgets_a_layer: ("decode mismatch", {}),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_found_and_named(fault, found):
    kind, expected = FAULTS[fault]
    assert found(fault, kind, **expected).findings


def sound_cache():
    return case(stepwise())


def sound_cache_of_a_recurrence():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0]

    def decode(model, x):
        state = None
        for t in range(x.shape[1]):
            output, state = model.rnn(x[:, t : t + 1], state)
            yield output[:, 0]

    return {**case(decode), "model": Recurrent()}


def sound_cache_of_a_convolution():
    return convolution(lambda t: True)


def sound_own_cache():
    return language_model(LanguageModel)


def sound_own_cache_of_packed_documents():
    given = language_model(LanguageModel)
    at = maskzoo.Positions.packed([[4, 6], [10]])
    return {**given, "inputs": {"tokens": given["inputs"], "at": at}, "at": at}


SOUND = (
    sound_cache,
    sound_cache_of_a_recurrence,
    sound_cache_of_a_convolution,
    sound_own_cache,
    sound_own_cache_of_packed_documents,
)


@pytest.mark.parametrize("specimen", SOUND, ids=lambda specimen: specimen.__name__)
def test_sound_decoding_gives_no_finding(specimen, clean):
    assert clean(specimen).ok
