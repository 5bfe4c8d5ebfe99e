"""Hands what a person typed on to Hydra's grammar, which refuses `&`, `~`, `#`, a second `=` and unknown calls.

A rule (`mask`, `bias`), a path and a prompt are text: they reach the configuration letter for letter. Any other
value goes on untouched if Hydra can read it (lists, `${...}`, `choice(...)`, `range(...)`), and as text if not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser

RULES = frozenset({"mask", "bias"})
PATHS = frozenset({"checkpoint", "data.path", "output", "prompt_file", "report", "run_dir", "text"})
TEXTS = frozenset({"prompt"})
LISTS = frozenset({"lengths", "plugins"})

_KEY = re.compile(r"[\w$][\w$./@:-]*")
_INTERPOLATION = re.compile(r"\$\{[^{}]*\}")
_OPENING = {"(": ")", "[": "]", "{": "}"}


def prepare(arguments: Sequence[str], multirun: bool = False) -> list[str]:
    """The arguments as Hydra reads them. With `multirun`, commas outside parentheses separate the values of a sweep.

    Raises:
        ValueError: an argument is not `key=value`, or a rule holds a list of rules without `multirun`.
    """
    return [_prepare(argument, multirun) for argument in arguments]


def _prepare(argument: str, multirun: bool) -> str:
    marked_key, equals, value = argument.partition("=")
    key = marked_key.lstrip("+~").strip()
    if not key:
        raise ValueError(f"the argument {argument!r} has no key: write key=value, for example trainer.max_steps=100")
    if not _KEY.fullmatch(key):
        raise ValueError(f"{argument!r} has no valid key before the '=': write key=value, for example model.layers=4")
    if marked_key.startswith("~"):
        return argument
    if not equals:
        raise ValueError(f"{argument!r} has no value: write {argument}=VALUE")
    if key in RULES:
        return f"{marked_key}={_rule(key, value, multirun)}"
    if key in PATHS:
        return f"{marked_key}={_path(value, multirun)}"
    if key in TEXTS:
        return f"{marked_key}={value if _is_list(value) else quote(_literal(value))}"
    if key in LISTS and not value.startswith("["):
        value = f"[{value}]"
    if not _parses(value):
        value = _repaired(value, multirun)
    if not multirun and _parser().parse_override(f"key={value}").is_sweep_override():
        raise ValueError(
            f"{key}={value} holds several values: add -m to run one after the other, or write [a,b] for a list"
        )
    return f"{marked_key}={value}"


def as_typed(override: str) -> str:
    """The argument that `prepare` turns into `override`, without quotes where they are not needed."""
    parsed = _parser().parse_override(override)
    plain = f"{parsed.get_key_element()}={parsed.value()}"
    try:
        return plain if prepare([plain]) == prepare([plain], multirun=True) == [override] else override
    except ValueError:  # text that means a sweep without its quotes
        return override


def quote(text: str) -> str:
    """`text` between quotes as Hydra's grammar writes them."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.single).with_quotes()


def split_at_commas(text: str) -> list[str]:
    """The pieces of `text` between commas that stand outside parentheses, brackets, braces and quotes."""
    pieces = [""]
    closing: list[str] = []
    quotation = escape = ""
    for character in text:
        if quotation:
            if character == quotation and escape != "\\":
                quotation = ""
            escape = "" if escape == "\\" else character
        elif character in "'\"":
            quotation, escape = character, ""
        elif character in _OPENING:
            closing.append(_OPENING[character])
        elif closing and character == closing[-1]:
            closing.pop()
        if character == "," and not closing and not quotation:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def _rule(key: str, value: str, multirun: bool) -> str:
    if multirun and value.startswith("choice(") and value.endswith(")"):
        value = value[len("choice(") : -1]  # Hydra's choice() drops the quotes of its values; a plain list keeps them
    pieces = split_at_commas(value)
    if len(pieces) > 1 and not multirun:
        raise ValueError(
            f"{key}={value} holds {len(pieces)} rules: add -m to train one after the other, or join them with & or |"
        )
    if len(pieces) > 1 and "" in pieces:
        raise ValueError(f"{key}={value} holds an empty rule beside a comma")
    return ",".join(_text(piece) if _INTERPOLATION.fullmatch(piece) else _text(_literal(piece)) for piece in pieces)


def _path(value: str, multirun: bool) -> str:
    if _is_list(value):
        return value
    return ",".join(map(_text, split_at_commas(value) if multirun else [value]))


def _text(value: str) -> str:
    """`value` as text, except where it is null, one whole interpolation or already quoted for Hydra."""
    if value == "null" or _INTERPOLATION.fullmatch(value):
        return value
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if quoted and _parses(value):
        return value
    return quote(value)


def _repaired(value: str, multirun: bool) -> str:
    if value.startswith("[") and value.endswith("]"):
        return "[" + ",".join(piece if _parses(piece) else quote(piece) for piece in split_at_commas(value[1:-1])) + "]"
    pieces = split_at_commas(value) if multirun else [value]
    return ",".join(piece if _parses(piece) else quote(piece) for piece in pieces)


def _literal(text: str) -> str:
    """`text` with every `${` escaped, so that OmegaConf takes it for no interpolation."""
    return re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", text)


def _is_list(value: str) -> bool:
    return value.startswith("[") and value.endswith("]") and _parses(value)


def _parses(value: str) -> bool:
    from hydra.errors import HydraException

    try:
        _parser().parse_override(f"key={value}")
    except HydraException:
        return False
    return True


@functools.cache
def _parser() -> OverridesParser:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()
