"""Tells the options (`-m`, `--cfg`, …) from the overrides."""

from __future__ import annotations

import os

from maskzoo.cli.launch import Options
from maskzoo.registry import nearest

SWEEPING = ("train", "eval")
CONFIG_PARTS = ("job", "hydra", "all")
FLAGS = ("-m", "--multirun", "--cfg", "--config-dir", "--help", "--traceback", "--version")


def parse(command: str, arguments: list[str], traceback: bool) -> tuple[list[str], Options]:
    """The overrides among the arguments of `command`, and its options.

    Raises:
        ValueError: an unknown option, an option without its value, or a sweep of a command that has none.
    """
    overrides: list[str] = []
    multirun, show_config, config_folder = False, None, None
    remaining = iter(arguments)
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            if show_config == "" and argument in CONFIG_PARTS:
                show_config = argument
            else:
                overrides.append(argument)
        elif argument in ("-m", "--multirun"):
            multirun = True
        elif flag in ("--cfg", "-c"):
            show_config = value
        elif flag in ("--config-dir", "-cd"):
            config_folder = value if equals else next(remaining, "")
            if not os.path.isdir(config_folder):
                raise ValueError(f"--config-dir {config_folder}: there is no such folder")
        else:
            raise ValueError(f"unknown option {flag!r}.{nearest(flag, FLAGS)} Known: {', '.join(FLAGS)}")
    if show_config is not None:
        show_config = show_config or "job"
        if show_config not in CONFIG_PARTS:
            raise ValueError(f"--cfg {show_config}: write one of {', '.join(CONFIG_PARTS)}")
    if multirun and command not in SWEEPING:
        raise ValueError(f"maskzoo {command} does not sweep; -m belongs to {' and '.join(SWEEPING)}")
    if multirun and show_config is not None:
        raise ValueError("--cfg prints one configuration: leave out -m, or leave out --cfg")
    return overrides, Options(multirun, show_config, config_folder, traceback)
