"""Reports: what they say, and that what is saved comes back."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from maskzoo.audit.finding import Finding
from maskzoo.audit.report import BLIND, HIDDEN, LEAKING, UNUSED, USED, LeakError, Report

LEAK = Finding(
    kind="leak",
    message="output 1 moves with input 3, which causal does not permit",
    cause="a mask that is off by one",
    size=0.31,
    pairs=1,
    row=0,
    query=1,
    key=3,
    layer="blocks.1.attention",
    head=2,
    severity="error",
)
BLIND_SPOT = Finding(
    kind="blind spot",
    message="output 3 does not move with input 0, although causal permits it",
    cause="a window that is too short",
    size=0.0,
    pairs=1,
    query=3,
    key=0,
    severity="warning",
)


def report(*findings: Finding, **changes: Any) -> Report:
    """Of four positions under a causal rule; influence 1 wherever it is permitted, changed where findings say so."""
    permission = torch.ones(4, 4, dtype=torch.bool).tril()
    influence = permission.double()
    for finding in findings:
        influence[finding.query, finding.key] = finding.size
    made = Report(
        findings=findings,
        influence=influence,
        permission=permission,
        rule="causal",
        method="exact",
        checks=("leaks in float64", "training mode"),
        skipped=("bfloat16: the model does not run in it",),
        passes=12,
        seconds=0.25,
    )
    return dataclasses.replace(made, **changes)


def test_a_sound_model() -> None:
    sound = report()
    assert sound.ok
    assert sound.leaks == sound.errors == ()
    assert sound.verdict == "nothing found"
    sound.raise_for_leaks()


def test_a_warning_is_no_error() -> None:
    warned = report(BLIND_SPOT)
    assert warned.ok
    assert warned.verdict == "1 warning"
    warned.raise_for_leaks()


def test_a_leak_raises_with_the_whole_report() -> None:
    leaking = report(LEAK, BLIND_SPOT)
    assert not leaking.ok
    assert leaking.leaks == leaking.errors == (LEAK,)
    assert leaking.verdict == "1 error, 1 warning"
    with pytest.raises(LeakError) as caught:
        leaking.raise_for_leaks()
    assert str(caught.value) == str(leaking)
    assert isinstance(caught.value, AssertionError)  # so that pytest shows it as a failure


def test_an_error_of_another_kind_is_one_too() -> None:
    shifted = dataclasses.replace(LEAK, kind="target misalignment")
    assert report(shifted).leaks == ()
    assert not report(shifted).ok


def test_the_text_says_what_was_found_and_how() -> None:
    text = str(report(LEAK, BLIND_SPOT, method="quick", miss="a wide leak is missed once in a million"))
    first, *rest = text.splitlines()
    assert first == "audit of causal: 1 error, 1 warning"
    assert rest[0].startswith("  error     ")
    joined = " ".join(text.split())
    for finding in (LEAK, BLIND_SPOT):
        assert str(finding) in joined
    for part in ("quick: 12 runs of the model in 0.25 s", "missed once in a million", "training mode", "bfloat16: the"):
        assert part in joined
    assert max(map(len, text.splitlines())) <= 120


def test_the_picture_in_characters() -> None:
    rows = str(report(LEAK, BLIND_SPOT)).splitlines()[-6:]
    assert [row.split()[-1] for row in rows[1:5]] == ["██······", "████··!!", "██████··", "??██████"]
    assert "!! leak" in rows[5] and "?? blind spot" in rows[5]
    assert "permitted, without" not in rows[5]


def test_long_matrices_are_not_drawn_in_characters() -> None:
    matrix = torch.ones(33, 33)
    assert "██" not in str(report(influence=matrix, permission=matrix.bool()))


def test_cells() -> None:
    cells = report(LEAK, BLIND_SPOT).cells()
    assert cells is not None
    assert cells[1].tolist() == [USED, USED, HIDDEN, LEAKING]
    assert cells[3].tolist() == [BLIND, USED, USED, USED]


def test_no_influence_is_a_blind_spot_only_if_the_audit_found_it_to_be_one() -> None:
    influence = torch.ones(4, 4).tril()
    influence[3, 0] = 0
    cells = report(influence=influence).cells()
    assert cells is not None
    assert cells[3].tolist() == [UNUSED, USED, USED, USED]


def test_an_influence_that_is_no_number_is_one() -> None:
    influence = torch.ones(4, 4).tril()
    influence[0, 1] = float("nan")
    cells = report(influence=influence).cells()
    assert cells is not None
    assert cells[0, 1] == LEAKING


@pytest.mark.parametrize("changes", [{"influence": None}, {"influence": None, "permission": None}, {}])
def test_json_brings_the_report_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    written = report(LEAK, BLIND_SPOT, miss="seldom", **changes)
    path = written.save(tmp_path / "audit.json")
    read = Report.from_dict(json.loads(path.read_text()))
    assert read.findings == written.findings
    assert str(read) == str(written)
    assert read.to_dict() == written.to_dict()


def test_json_has_no_number_that_other_readers_refuse(tmp_path: Path) -> None:
    influence = torch.tensor([[1e-300, float("inf")], [float("nan"), 1 / 3]])
    odd = report(dataclasses.replace(LEAK, query=None, size=float("inf")), influence=None)
    odd = dataclasses.replace(odd, influence=influence.double(), permission=torch.ones(2, 2).bool())
    text = odd.save(tmp_path / "odd.json").read_text()
    read = Report.from_dict(json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")))
    assert read.findings[0].size == float("inf")
    assert read.influence is not None
    assert read.influence.isnan().tolist() == [[False, False], [True, False]]
    assert read.influence[1, 1] == pytest.approx(1 / 3, rel=1e-3)


def test_matrices_are_listed_for_short_inputs_and_only_if_wanted() -> None:
    assert report().to_dict()["permission"][1] == [1, 1, 0, 0]
    assert report().to_dict(matrices=False)["permission"] is None
    long = torch.ones(2, 513)
    assert report(influence=long, permission=long.bool()).to_dict()["influence"] is None


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.html or \.json.*audit\.txt"):
        report().save(tmp_path / "audit.txt")
    assert list(tmp_path.iterdir()) == []
