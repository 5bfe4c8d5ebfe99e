"""Runs a command through Hydra: once, or once for every job of a sweep."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from maskzoo.cli import errors
from maskzoo.cli.configuration import CONF, check_choices, explained, typed
from maskzoo.cli.overrides import as_typed, prepare, quote


@dataclass(frozen=True)
class Options:
    """What stands among the overrides and begins with a dash."""

    multirun: bool = False
    show_config: str | None = None
    config_folder: str | None = None
    traceback: bool = False


@dataclass(frozen=True)
class Failure:
    """A job of a sweep that failed: its number, its overrides, and the exit status that it alone would give."""

    number: int
    overrides: str
    status: int


def launch(config_name: str, run: Callable[[Any, list[str]], int], overrides: list[str], options: Options) -> int:
    """Compose `config_name` with the overrides, check it, and call `run` with the typed configuration
    and its overrides as a person would type them.

    In a sweep a job that fails is reported and the next one starts; the status is then that of the first failure.
    """
    prepared = prepare(overrides, options.multirun)
    check_choices(prepared)
    statuses: list[int] = []
    failures: list[Failure] = []

    def job(config: DictConfig) -> None:
        words = _words()
        if not options.multirun:
            statuses.append(run(typed(config), words))
            return
        number, changed = HydraConfig.get().job.num, shlex.join(words)
        print(f"--- job {number}: {changed}", file=sys.stderr, flush=True)
        try:
            statuses.append(run(typed(config), words))
        except Exception as error:
            status = errors.report(error, options.traceback)
            if status > 128:  # a signal ends the sweep, not this job alone
                raise SystemExit(status) from error
            failures.append(Failure(number, changed, status))

    with tempfile.TemporaryDirectory(prefix="maskzoo_sweep_") as scratch:
        arguments = [*_flags(options), *_without_outputs(prepared, scratch), *prepared]
        _compose_and_call(config_name, job, arguments)
    if failures:
        print(f"maskzoo: {len(failures)} of {len(failures) + len(statuses)} jobs failed:", file=sys.stderr)
        for failure in failures:
            print(f"  job {failure.number}: {failure.overrides}", file=sys.stderr)
        return failures[0].status
    return max(statuses, default=0)


def _words() -> list[str]:
    """The overrides of the job that is running, with every `${...}` in them as it was typed."""
    overrides = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return [as_typed(str(override)) for override in overrides]


def _compose_and_call(config_name: str, job: Callable[[DictConfig], None], arguments: list[str]) -> None:
    raised: list[Exception] = []

    def remember_error(config: DictConfig) -> None:
        try:
            job(config)
        except Exception as error:  # Hydra would print it in its own way
            raised.append(error)

    entry = hydra.main(config_path=f"pkg://{CONF}", config_name=config_name, version_base="1.3")(remember_error)
    with _hydra_started_with(arguments):
        try:
            entry()
        except Exception as error:
            reason = explained(error)
            if reason is error:
                raise
            raise reason from error
    if raised:
        raise raised[0]


def _flags(options: Options) -> list[str]:
    flags = ["--multirun"] if options.multirun else []
    if options.show_config is not None:
        flags += ["--cfg", options.show_config, "--resolve"]
    if options.config_folder is not None:
        flags += ["--config-dir", options.config_folder]
    return flags


def _without_outputs(overrides: list[str], scratch: str) -> list[str]:
    """Hydra's folders and log files are off (a run writes its own), unless an override asks for them."""
    off = {
        "hydra.output_subdir": "null",
        "hydra.run.dir": ".",
        "hydra.sweep.dir": quote(scratch),
        "hydra.sweep.subdir": ".",
        "hydra/job_logging": "none",
        "hydra/hydra_logging": "none",
    }
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    return [f"{key}={value}" for key, value in off.items() if key not in given]


@contextmanager
def _hydra_started_with(arguments: list[str]) -> Iterator[None]:
    """Hydra reads sys.argv; with HYDRA_FULL_ERROR its errors come to us instead of to the screen."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["maskzoo", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
