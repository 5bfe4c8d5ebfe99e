"""Sliding-context evaluation against predicting every token by itself."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from maskzoo.tasks.language.data import DataConfig, LanguageData
from maskzoo.tasks.language.evaluation import Evaluation, evaluate_split, split_sequences
from maskzoo.transformer.language_model import LanguageModel
from maskzoo.transformer.transformer import TransformerConfig

BYTES = np.array([1] * 38 + [0, 3])


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    torch.manual_seed(3)
    config = TransformerConfig(layers=2, width=32, heads=2, context=16, position="learned", dropout=0.5)
    return LanguageModel(config, vocabulary=40)


def sequences(*lengths: int) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.integers(40, size=length) for length in lengths]


def one_by_one(model: LanguageModel, texts: list[np.ndarray], context: int, stride: int) -> tuple[float, int]:
    """Nats and tokens, each token from a forward pass of its own over the window that belongs to it."""
    nats, tokens = 0.0, 0
    model.eval()
    for ids in texts:
        for target in range(1, len(ids)):
            end = min(len(ids) - 1, context + stride * max(0, math.ceil((target - context) / stride)))
            start = max(0, end - context)
            with torch.no_grad():
                logits = model(torch.from_numpy(ids[start:target])[None])[0, -1]
            nats -= float(logits.log_softmax(-1)[ids[target]])
            tokens += 1
            assert target - start >= min(target, context - stride)  # the promise of the docstring
    return nats, tokens


@pytest.mark.parametrize(("context", "stride"), [(16, 8), (16, 16), (16, 1), (7, 3)])
def test_every_token_once_with_its_context(model: LanguageModel, context: int, stride: int) -> None:
    texts = sequences(45, 3, 17, 16, 2, 1)
    found = evaluate_split(model, texts, BYTES, context=context, stride=stride, batch_size=4)
    nats, tokens = one_by_one(model, texts, context, stride)
    assert found.tokens == tokens == 44 + 2 + 16 + 15 + 1
    assert found.bytes == sum(int(BYTES[ids[1:]].sum()) for ids in texts)
    assert found.nats == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_batch_size_does_not_change_the_score(model: LanguageModel, batch_size: int) -> None:
    """B24."""
    texts = sequences(60, 5, 31)
    reference = evaluate_split(model, texts, BYTES, context=16, stride=8, batch_size=7)
    assert evaluate_split(model, texts, BYTES, context=16, stride=8, batch_size=batch_size).nats == pytest.approx(
        reference.nats, rel=1e-6
    )


def test_the_model_is_left_as_it_was_and_progress_is_told(model: LanguageModel) -> None:
    model.train()
    told: list[tuple[int, int]] = []
    evaluate_split(
        model, sequences(50), BYTES, context=16, stride=8, batch_size=2, progress=lambda *done: told.append(done)
    )
    assert model.training
    assert told[-1] == (49, 49) and len(told) > 1


def test_bf16_is_close(model: LanguageModel) -> None:
    exact = evaluate_split(model, sequences(50), BYTES, context=16, stride=8)
    rough = evaluate_split(model, sequences(50), BYTES, context=16, stride=8, precision="bf16")
    assert rough.nats != exact.nats
    assert rough.nats == pytest.approx(exact.nats, rel=0.01)


def test_figures() -> None:
    """B24: (2, 1) and (90, 9) come to 92 nats over 10 tokens."""
    found = Evaluation(nats=92.0, tokens=10, bytes=20, seconds=2.0)
    assert found.loss == pytest.approx(9.2)
    assert found.perplexity == pytest.approx(math.exp(9.2))
    assert found.bits_per_byte == pytest.approx(92 / math.log(2) / 20)
    assert found.tokens_per_second == 5.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": 17, "stride": 1}, "context=17 is out of range: the model was built for 1 to 16"),
        ({"context": 16, "stride": 17}, "stride=17 is out of range: it must be from 1 to context=16"),
        ({"context": 16, "stride": 0}, "stride=0"),
        ({"context": 16, "stride": 1, "batch_size": 0}, "batch_size=0"),
    ],
)
def test_bad_values_are_refused(model: LanguageModel, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        evaluate_split(model, sequences(9), BYTES, **options)


def test_nothing_to_predict_is_refused(model: LanguageModel) -> None:
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate_split(model, sequences(1), BYTES, context=16, stride=8)


def test_sequences_are_those_of_training(tmp_path: Any) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(b"abc" * 200)
    for batching, first, last in (("packed", 256, 257), ("stream", ord("a"), ord("c"))):
        data = LanguageData(DataConfig(name="text", path=str(file), context=16, batching=batching))
        found = split_sequences(data, "test")
        assert len(found) == 1
        assert sum(len(ids) for ids in found) == len(data.documents("test").ids) + (2 if batching == "packed" else 0)
        assert found[0][-1] == last
        assert (found[0][0] == 256) == (first == 256)
