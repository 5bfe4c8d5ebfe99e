"""Faults planted in maskzoo's own Transformer and LanguageModel."""

import pytest
import torch
from torch import nn

import maskzoo
from maskzoo.masks import parse
from maskzoo.transformer import LanguageModel, TransformerConfig

VOCABULARY, LENGTH = 13, 12


def language_model(mask="causal", kind=LanguageModel, **config):
    return kind(TransformerConfig(**{"layers": 2, "width": 16, "heads": 4, "context": 64, **config}), VOCABULARY, mask)


def case(model, permits="causal", layers=2, **options):
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
    return {"model": model, "inputs": tokens, "permits": permits, "layers": layers, **options}


def another_rule():
    return case(language_model("full"))


def window_one_too_wide():
    model = language_model("causal & window(4)")
    return case(model, "causal & window(3)", violates=lambda query, key: key > query or query - key > 4)


def window_forgotten_beside_sinks():
    rule = "causal & (window(2) | sinks(1))"
    return case(language_model("causal"), rule, violates=lambda query, key: key > query or query - key > 2)


def another_rule_in_the_second_layer():
    class Second(LanguageModel):
        def plan(self, at, k_at=None):
            return super().plan(at, k_at)

        def forward(self, tokens, at=None):
            at = maskzoo.Positions.tokens(tokens.shape[1]) if at is None else at
            plans = [self.plan(at), maskzoo.plan("full", at, heads=4)]
            return self.head(self.transformer(self.embedding(tokens), plans, at))

    return case(language_model(kind=Second))


def another_rule_in_one_head():
    rules = ", ".join("full" if head == 2 else "causal" for head in range(4))
    return case(language_model(f"stack({rules})"))


def rule_not_met_from_a_length_on():
    class Long(LanguageModel):
        def plan(self, at, k_at=None):
            return maskzoo.plan(parse("full") if at.length > 8 else self.mask, at, heads=4)

    return case(language_model(kind=Long))


def only_short_inputs():
    class Short(LanguageModel):
        def plan(self, at, k_at=None):
            return maskzoo.plan(parse("full") if 1 < at.length < 8 else self.mask, at, heads=4)

    return case(language_model(kind=Short))


def stem_that_looks_ahead():
    class Stem(LanguageModel):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.stem = nn.Conv1d(16, 16, 3, padding=1)
            inner = self.embedding
            self.embedding = nn.Sequential(inner, Transposed(self.stem))

    class Transposed(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x.transpose(1, 2)).transpose(1, 2)

    return case(language_model(kind=Stem, tied=False))


def token_shift_from_the_future():
    class Shift(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(torch.cat([x[..., :8], x[..., 8:].roll(-1, dims=1)], dim=-1))

    model = language_model()
    model.transformer.blocks[1].feedforward = Shift(model.transformer.blocks[1].feedforward)
    return case(model)


def positions_forgotten():
    at = maskzoo.Positions.packed([5, 7])

    class Forgetful(LanguageModel):
        def forward(self, tokens, at=None):
            return super().forward(tokens)

    tokens = torch.randint(0, VOCABULARY, (1, LENGTH))
    inputs = {"tokens": tokens, "at": at}
    apart = {"at": at, "violates": lambda query, key: (query < 5) != (key < 5)}
    return {"model": language_model(kind=Forgetful), "inputs": inputs, "permits": "causal", "layers": 2, **apart}


def documents_joined_by_name():
    at = maskzoo.Positions.packed([5, 7])
    row = torch.arange(LENGTH)[None]
    rule = {"permits": "causal", "layers": 2, "at": at, "violates": lambda query, key: (query < 5) != (key < 5)}
    inputs = {"tokens": torch.randint(0, VOCABULARY, (1, LENGTH)), "at": at.with_fields(index=row)}
    return {"model": language_model("across_segments & causal"), "inputs": inputs, **rule}


def batch_normalisation():
    class Normalised(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x.flatten(0, 1)).view_as(x)

    model = language_model()
    model.transformer.blocks[1].attention_norm = Normalised(16)
    return case(model)


def narrower_than_promised():
    return case(language_model("causal & window(3)", layers=1), "causal & window(4)", layers=1)


def second_layer_never_run():
    model = language_model("causal & window(3)")
    model.transformer.blocks = model.transformer.blocks[:1]
    model.transformer.config.layers = 1
    return case(model, "causal & window(3)", layers=2)


def plan_of_another_batch():
    """The plan of the first batch of packed documents is kept for all."""
    first = maskzoo.Positions.packed([9, 3])

    class Keeping(LanguageModel):
        def plan(self, at, k_at=None):
            return super().plan(first)

    at = maskzoo.Positions.packed([4, 8])
    inputs = {"tokens": torch.randint(0, VOCABULARY, (1, LENGTH)), "at": at}
    apart = {"at": at, "lengths": (LENGTH,), "violates": lambda query, key: (query < 4) != (key < 4)}
    return {"model": language_model(kind=Keeping), "inputs": inputs, "permits": "causal", "layers": 2, **apart}


ATTENTION = "transformer.blocks.1.attention"

FAULTS = {
    another_rule: ("leak", {"layer": "transformer.blocks.0.attention"}),
    window_one_too_wide: ("leak", {"layer": "transformer.blocks.0.attention"}),
    window_forgotten_beside_sinks: ("leak", {}),
    another_rule_in_the_second_layer: ("leak", {"layer": ATTENTION}),
    another_rule_in_one_head: ("leak", {"layer": "transformer.blocks.0.attention", "head": 2}),
    rule_not_met_from_a_length_on: ("leak", {}),
    only_short_inputs: ("leak", {}),
    stem_that_looks_ahead: ("leak", {}),
    token_shift_from_the_future: ("leak", {"layer": "transformer.blocks.1.feedforward"}),
    positions_forgotten: ("leak", {"also": ["companion dependence"]}),
    documents_joined_by_name: ("leak", {"also": ["companion dependence"]}),
    batch_normalisation: ("batch coupling", {"layer": "transformer.blocks.1.attention_norm", "also": ["leak"]}),
    narrower_than_promised: ("blind spot", {}),
    second_layer_never_run: ("blind spot", {}),
    plan_of_another_batch: ("leak", {"also": ["companion dependence"]}),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_found_and_named(fault, found):
    kind, expected = FAULTS[fault]
    assert found(fault, kind, **expected).findings
