"""`maskzoo list`: what there is to choose from."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

from maskzoo.cli.configuration import choice_summaries, store_schema
from maskzoo.cli.help import command_help
from maskzoo.cli.launch import Options, launch
from maskzoo.registry import Entry, Registry, biases, datasets, load_plugins, masks, tasks

KINDS = ("masks", "biases", "tasks", "data", "experiments")

HELP = """\
usage: maskzoo list [masks|biases|tasks|data|experiments] [key=value ...]

examples:
  maskzoo list
  maskzoo list masks plugins=[my_masks.py]
"""


@dataclass
class ListConfig:
    """What to list."""

    what: str = field(default="all", metadata={"help": f"{', '.join(KINDS)} or all"})
    plugins: list[str] = field(default_factory=list, metadata={"help": "local Python files to look into as well"})

    def __post_init__(self) -> None:
        from maskzoo.tasks.training.ranges import check_choice

        check_choice("what", self.what, (*KINDS, "all"))


def help_text() -> str:
    return command_help(HELP, ListConfig)


def main(overrides: list[str], options: Options) -> int:
    store_schema("list", ListConfig)
    words = [word if "=" in word or not word.isidentifier() else f"what={word}" for word in overrides]
    return launch("list", run, words, options)


def run(config: ListConfig, words: list[str]) -> int:
    """Print every kind asked for, one name a line."""
    load_plugins(config.plugins)
    found = {
        "masks": [(_call(entry), entry.summary) for entry in _entries(masks)],
        "biases": [(_call(entry), entry.summary) for entry in _entries(biases)],
        "tasks": [(entry.name, entry.summary) for entry in _entries(tasks)],
        "data": [(entry.name, entry.summary) for entry in _entries(datasets)],
        "experiments": choice_summaries("experiment"),
    }
    kinds = KINDS if config.what == "all" else (config.what,)
    print("\n\n".join(_section(kind, found[kind]) for kind in kinds))
    return 0


def _entries(registry: Registry) -> list[Entry]:
    return [registry.entry(name) for name in registry.names()]


def _call(entry: Entry) -> str:
    """The provider as it is typed in a rule: `window(size, both_sides=False)`; `heads` comes from the model."""
    typed = [parameter for parameter in entry.parameters if parameter.name != "heads"]
    written = [
        parameter.name if parameter.default is inspect.Parameter.empty else f"{parameter.name}={parameter.default!r}"
        for parameter in typed
    ]
    return f"{entry.name}({', '.join(written)})" if written else entry.name


def _section(kind: str, lines: list[tuple[str, str]]) -> str:
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join([f"{kind}:", *(f"  {name:<{width}}  {summary}".rstrip() for name, summary in lines)])
