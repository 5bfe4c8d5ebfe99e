"""The texts of `maskzoo COMMAND --help`."""

from __future__ import annotations

import dataclasses
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from maskzoo.cli.configuration import CONF, groups


def run_help(introduction: str) -> str:
    """The introduction, the configuration groups with their choices, and every key with its default."""
    with initialize_config_module(CONF, version_base="1.3"):
        defaults = compose("config")
    lines = [introduction, "groups, chosen by name:"]
    lines += [f"  {group:<12}{', '.join(choices)}" for group, choices in groups().items()]
    lines += ["", "keys and their defaults:"]
    lines += _keys({str(key): value for key, value in defaults.items() if not isinstance(value, DictConfig)})
    for group, values in defaults.items():
        if isinstance(values, DictConfig):
            lines += ["", *_keys({str(group) + "." + str(key): value for key, value in values.items()})]
    return "\n".join(lines) + "\n"


def command_help(introduction: str, schema: type) -> str:
    """The introduction and every key of a command's own configuration with its meaning and default."""
    lines = [introduction, "keys:"]
    for field in dataclasses.fields(schema):
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        shown = "required" if default == "???" else f"default {_value(default)}"
        lines.append(f"  {field.name:<14}{field.metadata['help']} ({shown})")
    return "\n".join(lines) + "\n"


def _keys(values: dict[str, Any]) -> list[str]:
    width = max(28, *(len(key) + 2 for key in values))
    return [f"  {key:<{width}}{_value(value)}" for key, value in values.items()]


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else (str(value) or "''")
