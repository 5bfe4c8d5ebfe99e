"""What bias providers give when they are asked, checked, with the provider's name in every error."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor

from maskzoo.biases.base import Bias, OffsetBias
from maskzoo.planning.sides import Elements, Sequences
from maskzoo.planning.visibility import TILE
from maskzoo.positions import Positions

LARGEST_CODE = 2**61
"""Differences then stay within int64."""


def code(leaf: OffsetBias, take: Callable[[Elements], Tensor], at: Positions) -> Tensor:
    """What `take`, a provider's q_code or k_code, gives: int64 [B or 1, T] or [B or 1, T, C]."""
    sequence = torch.arange(at.batch, device=at.device)[:, None]
    slot = torch.arange(at.length, device=at.device)[None]
    given = _integers(leaf, "code", lambda: take(Elements(_all_of(leaf, at), sequence, slot, _no_lists)))
    fits = given.dim() in (2, 3) and given.shape[0] in (1, at.batch) and given.shape[1] == at.length
    if not fits or given.shape[-1] == 0:
        raise ValueError(
            f"{leaf!r}: code must have shape [B, T] = {[at.batch, at.length]}, or [B, T, C] for C integers each, "
            f"got {list(given.shape)}"
        )
    low, high = (int(end) for end in given.aminmax())
    if low < -LARGEST_CODE or high > LARGEST_CODE:
        raise ValueError(f"{leaf!r}: code must lie within ±2⁶¹, but reaches from {low} to {high}")
    _check_pure(leaf, take, at, given)
    return given


def _check_pure(leaf: OffsetBias, take: Callable[[Elements], Tensor], at: Positions, given: Tensor) -> None:
    """Read some positions apart from all others, each as a row of its own.

    Raises:
        ValueError: the code is not a function of the position alone.
    """
    sequence = torch.tensor([0, at.batch - 1], device=at.device).unique()
    slot = torch.linspace(0, at.length - 1, min(at.length, 12), device=at.device).long()
    sequence, slot = (x.flatten() for x in torch.meshgrid(sequence, slot, indexing="ij"))
    apart = _integers(
        leaf, "code", lambda: take(Elements(_all_of(leaf, at), sequence[:, None], slot[:, None], _no_lists))
    )
    among = given.expand(at.batch, *given.shape[1:])[sequence, slot][:, None]
    each = apart.shape[0] in (1, len(among)) and apart.shape[1:] == among.shape[1:]
    differ = (apart != among).flatten(1).any(1) if each else torch.ones_like(slot, dtype=torch.bool)
    if bool(differ.any()):
        b, t = int(sequence[differ][0]), int(slot[differ][0])
        raise ValueError(
            f"{leaf!r} is not a function of the position alone: the code of position {t} of sequence {b} depends on "
            "which other positions are asked for with it. Compute code(at) element by element from the fields of at"
        )


class Index:
    """The index of a provider for any pairs: sequence [P, 1, 1], query places [P, n, 1], key places [P, 1, m]."""

    def __init__(self, leaf: Bias, q_at: Positions, k_at: Positions) -> None:
        self._leaf, self._q, self._k = leaf, _all_of(leaf, q_at), _all_of(leaf, k_at)

    def __call__(self, sequence: Tensor, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """int64, broadcasts to [P, n, m]."""
        leaf, shape = self._leaf, torch.broadcast_tensors(sequence, q_slot, k_slot)[0].shape
        q, k = Elements(self._q, sequence, q_slot, _no_lists), Elements(self._k, sequence, k_slot, _no_lists)
        given = _integers(leaf, "index", lambda: leaf.index(q, k))
        try:
            given.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"{leaf!r}: index must broadcast to [B, Tq, Tk] = {list(shape)}, got {list(given.shape)}"
            ) from None
        low, high = (int(end) for end in given.aminmax()) if given.numel() else (0, 0)
        if low < 0 or high >= 2**31:
            raise ValueError(f"{leaf!r}: index must lie from 0 to {2**31 - 1}, but reaches from {low} to {high}")
        return given

    def check(self, batch: int) -> None:
        """Read some pairs all at once, and each alone.

        Raises:
            ValueError: the index is not a function of the pair alone.
        """
        device = self._q.at.device
        sequence = torch.tensor([0, batch - 1], device=device).unique()[:, None, None]
        q_slot, k_slot = (
            torch.linspace(0, length - 1, min(length, 12), device=device).long()
            for length in (self._q.at.length, self._k.at.length)
        )
        places = sequence, q_slot.flip(0)[None, :, None], k_slot[None, None]
        alone = torch.stack(torch.broadcast_tensors(*places)).flatten(1)[..., None, None]
        together = self(*places).expand(len(sequence), len(q_slot), len(k_slot)).flatten()
        for part in (slice(None), slice(1), slice(-1, None)):  # all by themselves, and two without company
            differ = together[part] != self(*alone[:, part]).expand(alone[0, part].shape).flatten()
            if bool(differ.any()):
                b, i, j = alone[:, part][:, differ].flatten(1)[:, 0].tolist()
                raise ValueError(
                    f"{self._leaf!r} is not a function of the pair alone: the index of query {i} and key {j} of "
                    f"sequence {b} depends on which other pairs are asked for with it. Compute index(q, k) element by "
                    "element from the fields of q and k"
                )


def offset_table(leaf: OffsetBias, differences: Tensor, finite: bool = False) -> Tensor:
    """float [H, N] for N differences; `finite` asks that it be so, which takes a look at every number.

    A module may be elsewhere than the positions: the table is taken where they are.
    """
    own = _device(leaf, differences.device)
    with torch.autocast(own.type, enabled=False):
        table = leaf.table(differences.to(own))
    return _checked(leaf, table, len(differences), True, finite).to(differences.device)


def index_table(leaf: Bias, entries: int, device: torch.device, finite: bool = False) -> Tensor:
    """float [H, N], N of at least `entries`."""
    with torch.autocast(_device(leaf, device).type, enabled=False):
        table = leaf.table(entries)
    return _checked(leaf, table, entries, False, finite).to(device)


def _device(leaf: Bias, otherwise: torch.device) -> torch.device:
    return next((x.device for x in chain(leaf.parameters(), leaf.buffers())), otherwise)


def _checked(leaf: Bias, table: Tensor, entries: int, exact: bool, finite: bool) -> Tensor:
    wanted = f"[{leaf.heads}, {entries}]" if exact else f"[{leaf.heads}, {entries}] or wider"
    if not isinstance(table, Tensor) or not table.dtype.is_floating_point:
        got = table.dtype if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(f"{leaf!r}: table must return a float tensor [heads, entries] = {wanted}, got {got}")
    fits = table.dim() == 2 and (table.shape[1] == entries if exact else table.shape[1] >= entries)
    if not fits or table.shape[0] != leaf.heads:
        raise ValueError(f"{leaf!r}: table must have shape [heads, entries] = {wanted}, got {list(table.shape)}")
    if finite and not bool(torch.isfinite(table).all()):
        raise ValueError(f"{leaf!r}: table must be finite; to hide pairs, use a mask")
    return table


def _integers(leaf: Bias, what: str, ask: Callable[[], Tensor]) -> Tensor:
    try:
        given = ask()
    except ValueError:
        raise
    except Exception as error:
        if getattr(type(leaf), what) in (Bias.index, OffsetBias.code):  # which say that nobody has written them
            raise
        raise ValueError(f"{leaf!r}: {what} raised {type(error).__name__}: {error}") from error
    if not isinstance(given, Tensor) or given.dtype != torch.int64:
        got = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(f"{leaf!r}: {what} must return a tensor of int64, got {got}")
    return given


def _all_of(leaf: Bias, at: Positions) -> Sequences:
    sequences = Sequences(leaf, at, TILE)
    sequences.tells_sequences_apart = leaf.needs_sequence
    return sequences


def _no_lists(*_: object) -> Tensor:
    raise AssertionError("a bias has no listed rules")
