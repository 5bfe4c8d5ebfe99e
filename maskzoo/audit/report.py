"""What an audit found, how it was measured, and ways to show and keep it."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskzoo.audit.finding import Finding

LONGEST_PICTURE = 32  # positions drawn in characters
LONGEST_LISTED = 512  # positions whose matrices are written to JSON

HIDDEN, USED, UNUSED, BLIND, LEAKING = range(5)
"""What a pair can be: not permitted and without influence; permitted, with influence; permitted, without influence;
the same where that is a blind spot; not permitted, with influence."""

_GLYPHS = {HIDDEN: "··", USED: "██", UNUSED: "░░", BLIND: "??", LEAKING: "!!"}
_ASCII_GLYPHS = {HIDDEN: "..", USED: "##", UNUSED: "::", BLIND: "??", LEAKING: "!!"}
_MEANINGS = {
    HIDDEN: "not permitted",
    USED: "permitted and used",
    UNUSED: "permitted, without influence",
    BLIND: "blind spot",
    LEAKING: "leak",
}


class LeakError(AssertionError):
    """A model that was asserted to be sound is not; the message is the whole report."""


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """The result of an audit: `print(report)`, `report.ok`, `report.findings`, `report.save("audit.html")`.

    Attributes:
        findings: one for each kind of fault and setting; empty for a sound model.
        influence: float [Tq, Tk], the largest over the batch, of every input on every output; exactly 0 where there is
            none. None where only a part was measured.
        permission: bool [Tq, Tk], what the rule permits over the depth of the model.
        rule: the rule in words.
        method: "exact" (every pair) or "quick" (random probes).
        checks: what was checked, and in which settings.
        skipped: what could not be checked, and why.
        passes: how many times the model ran, forward or backward.
        seconds: the time of the whole audit.
        miss: how likely a leak of a given width was missed, in words; empty for an exact audit.
    """

    findings: tuple[Finding, ...]
    influence: Tensor | None
    permission: Tensor | None
    rule: str
    method: str
    checks: tuple[str, ...]
    skipped: tuple[str, ...]
    passes: int
    seconds: float
    miss: str = ""

    @property
    def ok(self) -> bool:
        """No error. Warnings (blind spots, dead queries) do not count."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make a model unsound."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """The findings of the kind "leak"."""
        return tuple(finding for finding in self.findings if finding.kind == "leak")

    @property
    def verdict(self) -> str:
        """How many errors and warnings there are, in words."""
        errors, warnings = len(self.errors), len(self.findings) - len(self.errors)
        counted = [_counted(errors, "error")] * bool(errors) + [_counted(warnings, "warning")] * bool(warnings)
        return ", ".join(counted) or "nothing found"

    @property
    def measured(self) -> str:
        """The method and its cost, in words."""
        return f"{self.method}: {_counted(self.passes, 'run')} of the model in {self.seconds:.2f} s"

    def cells(self) -> Tensor | None:
        """What every pair is, uint8 [Tq, Tk] of HIDDEN, USED, UNUSED, BLIND and LEAKING; None without matrices."""
        if self.influence is None or self.permission is None:
            return None
        without = BLIND if any(finding.kind == "blind spot" for finding in self.findings) else UNUSED
        moved, permitted = self.influence != 0, self.permission
        cells = torch.full(permitted.shape, HIDDEN, dtype=torch.uint8)
        cells[permitted & moved] = USED
        cells[permitted & ~moved] = without
        cells[~permitted & moved] = LEAKING
        return cells

    def raise_for_leaks(self) -> None:
        """Raise LeakError with the whole report unless the audit is `ok`."""
        if not self.ok:
            raise LeakError(str(self))

    def __str__(self) -> str:
        rows = [(finding.severity, str(finding)) for finding in self.findings]
        rows += [("measured", self.measured), ("checked", "; ".join(self.checks))]
        rows += [("chance", self.miss), ("skipped", "; ".join(self.skipped))]
        lines = [f"audit of {self.rule}: {self.verdict}"]
        for label, text in rows:
            if text:
                head, indent = f"  {label:<10}", " " * 12
                lines += textwrap.wrap(text, 116, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
        return "\n".join([*lines, *self._picture()])

    __repr__ = __str__

    def _picture(self) -> list[str]:
        """The pairs in characters where they are few enough to be read."""
        from maskzoo.drawing.terminal import prints_blocks

        cells = self.cells()
        if cells is None or max(cells.shape) > LONGEST_PICTURE:
            return []
        glyphs = _GLYPHS if prints_blocks(sys.stdout.encoding) else _ASCII_GLYPHS
        head = "".join(f"{key:<4}" for key in range(0, cells.shape[1], 2))
        lines = ["", f"  output  input {head.rstrip()}"]
        lines += [
            f"  {query:>6}        {''.join(glyphs[cell] for cell in row)}" for query, row in enumerate(cells.tolist())
        ]
        shown = [f"{glyphs[cell]} {_MEANINGS[cell]}" for cell in sorted(set(cells.flatten().tolist()))]
        return [*lines, f"  {'':>6}        {'   '.join(shown)}"]

    def to_dict(self, matrices: bool = True) -> dict[str, Any]:
        """The report in plain types that JSON can hold; matrices as lists for at most 512 positions.

        Numbers in them have four digits; infinite and undefined ones are the texts "inf" and "nan".
        """
        listed = matrices and all(
            matrix is None or max(matrix.shape) <= LONGEST_LISTED for matrix in (self.influence, self.permission)
        )
        influence = self.influence if listed else None
        permission = self.permission if listed else None
        return {
            "ok": self.ok,
            "findings": [{**asdict(finding), "size": _plain(finding.size)} for finding in self.findings],
            "rule": self.rule,
            "method": self.method,
            "checks": list(self.checks),
            "skipped": list(self.skipped),
            "passes": self.passes,
            "seconds": self.seconds,
            "miss": self.miss,
            "influence": None if influence is None else [[_plain(x) for x in row] for row in influence.tolist()],
            "permission": None if permission is None else permission.int().tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        """The report that gave these values."""
        influence, permission = values["influence"], values["permission"]
        return cls(
            findings=tuple(Finding(**{**one, "size": float(one["size"])}) for one in values["findings"]),
            influence=None
            if influence is None
            else torch.tensor([[float(x) for x in row] for row in influence], dtype=torch.float64),
            permission=None if permission is None else torch.tensor(permission, dtype=torch.bool),
            rule=values["rule"],
            method=values["method"],
            checks=tuple(values["checks"]),
            skipped=tuple(values["skipped"]),
            passes=values["passes"],
            seconds=values["seconds"],
            miss=values["miss"],
        )

    def save(self, path: str | Path) -> Path:
        """Write the report as .json or as one self-contained .html page, by the ending of `path`; returns the path.

        Raises:
            ValueError: another ending.
            OSError: the folder does not exist or cannot be written.
        """
        path = Path(path).expanduser()
        check_suffix(path)
        if path.suffix.lower() == ".json":
            text = json.dumps(self.to_dict(), allow_nan=False) + "\n"
        else:
            from maskzoo.audit.page import page

            text = page(self)
        path.write_text(text, encoding="utf-8")
        return path


def check_suffix(path: str | Path) -> None:
    """Raise ValueError unless a report can be saved under this name."""
    if Path(path).suffix.lower() not in (".json", ".html"):
        raise ValueError(f"a report is saved as .html or .json, by the ending of its name; got {str(path)!r}")


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _plain(number: float) -> float | str:
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)
