"""Pictures of masks, biases and attention weights, for terminals, notebooks and files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from maskzoo.biases.base import Bias
from maskzoo.drawing.picture import Panel, Picture
from maskzoo.masks.algebra import PerHead
from maskzoo.masks.base import Mask
from maskzoo.masks.parsing import parse
from maskzoo.planning import Plan, plan
from maskzoo.positions import Positions

__all__ = ["Panel", "Picture", "draw", "draw_bias", "draw_weights"]


def draw(
    mask: str | Mask | Plan,
    at: Positions | None = None,
    *,
    length: int = 32,
    k_at: Positions | None = None,
    sequence: int = 0,
) -> Picture:
    """Draw which keys each query may see.

    Args:
        mask: a rule as text or object, or a plan.
        at: positions of the queries (and of the keys, without `k_at`). For a rule, `length` tokens of one sequence when
            not given; a plan is drawn without segments then.
        length: how many tokens to draw a rule for when there are no positions.
        k_at: positions of the keys, for cross-attention and decoding.
        sequence: which sequence of the batch, from 0.

    Returns:
        a picture: print it, show it in a notebook, or save it. A stack of per-head rules has a panel per head.

    Raises:
        ValueError: a rule or positions that cannot be planned, or a sequence that is not there.
    """
    names: list[str] = []
    if not isinstance(mask, Plan):
        mask = parse(mask)
        names = [repr(rule) for rule in mask.rules] if isinstance(mask, PerHead) else []
        at = Positions.tokens(length) if at is None else at
    made = mask if isinstance(mask, Plan) else plan(mask, at or Positions.tokens(length), k_at=k_at)
    visible = _of_sequence(made.visible, sequence).cpu().numpy()
    heads = [f"head {head}" for head in range(len(visible))] if len(visible) > 1 else [""]
    titles = [f"{head}: {name}" for head, name in zip(heads, names, strict=True)] if len(names) > 1 else heads
    aligned = "" if k_at is None else f", {made.alignment}"
    return Picture(
        rule=made.rule,
        size=f"{made.query_length} queries × {made.key_length} keys{aligned}, {_percent(visible.mean())} visible",
        panels=[Panel(title, own) for title, own in zip(titles, visible, strict=True)],
        q_segment=_segment(at, made.query_length, "query", sequence),
        k_segment=_segment(at if k_at is None else k_at, made.key_length, "key", sequence),
    )


def draw_bias(
    bias: str | Bias,
    mask: str | Mask = "full",
    at: Positions | None = None,
    *,
    heads: int = 4,
    length: int = 32,
    k_at: Positions | None = None,
    sequence: int = 0,
) -> Picture:
    """Draw what a bias adds to the scores of visible pairs, darker for more.

    Args:
        bias: as text or object.
        mask: the rule that says which pairs are visible.
        at, length, k_at, sequence: as for `draw`.
        heads: H for a bias given as text; an object knows its own.

    Returns:
        a picture with a panel per head.

    Raises:
        ValueError: a bias, rule or positions that cannot be planned, or a sequence that is not there.
    """
    at = Positions.tokens(length) if at is None else at
    made = plan(mask, at, k_at=k_at, bias=bias, heads=bias.heads if isinstance(bias, Bias) else heads)
    scores = made.scores()
    if scores is None:
        raise ValueError(f"bias={bias!r} adds nothing that could be drawn")
    shape = (1, scores.shape[1], made.query_length, made.key_length)
    offsets = _of_sequence(scores.detach().float().cpu(), sequence)[None].expand(shape)[0]
    visible = _of_sequence(made.visible, sequence).cpu().expand_as(offsets)
    panels = [
        Panel(f"head {head}" if len(offsets) > 1 else "", own_visible.numpy(), offsets=own.numpy())
        for head, (own_visible, own) in enumerate(zip(visible, offsets, strict=True))
    ]
    shown = offsets[visible]
    ends = f"from {float(shown.min()):.3g} to {float(shown.max()) + 0.0:.3g}" if shown.numel() else "of no visible pair"
    return Picture(
        rule=f"{made.bias!r} under {made.rule}",
        size=f"offsets of {made.query_length} queries × {made.key_length} keys, {ends}",
        panels=panels,
        q_segment=_segment(at, made.query_length, "query", sequence),
        k_segment=_segment(at if k_at is None else k_at, made.key_length, "key", sequence),
    )


def draw_weights(
    weights: Tensor,
    mask: str | Mask | Plan | None = None,
    at: Positions | None = None,
    *,
    k_at: Positions | None = None,
    labels: Sequence[str] | None = None,
    k_labels: Sequence[str] | None = None,
    sequence: int = 0,
) -> Picture:
    """Draw attention weights. Weight on a pair that the rule hides is a leak, and drawn in red.

    Args:
        weights: float [Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk].
        mask: the rule that the weights should obey; without one, nothing counts as hidden.
        at, k_at: positions, as for `draw`; Tq tokens of one sequence when not given.
        labels: a text for each query (and each key, where there are as many), such as the tokens.
        k_labels: a text for each key.
        sequence: which sequence of the batch, from 0.

    Raises:
        ValueError: weights of another dtype or shape, or not finite; a rule, positions or labels that do not fit them.
    """
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point or weights.dim() not in (2, 3, 4):
        got = f"{weights.dtype} {list(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"weights must be a float tensor [Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk], got {got}")
    weights = weights.detach().float().cpu()
    weights = _of_sequence(weights, sequence) if weights.dim() == 4 else weights[(None,) * (3 - weights.dim())]
    if not bool(weights.isfinite().all()):
        raise ValueError("weights to draw must be finite; some are NaN or inf")
    heads, queries, keys = weights.shape
    k_labels = labels if k_labels is None and queries == keys else k_labels
    for name, given, wanted in (("labels", labels, queries), ("k_labels", k_labels, keys)):
        if given is not None and len(given) != wanted:
            raise ValueError(f"{name} has {len(given)} texts for {wanted} positions")
    visible, rule = torch.ones(1, queries, keys, dtype=torch.bool), "no rule given"
    if mask is not None:
        at = Positions.tokens(queries) if at is None and not isinstance(mask, Plan) else at
        made = mask if isinstance(mask, Plan) else plan(mask, at or Positions.tokens(queries), k_at=k_at)
        visible, rule = _of_sequence(made.visible, sequence).cpu(), made.rule
        if visible.shape[1:] != weights.shape[1:] or len(visible) not in (1, heads):
            raise ValueError(
                f"weights of shape {list(weights.shape)} do not fit the rule {rule}, "
                f"which is for {list(visible.shape)} (a single head stands for all)"
            )
    visible = visible.expand_as(weights)
    leaks = int(((weights != 0) & ~visible).sum())
    warning = f"; LEAK: hidden pairs with weight: {leaks}" if leaks else ""
    return Picture(
        rule=rule,
        size=f"weights of {queries} queries × {keys} keys, highest {float(weights.max()):.3f}{warning}",
        panels=[
            Panel(f"head {head}" if heads > 1 else "", own_visible.numpy(), own.numpy())
            for head, (own_visible, own) in enumerate(zip(visible, weights, strict=True))
        ],
        q_segment=_segment(at, queries, "query", sequence),
        k_segment=_segment(at if k_at is None else k_at, keys, "key", sequence),
        labels=labels,
        k_labels=k_labels,
    )


def _of_sequence(values: Tensor, sequence: int) -> Tensor:
    """[B, H, Tq, Tk] -> [H, Tq, Tk]; a batch of 1 stands for every sequence."""
    batch = values.shape[0]
    if sequence < 0 or (batch > 1 and sequence >= batch):
        raise ValueError(f"sequence={sequence}: the batch has {batch} sequences, counted from 0")
    return values[sequence if batch > 1 else 0]


def _segment(at: Positions | None, length: int, side: str, sequence: int) -> np.ndarray:
    """Segment of each position of one sequence; all in one where there are no positions."""
    if at is None:
        return np.zeros(length, dtype=np.int64)
    if at.length != length:
        raise ValueError(f"there are {length} {side} positions to draw, but the positions given have {at.length}")
    return at.segment[sequence if at.batch > 1 else 0].cpu().numpy()


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
