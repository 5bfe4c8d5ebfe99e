import pytest

from maskzoo import registry
from maskzoo.cli import main


def test_every_provider_is_listed_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for kind in (registry.masks, registry.biases, registry.tasks, registry.datasets):
        for name in kind.names():
            assert f"  {name}" in shown
            assert kind.entry(name).summary in shown
    assert "enwik8_small" in shown


def test_parameters_are_shown_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "masks"]) == 0
    masks = capsys.readouterr().out
    assert "window(size, both_sides=False)" in masks
    assert "alibi" not in masks
    assert main(["list", "what=biases"]) == 0
    biases = capsys.readouterr().out
    assert "relative(buckets=32" in biases
    assert "heads" not in biases.split("alibi")[1].splitlines()[1]


def test_an_unknown_kind_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "mask"]) == 2
    assert "Did you mean 'masks'?" in capsys.readouterr().err
