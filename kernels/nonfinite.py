"""Keeping NaN and inf where they belong: a row that may not see them must not feel them."""

import torch
from torch import Tensor


def quarantine(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Replace non-finite inputs by zero, and say which queries had a right to see them.

    In a matrix product 0 · NaN is NaN, so a zero weight is not enough to keep a masked value out.

    Args:
        q, k, v: [B, H, Tq, D], [B, H, Tk, D], [B, H, Tk, Dv].
        visible: bool, broadcasts to [B, H, Tq, Tk].

    Returns:
        q, k, v with zeros for what is not finite, and the rows whose result is NaN, bool [B, H, Tq]
        (None: every input is finite, and nothing was changed).
    """
    # One cheap reduction; an overflow of the sum only sends finite inputs the longer way round.
    total = sum(x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v))
    if torch.isfinite(torch.as_tensor(total)):
        return q, k, v, None
    bad_query = ~q.isfinite().all(-1)
    bad_key = ~(k.isfinite().all(-1) & v.isfinite().all(-1))
    spoiled = (visible & (bad_query[..., :, None] | bad_key[..., None, :])).any(-1)
    return _finite(q), _finite(k), _finite(v), spoiled


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0)
