"""What a rule permits over the depth of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from maskzoo.audit.subject import Subject
from maskzoo.masks.base import Mask
from maskzoo.masks.parsing import parse
from maskzoo.planning import plan
from maskzoo.positions import Positions

Permits = str | Mask | Tensor | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Permission:
    """What a model may use.

    Attributes:
        rule: the rule in words.
        single: bool [B or 1, Tq, Tk], what one layer may see; heads together.
        permitted: bool [B or 1, Tq, Tk], what may move an output, over all layers and past them.
        promised: bool [B or 1, Tq, Tk], what must move an output, where the rule is put to use.
    """

    rule: str
    single: Tensor
    permitted: Tensor
    promised: Tensor


def permission(
    permits: Permits, subject: Subject, layers: int | None = None, at: Positions | None = None
) -> Permission:
    """What a rule permits between the positions of a subject.

    Args:
        permits: a rule as text ("all" permits everything) or Mask, read at `at`; a boolean tensor [Tq, Tk],
            [B, Tq, Tk] or [B, H, Tq, Tk]; or a function of query and key positions, int64 [Tq, 1] and [1, Tk]. A causal
            convolution of width w is `window(w)`; a recurrent layer or a pooling over what came before is `causal`.
        layers: how many times the rule is applied, one after the other; None for any number.
        at: positions of the watched input; by default those among the inputs, or one sequence a row.

    Raises:
        ValueError: a rule of another form, or for other lengths.
    """
    queries, keys = subject.queries, subject.keys
    rule, single = _single(permits, subject, at, queries, keys)
    if queries != keys:
        return Permission(rule, single, single, single)
    return Permission(rule, single, closed(single, layers), single if layers is None else _power(single, layers))


def closed(visible: Tensor, layers: int | None = None) -> Tensor:
    """What reaches a position through `layers` layers under a rule, or past them: bool [..., T, T].

    Args:
        visible: bool [..., T, T], rows are queries.
        layers: None for any number.
    """
    with_itself = visible | torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
    return _power(with_itself, visible.shape[-1] if layers is None else layers)


def _power(visible: Tensor, times: int) -> Tensor:
    """The boolean power, by squares."""
    result, square = None, visible.float()
    while times:
        if times & 1:
            result = square if result is None else (result @ square > 0).float()
        times >>= 1
        if times:
            square = (square @ square > 0).float()
    assert result is not None
    return result > 0


def _single(permits: Permits, subject: Subject, at: Positions | None, queries: int, keys: int) -> tuple[str, Tensor]:
    if isinstance(permits, str) and permits.strip() == "all":
        return "all", torch.ones(1, queries, keys, dtype=torch.bool)
    if isinstance(permits, (str, Mask)):
        mask = parse(permits)
        at = at or positions_among(subject.inputs, keys) or Positions.tokens(keys)
        apart = queries != keys or mask_between(mask)
        made = plan(mask, Positions.tokens(queries) if apart else at, k_at=at if apart else None)
        return repr(mask), made.visible.any(1).cpu()
    if isinstance(permits, Tensor):
        if permits.dtype != torch.bool:
            raise ValueError(f"permits must be boolean, True for what is permitted; got a tensor of {permits.dtype}")
        found, rule = permits.cpu(), "the given rule"
    elif callable(permits):
        found = permits(torch.arange(queries)[:, None], torch.arange(keys)[None])
        rule = f"the rule {getattr(permits, '__name__', 'given as a function')}"
    else:
        raise ValueError(
            f"permits must be a rule as text, a Mask, a boolean tensor or a function, got {type(permits).__name__}"
        )
    found = found.any(1) if found.ndim == 4 else found
    found = found[None] if found.ndim == 2 else found
    try:
        return rule, found.expand(max(found.shape[0], 1), queries, keys)
    except RuntimeError:
        raise ValueError(
            f"permits has shape {list(found.shape)}, but there are {queries} outputs and {keys} inputs"
        ) from None


def mask_between(mask: Mask) -> bool:
    """Whether a rule relates two different sequences."""
    return any(leaf.between_sequences for leaf in mask.leaves())


def positions_among(inputs: object, length: int) -> Positions | None:
    """Positions that the model is called with."""
    values = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, (tuple, list)) else ()
    return next((value for value in values if isinstance(value, Positions) and value.length == length), None)
