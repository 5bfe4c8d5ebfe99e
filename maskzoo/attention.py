"""`attend`: masked attention, with one meaning whatever kernel computes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor

from maskzoo.cache import cache_folder
from maskzoo.kernels.dense import dense
from maskzoo.kernels.edges import edges
from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiled import tiled
from maskzoo.kernels.triton import WIDEST, is_at_hand
from maskzoo.planning import Plan
from maskzoo.registry import nearest

BACKENDS = ("auto", "reference", "dense", "tiled", "edges", "triton")


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
    return_weights: Literal[False] = False,
    return_logsumexp: Literal[False] = False,
) -> Tensor: ...
@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
    return_weights: bool = False,
    return_logsumexp: bool = False,
) -> Any: ...
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
    return_weights: bool = False,
    return_logsumexp: bool = False,
) -> Any:
    """Attention over the pairs that a plan makes visible.

    A query that sees nothing gives exactly zero, with zero gradients. NaN or inf in what a query may not see never
    reaches its output or a gradient. Neither dropout, nor returned weights, nor the backend changes what is visible.

    Args:
        q: [B, H, Tq, D], float.
        k, v: [B, Hkv, Tk, D] and [B, Hkv, Tk, Dv], of q's dtype; H is a multiple of Hkv.
        plan: made by `maskzoo.plan` for positions of these lengths.
        scale: factor of q·k; 1/√D by default.
        softcap: c > 0, for c · tanh(q·k·scale / c) in place of q·k·scale, before the bias (Gemma Team 2024, *Gemma 2*,
            section 2).
        dropout_p: probability of dropping an attention weight (0 ≤ p < 1); give 0 in evaluation.
        backend: "auto" takes the kernel that the plan names, or one that can what is asked; "dense", "tiled" (tiles of
            visible pairs), "triton" (the same, fused, on a GPU), "edges" (a list of visible pairs) or "reference"
            (float64 inside; the only one that returns weights).
        return_weights: also return the weights that multiplied v, [B, H, Tq, Tk].
        return_logsumexp: also return the natural logarithm of the sum of each query's powers, [B, H, Tq], float32 or
            q's dtype if that is wider: −inf where it sees nothing. Parts of attention over different keys can be put
            together with it, also in training.

    Returns:
        out [B, H, Tq, Dv] in q's dtype; a tuple of out and what else is asked for, weights first.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit each other or the plan, an option out of range, or a
            backend that cannot do what is asked.
    """
    _check(q, k, v, plan)
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p must be at least 0 and below 1, was {dropout_p!r}")
    if softcap is not None and not 0.0 < softcap < math.inf:
        raise ValueError(f"softcap must be above 0 and finite, or None for none; was {softcap!r}")
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}.{nearest(backend, BACKENDS)} Known: {', '.join(BACKENDS)}")
    if return_weights and backend not in ("auto", "reference"):
        raise ValueError(
            f"backend={backend!r} never forms the weights; ask for them with backend='auto' or 'reference'"
        )
    beyond_dense = softcap is not None or return_logsumexp
    if backend == "dense" and beyond_dense:
        asked = "return the logarithm of the sums" if softcap is None else "cap the scores"
        raise ValueError(f"backend='dense' cannot {asked}; leave backend='auto', or name another one")
    kernel = _able(plan.kernel, q, v, beyond_dense) if backend == "auto" else backend
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    options: dict[str, Any] = {"scale": scale, "dropout_p": dropout_p}
    if kernel == "reference" or return_weights:
        options["softcap"] = softcap
        out, weights, logsumexp = reference(q, k, v, plan.visible, plan.scores(), **options)
        further = [weights] * return_weights + [logsumexp] * return_logsumexp
        return (out, *further) if further else out
    if kernel == "dense":
        bias = plan.scores()
        visible = plan.visible if plan.form == "any" or bias is not None else None
        return dense(q, k, v, visible, plan.empty, bias, form=plan.form, **options)
    options.update(softcap=softcap, offsets=plan.offsets(kernel))
    if kernel == "tiled":
        out, logsum = tiled(q, k, v, plan.tiles, **options)
    elif kernel == "edges":
        out, logsum = edges(q, k, v, plan.pairs, **options)
    else:
        out, logsum = _fused()(q, k, v, plan.schedule, **options)
    return (out, logsum * math.log(2)) if return_logsumexp else out


def _able(kernel: str, q: Tensor, v: Tensor, beyond_dense: bool) -> str:
    """The kernel that a plan names, or one in its place that can do what is asked of it."""
    if kernel == "dense" and beyond_dense:
        kernel = "triton" if is_at_hand(q.device) else "tiled"
    if kernel == "triton" and (q.dtype == torch.float64 or max(q.shape[-1], v.shape[-1]) > WIDEST):
        return "tiled"
    return kernel


def _fused() -> Callable[..., tuple[Tensor, Tensor]]:
    """The GPU kernel; Triton is imported only where it is used.

    Raises:
        ValueError: there is no Triton.
    """
    try:
        from maskzoo.kernels.triton import tuning
        from maskzoo.kernels.triton.operator import fused
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ValueError(
            "the kernel 'triton' needs the package triton, which is not installed; use backend='tiled', or install it"
        ) from error
    tuning.folder = cache_folder()
    return fused


def _check(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> None:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"q, k and v must have shape [B, H, T, D]; got {shapes}")
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating_point:
        raise ValueError(f"q, k and v must share one float dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device == plan.device:
        raise ValueError(
            f"q, k, v and the plan must be on one device; got {q.device}, {k.device}, {v.device} and "
            f"{plan.device} (move the plan with plan.to(device))"
        )
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q, k and v do not fit each other: {shapes}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"the {q.shape[1]} query heads must be a multiple of the {k.shape[1]} key/value heads: {shapes}"
        )
    if (q.shape[2], k.shape[2]) != (plan.query_length, plan.key_length):
        raise ValueError(
            f"the plan is for {plan.query_length} queries and {plan.key_length} keys, but {shapes}; "
            "make a plan for these positions"
        )
    if plan.batch not in (1, q.shape[0]):
        raise ValueError(f"the plan is for a batch of {plan.batch}, but {shapes}")
    if plan.heads not in (None, q.shape[1]):
        raise ValueError(f"the plan is for {plan.heads} heads, but {shapes}")
