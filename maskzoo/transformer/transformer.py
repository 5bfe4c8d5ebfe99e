"""A stack of attention blocks over one plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from maskzoo.registry import nearest
from maskzoo.transformer.block import Block
from maskzoo.transformer.feedforward import ACTIVATIONS
from maskzoo.transformer.normalization import NORMALIZATIONS, normalization
from maskzoo.transformer.positional import POSITIONS, LearnedPositions, RotaryPositions, SinusoidalPositions
from maskzoo.transformer.precision import computing_dtype

if TYPE_CHECKING:
    from maskzoo.planning import Plan
    from maskzoo.positions import Positions
    from maskzoo.transformer.cache import Cache

NORM_POSITIONS = ("pre", "post")


@dataclass
class TransformerConfig:
    """The shape of a Transformer. Every value is checked on construction (ValueError).

    layers, width, heads: blocks, channels and query heads; heads divides width
    kv_heads: key and value heads, a divisor of heads (grouped-query attention, Ainslie et al. 2023); None = heads
    feedforward: hidden units; None = 4 * width, and for swiglu (as many weights) 8/3 * width rounded up to 32
    activation: gelu, relu, swiglu (Shazeer 2020) or relu2 (squared ReLU, So et al. 2021)
    norm, norm_position: layernorm or rmsnorm; before each sublayer (pre, with one more at the end) or after it (post)
    position: rotary, learned, sinusoidal or none
    context: the longest sequence; the number of learned positions
    dropout, attention_dropout: of embeddings and residual branches; of attention weights
    tied: the output layer of a language model is its embedding
    linear_bias: whether linear layers inside blocks have biases
    bias_per_layer: each layer has its own tables for the bias, instead of one that all layers share
    qk_norm: RMSNorm over each head of queries and keys
    rotary_base: the slowest rotary wavelength is 2 pi * rotary_base positions
    """

    layers: int = 6
    width: int = 384
    heads: int = 6
    kv_heads: int | None = None
    feedforward: int | None = None
    activation: str = "gelu"
    norm: str = "layernorm"
    norm_position: str = "pre"
    position: str = "rotary"
    context: int = 256
    dropout: float = 0.0
    attention_dropout: float = 0.0
    tied: bool = True
    linear_bias: bool = True
    bias_per_layer: bool = False
    qk_norm: bool = False
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context"):
            _check_count(name, getattr(self, name))
        for name in ("kv_heads", "feedforward"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        _check_choice("activation", self.activation, ACTIVATIONS)
        _check_choice("norm", self.norm, NORMALIZATIONS)
        _check_choice("norm_position", self.norm_position, NORM_POSITIONS)
        _check_choice("position", self.position, POSITIONS)
        for name in ("dropout", "attention_dropout"):
            _check_fraction(name, getattr(self, name))
        for name in ("tied", "linear_bias", "bias_per_layer", "qk_norm"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        _check_number("rotary_base", self.rotary_base)
        if self.rotary_base <= 1:
            raise ValueError(f"rotary_base must be above 1, got {self.rotary_base}")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got width={self.width} and heads={self.heads}")
        if self.heads % self.key_value_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got heads={self.heads}, kv_heads={self.kv_heads}")
        if self.position == "rotary" and self.head_width % 2:
            raise ValueError(
                f"rotary positions turn pairs of channels: width / heads must be even, got {self.width} / {self.heads}"
            )
        if self.position == "sinusoidal" and self.width % 2:
            raise ValueError(f"sinusoidal positions need an even width, got {self.width}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def key_value_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def hidden(self) -> int:
        """Hidden units of the feed-forward sublayer."""
        if self.feedforward is not None:
            return self.feedforward
        return 4 * self.width if self.activation != "swiglu" else 32 * math.ceil(8 * self.width / 3 / 32)


class Transformer(nn.Module):
    """Blocks of attention and feed-forward layers, all of them under one plan, or each under its own.

    The model holds no mask of its own: what a position sees is decided by the plan alone, and where it stands by
    `at.index` alone (so that packed documents each start at 0).

    Initialisation: linear weights are N(0, 0.02) and linear biases 0. With pre-normalisation the layers that write into
    the residual stream are scaled by 1 / sqrt(2 * layers), so that its variance does not grow with depth (Radford et
    al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3); with post-normalisation, which
    rescales the stream itself, they are not (as in Devlin et al. 2019, BERT). Norm gains start at 1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.added_positions: SinusoidalPositions | LearnedPositions | None = None
        self.rotary: RotaryPositions | None = None
        if config.position == "sinusoidal":
            self.added_positions = SinusoidalPositions(config.width)
        elif config.position == "learned":
            self.added_positions = LearnedPositions(config.context, config.width)
        elif config.position == "rotary":
            self.rotary = RotaryPositions(config.head_width, config.rotary_base)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        pre = config.norm_position == "pre"
        self.norm = normalization(config.norm, config.width) if pre else nn.Identity()
        initialize(self, residual_scale=(2 * config.layers) ** -0.5 if pre else 1.0)

    def forward(
        self,
        x: Tensor,
        plan: Plan | Sequence[Plan],
        at: Positions,
        cache: Cache | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """x: [B, T, C] floating point; at: the positions of these T rows. Returns [B, T, C].

        plan: one for all layers, or one for each.
        cache: the key/value cache to append to; `cache.extend(at)` has been called, and the plan's keys are `cache.at`.
        weights: a list that receives the attention weights of each layer, [B, H, T, Tk].
        """
        if x.ndim != 3 or x.shape[-1] != self.config.width:
            raise ValueError(
                f"x must have shape [B, T, {self.config.width}] (batch, length, width), got {list(x.shape)}"
            )
        plans = list(plan) if isinstance(plan, Sequence) else [plan] * self.config.layers
        if len(plans) != self.config.layers:
            raise ValueError(f"{self.config.layers} layers take one plan, or one each, but got {len(plans)} plans")
        if self.added_positions is not None:
            x = x + self.added_positions(at.index, x.dtype)
        rotation = None if self.rotary is None else self.rotary(at.index, computing_dtype(x))
        x = self.dropout(x)
        # Compiled blocks are for training: a cache has another length at every step, and each would be compiled anew.
        eager = cache is not None or weights is not None
        with torch.compiler.set_stance("force_eager") if eager else nullcontext():
            for block, own in zip(self.blocks, plans, strict=True):
                x = block(x, own, rotation, cache, weights)
        return self.norm(x)


def initialize(module: nn.Module, residual_scale: float) -> None:
    """Initialise every layer in place; see Transformer for the scheme and its source."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            nn.init.normal_(layer.weight, std=0.02)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for layer in module.modules():
        if isinstance(layer, Block):
            for residual in layer.residual_layers():
                with torch.no_grad():
                    residual.weight.mul_(residual_scale)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number, got {value!r}")


def _check_fraction(name: str, value: Any) -> None:
    _check_number(name, value)
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value!r}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.{nearest(str(value), choices)}")
