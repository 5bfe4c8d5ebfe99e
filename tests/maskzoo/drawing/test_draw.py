import io
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import maskzoo as mz
from maskzoo import Positions
from maskzoo.drawing import Picture, draw, draw_weights
from maskzoo.drawing.ticks import tick_step

DARK, GREY, RED = (31, 78, 121), (189, 189, 189), (214, 39, 40)


def body(picture: Picture, width: int = 80, ascii_only: bool = False) -> list[str]:
    """The lines of pairs, without the queries' numbers."""
    lines = picture.text(width, ascii_only=ascii_only).split("\n")
    top = next(number for number, line in enumerate(lines) if line.startswith("query"))
    return [line[6:] for line in lines[top + 2 :]]


def pixels(picture: Picture, colour: tuple[int, int, int]) -> int:
    image = np.asarray(Image.open(io.BytesIO(picture._repr_png_())).convert("RGB")).astype(int)
    return int((abs(image - np.array(colour)).max(-1) <= 2).sum())


def test_the_face_offers_both() -> None:
    assert mz.draw is draw and mz.draw_weights is draw_weights


def test_text_draws_each_pair_with_named_axes() -> None:
    text = mz.draw("causal", length=4).text(80, ascii_only=False)
    assert text.split("\n") == [
        "causal & padding & same_segment",
        "4 queries × 4 keys, 62.5% visible",
        "",
        "query key",
        "      0   2",
        "    0 ██······",
        "      ████····",
        "    2 ██████··",
        "      ████████",
    ]


def test_text_in_ascii() -> None:
    picture = mz.draw("window(2)", length=3)
    assert body(picture, ascii_only=True) == ["##....", "####..", "..####"]
    assert picture.text(80, ascii_only=True).isascii()


def test_segments_are_divided_and_padding_is_blank() -> None:
    assert body(mz.draw("causal", Positions.packed([2, 1], padded_to=4))) == [
        "██··│··│",
        "████│··│",
        "──────────",
        "····│██│",
        "──────────",
        "    │  │",
    ]


def test_two_queries_share_a_line_where_keys_fill_it() -> None:
    lines = body(mz.draw("dilated(2, 2)", length=40), width=60)
    assert len(lines) == 20
    assert lines[0] == "▀▄" + "·" * 38
    assert lines[1] == "▀▄▀▄" + "·" * 36


def test_odd_lengths_end_in_half_a_line() -> None:
    lines = body(mz.draw("full", length=41), width=60)
    assert lines[-1] == "▀" * 41


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [30, 47, 80, 200])
@pytest.mark.parametrize("length", [1, 2, 3, 17, 36, 37, 70, 300])
def test_lines_fit_the_terminal(length: int, width: int, ascii_only: bool) -> None:
    text = mz.draw("causal & window(9)", length=length).text(width, ascii_only=ascii_only)
    assert max(map(len, text.split("\n"))) <= width


def test_long_rows_are_thinned_and_say_so() -> None:
    text = mz.draw("causal & window(60)", length=300).text(80, ascii_only=False)
    assert "each character: 10 queries × 5 keys" in text
    assert "▓" in text or "▒" in text


def test_heads_are_panels() -> None:
    text = mz.draw("stack(causal, window(2))", length=3).text(80, ascii_only=False)
    assert "head 0: causal" in text and "head 1: window(2)" in text
    assert "  2 ██████" in text and "  2 ··████" in text


def test_a_plan_and_other_keys() -> None:
    at, k_at = Positions.tokens(2), Positions.tokens(5)
    picture = mz.draw("wait_k(2)", at, k_at=k_at)
    assert "2 queries × 5 keys, queries and keys counted from the start" in picture.size
    assert body(picture) == ["████······", "██████····"]
    assert body(mz.draw(mz.plan("wait_k(2)", at, k_at=k_at))) == body(picture)


def test_one_sequence_of_a_batch() -> None:
    at = Positions.tokens([1, 3])
    assert body(mz.draw("causal", at, sequence=0)) == ["██│", "───────", "  │", "  │"]
    assert body(mz.draw("causal", at, sequence=1)) == ["██····", "████··", "██████"]
    for sequence in (-1, 2):
        with pytest.raises(ValueError, match=f"sequence={sequence}"):
            mz.draw("causal", at, sequence=sequence)


@pytest.mark.parametrize(("encoding", "glyphs"), [("ascii", "##...."), ("latin-1", "##...."), ("utf-8", "██····")])
def test_a_print_adapts_to_the_encoding(encoding: str, glyphs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    print(mz.draw("causal", length=3))
    out.flush()
    printed = out.buffer.getvalue().decode(encoding)
    assert glyphs in printed
    assert "\x1b" not in printed


def test_matplotlib_is_imported_for_figures_alone() -> None:
    code = "import sys, maskzoo.drawing; maskzoo.draw; assert 'matplotlib' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_colours_cover_what_they_should() -> None:
    full, half = (pixels(mz.draw(rule, length=64), DARK) for rule in ("full", "causal"))
    assert 0.45 < half / full < 0.56
    assert pixels(mz.draw("full", length=64), GREY) < 0.02 * full
    padded = mz.draw("full", Positions.tokens(32, padded_to=64))
    assert 0.2 < pixels(padded, DARK) / full < 0.3
    assert 0.7 < pixels(padded, GREY) / full < 0.8


def test_axes_are_named_and_ticked() -> None:
    picture = mz.draw("stack(causal, full, window(3))", Positions.packed([9, 11]))
    panels = [axes for axes in picture.figure().axes if axes.axison]
    assert len(panels) == 3
    for axes in panels:
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
        assert [text.get_text() for text in axes.get_xticklabels()] == [str(place) for place in range(0, 20, 2)]
        assert axes.get_ylim() == (19.5, -0.5)
    assert picture.figure().get_suptitle().startswith("stack(causal, full, window(3)) & padding & same_segment")


def test_long_rows_become_cells() -> None:
    axes = mz.draw("causal", length=600).figure().axes[0]
    assert axes.images[0].get_array().shape == (200, 200, 3)
    assert axes.get_xlabel() == "key (a cell is 3 queries × 3 keys)"
    assert axes.get_xlim() == (-0.5, 599.5)


def test_files_are_what_their_ending_says(tmp_path: Path) -> None:
    picture = mz.draw("causal & (window(8) | sinks(2))")
    assert picture.save(tmp_path / "rule.png") == tmp_path / "rule.png"
    assert Image.open(tmp_path / "rule.png").format == "PNG"
    picture.save(str(tmp_path / "rule.SVG"))
    assert xml.etree.ElementTree.parse(tmp_path / "rule.SVG").getroot().tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rule.SVG", "rule.png"]
    for name in ("rule.pdf", "rule"):
        with pytest.raises(ValueError, match=r"\.png or \.svg"):
            picture.save(tmp_path / name)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rule.png").write_bytes(b"old")

    def full_disk(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        mz.draw("causal", length=4).save(tmp_path / "rule.png")
    assert [path.name for path in tmp_path.iterdir()] == ["rule.png"]
    assert (tmp_path / "rule.png").read_bytes() == b"old"
    with pytest.raises(FileNotFoundError):
        mz.draw("causal", length=4).save(tmp_path / "nowhere" / "rule.png")


def weights(heads: int = 1, length: int = 6) -> torch.Tensor:
    scores = torch.randn(heads, length, length, generator=torch.Generator().manual_seed(0))
    return scores.masked_fill(~torch.ones(length, length).tril().bool(), -torch.inf).softmax(-1)


def test_weights_that_obey_their_rule_show_no_leak() -> None:
    picture = draw_weights(weights(3), "causal")
    assert len(picture.panels) == 3
    assert "LEAK" not in picture.size and "!" not in picture.text(80)
    assert pixels(picture, RED) == 0


def test_weight_on_a_hidden_pair_is_seen() -> None:
    leaky = weights()
    leaky[0, 1, 4] = 1e-6
    picture = draw_weights(leaky, "causal")
    assert "LEAK: hidden pairs with weight: 1" in picture.size
    assert body(picture)[1][8:10] == "!!"
    assert pixels(picture, RED) > 500


def test_a_leak_is_seen_in_a_thinned_picture() -> None:
    leaky = weights(length=600)
    leaky[0, 100, 411] = 1e-6
    picture = draw_weights(leaky, "causal")
    assert "!" in picture.text(80)
    assert pixels(picture, RED) > pixels(draw_weights(weights(length=600), "causal"), RED)


def test_labels_stand_at_the_ticks() -> None:
    labels = ["the", " cat", "sat\n", "$x_1$", "\t", "end"]
    picture = draw_weights(weights(2), "causal", labels=labels)
    written = ["the", " cat", r"sat\n", "$x_1$", r"\t", "end"]
    figure = picture.figure()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == written
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == written
    assert "$x_1$ " in picture.text(80)
    assert picture._repr_png_()[:4] == b"\x89PNG"


def test_weights_of_a_trained_layer_draw_with_their_batch() -> None:
    at = Positions.tokens([4, 6])
    q = torch.randn(2, 3, 6, 4)
    _, attended = mz.attend(q, q, q, mz.plan("causal", at), return_weights=True)
    for sequence in (0, 1):
        picture = draw_weights(attended, "causal", at, sequence=sequence)
        assert "LEAK" not in picture.size and len(picture.panels) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_weights(torch.ones(3, 3).long()), "int64"),
        (lambda: draw_weights([[1.0]]), "list"),
        (lambda: draw_weights(torch.ones(3)), r"\[3\]"),
        (lambda: draw_weights(torch.full((3, 3), torch.nan)), "finite"),
        (lambda: draw_weights(torch.ones(3, 4), "causal"), "do not fit the rule"),
        (lambda: draw_weights(torch.ones(3, 3, 3), "stack(causal, full)"), "do not fit the rule"),
        (lambda: draw_weights(torch.ones(3, 3), labels=["a"]), "labels has 1 texts for 3"),
        (lambda: draw_weights(torch.ones(2, 3), k_labels=["a"]), "k_labels has 1 texts for 3"),
        (lambda: draw_weights(torch.ones(2, 1, 3, 3), "causal", sequence=2), "sequence=2"),
        (lambda: draw(mz.plan("causal", Positions.tokens(3)), Positions.tokens(4)), "3 query positions .* have 4"),
        (lambda: draw("casual"), "Did you mean 'causal'"),
        (lambda: draw("causal", length=0), "at least 1"),
    ],
)
def test_mistakes_are_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_tick_steps() -> None:
    assert [tick_step(length, 10) for length in (1, 10, 11, 21, 60, 101, 256, 1024)] == [1, 1, 2, 5, 10, 20, 50, 200]
