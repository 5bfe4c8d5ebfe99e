"""The command `maskzoo`. Nothing heavy is imported before a command is chosen."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from maskzoo.cli.errors import guarded

COMMANDS = {
    "train": "train a model",
    "eval": "score a trained model on a whole split",
    "generate": "let a trained language model write",
    "audit": "prove what a model can see",
    "show": "draw the picture of a rule",
    "list": "what there is to choose from",
}

HELP = f"""\
usage: maskzoo COMMAND [key=value ...]

commands:
{chr(10).join(f"  {name:<10}{summary}" for name, summary in COMMANDS.items())}

examples:
  maskzoo train
  maskzoo train data=enwik8 mask="causal & window(256)" bias=alibi model.layers=4
  maskzoo train -m mask="causal,causal & window(64)"
  maskzoo eval checkpoint=runs/NAME split=test
  maskzoo generate checkpoint=runs/NAME prompt="def " tokens=200
  maskzoo audit checkpoint=runs/NAME report=audit.html
  maskzoo show mask="causal & (window(8) | sinks(2))" length=32

`maskzoo COMMAND --help` lists the keys of a command. Everywhere: --traceback shows where an error came from.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process) and return its exit status.

    0: done; 2: a mistake in what was asked for; 1: an error inside maskzoo, or a model that an audit found not to be
    sound; 130: Ctrl-C; 143: SIGTERM.
    """
    arguments = sys.argv[1:] if argv is None else argv  # not list(...): importing maskzoo.cli.list shadows it here
    show_traceback = "--traceback" in arguments or os.environ.get("MASKZOO_TRACEBACK", "0") not in ("", "0")
    arguments = [argument for argument in arguments if argument != "--traceback"]
    return guarded(lambda: _dispatch(arguments, show_traceback), show_traceback)


def _dispatch(arguments: list[str], show_traceback: bool) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(HELP, end="")
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"maskzoo {version('maskzoo')}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        from maskzoo.registry import nearest

        raise ValueError(f"unknown command {name!r}.{nearest(name, COMMANDS)} Known: {', '.join(COMMANDS)}")
    command = importlib.import_module(f"maskzoo.cli.{name}")
    if "--help" in rest or "-h" in rest:
        print(command.help_text(), end="")
        return 0
    from maskzoo.cli.arguments import parse

    overrides, options = parse(name, rest, show_traceback)
    return command.main(overrides, options)
