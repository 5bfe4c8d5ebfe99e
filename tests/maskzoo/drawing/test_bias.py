"""Pictures of biases."""

import matplotlib.image
import numpy as np
import pytest
import torch

import maskzoo as mz
from maskzoo.cli import main


def test_each_head_is_a_panel_darker_for_more():
    picture = mz.draw_bias("alibi", "causal", length=6, heads=2)
    assert [panel.title for panel in picture.panels] == ["head 0", "head 1"]
    assert picture.offset_range == (-5 / 16, 0.0)  # slopes 1/16 and 1/256 for two heads
    assert "alibi under causal & padding & same_segment" in picture.rule and "from -0.312 to 0" in picture.size
    cells = picture.cells(picture.panels[0], 1, 1)
    visible = np.tril(np.ones((6, 6), dtype=bool))
    assert (cells.hidden == ~visible).all()
    distance = np.subtract.outer(np.arange(6), np.arange(6))
    assert np.allclose(cells.shade[visible], 1 - distance[visible] / 5)


def test_the_lowest_offset_does_not_look_hidden():
    lines = str(mz.draw_bias("alibi", "causal", length=4, heads=1).text(60)).splitlines()
    rows = [line.split()[-1] for line in lines[-4:]]
    assert rows[0] == "██······" and rows[-1].startswith("░░") and rows[-1].endswith("██")
    assert all(len(row) == 8 for row in rows)


def test_several_pairs_in_a_cell_show_their_mean():
    bias = mz.biases.Dense(torch.tensor([[0.0, 4.0], [2.0, 2.0]]), heads=1)
    picture = mz.draw_bias(bias, length=2)
    assert picture.cells(picture.panels[0], 2, 2).shade.tolist() == [[0.5]]
    hidden = mz.draw_bias(bias, "causal", length=2)
    assert hidden.offset_range == (0.0, 2.0)
    assert hidden.cells(hidden.panels[0], 2, 2).shade == pytest.approx(2 / 3)  # the mean of 0, 2 and 2


def test_a_bias_is_saved_with_a_scale(tmp_path):
    path = mz.draw_bias("alibi", "causal & window(8)", length=24, heads=4).save(tmp_path / "bias.png")
    assert matplotlib.image.imread(path).std() > 0.05


def test_show_draws_a_bias(capsys, tmp_path):
    assert main(["show", "bias=alibi + 0.5 * distance", "heads=2", "length=8", f"output={tmp_path / 'b.svg'}"]) == 0
    printed = capsys.readouterr().out
    assert "head 0" in printed and "alibi + 0.5 * distance under causal" in printed
    assert (tmp_path / "b.svg").exists()
    assert main(["show", "bias=alibbi"]) == 2
    assert "Did you mean 'alibi'" in capsys.readouterr().err


def test_what_adds_nothing_is_no_picture():
    with pytest.raises(ValueError, match="adds nothing"):
        mz.draw_bias("none", length=4)
