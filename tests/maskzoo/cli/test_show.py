from pathlib import Path

import pytest

from maskzoo.cli import main


def test_the_rule_is_drawn_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "mask=causal & (window(8) | sinks(2))", "length=32"]) == 0
    shown = capsys.readouterr().out
    assert "causal & (window(8) | sinks(2))" in shown
    assert "query" in shown
    assert "key" in shown


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_saved_where_asked(
    suffix: str, start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", "mask=~causal", "length=8", f"output=a=b {suffix}.{suffix}"]) == 0
    assert (tmp_path / f"a=b {suffix}.{suffix}").read_bytes().startswith(start)


def test_packed_documents_do_not_see_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "mask=full", "lengths=[2,4]"]) == 0
    assert "55.6% visible" in capsys.readouterr().out  # (2² + 4²) of 6²


def test_a_plugin_is_loaded_before_the_rule_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "own.py"
    plugin.write_text(
        "from dataclasses import dataclass\n"
        "import maskzoo as mz\n"
        "@mz.register_mask('shown_by_a_plugin')\n"
        "@dataclass(frozen=True)\n"
        "class Own(mz.Mask):\n"
        "    '''Keys at an even place.'''\n"
        "    step: int = 2\n"
        "    def visible(self, q, k):\n"
        "        return k.index % self.step == 0\n"
    )
    assert main(["show", "mask=causal & shown_by_a_plugin(3)", f"plugins={plugin}", "length=6"]) == 0
    assert "shown_by_a_plugin(3)" in capsys.readouterr().out
    assert main(["list", "masks", f"plugins=[{plugin}]"]) == 0
    assert "shown_by_a_plugin(step=2)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "part"),
    [("length=0", "length=0"), ("lengths=[]", "lengths=[]"), ("lengths=[3,0]", "lengths[1]=0"), ("lenght=3", "length")],
)
def test_impossible_lengths_are_refused(argument: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", argument]) == 2
    assert part in capsys.readouterr().err
