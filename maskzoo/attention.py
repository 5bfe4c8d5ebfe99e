"""`attend`: masked attention, with one meaning whatever kernel computes it."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from maskzoo.kernels.dense import dense
from maskzoo.kernels.edges import edges
from maskzoo.kernels.reference import reference
from maskzoo.kernels.tiled import tiled
from maskzoo.planning import Plan
from maskzoo.registry import nearest

BACKENDS = ("auto", "reference", "dense", "tiled", "edges")


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
    return_weights: Literal[False] = False,
) -> Tensor: ...
@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over the pairs that a plan makes visible.

    A query that sees nothing gives exactly zero, with zero gradients. NaN or inf in what a query may not see never
    reaches its output or a gradient. Neither dropout, nor returned weights, nor the backend changes what is visible.

    Args:
        q: [B, H, Tq, D], float.
        k, v: [B, Hkv, Tk, D] and [B, Hkv, Tk, Dv], of q's dtype; H is a multiple of Hkv.
        plan: made by `maskzoo.plan` for positions of these lengths.
        scale: factor of q·k; 1/√D by default.
        dropout_p: probability of dropping an attention weight (0 ≤ p < 1); give 0 in evaluation.
        backend: "auto" takes the kernel that the plan names; "dense", "tiled" (tiles of visible pairs), "edges" (a list
            of visible pairs) or "reference" (float64 inside; the only one that returns weights).
        return_weights: also return the weights that multiplied v, [B, H, Tq, Tk].

    Returns:
        out [B, H, Tq, Dv] in q's dtype; with `return_weights` the pair (out, weights).

    Raises:
        ValueError: shapes, dtypes or devices that do not fit each other or the plan, or an option out of range.
    """
    _check(q, k, v, plan)
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p must be at least 0 and below 1, was {dropout_p!r}")
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}.{nearest(backend, BACKENDS)} Known: {', '.join(BACKENDS)}")
    kernel = plan.kernel if backend == "auto" else backend
    if return_weights:
        if backend not in ("auto", "reference"):
            raise ValueError(
                f"backend={backend!r} never forms the weights; ask for them with backend='auto' or 'reference'"
            )
        kernel = "reference"
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if kernel == "tiled":
        return tiled(q, k, v, plan.tiles, scale=scale, dropout_p=dropout_p, offsets=plan.offsets(kernel))
    if kernel == "edges":
        return edges(q, k, v, plan.pairs, scale=scale, dropout_p=dropout_p, offsets=plan.offsets(kernel))
    bias = plan.scores()
    if kernel == "reference":
        out, weights = reference(q, k, v, plan.visible, bias, scale=scale, dropout_p=dropout_p)
        return (out, weights) if return_weights else out
    visible = plan.visible if plan.form == "any" or bias is not None else None
    return dense(q, k, v, visible, plan.empty, bias, form=plan.form, scale=scale, dropout_p=dropout_p)


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
