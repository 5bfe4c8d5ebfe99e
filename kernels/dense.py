"""Dense attention through torch's `scaled_dot_product_attention`: every pair is computed, masked or not."""

import torch
import torch.nn.functional as F
from torch import Tensor

from maskzoo.kernels.heads import shared_by_group
from maskzoo.kernels.nonfinite import quarantine


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    empty: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    form: str = "any",
    scale: float,
    dropout_p: float = 0.0,
) -> Tensor:
    """Same meaning and arguments as `reference`, without the weights.

    Args:
        visible: as in `reference`; it may be None where `form` says it all and there is no bias.
        empty: bool, broadcasts to [B, H, Tq]: rows without a visible key, None when there is none.
        form: what is known of `visible` as a whole: "full" (all pairs), "causal" (lower triangle), or "any".

    Returns:
        out [B, H, Tq, Dv] in q's dtype.
    """
    dtype, heads = q.dtype, q.shape[1]
    k, v = shared_by_group(k, heads), shared_by_group(v, heads)
    q, k, v, spoiled = quarantine(q, k, v, visible, form)
    assert visible is not None or (form != "any" and bias is None)
    if visible is not None and empty is not None:
        # A softmax over nothing is NaN in some backends: let such a row see all, and take nothing of it.
        visible = visible | empty[..., None]
    mask = visible if form == "any" else None
    if bias is not None and visible is not None:
        # A bias must not be rounded to the few bits of half precision.
        inner = torch.promote_types(dtype, bias.dtype)
        q, k, v = q.to(inner), k.to(inner), v.to(inner)
        mask = bias.to(inner).masked_fill(~visible, -torch.inf)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=form == "causal" and bias is None, dropout_p=dropout_p, scale=scale
    )
    if spoiled is not None:
        out = out.masked_fill(spoiled[..., None], torch.nan)
    if empty is not None:
        out = out.masked_fill(empty[..., None], 0.0)
    return out.to(dtype)
