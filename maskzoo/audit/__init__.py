"""Prove what a model can see: `check(model, inputs, permits="causal")` for any torch model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from maskzoo.audit.checking import check
from maskzoo.audit.finding import KINDS, Finding
from maskzoo.audit.permission import Permits, closed
from maskzoo.audit.report import LeakError, Report
from maskzoo.audit.subject import Subject

__all__ = ["KINDS", "Finding", "LeakError", "Report", "Subject", "assert_sound", "check", "closed"]


def assert_sound(
    model: nn.Module | Callable[..., Any], inputs: Any, permits: Permits | None = None, **options: Any
) -> Report:
    """For tests: the report of `check` with these arguments, if no error was found.

    Raises:
        LeakError: an error was found; its message is the whole report.
    """
    report = check(model, inputs, permits, **options)
    report.raise_for_leaks()
    return report
