"""`plan`: from a rule and positions to what kernels read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskzoo.biases.base import Bias
from maskzoo.kernels.pairs import Pairs
from maskzoo.kernels.tiles import Tiles
from maskzoo.masks.algebra import PerHead
from maskzoo.masks.base import Mask
from maskzoo.masks.parsing import parse as parse_mask
from maskzoo.planning.alignment import ALIGNMENTS, aligned
from maskzoo.planning.assembling import assembled
from maskzoo.planning.choosing import chosen, is_short
from maskzoo.planning.effective import effective, effective_text, one_segment
from maskzoo.planning.kept import kept
from maskzoo.planning.offsetting import biased, read, told_apart
from maskzoo.planning.reading import Reader
from maskzoo.planning.result import Plan
from maskzoo.planning.visibility import TILE, Visibility
from maskzoo.positions import Positions
from maskzoo.registry import nearest


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
        ValueError: a rule or bias that cannot be read, a predicate that is not a function of the pair alone, positions
            that do not fit each other, integers beyond ±2⁶², more partly visible tiles than a plan may hold, or an
            empty row under `empty_rows="error"`.
    """
    mask = parse_mask(mask)
    _check_hashable(mask)
    for name, value, allowed in (("align", align, ALIGNMENTS), ("empty_rows", empty_rows, ("zero", "error"))):
        if value is not None and value not in allowed:
            raise ValueError(
                f"{name} must be one of {', '.join(allowed)}; was {value!r}.{nearest(str(value), allowed)}"
            )
    q_at, k_at = at, at if k_at is None else k_at
    added = read(bias, heads)
    _check_batches(mask, added, q_at, k_at)
    apart = told_apart(added)
    if not apart and not any(leaf.needs_sequence for leaf in mask.leaves()):
        q_at, k_at = _collapsed(q_at), _collapsed(k_at)
    # What was moved to a device is read where it came from, so that nothing waits for the device.
    q_read, k_read = _on_processor(mask, q_at, k_at)
    q_read, alignment = aligned(mask, q_read, k_read, align)
    device = q_at.device
    made = kept(
        (mask, alignment, apart, device),
        q_read,
        k_read,
        lambda: _made(mask, q_read, k_read, alignment, apart, device).to(device),
    )
    if heads is not None and made.rules not in (1, heads):
        raise ValueError(f"{mask!r} has {made.rules} rules, one per head, but there are {heads} heads")
    if empty_rows == "error":
        _refuse_empty_rows(made, q_at)
    return made if added is None else biased(made, added, q_read.to(device), k_at)


def _on_processor(mask: Mask, q_at: Positions, k_at: Positions) -> tuple[Positions, Positions]:
    """Both sides as they were before they were moved; those given, where one was not, or the rule holds tensors."""
    tensors = any(isinstance(value, Tensor) for leaf in mask.leaves() for value in vars(leaf).values())
    if tensors or q_at.origin is None or k_at.origin is None:
        return q_at, k_at
    return q_at.origin, k_at.origin


def _collapsed(at: Positions) -> Positions:
    """One row if all sequences are alike, found out where the positions came from."""
    if at.origin is None:
        return at.collapsed
    return at if at.origin.collapsed is at.origin else at.origin.collapsed.to(at.device)


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


def _check_batches(mask: Mask, bias: Bias | None, q_at: Positions, k_at: Positions) -> None:
    if q_at.device != k_at.device:
        raise ValueError(f"query positions are on {q_at.device} and key positions on {k_at.device}")
    if q_at.batch != k_at.batch and 1 not in (q_at.batch, k_at.batch):
        raise ValueError(f"query positions have batch {q_at.batch} and key positions batch {k_at.batch}")
    batch, said = max(q_at.batch, k_at.batch), "but the positions have"
    leaves: list[tuple[str, Mask | Bias]] = [("mask", leaf) for leaf in mask.leaves()]
    leaves += [("bias", leaf) for _, leaf in ([] if bias is None else bias.leaves())]
    for kind, leaf in leaves:
        if leaf.batch != batch and 1 not in (leaf.batch, batch):
            raise ValueError(f"the {kind} {leaf!r} is made for a batch of {leaf.batch}, {said} {batch}")
        if leaf.batch > 1 and batch == 1:
            batch, said = leaf.batch, f"but the {kind} {leaf!r} for one of"


def _made(mask: Mask, q_at: Positions, k_at: Positions, alignment: str, apart: int, device: torch.device) -> Plan:
    """The plan without a bias, where the positions are.

    Args:
        apart: the number of sequences that the bias tells apart, or 0.
        device: where it will be used.
    """
    rules = mask.rules if isinstance(mask, PerHead) else (mask,)
    distinct = list(dict.fromkeys(rules))
    batch = max(q_at.batch, k_at.batch, apart, *(leaf.batch for leaf in mask.leaves()))
    which = torch.arange(batch, device=q_at.device)
    if batch > 1 and not apart and not any(leaf.needs_sequence for leaf in mask.leaves()):
        q_at, k_at, which = _distinct_sequences(q_at, k_at)
        batch = int(which.max()) + 1
    alone = one_segment(q_at, k_at)
    readers = []
    for rule in distinct:
        readers.append(Reader(rule if alone else effective(rule), effective_text(rule), q_at, k_at, batch, TILE))
        readers[-1].check()
    which = which[:1] if batch == 1 else which
    of_head = torch.tensor([distinct.index(rule) for rule in rules], device=q_at.device)
    visibility = Visibility(_found(readers, which, of_head))
    kernel, reason = chosen(visibility, device)
    return Plan(effective_text(mask), visibility, alignment, kernel, reason)


def _distinct_sequences(q_at: Positions, k_at: Positions) -> tuple[Positions, Positions, Tensor]:
    """The sequences that differ, and which of them each sequence of the batch is: int64 [B]."""
    batch = max(q_at.batch, k_at.batch)
    fields = [values.expand(batch, -1) for at in (q_at, k_at) for values in at.fields.values()]
    distinct, which = torch.unique(torch.cat(fields, dim=1), dim=0, return_inverse=True)
    if len(distinct) == batch:
        return q_at, k_at, torch.arange(batch, device=which.device)
    first = torch.full((len(distinct),), batch, device=which.device)
    first.scatter_reduce_(0, which, torch.arange(batch, device=which.device), "amin")
    q_first, k_first = (at.select(first) if at.batch > 1 else at for at in (q_at, k_at))
    return q_first, k_first, which


def _found(readers: Sequence[Reader], which: Tensor, of_head: Tensor) -> Tensor | Tiles | Pairs:
    """Visible pairs in the form that costs least to find."""
    first = readers[0]
    if is_short(first.queries, first.keys):
        return torch.stack([reader.dense() for reader in readers], dim=1)[which][:, of_head]
    group = of_head * first.batch + which[:, None]
    listed = [reader.listed() for reader in readers]
    if all(pairs is not None for pairs in listed):
        return _as_pairs([pairs for pairs in listed if pairs is not None], group, first)
    decided = [reader.decided() for reader in readers]
    return assembled(decided, group, first.batch, TILE, first.queries, first.keys)


def _as_pairs(listed: list[Tensor], group: Tensor, of: Reader) -> Pairs:
    """Pairs [3, E] of each rule, in ascending order, as one list."""
    row = torch.cat([(pairs[0] + rule * of.batch) * of.queries + pairs[1] for rule, pairs in enumerate(listed)])
    key = torch.cat([pairs[2] for pairs in listed]).int()
    rows = len(listed) * of.batch * of.queries
    start = torch.searchsorted(row, torch.arange(rows + 1, device=row.device))
    return Pairs(of.queries, of.keys, group, start, key)


def _refuse_empty_rows(made: Plan, q_at: Positions) -> None:
    if made.empty is None:
        return
    places = (made.empty & q_at.real[:, None, :]).nonzero()[:5].tolist()
    if places:
        listed = ", ".join(f"(sequence {b}, head {h}, query {i})" for b, h, i in places)
        raise ValueError(f"under the rule {made.rule} some queries see no key at all; the first: {listed}")
