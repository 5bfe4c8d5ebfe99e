"""Keeping NaN and inf where they belong: a row that may not see them must not feel them."""

import torch
from torch import Tensor


def quarantine(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, form: str = "any"
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Replace non-finite inputs by zero, and say which queries had a right to see them.

    In a matrix product 0 · NaN is NaN, so a zero weight is not enough to keep a masked value out.

    Args:
        q, k, v: [B, H, Tq, D], [B, H, Tk, D], [B, H, Tk, Dv].
        visible: bool, broadcasts to [B, H, Tq, Tk]; needed where form is "any".
        form: what is known of `visible` as a whole: "full", "causal" or "any".

    Returns:
        q, k, v with zeros for what is not finite, and the rows whose result is NaN because they see, in any head, a
        position that is not finite: bool, broadcasts to [B, H, Tq] (None: all is finite, and nothing was changed).
    """
    if not torch.compiler.is_compiling() and all_finite(q, k, v):
        return q, k, v, None
    bad_query, bad_key = bad_positions(q), bad_positions(k) | bad_positions(v)  # [B, 1, Tq], [B, 1, Tk]
    if form == "full":
        spoiled = bad_query | bad_key.any(-1, keepdim=True)
    elif form == "causal":
        spoiled = bad_query | (bad_key.cumsum(-1) > 0)
    else:
        assert visible is not None
        spoiled = (visible & (bad_query[..., :, None] | bad_key[..., None, :])).any(-1)
    return finite(q), finite(k), finite(v), spoiled


def all_finite(*inputs: Tensor) -> bool:
    """One cheap reduction each; an overflow of a sum only sends finite inputs the longer way round."""
    sums = [x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32)) for x in inputs]
    return bool(torch.stack(sums).isfinite().all())


def bad_positions(x: Tensor) -> Tensor:
    """Positions of x [B, H, T, D] that hold NaN or inf in any head: bool [B, 1, T]."""
    return (x.detach() * 0).sum((1, 3), dtype=torch.float32).isnan()[:, None]


def finite(x: Tensor) -> Tensor:
    """x with zeros for what is not finite."""
    return torch.where(x.isfinite(), x, 0)
