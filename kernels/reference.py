"""The oracle: attention written out in float64, to be read and to be compared with."""

import torch
from torch import Tensor

from maskzoo.kernels.heads import shared_by_group
from maskzoo.kernels.nonfinite import quarantine


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    bias: Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """softmax(q·kᵀ·scale + bias over the visible keys) · v, in float64.

    Args:
        q: [B, H, Tq, D].
        k, v: [B, Hkv, Tk, D] and [B, Hkv, Tk, Dv]; Hkv divides H.
        visible: bool, broadcasts to [B, H, Tq, Tk]; True = visible. A row without a visible key gives zeros.
        bias: added to the scores of visible pairs; broadcasts to [B, H, Tq, Tk].
        scale: factor of the dot products.
        softcap: c, for c · tanh(q·k·scale / c) in place of q·k·scale.
        dropout_p: probability of dropping a weight.

    Returns:
        out [B, H, Tq, Dv] in q's dtype; the weights that multiplied v (after dropout), [B, H, Tq, Tk]; and the natural
        logarithm of each row's sum, [B, H, Tq], −inf where a row sees nothing; both in q's dtype or float32 if that is
        wider.
    """
    dtype, heads = q.dtype, q.shape[1]
    q, k, v = q.double(), shared_by_group(k, heads).double(), shared_by_group(v, heads).double()
    q, k, v, spoiled = quarantine(q, k, v, visible)
    scores = q @ k.mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    scores = scores.masked_fill(~visible, -torch.inf)
    peak = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total > 0, total, 1.0)
    # A row that sees nothing has the logarithm of zero, without its gradient, which would not be finite.
    logsumexp = torch.where(total > 0, peak + torch.where(total > 0, total, 1.0).log(), -torch.inf)[..., 0]
    weights = torch.nn.functional.dropout(weights, dropout_p)
    out = weights @ v
    if spoiled is not None:
        out = out.masked_fill(spoiled[..., None], torch.nan)
        weights = weights.masked_fill(spoiled[..., None] & visible, torch.nan)
        logsumexp = logsumexp.masked_fill(spoiled, torch.nan)
    wider = torch.promote_types(dtype, torch.float32)
    return out.to(dtype), weights.to(wider), logsumexp.to(wider)
