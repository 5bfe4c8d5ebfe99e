"""To and from the mask conventions of other libraries.

| convention | a true, or 1, means | readers and writers |
| --- | --- | --- |
| torch `scaled_dot_product_attention` | visible | `from_sdpa`, `to_sdpa` |
| torch `nn.MultiheadAttention`, `nn.Transformer…` | **hidden** | `from_multihead`, `to_multihead` |
| additive: 0 visible, −inf or far below 0 hidden | | `from_additive`, `split_additive`, `to_additive` |
| Hugging Face `attention_mask` | real, not padding | `from_padding` (gives Positions), `to_padding` |

A mask that is read in the wrong convention still runs, and hides exactly what should be seen. So each reader takes one
dtype only, and refuses a mask that hides everything.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from maskzoo.masks.algebra import stack
from maskzoo.masks.base import Mask
from maskzoo.masks.dense import Dense
from maskzoo.planning import Plan
from maskzoo.positions import PADDING, Positions

HIDDEN_BELOW = -9000.0
"""An additive mask hides at this value and below: −1e4 rounds to −9984 in bfloat16, and nothing milder is in use."""


def from_sdpa(mask: Tensor) -> Mask:
    """The rule of an `attn_mask` for torch's `scaled_dot_product_attention`.

    Args:
        mask: bool, True = visible, [Tq, Tk] or [B, H, Tq, Tk]; dimensions of size 1 broadcast. (B, 1, 1, Tk) is a
            mask of source padding. With H > 1 the result is a stack of one rule per head.

    Raises:
        ValueError: another dtype or shape, or a mask that hides every pair.
    """
    _check_boolean(mask, "from_sdpa", "True = visible")
    if mask.dim() not in (2, 4):
        raise ValueError(
            f"from_sdpa reads [Tq, Tk] or [B, H, Tq, Tk], got {list(mask.shape)}; say what the first dimension is: "
            "mask[:, None] where it counts sequences, mask[None] where it counts heads"
        )
    _check_sees_something(mask, "from_sdpa", "True is read as visible; nn.MultiheadAttention's masks mean the opposite")
    return _rule(mask)


def to_sdpa(plan: Plan) -> Tensor:
    """The plan as `attn_mask` for torch's `scaled_dot_product_attention`.

    Returns:
        bool, True = visible, [B or 1, H or 1, Tq, Tk]. Padding and segments are in it, so `is_causal` must stay
        False. For a query that sees nothing torch's result is zero, as ours (NaN before torch 2.5).

    Raises:
        ValueError: the plan has a bias, which a boolean mask cannot carry.
    """
    _refuse_bias(plan, "to_sdpa")
    return plan.visible.clone()


def from_multihead(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, heads: int | None = None
) -> Mask:
    """The rule of the boolean masks of torch's `nn.MultiheadAttention` and `nn.Transformer…`, where True = hidden.

    Args:
        attn_mask: bool, **True = hidden**, [Tq, Tk] or [B·heads, Tq, Tk].
        key_padding_mask: bool, True = hidden (padding), [B, Tk].
        heads: the module's `num_heads`; needed for an attn_mask of three dimensions.

    Raises:
        ValueError: neither mask, another dtype or shape, or masks that hide every pair.
    """
    read = []
    if attn_mask is not None:
        _check_boolean(attn_mask, "from_multihead", "True = hidden")
        if attn_mask.dim() == 3 and (heads is None or attn_mask.shape[0] % heads):
            raise ValueError(
                f"an attn_mask of shape {list(attn_mask.shape)} is [B·heads, Tq, Tk]: give heads=, the module's "
                f"num_heads, a divisor of {attn_mask.shape[0]}; got heads={heads}"
            )
        if attn_mask.dim() not in (2, 3):
            raise ValueError(f"attn_mask must be [Tq, Tk] or [B·heads, Tq, Tk], got {list(attn_mask.shape)}")
        read.append(~(attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (-1, heads or 1))))
    if key_padding_mask is not None:
        _check_boolean(key_padding_mask, "from_multihead", "True = hidden")
        if key_padding_mask.dim() != 2:
            raise ValueError(f"key_padding_mask must be [B, Tk], got {list(key_padding_mask.shape)}")
        read.append(~key_padding_mask[:, None, None, :])
    if not read:
        raise ValueError("from_multihead needs attn_mask, key_padding_mask or both")
    try:
        visible = torch.stack(torch.broadcast_tensors(*read)).all(0)
    except RuntimeError:
        shapes = [list(mask.shape) for mask in (attn_mask, key_padding_mask) if mask is not None]
        raise ValueError(f"attn_mask and key_padding_mask do not fit each other: {shapes[0]} and {shapes[1]}") from None
    _check_sees_something(
        visible, "from_multihead", "True is read as hidden; for masks where True = visible, from_sdpa"
    )
    return _rule(visible)


def to_multihead(plan: Plan, *, heads: int | None = None) -> Tensor:
    """The plan as `attn_mask` for torch's `nn.MultiheadAttention` and `nn.Transformer…`, where True = hidden.

    Padding is in it: no key_padding_mask is needed beside it.

    Args:
        heads: the module's `num_heads`; needed where sequences or heads differ.

    Returns:
        bool, **True = hidden**: [Tq, Tk] where all sequences and heads share one rule, else [B·heads, Tq, Tk], with the
        plan's B: one made for any batch (B = 1) is repeated by `mask.repeat(batch, 1, 1)`.

    Raises:
        ValueError: heads is missing or not the plan's, or the plan has a bias.

    Warns:
        UserWarning: some queries (padding, often) see nothing. Torch's module gives NaN there when it returns weights.
    """
    _refuse_bias(plan, "to_multihead")
    if plan.empty is not None:
        warnings.warn(
            f"{int(plan.empty.sum())} query rows see no key: nn.MultiheadAttention gives NaN there with "
            "need_weights=True; leave those rows out of what follows",
            stacklevel=2,
        )
    if plan.visible.shape[:2] == (1, 1):
        return ~plan.visible[0, 0]
    if heads is None or plan.heads not in (None, heads):
        raise ValueError(
            f"to_multihead needs heads=, the module's num_heads, for a plan of batch {plan.batch} and "
            f"{plan.heads or 'any number of'} heads; got heads={heads}"
        )
    return (~plan.visible).expand(-1, heads, -1, -1).flatten(0, 1)


def from_additive(values: Tensor, *, hidden_below: float = HIDDEN_BELOW) -> Mask:
    """The rule of an additive mask: 0 where visible, −inf or a large negative number where hidden.

    Args:
        values: float, [Tq, Tk] or [B, H, Tq, Tk]; dimensions of size 1 broadcast.
        hidden_below: the highest value that hides. The default takes in −1e4, −1e9, the lowest number of any dtype, and
            sums of such planes (down to −inf).

    Raises:
        ValueError: no float tensor, NaN, another shape, a mask that hides every pair, or values that are neither 0 nor
            hidden: these are a bias (`split_additive` gives both).
    """
    mask, offsets = split_additive(values, hidden_below=hidden_below)
    if bool(offsets.any()):
        place = offsets.nonzero()[0].tolist()
        raise ValueError(
            f"an additive mask holds 0 and hidden values (at most {hidden_below:g}) only, but the value at {place} is "
            f"{float(offsets[tuple(place)]):g}. For mask and bias in one: mask, bias = split_additive(values)"
        )
    return mask


def split_additive(values: Tensor, *, hidden_below: float = HIDDEN_BELOW) -> tuple[Mask, Tensor]:
    """The rule and the finite bias of one additive tensor: `plan(mask, at, bias=bias, heads=H)`.

    Args:
        values, hidden_below: as for `from_additive`; a bias as low as `hidden_below` would be taken for a mask.

    Returns:
        the rule, and `values` with 0 where hidden (differentiable).

    Raises:
        ValueError: no float tensor, NaN or +inf, another shape, or a mask that hides every pair.
    """
    if not isinstance(values, Tensor) or not values.dtype.is_floating_point:
        got = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"an additive mask is a float tensor, 0 = visible, got {got}; boolean masks: from_sdpa")
    if values.dim() not in (2, 4):
        raise ValueError(f"an additive mask must be [Tq, Tk] or [B, H, Tq, Tk], got {list(values.shape)}")
    if not hidden_below < 0:
        raise ValueError(f"hidden_below must be below 0, was {hidden_below!r}")
    if bool(values.isnan().any()) or bool((values == torch.inf).any()):
        raise ValueError("an additive mask must not hold NaN or +inf")
    visible = values > hidden_below
    _check_sees_something(visible, "from_additive", "0 is read as visible")
    return _rule(visible), values.masked_fill(~visible, 0.0)


def to_additive(plan: Plan, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The plan as an additive mask: 0, or the plan's bias, where visible and −inf where hidden.

    Args:
        dtype: float dtype of the result.

    Returns:
        [B or 1, H or 1, Tq, Tk], differentiable in the bias. A row of −inf alone is a query that sees nothing; an
        ordinary softmax gives NaN there.

    Raises:
        ValueError: dtype is no float dtype.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"an additive mask needs a float dtype, got {dtype}")
    bias = plan.scores()
    offsets = torch.zeros((), dtype=dtype, device=plan.visible.device) if bias is None else bias.to(dtype)
    return torch.where(plan.visible, offsets, -torch.inf)


def from_padding(attention_mask: Tensor) -> Positions:
    """The positions behind a Hugging Face `attention_mask`: one segment a row, padded on the left or on the right.

    Args:
        attention_mask: integers [B, T], 1 = real, 0 = padding.

    Raises:
        ValueError: another dtype, shape or value; padding between real tokens; no real token at all.
    """
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        got = list(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise ValueError(f"an attention_mask is a tensor of shape [B, T], got {got}")
    if attention_mask.dtype == torch.bool or attention_mask.dtype.is_floating_point:
        raise ValueError(
            f"an attention_mask holds integers, 1 = real and 0 = padding, got {attention_mask.dtype}. A boolean could "
            "mean either: write mask.long() where True = real, (~mask).long() for torch's key_padding_mask"
        )
    if not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
        raise ValueError("an attention_mask holds 0 and 1 only; for several segments a row, Positions(segment=…)")
    real = attention_mask == 1
    _check_sees_something(real, "from_padding", "1 is read as real and 0 as padding")
    starts = real.long().diff(dim=1, prepend=torch.zeros_like(real[:, :1], dtype=torch.long)) == 1
    broken = (starts.sum(1) > 1).nonzero().flatten().tolist()
    if broken:
        raise ValueError(
            f"row {broken[0]} has padding between real tokens; say what it means with Positions(segment=…, index=…)"
        )
    return Positions(segment=torch.where(real, 0, PADDING))


def to_padding(at: Positions) -> Tensor:
    """Positions as a Hugging Face `attention_mask`: int64 [B, T], 1 = real, 0 = padding.

    Raises:
        ValueError: several segments in a row, whose boundaries such a mask cannot carry.
    """
    highest = at.segment.amax(1, keepdim=True)
    packed = ((at.segment != highest) & at.real).any(1).nonzero().flatten().tolist()
    if packed:
        raise ValueError(
            f"row {packed[0]} packs several segments, which an attention_mask of 0 and 1 would join into one; "
            "use to_sdpa(plan) or to_additive(plan)"
        )
    return at.real.long()


def _rule(visible: Tensor) -> Mask:
    """bool [Tq, Tk] or [B, H, Tq, Tk] as a rule."""
    if visible.dim() == 2:
        return Dense(visible)
    heads = [Dense(own[0] if len(own) == 1 else own) for own in visible.unbind(1)]
    return heads[0] if len(heads) == 1 else stack(*heads)


def _check_boolean(mask: Tensor, reader: str, meaning: str) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"{reader} reads boolean tensors ({meaning}), got {got}; float masks: from_additive")


def _check_sees_something(visible: Tensor, reader: str, meaning: str) -> None:
    if not bool(visible.any()):
        raise ValueError(f"{reader}: this mask hides everything; is it the other way round? {meaning}")


def _refuse_bias(plan: Plan, writer: str) -> None:
    if plan.bias is not None:
        raise ValueError(
            f"{writer} gives a boolean mask, which cannot carry the bias {plan.bias!r}: use to_additive(plan)"
        )
