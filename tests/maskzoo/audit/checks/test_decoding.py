"""The whole prefix at once against step by step."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskzoo.audit.checks import Inapplicable, decode_mismatch
from maskzoo.audit.subject import Subject
from maskzoo.positions import Positions
from maskzoo.transformer import LanguageModel, TransformerConfig
from maskzoo.transformer.cache import Cache

V, T = 20, 9
TOKENS = torch.randint(0, V, (3, T), generator=torch.Generator().manual_seed(0))


def language_model(mask: str = "causal", kind: type[LanguageModel] = LanguageModel, **config: Any) -> LanguageModel:
    torch.manual_seed(0)
    return kind(TransformerConfig(layers=2, width=16, heads=2, context=16, **config), V, mask).double().eval()


@pytest.mark.parametrize("mask", ["causal", "window(3)", "causal & strided(3)", "prefix(4)"])
@pytest.mark.parametrize("position", ["rotary", "learned"])
def test_the_cache_of_a_language_model(mask: str, position: str) -> None:
    model = language_model(mask, position=position)
    assert decode_mismatch(Subject(model, TOKENS)) == []
    if mask == "prefix(4)":
        return  # in a packed row some document's prefix is always open
    for at in (Positions.packed([[4, 5], [9], [2, 3, 4]]), Positions.tokens([9, 4, 7], side="left")):
        assert decode_mismatch(Subject(model, (TOKENS, at)), real=at.real.expand(3, -1)) == []


def test_float32_rounding_is_no_mismatch() -> None:
    assert decode_mismatch(Subject(language_model().float(), TOKENS)) == []


class Restarting(LanguageModel):
    """Steps of the cache forget where they stand."""

    def forward(
        self, tokens: Tensor, at: Positions | None = None, cache: Cache | None = None, weights: Any = None
    ) -> Tensor:
        if cache is not None and cache.length and at is not None:
            at = Positions(index=at.index - 1, segment=at.segment)
        return super().forward(tokens, at, cache, weights)


def test_a_cache_off_by_one() -> None:
    [found] = decode_mismatch(Subject(language_model(kind=Restarting, position="learned"), TOKENS))
    assert found.kind == "decode mismatch" and found.query == 1 and found.size > 1e-6
    assert "position by position" in found.message


def test_a_rule_that_sees_ahead_is_not_decoded() -> None:
    with pytest.raises(Inapplicable, match="sees later ones"):
        decode_mismatch(Subject(language_model("full"), TOKENS))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(V, 16), nn.GRU(16, 16, batch_first=True)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.gru(self.embedding(tokens), state)


def stepwise(model: Recurrent, tokens: Tensor, forgets_at: int = -1) -> Iterator[Tensor]:
    state = None
    for place in range(tokens.shape[1]):
        out, state = model(tokens[:, place : place + 1], None if place == forgets_at else state)
        yield out[:, 0]


def test_a_user_s_own_decoding() -> None:
    torch.manual_seed(0)
    model = Recurrent().eval()
    subject = Subject(model, TOKENS)
    assert decode_mismatch(subject, lambda tokens: stepwise(model, tokens)) == []
    assert decode_mismatch(subject, lambda own, tokens: torch.stack(list(stepwise(own, tokens)), dim=1)) == []
    [found] = decode_mismatch(subject, lambda tokens: stepwise(model, tokens, forgets_at=5), setting="in a test")
    assert found.query == 5 and found.message.endswith("in a test")


def test_wrong_number_of_steps() -> None:
    model = Recurrent()
    with pytest.raises(ValueError, match="decoding gives"):
        decode_mismatch(Subject(model, TOKENS), lambda tokens: list(stepwise(model, tokens))[:-1])
    with pytest.raises(Inapplicable, match="decode="):
        decode_mismatch(Subject(model, TOKENS))


def test_what_follows_from_a_leak_is_no_mismatch() -> None:
    class Ahead(LanguageModel):
        """Every position takes in the next one, where there is one."""

        def forward(self, tokens: Tensor, *args: Any, **options: Any) -> Tensor:
            out = super().forward(tokens, *args, **options)
            return torch.cat([out[:, :-1] + out[:, 1:], out[:, -1:]], dim=1)

    assert decode_mismatch(Subject(language_model(kind=Ahead), TOKENS)) == []


def test_a_model_without_its_cache_says_so() -> None:
    class Uncached(LanguageModel):
        def forward(self, tokens: Tensor, at: Any = None) -> Tensor:  # type: ignore[override]
            return super().forward(tokens, at)

    with pytest.raises(Inapplicable, match="with its cache"):
        decode_mismatch(Subject(language_model(kind=Uncached), TOKENS))
