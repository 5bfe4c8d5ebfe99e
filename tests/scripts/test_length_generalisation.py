"""The figures of the length script: what it counts, and which runs it finds."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from maskzoo.tasks.language.evaluation import evaluate_split
from maskzoo.transformer import LanguageModel, TransformerConfig

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

import length_generalisation as script

CONTEXT = 64


def test_places_together_cost_what_the_evaluation_counts() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(layers=1, width=16, heads=2, context=CONTEXT, position="none")
    model = LanguageModel(config, vocabulary=11, bias="alibi").eval()
    random = np.random.default_rng(0)
    byte_lengths = np.arange(11)
    ids = random.integers(1, 11, 2 * CONTEXT + 1)
    places = script.by_place(model, script.Text([ids], byte_lengths), CONTEXT, "32")
    whole = evaluate_split(model, [ids], byte_lengths, context=CONTEXT, stride=CONTEXT)
    width = CONTEXT // script.BINS
    sizes = byte_lengths[ids[1:]].reshape(2, script.BINS, width).sum((0, 2))
    assert np.dot(places, sizes) * math.log(2) == pytest.approx(whole.nats, rel=1e-5)
    assert np.ptp(places) > 0


def test_text_shorter_than_a_window_has_no_places() -> None:
    model = LanguageModel(TransformerConfig(layers=1, width=16, heads=2, context=CONTEXT), vocabulary=11)
    short = script.Text([np.ones(CONTEXT, np.int64)], np.ones(11, np.int64))
    assert np.isnan(script.by_place(model, short, CONTEXT, "32")).all()


def test_runs_are_found_directly_and_inside_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    assert script.run_folders([tmp_path]) == [tmp_path / "a", tmp_path / "b"]
    assert script.run_folders([tmp_path / "b"]) == [tmp_path / "b"]
    with pytest.raises(ValueError, match="neither"):
        script.run_folders([tmp_path / "c"])
