"""Masks from text."""

from __future__ import annotations

import ast

from maskzoo.expression import chain, parsed, provider, source
from maskzoo.masks.algebra import And, Or, stack
from maskzoo.masks.base import Mask
from maskzoo.registry import masks


def parse(text: str | Mask) -> Mask:
    """The mask that a text form describes, for example `causal & (window(256) | sinks(4))`.

    Names come from the registry; `&`, `|`, `~` and parentheses combine; `stack(rule, rule, …)` gives one rule per head.

    Raises:
        ValueError: unknown names or parameters, values out of range, or anything that is no rule; the message quotes
            the part that is wrong.

    >>> parse("causal & ((window(256)) | sinks(size=4))")
    causal & (window(256) | sinks(4))
    """
    if isinstance(text, Mask):
        return text
    return _mask(parsed(text, "mask"), text)


def _mask(node: ast.expr, text: str) -> Mask:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        join = And if isinstance(node.op, ast.BitAnd) else Or
        return join.of(*(_mask(term, text) for term in chain(node, type(node.op))))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~_mask(node.operand, text)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "stack":
        if node.keywords:
            raise ValueError(f"stack() takes rules, one per head, and no keywords; got {source(node)!r}")
        return stack(*(_mask(rule, text) for rule in node.args))
    if isinstance(node, (ast.BoolOp, ast.Not)) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        raise ValueError(f"{source(node)!r}: combine masks with &, | and ~, not with and, or, not")
    return provider(node, text, masks)
