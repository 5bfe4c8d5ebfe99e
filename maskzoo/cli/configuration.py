"""The typed configuration of a command: its schema, the checked object, and what to say when it does not fit."""

from __future__ import annotations

import dataclasses
import importlib.resources
import types
import typing
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from maskzoo.registry import nearest, tasks

CONF = "maskzoo.conf"


def store_run_schema() -> None:
    """The schemas that conf/*.yaml name in their defaults lists: of a run, and of each task's data and model."""
    from maskzoo.tasks.training.config import RunConfig

    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunConfig)
    for task in tasks.names():
        for key, schema in tasks.get(task).schemas().items():
            store.store(group="schema", name=f"{task}_{key}", node=schema)


def store_schema(command: str, schema: type) -> None:
    """Make the dataclass `schema` the whole configuration of `command`."""
    ConfigStore.instance().store(name=command, node=schema)


def groups() -> dict[str, list[str]]:
    """The choices of every configuration group, such as `data: [enwik8, stdlib, text]`."""
    folders = [entry for entry in importlib.resources.files(CONF).iterdir() if entry.is_dir()]
    choices = {folder.name: sorted(_yaml_names(folder)) for folder in folders}
    return {group: names for group, names in sorted(choices.items()) if names}


def choice_summaries(group: str) -> list[tuple[str, str]]:
    """Each choice of a group with the first comment of its file."""
    folder = importlib.resources.files(CONF) / group
    texts = {name: (folder / f"{name}.yaml").read_text(encoding="utf-8") for name in groups()[group]}
    return [(name, _first_comment(text)) for name, text in texts.items()]


def _first_comment(text: str) -> str:
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    return next((comment for comment in comments if not comment.startswith("@package")), "")


def check_choices(overrides: list[str]) -> None:
    """ValueError if a group is given something that cannot be the name of a choice, such as `data=null`."""
    parser, known = OverridesParser.create(), groups()
    for override in overrides:
        parsed = parser.parse_override(override)
        group, value = parsed.key_or_group, parsed.value()
        chosen = parsed.is_sweep_override() or isinstance(value, (str, list)) or parsed.is_delete()
        if group in known and (not chosen or value == ""):
            raise ValueError(f"{override}: choose a {group} by name. Known: {', '.join(known[group])}")


def _yaml_names(folder: Any) -> list[str]:
    return [Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml")]


def typed(config: DictConfig) -> Any:
    """The dataclass instance that a composed configuration describes, paths made absolute.

    Raises:
        ValueError: an unknown key, a missing value, or a value out of range; the message starts with the key.
    """
    _check_keys(config)
    for key, node in config.items():
        if isinstance(node, DictConfig) and dataclasses.is_dataclass(OmegaConf.get_type(node)):
            _instance(node, str(key))
    instance = _instance(config, "")
    if getattr(instance, "plugins", None):
        instance.plugins = [_absolute(plugin) for plugin in instance.plugins]  # found again from anywhere
    return instance


def _instance(node: DictConfig, group: str) -> Any:
    try:
        return OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise explained(error) from error
    except ValueError as error:
        raise ValueError(_with_key(str(error), group, node)) from error


def _with_key(message: str, group: str, node: DictConfig) -> str:
    """`width must be …` becomes `model.width must be …`."""
    if not group or message.startswith(f"{group}."):
        return message
    first_word = message.split(maxsplit=1)[0].partition("=")[0]
    return f"{group}.{message}" if first_word in node else f"{group}: {message}"


def _check_keys(node: DictConfig, prefix: str = "") -> None:
    """Every key is known (`+key=value` adds any, and one that no code reads would be ignored) and has a value."""
    schema = OmegaConf.get_type(node)
    assert dataclasses.is_dataclass(schema)
    known = [field.name for field in dataclasses.fields(schema)]
    for name in map(str, node):
        key = f"{prefix}{name}"
        if name not in known:
            raise ValueError(_unknown_key(key, name, known))
        try:
            value = node[name]
        except MissingMandatoryValue as error:
            raise ValueError(f"{key} is required: give {key}=VALUE") from error
        except InterpolationResolutionError as error:
            raise ValueError(f"{key}: {_first_line(error)}") from error
        if isinstance(value, DictConfig) and dataclasses.is_dataclass(OmegaConf.get_type(value)):
            _check_keys(value, f"{key}.")


def _absolute(path: str) -> str:
    return str(Path.cwd() / Path(path).expanduser())


def explained(error: Exception) -> Exception:
    """The error in the user's words if it comes from an override that does not fit; otherwise the error itself."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        return ValueError(_unknown_choice(error))
    cause = error.__cause__ if isinstance(error, HydraException) else error
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and isinstance(cause.parent_node, DictConfig):
        known = [str(key) for key in cause.parent_node if key != "hydra"]
        full_key = str(cause.full_key)
        return ValueError(_unknown_key(full_key, str(cause.key), known))
    if isinstance(cause, ValidationError):
        return ValueError(_bad_value(cause))
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return ValueError(_first_line(error) if cause is None else f"{_first_line(error)}: {_first_line(cause)}")
    return error


def _unknown_choice(error: MissingConfigException) -> str:
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    known = sorted(option for option in error.options or () if not option.startswith("_"))
    if not group:
        return _first_line(error)
    return f"{group}={choice}: there is no {group} {choice!r}.{nearest(choice, known)} Known: {', '.join(known)}"


def _unknown_key(full_key: str, key: str, known: list[str]) -> str:
    if "." not in full_key:
        known = sorted({*known, *groups()}) if "task" in known else known
    return f"{full_key}: there is no key {key!r}.{nearest(key, known)} Known: {', '.join(known)}"


def _bad_value(error: ValidationError) -> str:
    owner = error.parent_node if isinstance(error.parent_node, DictConfig) else None
    schema = OmegaConf.get_type(owner) if owner is not None else None
    if not dataclasses.is_dataclass(schema) or error.key not in typing.get_type_hints(schema):
        return f"{error.full_key}: {_first_line(error)}" if error.full_key else _first_line(error)
    allowed = _type_in_words(typing.get_type_hints(schema)[error.key])
    value = "null" if error.value is None else error.value
    return f"{error.full_key}={value} does not fit: it must be {allowed}"


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def _type_in_words(annotation: Any) -> str:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(_type_in_words(member) for member in typing.get_args(annotation))
    if typing.get_origin(annotation) is list:
        return f"a list [a,b,…], each {_type_in_words(typing.get_args(annotation)[0])}"
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
