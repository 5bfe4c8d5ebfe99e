"""What the language task hands to the audit."""

from pathlib import Path

import pytest
import torch

from maskzoo.tasks.language.audit import language_case
from maskzoo.tasks.language.data import DataConfig, LanguageData
from maskzoo.transformer.language_model import LanguageModel
from maskzoo.transformer.transformer import TransformerConfig

BATCHINGS = ["packed", "padded", "stream"]


def data(folder: Path, batching: str, **changes: object) -> LanguageData:
    """Documents of several lengths; a single long one for a stream."""
    folder.mkdir()
    texts = ["the only text " * 400] if batching == "stream" else [f"text {n} " * (1 + n % 7) for n in range(80)]
    for number, text in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(text)
    settings = {"context": 24, "batch_size": 4, **changes}
    path = folder / "00.txt" if batching == "stream" else folder
    return LanguageData(DataConfig(name="text", path=str(path), batching=batching, **settings))  # type: ignore[arg-type]


def model(context: int = 24, vocabulary: int = 258) -> LanguageModel:
    return LanguageModel(TransformerConfig(layers=1, width=16, heads=2, context=context), vocabulary, "causal")


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_rows_are_those_of_a_real_batch(tmp_path: Path, batching: str) -> None:
    source = data(tmp_path / "text", batching)
    case = language_case(model(), source)
    tokens, at = case.inputs
    batch = source.train_batches(0)[0]
    assert tokens.shape == (2, batch.tokens.shape[1])
    assert at.batch in (1, 2)
    for row in tokens:
        assert any(torch.equal(row, other) for other in batch.tokens)
    assert case.model(tokens, at).shape == (*tokens.shape, 258)


def test_the_rows_hold_borders_and_padding_where_there_are_any(tmp_path: Path) -> None:
    packed = language_case(model(), data(tmp_path / "packed", "packed")).inputs[1]
    assert (packed.segment.amax(1) >= 1).all()
    padded = language_case(model(), data(tmp_path / "padded", "padded")).inputs[1]
    assert (padded.segment == -1).any()


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_changed_token_becomes_a_changed_target_and_the_next_input(tmp_path: Path, batching: str) -> None:
    case = language_case(model(), data(tmp_path / "text", batching))
    (tokens, _), targets = case.batch_of(case.example)
    moved = torch.zeros_like(targets, dtype=torch.bool)
    for place in range(len(case.example)):
        changed = case.example.clone()
        changed[place] = 0
        (other_tokens, _), other_targets = case.batch_of(changed)
        own, later = other_targets != targets, other_tokens != tokens
        assert own.sum() <= 1 and later.sum() <= 1
        if own.any() and later.any():
            assert later.flatten().nonzero() == own.flatten().nonzero() + 1
        moved |= own
    assert moved.sum() >= 20


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_smallest_rows(tmp_path: Path, batching: str) -> None:
    case = language_case(model(1), data(tmp_path / "text", batching, context=1))
    (tokens, at), targets = case.batch_of(case.example)
    assert tokens.shape[1] == at.length == targets.shape[1] == 1


def test_tokens_of_several_bytes(tmp_path: Path) -> None:
    source = data(tmp_path / "text", "packed", tokenizer="bpe", vocabulary_size=270)
    case = language_case(model(vocabulary=source.tokenizer.vocabulary), source)
    targets = case.batch_of(case.example)[1]
    assert set(targets[targets >= 0].tolist()) <= {*case.example.tolist(), source.tokenizer.eos}
    assert case.example.max() < source.tokenizer.vocabulary
