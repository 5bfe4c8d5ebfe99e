"""`plan`: mask and bias for given positions, worked out once and used by every layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from maskzoo.biases.base import Bias, Index, Indices
from maskzoo.biases.dense import Dense as DenseBias
from maskzoo.biases.parsing import parse as parse_bias
from maskzoo.masks.algebra import And, Or, PerHead
from maskzoo.masks.base import Mask
from maskzoo.masks.parsing import parse as parse_mask
from maskzoo.positions import Positions
from maskzoo.registry import nearest

MOST_PAIRS = 2**30
"""Query–key pairs (times heads, where heads differ) that a densely evaluated plan may hold: one byte each."""

PAIRS_AT_ONCE = 2**22
"""Pairs that a predicate is evaluated for at once: its int64 intermediate results then stay within 32 MiB each."""

ALIGNMENTS = ("end", "start", "index")


@dataclass(frozen=True)
class Plan:
    """Which pairs are visible, and their bias, for positions of given lengths. Made by `plan`.

    Attributes:
        rule: the whole effective rule, as text.
        visible: bool [B or 1, H or 1, Tq, Tk].
        empty: bool [B or 1, H or 1, Tq]: queries that see nothing; None when there are none.
        form: "full" (every pair), "causal" (the lower triangle of a square) or "any".
        alignment: how query indices were placed against the keys', in words.
        bias: the bias, whose table may be learned.
        indices: the bias's table indices for these positions.
    """

    rule: str
    visible: Tensor
    empty: Tensor | None
    form: str
    alignment: str
    bias: Bias | None = None
    indices: Indices = ()

    @property
    def query_length(self) -> int:
        """Tq."""
        return self.visible.shape[-2]

    @property
    def key_length(self) -> int:
        """Tk."""
        return self.visible.shape[-1]

    @property
    def batch(self) -> int:
        """B; 1 serves any batch."""
        return self.visible.shape[0]

    @property
    def heads(self) -> int | None:
        """H where the rule or the bias is made for a number of heads, else None."""
        if self.bias is not None:
            return self.bias.heads
        return self.visible.shape[1] if self.visible.shape[1] > 1 else None

    @property
    def density(self) -> float:
        """The share of all pairs that are visible."""
        return self.visible.float().mean().item()

    @property
    def kernel(self) -> str:
        """The kernel that `attend(backend="auto")` takes when no weights are asked for."""
        return "dense"

    def stored_weights_bytes(self, dtype: torch.dtype = torch.float16) -> int:
        """What one head's attention weights for one sequence would take if they were stored, as `dense` never does."""
        return self.query_length * self.key_length * dtype.itemsize

    def scores(self) -> Tensor | None:
        """The bias of all pairs, float, broadcasts to [B, H, Tq, Tk]; differentiable in its table."""
        return None if self.bias is None else self.bias.scores(self.indices)

    def to(self, device: torch.device | str) -> Plan:
        """This plan on another device; the bias is a module and moves with its model."""
        return replace(
            self,
            visible=self.visible.to(device),
            empty=None if self.empty is None else self.empty.to(device),
            indices=_moved(self.indices, device),
        )

    def explain(self) -> str:
        """The effective rule, its size and density, and the kernel with the reason for it, as lines of text."""
        rows = self.visible.shape[0] * self.visible.shape[1] * self.query_length
        empty = 0 if self.empty is None else int(self.empty.sum())
        reason = {
            "causal": "the visible pairs are exactly the lower triangle, which torch's attention skips by halves",
            "full": "every pair is visible",
            "any": "visible pairs are held as a boolean array",
        }[self.form]
        lines = [
            f"rule       {self.rule}",
            f"bias       {'none' if self.bias is None else repr(self.bias)}",
            f"positions  {self.query_length} queries × {self.key_length} keys, {self.alignment}",
            f"shared     {'by the whole batch' if self.batch == 1 else f'no: {self.batch} different rows'}, "
            f"{'by all heads' if self.visible.shape[1] == 1 else f'{self.visible.shape[1]} rules, one per head'}",
            f"density    {self.density:.4f} of the pairs visible, {empty} of {rows} query rows empty",
            f"memory     {self.visible.numel() * self.visible.element_size():,} bytes; stored weights would take "
            f"{self.stored_weights_bytes():,} bytes a head and sequence in half precision",
            f"kernel     {self.kernel}: {reason}",
        ]
        return "\n".join(lines)


def plan(
    mask: str | Mask,
    at: Positions,
    *,
    bias: str | Bias | Tensor | None = None,
    heads: int | None = None,
    k_at: Positions | None = None,
    align: str | None = None,
    empty_rows: str = "zero",
) -> Plan:
    """Work out what each position may see.

    Padding is never visible and sees nothing, and a query sees keys of its own segment only, unless the rule names a
    provider that crosses segments.

    Args:
        mask: a rule, as text or object.
        at: positions of the queries, and of the keys when `k_at` is not given.
        bias: a bias as text or object, or a float tensor that broadcasts to [B, H, Tq, Tk].
        heads: H, the number of query heads; needed where a bias is given as text or tensor.
        k_at: positions of the keys, for cross-attention and for decoding against a cache.
        align: how query indices stand against the keys': "end" (the last query of each segment is at the place of its
            last key, as when decoding), "start" (both count from the start) or "index" (as the positions say).
            Default: "index" where the queries' index was stated; where it was only counted, "start" for rules between
            two sequences (`cross`, `wait_k`) and "end" for all others.
        empty_rows: what a query without any visible key is: "zero" (its output is zero) or "error".

    Raises:
        ValueError: a rule or bias that cannot be read, positions that do not fit each other, more pairs than a dense
            plan may hold, or an empty row under `empty_rows="error"`.
    """
    mask = parse_mask(mask)
    _check_hashable(mask)
    for name, value, allowed in (("align", align, ALIGNMENTS), ("empty_rows", empty_rows, ("zero", "error"))):
        if value is not None and value not in allowed:
            raise ValueError(
                f"{name} must be one of {', '.join(allowed)}; was {value!r}.{nearest(str(value), allowed)}"
            )
    q_at, k_at = at.collapsed, (at if k_at is None else k_at).collapsed
    _check_positions(q_at, k_at)
    q_at, alignment = _aligned(mask, q_at, k_at, align)
    made = _cached((mask, alignment), q_at, k_at, lambda: _evaluated(mask, q_at, k_at, alignment))
    if heads is not None and made.visible.shape[1] not in (1, heads):
        raise ValueError(f"{mask!r} has {made.visible.shape[1]} rules, one per head, but there are {heads} heads")
    if empty_rows == "error":
        _refuse_empty_rows(made, q_at)
    return made if bias is None else _with_bias(made, bias, heads, q_at, k_at)


def effective_rule(mask: Mask) -> str:
    """The rule as it is enforced, with what every plan adds to it."""
    if isinstance(mask, PerHead) and len({_crosses_segments(rule) for rule in mask.rules}) > 1:
        return f"stack({', '.join(map(effective_rule, mask.rules))})"
    names = [term.provider_name for term in (mask.terms if isinstance(mask, And) else (mask,))]
    wanted = ("padding",) if _crosses_segments(mask) else ("padding", "same_segment")
    added = [name for name in wanted if name not in names]
    text = f"({mask!r})" if added and isinstance(mask, Or) else repr(mask)
    return " & ".join([text, *added])


def _crosses_segments(mask: Mask) -> bool:
    return any(leaf.crosses_segments for leaf in mask.leaves())


def _check_hashable(mask: Mask) -> None:
    """Plans are kept by rule, so that a rule must be a value."""
    for leaf in mask.leaves():
        try:
            hash(leaf)
        except TypeError:
            raise ValueError(
                f"the mask {type(leaf).__name__} cannot be hashed: decorate it with @dataclass(frozen=True) and use "
                "parameters that do not change (numbers, strings, tuples)"
            ) from None


def _check_positions(q_at: Positions, k_at: Positions) -> None:
    if q_at.device != k_at.device:
        raise ValueError(f"query positions are on {q_at.device} and key positions on {k_at.device}")
    if q_at.batch != k_at.batch and 1 not in (q_at.batch, k_at.batch):
        raise ValueError(f"query positions have batch {q_at.batch} and key positions batch {k_at.batch}")


def _aligned(mask: Mask, q_at: Positions, k_at: Positions, align: str | None) -> tuple[Positions, str]:
    if q_at is k_at:
        return q_at, "queries are the keys"
    if align is None and not q_at.counted:
        align = "index"
    if align is None:
        align = "start" if any(leaf.between_sequences for leaf in mask.leaves()) else "end"
    if align != "end":
        return q_at, "queries at their own index" if align == "index" else "queries and keys counted from the start"
    return q_at.shifted(_last_index(q_at, k_at) - _last_index(q_at, q_at)), "queries at the end of the keys"


def _last_index(q_at: Positions, of: Positions) -> Tensor:
    """The highest index that each query's segment reaches in `of`: int64 [B, Tq] (−1: nowhere)."""
    batch = max(q_at.batch, of.batch)
    q_segment, segment = q_at.segment.expand(batch, -1), of.segment.expand(batch, -1)
    names, places = torch.unique(torch.cat([q_segment, segment], dim=1), return_inverse=True)
    q_place, place = places.split([q_at.length, of.length], dim=1)
    last = torch.full((batch, len(names)), -1, device=of.device)
    return last.scatter_reduce(1, place, of.index.expand(batch, -1), "amax").gather(1, q_place)


class _SideOf:
    """One side of every pair: rows start … stop − 1 of positions, with the other side's dimension added."""

    def __init__(self, rule: str, at: Positions, dim: int, rows: slice = slice(None)) -> None:
        self._rule, self._at, self._dim, self._rows = rule, at, dim, rows
        self.slots = at.length

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        at = self._at
        if name == "slot":
            return torch.arange(at.length, device=at.device)[None, self._rows].unsqueeze(self._dim)
        if name not in at.fields:
            raise ValueError(
                f"{self._rule} reads the field {name!r}, which these positions do not have.{nearest(name, at.fields)} "
                f"They have {', '.join(at.fields)}; add it by Positions.with_fields({name}=…)"
            )
        return at.fields[name][:, self._rows].unsqueeze(self._dim)


def _evaluated(mask: Mask, q_at: Positions, k_at: Positions, alignment: str) -> Plan:
    rules = mask.rules if isinstance(mask, PerHead) else (mask,)
    batch = max(q_at.batch, k_at.batch)
    pairs = batch * len(rules) * q_at.length * k_at.length
    if pairs > MOST_PAIRS:
        raise ValueError(
            f"the rule {mask!r} over {q_at.length:,} queries × {k_at.length:,} keys × {batch * len(rules)} would need "
            f"{pairs:,} bytes as a dense plan; at most {MOST_PAIRS:,} are allowed. Use shorter rows or a smaller batch"
        )
    real = q_at.real[:, :, None] & k_at.real[:, None, :]
    own_segment = q_at.segment[:, :, None] == k_at.segment[:, None, :]
    heads = [
        (real if _crosses_segments(rule) else real & own_segment) & _read(rule, q_at, k_at, batch) for rule in rules
    ]
    visible = torch.stack(torch.broadcast_tensors(*heads), dim=1)
    if visible.shape[0] > 1 and bool((visible == visible[:1]).all()):
        visible = visible[:1]
    empty = ~visible.any(-1)
    return Plan(
        rule=effective_rule(mask),
        visible=visible,
        empty=empty if bool(empty.any()) else None,
        form=_form(visible),
        alignment=alignment,
    )


def _read(rule: Mask, q_at: Positions, k_at: Positions, batch: int) -> Tensor:
    """Evaluate a predicate, some queries at a time: bool [B, Tq, Tk]."""
    text, step = repr(rule), max(1, PAIRS_AT_ONCE // (batch * k_at.length))
    parts = []
    for start in range(0, q_at.length, step):
        rows = slice(start, min(start + step, q_at.length))
        visible = rule.visible(_SideOf(text, q_at, 2, rows), _SideOf(text, k_at, 1))
        parts.append(_checked(text, visible, batch, rows.stop - rows.start, k_at.length))
    return torch.cat(parts, dim=1)


def _checked(rule: str, visible: Tensor, batch: int, queries: int, keys: int) -> Tensor:
    """What a predicate returned, as bool [B, queries, keys], if it is one."""
    if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
        got = visible.dtype if isinstance(visible, Tensor) else type(visible).__name__
        raise ValueError(f"{rule}: visible must return a boolean tensor (True = visible), got {got}")
    if batch == 1 and visible.dim() == 3:
        batch = visible.shape[0]  # a rule may differ along a batch whose positions are all the same
    full = (batch, queries, keys)
    try:
        return visible.expand(full)
    except RuntimeError:
        raise ValueError(
            f"{rule}: visible must broadcast to [B, Tq, Tk] = {list(full)}, got {list(visible.shape)}"
        ) from None


def _form(visible: Tensor) -> str:
    if bool(visible.all()):
        return "full"
    square = visible.shape[0] == visible.shape[1] == 1 and visible.shape[2] == visible.shape[3]
    return "causal" if square and torch.equal(visible[0, 0], torch.ones_like(visible[0, 0]).tril()) else "any"


def _refuse_empty_rows(made: Plan, q_at: Positions) -> None:
    if made.empty is None:
        return
    places = (made.empty & q_at.real[:, None, :]).nonzero()[:5].tolist()
    if places:
        listed = ", ".join(f"(sequence {b}, head {h}, query {i})" for b, h, i in places)
        raise ValueError(f"under the rule {made.rule} some queries see no key at all; the first: {listed}")


def _with_bias(made: Plan, bias: str | Bias | Tensor, heads: int | None, q_at: Positions, k_at: Positions) -> Plan:
    if heads is None:
        if not isinstance(bias, Bias):
            raise ValueError("a bias given as text or tensor needs heads=, the number of query heads")
        heads = bias.heads
    if isinstance(bias, Tensor):
        bias = DenseBias(bias, heads=heads)
        _check_broadcast(bias.values, made, heads)
    added = parse_bias(bias, heads=heads)
    if added is None:
        return made
    if added.heads != heads:
        raise ValueError(f"the bias {added!r} is made for {added.heads} heads, but there are {heads}")
    text = repr(added)
    indices = added.indices(_SideOf(text, q_at, 2), _SideOf(text, k_at, 1))
    return replace(made, bias=added, indices=indices)


def _check_broadcast(bias: Tensor, made: Plan, heads: int) -> None:
    batch = max(made.batch, bias.shape[0]) if bias.dim() == 4 else made.batch
    full = (batch, heads, made.query_length, made.key_length)
    try:
        fits = torch.broadcast_shapes(bias.shape, full) == full
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"a bias of shape {list(bias.shape)} does not broadcast to [B, H, Tq, Tk] = {list(full)}")


def _moved(indices: Indices, device: torch.device | str) -> Indices:
    if isinstance(indices, Index):
        return Index(indices.rows.to(device), indices.entries)
    return tuple(_moved(own, device) for own in indices)


_MOST_KEPT = 64
_MOST_KEPT_BYTES = 2**28
_kept: OrderedDict[Any, Plan] = OrderedDict()


def _cached(key: tuple[Any, ...], q_at: Positions, k_at: Positions, build: Callable[[], Plan]) -> Plan:
    """Plans that no batch changes are kept, the least recently used dropped first."""
    if q_at.batch > 1 or k_at.batch > 1:
        return build()
    full_key = (key, q_at.digest, k_at.digest)
    if full_key not in _kept:
        _kept[full_key] = build()
        while len(_kept) > 1 and (
            len(_kept) > _MOST_KEPT or sum(plan.visible.numel() for plan in _kept.values()) > _MOST_KEPT_BYTES
        ):
            _kept.popitem(last=False)
    _kept.move_to_end(full_key)
    return _kept[full_key]
