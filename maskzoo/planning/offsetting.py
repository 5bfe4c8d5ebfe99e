"""The bias of a plan: read, checked against the positions, and folded."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import Tensor

from maskzoo.biases.base import Bias
from maskzoo.biases.dense import Dense
from maskzoo.biases.parsing import parse
from maskzoo.planning.choosing import DENSE_WITH_BIAS_BELOW, sparse_kernel
from maskzoo.planning.folding import Folded
from maskzoo.planning.result import Plan
from maskzoo.planning.visibility import Visibility
from maskzoo.positions import Positions

_kept: WeakKeyDictionary[Visibility, WeakKeyDictionary[Bias, Folded]] = WeakKeyDictionary()
"""Of positions that no batch changes, as long as both their plan is kept and the bias is in use."""


def read(bias: str | Bias | Tensor | None, heads: int | None) -> Bias | None:
    """A bias as `plan` takes it.

    Raises:
        ValueError: it cannot be read, or the number of heads is unknown or not the bias's.
    """
    if bias is None:
        return None
    if heads is None:
        if not isinstance(bias, Bias):
            raise ValueError("a bias given as text or tensor needs heads=, the number of query heads")
        heads = bias.heads
    added = Dense(bias, heads=heads) if isinstance(bias, Tensor) else parse(bias, heads=heads)
    if added is None:
        return None
    if added.heads != heads:
        raise ValueError(f"the bias {added!r} is made for {added.heads} heads, but there are {heads}")
    return added


def told_apart(bias: Bias | None) -> int:
    """How many sequences a bias tells apart even where they are equal; 0 if it does not."""
    leaves = () if bias is None else bias.leaves()
    return max((leaf.batch for _, leaf in leaves if leaf.needs_sequence), default=0)


def biased(made: Plan, bias: Bias, q_at: Positions, k_at: Positions) -> Plan:
    """The plan with a bias at the positions that it was made for.

    Raises:
        ValueError: a provider that does not fit the positions, or gives no index, code or table.
    """
    _check(made, bias, q_at, k_at)
    own = _kept.setdefault(made.visibility, WeakKeyDictionary()) if q_at.batch == k_at.batch == 1 else {}
    if bias not in own:
        own[bias] = Folded(bias, q_at, k_at)
    if made.kernel == "dense" and made.query_length * made.key_length >= DENSE_WITH_BIAS_BELOW:
        reason = "it adds the bias to scores as they are computed; dense writes one out for every pair and head"
        made = replace(made, kernel=sparse_kernel(made.device), reason=reason)
    return replace(made, bias=bias, folded=own[bias])


def _check(made: Plan, bias: Bias, q_at: Positions, k_at: Positions) -> None:
    batch = max(made.batch, q_at.batch, k_at.batch)
    for _, leaf in bias.leaves():
        if isinstance(leaf, Dense):
            _check_broadcast(leaf, (max(batch, leaf.batch), bias.heads, made.query_length, made.key_length))
            if leaf.values.device != q_at.device:
                raise ValueError(f"the bias {leaf!r} is on {leaf.values.device} and the positions are on {q_at.device}")


def _check_broadcast(bias: Dense, full: tuple[int, ...]) -> None:
    try:
        bias.values.expand(full)
    except RuntimeError:
        raise ValueError(
            f"a bias of shape {list(bias.values.shape)} does not broadcast to [B, H, Tq, Tk] = {list(full)}"
        ) from None
