"""The GPU kernel as an operator of torch's: one call for eager mode, autograd, the compiler and CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskzoo.kernels.gradients import at_places, or_nothing, without_data
from maskzoo.kernels.offsets import Offsets, arrays, from_arrays
from maskzoo.kernels.triton.device import check
from maskzoo.kernels.triton.passes import Call, backward_pass, forward_pass, like_queries
from maskzoo.kernels.triton.schedule import Schedule, from_list


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    schedule: Schedule,
    *,
    scale: float,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    offsets: Offsets | None = None,
) -> tuple[Tensor, Tensor]:
    """Same meaning as `reference`, in one GPU kernel a pass; time and memory follow the tiles with a visible pair.

    Softmax and sums are float32; products take their operands in the inputs' dtype, float32 ones as
    `torch.backends.cuda.matmul.allow_tf32` says. Equal inputs give equal bits. No number is read back from the device,
    so CUDA graphs can hold it; then only the seed of dropout is drawn anew.

    Args:
        q: [B, H, Tq, D], bfloat16, float16 or float32, any strides; D and Dv up to 256.
        k, v: [B, Hkv, Tk, D] and [B, Hkv, Tk, Dv]; Hkv divides H.
        schedule: of Tq queries and Tk keys.
        scale: factor of the dot products.
        softcap: c, for c · tanh(q·k·scale / c) in place of q·k·scale.
        dropout_p: probability of dropping a weight; which ones follows from torch's default generator.
        offsets: what is added to the scores after that; its tables and dense tensor get gradients.

    Returns:
        out [B, H, Tq, Dv] in q's dtype, and the binary logarithm of each row's sum, float32 [B, H, Tq]: −inf where a
        row sees nothing. Both can be differentiated once.

    Raises:
        ValueError: a device, dtype or width that the kernel cannot take.
    """
    check(q, v)
    seed = torch.randint(2**62, (1,), device=q.device) if dropout_p > 0 else None
    terms = arrays(offsets)
    out, logsum, *_ = torch.ops.maskzoo.triton(q, k, v, schedule.as_list(), *terms, scale, softcap, dropout_p, seed)
    return out, logsum


DIFFERENTIABLE = (0, 1, 2, 6, 9, 10)
"""Which arguments may get a gradient: q, k, v, both tables and the dense tensor."""


@torch.library.custom_op("maskzoo::triton", mutates_args=())
def _triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    schedule: Sequence[Tensor],
    q_code: Tensor | None,
    k_code: Tensor | None,
    code_table: Tensor | None,
    index: Tensor | None,
    place: Tensor | None,
    index_table: Tensor | None,
    dense: Tensor | None,
    scale: float,
    softcap: float | None,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """out, the logarithms, and the three arrays of `Bad`."""
    given = q_code, k_code, code_table, index, place, index_table, dense
    call = Call(from_list(schedule), from_arrays(given) or Offsets(), scale, softcap, dropout_p, seed)
    with torch.cuda.device_of(q):
        out, logsum, bad = forward_pass(q, k, v, call)
    return out, logsum, bad[0], bad[1], bad[2]


@_triton.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    bad = [q.new_empty(shape, dtype=torch.uint8) for shape in ((q.shape[0], q.shape[2]), (k.shape[0], k.shape[2]))]
    logsum = q.new_empty(q.shape[:3], dtype=torch.float32)
    return like_queries(q, v.shape[3]), logsum, *bad, q.new_empty(1, dtype=torch.int32)


@torch.library.custom_op("maskzoo::triton_backward", mutates_args=())
def _triton_backward(
    grad: Tensor,
    grad_logsum: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsum: Tensor,
    bad: Sequence[Tensor],
    schedule: Sequence[Tensor],
    q_code: Tensor | None,
    k_code: Tensor | None,
    code_table: Tensor | None,
    index: Tensor | None,
    place: Tensor | None,
    index_table: Tensor | None,
    dense: Tensor | None,
    scale: float,
    softcap: float | None,
    dropout_p: float,
    seed: Tensor | None,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, both tables and the dense tensor; empty tensors for those that are not needed."""
    given = q_code, k_code, code_table, index, place, index_table, dense
    call = Call(from_list(schedule), from_arrays(given) or Offsets(), scale, softcap, dropout_p, seed)
    with torch.cuda.device_of(q):
        found = backward_pass(grad, grad_logsum, q, k, v, out, logsum, list(bad), call, needed)
    gradients = or_nothing(found, (q, k, v, code_table, index_table, dense), q)
    return gradients[0], gradients[1], gradients[2], gradients[3], gradients[4], gradients[5]


@_triton_backward.register_fake
def _(grad: Tensor, grad_logsum: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    # Out, the logarithms and `bad` stand between the first three and the others.
    sources = [rest[place if place < 3 else place + 3] for place in DIFFERENTIABLE]
    own = [torch.empty_like(x) if wanted else x.new_empty(0) for x, wanted in zip(sources, rest[-1][:3], strict=False)]
    return *own, *without_data(sources[3:], rest[-1][3:], grad)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, schedule, *terms, ctx.scale, ctx.softcap, ctx.dropout_p, seed = inputs
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)
    ctx.scheduled = len(schedule)
    ctx.save_for_backward(q, k, v, *output, *schedule, *terms, seed)


def _gradients(ctx: Any, grad: Tensor | None, grad_logsum: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "the triton kernel's gradient cannot be differentiated again (create_graph=True); "
            "attend with backend='reference' where second derivatives are needed"
        )
    q, k, v, out, logsum, *saved = ctx.saved_tensors
    bad, schedule, (*terms, seed) = saved[:3], saved[3 : 3 + ctx.scheduled], saved[3 + ctx.scheduled :]
    needed = [ctx.needs_input_grad[place] for place in DIFFERENTIABLE]
    grad = torch.zeros_like(out) if grad is None else grad
    options = ctx.scale, ctx.softcap, ctx.dropout_p, seed
    found = torch.ops.maskzoo.triton_backward(
        grad, grad_logsum, q, k, v, out, logsum, bad, schedule, *terms, *options, needed
    )
    gradients: list[Any] = list(at_places(found, needed, DIFFERENTIABLE, 4 + len(terms) + len(options)))
    gradients[3] = [None] * ctx.scheduled
    return tuple(gradients)


_triton.register_autograd(_gradients, setup_context=_setup)
