"""Whether training teaches anything, and whether a rule that lets the answer in shows."""

from pathlib import Path

import pytest

from maskzoo.cli import main


def bits_per_byte(mask: str, folder: Path) -> float:
    arguments = [
        f"run_dir={folder}", f"mask={mask}", "logger=csv", "trainer.max_steps=150", "sample.tokens=0",
        "model.layers=2", "model.width=128", "data.context=128", "trainer.validate_every=150",
    ]  # fmt: skip
    assert main(["train", *arguments]) == 0
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    column = header.split(",").index("val/bits_per_byte")
    return float([row.split(",")[column] for row in rows if row.split(",")[column]][-1])


@pytest.mark.slow
def test_a_causal_model_learns_and_one_that_sees_the_answer_looks_better(tmp_path: Path) -> None:
    honest = bits_per_byte("causal", tmp_path / "honest")
    leaking = bits_per_byte("causal | window(2, both_sides=True)", tmp_path / "leaking")
    assert honest < 4.0  # 8 bits per byte before training
    assert leaking < honest - 1.0
