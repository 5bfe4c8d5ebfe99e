"""Answers among the inputs of the output that has to give them (cases A4 and A16)."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from maskzoo.audit.checks import Inapplicable, aligned_targets, target_alignment
from maskzoo.audit.checks.targets import shift_of
from maskzoo.audit.subject import Subject
from maskzoo.positions import Positions
from maskzoo.tasks.language.documents import Documents
from maskzoo.tasks.language.packing import PackedRows
from maskzoo.transformer import LanguageModel, TransformerConfig

V, BOS, EOS = 24, 20, 21
RAW = torch.randint(0, 20, (2, 10), generator=torch.Generator().manual_seed(0))


def language_model(mask: str = "causal") -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(TransformerConfig(layers=2, width=16, heads=2, context=16), V, mask).double().eval()


def shifted(raw: Tensor) -> tuple[Tensor, Tensor]:
    return raw[:, :-1], raw[:, 1:]


def unshifted(raw: Tensor) -> tuple[Tensor, Tensor]:
    return raw[:, :-1], raw[:, :-1]


def shifted_twice(raw: Tensor) -> tuple[Tensor, Tensor]:
    return raw[:, 1:], raw[:, :-1]


def test_shifted_targets_are_sound() -> None:
    assert target_alignment(language_model(), RAW, shifted) == []


@pytest.mark.parametrize("batch_of", [unshifted, shifted_twice])
def test_answers_that_are_fed(batch_of: Any) -> None:
    [found] = target_alignment(language_model(), RAW, batch_of, setting="in a test")
    assert found.kind == "target misalignment" and found.severity == "error" and found.size > 1e-3
    assert f"output {found.query} of row {found.row}" in found.message and "own answer" in found.message
    assert found.message.endswith("in a test")


def test_a_model_that_looks_ahead_sees_its_answer() -> None:
    assert target_alignment(language_model("full"), RAW, shifted)


def packed(shift: int) -> Any:
    """The product's own packing of documents, or one that puts every target a place further back."""

    def batch_of(documents: list[bytes]) -> tuple[tuple[Tensor, Positions], Tensor]:
        ids = np.concatenate([np.frombuffer(one, np.uint8) for one in documents]).astype(np.int64)
        offsets = np.cumsum([0, *map(len, documents)])
        rows = PackedRows(Documents(ids, offsets), context=8, bos=BOS, eos=EOS)
        block = rows.block(np.arange(len(rows)))
        targets = torch.from_numpy(block.targets)
        tokens = torch.from_numpy(block.tokens)
        return (tokens, Positions(segment=torch.from_numpy(block.segment))), targets.roll(shift, dims=1)

    return batch_of


DOCUMENTS = [bytes([1, 2, 3]), bytes([4, 5, 6, 7, 8, 9]), bytes([10, 11, 12])]


def test_packed_documents() -> None:
    assert target_alignment(language_model(), DOCUMENTS, packed(0), values=range(20)) == []
    [found] = target_alignment(language_model(), DOCUMENTS, packed(1), values=range(20))
    assert "of document" in found.message


def test_text_and_lists_of_numbers() -> None:
    def letters(text: str) -> tuple[Tensor, Tensor]:
        ids = torch.tensor([[ord(letter) - 97 for letter in text]])
        return ids[:, :-1], ids[:, 1:]

    assert target_alignment(language_model(), "abcabdefg", letters) == []
    assert target_alignment(language_model(), "abcabdefg", lambda text: (letters(text)[1],) * 2)
    assert target_alignment(language_model(), [1, 2, 3, 4], lambda raw: shifted(torch.tensor([raw]))) == []


def test_a_classifier_whose_label_is_among_its_features() -> None:
    class Classifier(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1)

    def columns(keep: int) -> Any:
        return lambda table: (table[:, :keep, None], table[:, 3])

    table = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options: dict[str, Any] = {"output": lambda out: out[:, None]}
    assert target_alignment(Classifier(), table, columns(3), **options) == []
    assert target_alignment(Classifier(), table, columns(4), **options)


def test_targets_that_never_change_say_so() -> None:
    with pytest.raises(Inapplicable, match="no change"):
        target_alignment(language_model(), RAW, lambda raw: (raw, torch.full_like(raw, -100)))


def test_wrong_shape_of_targets() -> None:
    with pytest.raises(ValueError, match=r"targets are \[2, 3\]"):
        target_alignment(language_model(), RAW, lambda raw: (raw, raw[:, :3]))


def test_tensor_form() -> None:
    inputs, targets = shifted(RAW)
    assert aligned_targets(Subject(language_model(), inputs), targets) == []
    [found] = aligned_targets(Subject(language_model(), inputs), inputs)
    assert found.query == found.key and found.pairs == inputs.numel()
    [ahead] = aligned_targets(Subject(language_model("full"), inputs), targets)
    assert ahead.key == ahead.query + 1  # type: ignore[operator]


def test_shift_of_targets() -> None:
    inputs, targets = shifted(RAW)
    assert shift_of(inputs, targets) == 1 and shift_of(inputs, inputs) == 0 and shift_of(targets, inputs) == -1
    ignored = targets.clone()
    ignored[:, ::3] = -100
    assert shift_of(inputs, ignored) == 1
    constant = torch.ones(2, 9, dtype=torch.int64)
    for one, other in ((constant, constant), (inputs, (inputs + 7) % 20)):
        with pytest.raises(Inapplicable, match="raw example"):
            shift_of(one, other)
