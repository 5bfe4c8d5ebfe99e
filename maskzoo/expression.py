"""The text form of rules: `causal & (window(256) | sinks(4))`, `alibi + relative(buckets=32)`.

The text is read as a Python expression and walked by a whitelist: registered names, calls with literal arguments,
the operators of the algebra, and parentheses. Nothing in it is ever executed.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from maskzoo.registry import Registry, nearest

LONGEST_TEXT = 4096
"""Characters; beyond any rule that a person would write, and short of what Python's parser can nest."""

DEEPEST = 50
"""Levels of nesting, so that no rule meets Python's limit of recursion."""


def parsed(text: str, kind: str) -> ast.expr:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a {kind} must be a rule such as {_EXAMPLES[kind]!r}, got {text!r}")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"the {kind} text has {len(text)} characters; at most {LONGEST_TEXT} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        column = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        raise ValueError(
            f"the {kind} {_shortened(text)!r} cannot be read{column}. It is written like {_EXAMPLES[kind]!r}"
        ) from None
    if _too_deep(tree):
        raise ValueError(f"the {kind} {_shortened(text)!r} is nested more than {DEEPEST} levels deep")
    return tree


def _too_deep(tree: ast.expr) -> bool:
    pending: list[tuple[ast.AST, int]] = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > DEEPEST:
            return True
        for child in ast.iter_child_nodes(node):
            # `a & b & c` is a tree that leans to the left, and no deeper than `a & b`.
            leans = isinstance(node, ast.BinOp) and child is node.left and isinstance(child, ast.BinOp)
            flat = leans and type(child.op) is type(node.op)  # type: ignore[attr-defined]
            pending.append((child, depth if flat else depth + 1))
    return False


_EXAMPLES = {"mask": "causal & (window(256) | sinks(4))", "bias": "alibi + relative(buckets=32)"}


def chain(node: ast.expr, operator: type[ast.operator]) -> Iterator[ast.expr]:
    """The operands of `a + b + c`, left to right, without recursion over a long chain."""
    operands = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, operator):
        operands.append(node.right)
        node = node.left
    return reversed([*operands, node])


def provider(node: ast.expr, text: str, registry: Registry, **context: Any) -> Any:
    if isinstance(node, ast.Name):
        return _called(registry.get(node.id), node.id, [], {}, **context)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(
            f"{source(node)!r} in the {registry.kind} {_shortened(text)!r} is no rule: "
            f"a {registry.kind} is written like {_EXAMPLES[registry.kind]!r}"
        )
    name = node.func.id
    make = registry.get(name)
    arguments = [_argument(argument, node) for argument in node.args]
    keywords = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"{source(node)!r}: write each parameter by name; ** is not read")
        keywords[keyword.arg] = _argument(keyword.value, node)
    return _called(make, name, arguments, keywords, **context)


def _argument(node: ast.expr, call: ast.Call) -> Any:
    value = literal(node)
    if value is None:
        raise ValueError(f"{source(node)!r} in {source(call)!r} is no literal: parameters are numbers, strings, lists")
    return tuple(value) if isinstance(value, list) else value


def literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _called(make: Callable[..., Any], name: str, arguments: list[Any], keywords: dict[str, Any], **context: Any) -> Any:
    signature = inspect.signature(make)
    known = [parameter for parameter in signature.parameters if parameter not in context]
    listed = f"{name}({', '.join(known)})"
    for keyword in keywords:
        if keyword not in known:
            raise ValueError(f"{name} has no parameter {keyword!r}.{nearest(keyword, known)} It is written {listed}")
    try:
        signature.bind(*arguments, **keywords, **context)
    except TypeError as error:
        raise ValueError(f"{name}: {error}. It is written {listed}") from None
    return make(*arguments, **keywords, **context)


def source(node: ast.AST) -> str:
    try:
        return _shortened(ast.unparse(node))
    except RecursionError:  # a chain of hundreds of terms
        return "…"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}…{text[-15:]}"
