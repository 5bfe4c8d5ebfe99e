"""Biases from text."""

from __future__ import annotations

import ast

from maskzoo.biases.base import Bias
from maskzoo.expression import chain, literal, parsed, provider
from maskzoo.registry import biases


def parse(text: str | Bias | None, *, heads: int) -> Bias | None:
    """The bias that a text form describes, for example `alibi + 0.5 * relative(buckets=32)`; None for None or "none".

    Args:
        heads: H, the number of query heads that the tables are made for.

    Raises:
        ValueError: as `maskzoo.masks.parse`.
    """
    if isinstance(text, Bias) or text is None:
        return text
    if text.strip().lower() == "none":
        return None
    return _bias(parsed(text, "bias"), text, heads)


def _bias(node: ast.expr, text: str, heads: int) -> Bias:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        first, *rest = (_bias(term, text, heads) for term in chain(node, ast.Add))
        for term in rest:
            first = first + term
        return first
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for number, other in ((node.left, node.right), (node.right, node.left)):
            factor = literal(number)
            if isinstance(factor, (int, float)) and not isinstance(factor, bool):
                return factor * _bias(other, text, heads)
    return provider(node, text, biases, heads=heads)
