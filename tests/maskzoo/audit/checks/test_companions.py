"""Outputs that depend on what shares the batch with them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskzoo.audit.checks import Inapplicable, alone, more_padding, packing, padding_values, real_positions
from maskzoo.audit.subject import Subject
from maskzoo.positions import Positions
from maskzoo.transformer import LanguageModel, TransformerConfig

B, T, C, V = 3, 9, 16, 20
TOKENS = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(0))
X = torch.randn(B, T, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LENGTHS = [9, 4, 7]


def language_model(mask: str = "causal", **config: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(TransformerConfig(layers=2, width=C, heads=2, context=16, **config), V, mask).double().eval()


class ByPlace(nn.Module):
    """Adds something to each row by its place in the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(len(x))[:, None, None]


class BySize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / len(x)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


@pytest.mark.parametrize("make", [ByPlace, BySize])
def test_a_row_that_changes_alone(make: type[nn.Module]) -> None:
    [found] = alone(Subject(make(), X))
    assert found.kind == "companion dependence" and "alone" in found.message and found.row is not None


@pytest.mark.parametrize(
    "model", [nn.TransformerEncoderLayer(C, 2, 32, batch_first=True), nn.GRU(C, C, batch_first=True), nn.Linear(C, C)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_other_shapes_of_products_are_no_dependence(model: nn.Module, dtype: torch.dtype) -> None:
    assert alone(Subject(model.to(dtype).eval(), X.to(dtype))) == []


def test_random_numbers_are_no_dependence() -> None:
    with pytest.raises(Inapplicable, match="random"):
        alone(Subject(Noisy(), X))


@pytest.mark.parametrize("side", ["left", "right"])  # case B4
def test_a_sound_language_model_under_padding(side: str) -> None:
    subject = Subject(language_model(), (TOKENS, Positions.tokens(LENGTHS, side=side)))
    real = real_positions(subject.inputs, T)
    assert real is not None and real.sum(1).tolist() == LENGTHS
    assert padding_values(subject, real) == [] and more_padding(subject, real) == [] and alone(subject) == []


class Padded(nn.Module):
    """torch's encoder; it may forget the padding, or read positions off the right end."""

    def __init__(self, heeds: bool = True, from_end: bool = False) -> None:
        super().__init__()
        self.heeds, self.from_end = heeds, from_end
        self.layer = nn.TransformerEncoderLayer(C, 2, 32, batch_first=True)

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        if self.from_end:
            x = x + torch.arange(x.shape[1], 0, -1)[:, None] / 10
        return self.layer(x, src_key_padding_mask=key_padding_mask if self.heeds else None)


def padded(**fault: bool) -> Subject:
    torch.manual_seed(0)
    hidden = ~Positions.tokens(LENGTHS).real
    return Subject(Padded(**fault).double().eval(), {"x": X, "key_padding_mask": hidden})


def test_padding_of_a_foreign_model() -> None:
    subject = padded()
    real = real_positions(subject.inputs, T)
    assert real is not None
    assert padding_values(subject, real) == [] and more_padding(subject, real) == []

    forgets = padded(heeds=False)
    [by_value], [by_amount] = padding_values(forgets, real), more_padding(forgets, real)
    assert "values in padding" in by_value.message and by_value.row in (1, 2)
    assert "amount of padding on the right" in by_amount.message

    from_end = padded(from_end=True)
    assert padding_values(from_end, real) == [] and more_padding(from_end, real)


def test_what_cannot_be_padded_says_why() -> None:
    learned = Subject(language_model(position="learned"), torch.randint(0, V, (2, 16)))
    with pytest.raises(Inapplicable, match="does not take"):
        more_padding(learned, torch.ones(2, 16, dtype=torch.bool))
    with pytest.raises(Inapplicable, match="no padding"):
        padding_values(learned, torch.ones(2, 16, dtype=torch.bool))


class Unsegmented(nn.Module):
    """A model that is told of its documents and forgets one side of it."""

    def __init__(self, model: LanguageModel, keeps: str) -> None:
        super().__init__()
        self.model, self.keeps = model, keeps

    def forward(self, tokens: Tensor, at: Positions) -> Tensor:
        return self.model(tokens, Positions(**{self.keeps: at.fields[self.keeps]}))


PACKED = Positions.packed([[4, 5], [9], [2, 3, 4]])


def test_packed_documents() -> None:
    sound = Subject(language_model(), (TOKENS, PACKED))
    assert packing(sound, PACKED.segment) == []
    [found] = packing(Subject(Unsegmented(language_model(), "index"), (TOKENS, PACKED)), PACKED.segment)
    assert found.kind == "companion dependence" and "document" in found.message and found.query is not None
    assert (found.row, found.query >= 4) == (0, True) or found.row == 2


def test_learned_positions_that_run_on_over_documents() -> None:
    class RunsOn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = language_model(position="learned")

        def forward(self, tokens: Tensor, at: Positions) -> Tensor:
            slot = torch.arange(at.length).expand(at.batch, -1)
            return self.model(tokens, Positions(index=slot, segment=at.segment))

    [found] = packing(Subject(RunsOn().double().eval(), (TOKENS, PACKED)), PACKED.segment)
    assert found.kind == "companion dependence"


def test_documents_that_may_see_one_another_are_not_judged() -> None:
    every = torch.ones(1, T, T, dtype=torch.bool)
    subject = Subject(Unsegmented(language_model(), "index"), (TOKENS, PACKED))
    with pytest.raises(Inapplicable, match="no row holds two documents"):
        packing(subject, PACKED.segment, every)


def test_rows_that_see_one_another_are_left_to_the_other_check() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    with pytest.raises(Inapplicable, match="values in others"):
        alone(Subject(Centred(), X))
