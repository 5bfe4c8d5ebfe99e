"""Sound models of maskzoo's own: every kind of rule, bias, position, norm and batch."""

import pytest
import torch

import maskzoo
from maskzoo.transformer import LanguageModel, TransformerConfig

VOCABULARY, LENGTH = 13, 12


def case(mask="causal", bias=None, at=None, layers=2, **config):
    model = LanguageModel(
        TransformerConfig(**{"layers": layers, "width": 16, "heads": 4, "context": 64, **config}),
        VOCABULARY,
        mask,
        bias,
    )
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
    inputs = tokens if at is None else {"tokens": tokens, "at": at}
    return {"model": model, "inputs": inputs, "permits": mask, "layers": layers, **({} if at is None else {"at": at})}


def packed():
    return maskzoo.Positions.packed([[5, 7], [3, 4, 5]])


def row_and_column():
    return maskzoo.Positions.grid(3, 4, batch=2)


SOUND = {
    "causal": lambda: case(),
    "its own rule": lambda: {k: v for k, v in case("causal & window(3)").items() if k not in ("permits", "layers")},
    "full": lambda: case("full"),
    "window": lambda: case("causal & window(3)"),
    "one layer of a window": lambda: case("causal & window(4)", layers=1),
    "window and sinks": lambda: case("causal & (window(2) | sinks(1))"),
    "prefix": lambda: case("causal | prefix(4)"),
    "blocks": lambda: case("causal & block(4)"),
    "dilated": lambda: case("causal & dilated(3, 2)"),
    "strided": lambda: case("causal & (strided(4) | window(2))"),
    "one rule a head": lambda: case("stack(causal, causal & window(2), causal, causal & window(3))"),
    "packed documents": lambda: case(at=packed()),
    "packed documents in a window": lambda: case("causal & window(3)", at=packed()),
    "padded on the right": lambda: case(at=maskzoo.Positions.tokens([12, 7])),
    "padded on the left": lambda: case(at=maskzoo.Positions.tokens([12, 7], side="left")),
    "full over padding": lambda: case("full", at=maskzoo.Positions.tokens([12, 7])),
    "across segments": lambda: case("across_segments & causal", at=packed()),
    "alibi": lambda: case(bias="alibi"),
    "relative bias": lambda: case(bias="relative(buckets=8)"),
    "relative bias of each layer": lambda: case(bias="relative(buckets=8)", bias_per_layer=True),
    "grouped queries": lambda: case(kv_heads=2),
    "one key and value head": lambda: case(kv_heads=1),
    "learned positions": lambda: case(position="learned"),
    "sinusoidal positions": lambda: case(position="sinusoidal"),
    "no positions": lambda: case(position="none"),
    "post-norm": lambda: case(norm_position="post"),
    "RMS norm, swiglu, normed queries": lambda: case(
        norm="rmsnorm", activation="swiglu", qk_norm=True, linear_bias=False
    ),
    "dropout": lambda: case(dropout=0.2, attention_dropout=0.2),
    "untied": lambda: case(tied=False),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_model_gives_no_finding(name, clean):
    assert clean(SOUND[name]).ok
