"""One layer of a Transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from maskzoo.transformer.attention_layer import AttentionLayer
from maskzoo.transformer.feedforward import feedforward
from maskzoo.transformer.normalization import normalization

if TYPE_CHECKING:
    from maskzoo.planning import Plan
    from maskzoo.transformer.cache import Cache
    from maskzoo.transformer.transformer import TransformerConfig


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual connection and a normalisation.

    pre: x + dropout(f(norm(x))) (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture");
    post: norm(x + dropout(f(x))) (Vaswani et al. 2017, "Attention Is All You Need", section 3.1).
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.pre = config.norm_position == "pre"
        self.attention_norm = normalization(config.norm, config.width)
        self.attention = AttentionLayer(config, layer)
        self.feedforward_norm = normalization(config.norm, config.width)
        self.feedforward = feedforward(config.activation, config.width, config.hidden, config.linear_bias)
        self.dropout = nn.Dropout(config.dropout)

    def residual_layers(self) -> tuple[nn.Linear, nn.Linear]:
        """The two layers whose outputs are added to the residual stream."""
        last = self.feedforward.fc2
        assert isinstance(last, nn.Linear)
        return self.attention.out, last

    def forward(
        self,
        x: Tensor,
        plan: Plan,
        rotation: tuple[Tensor, Tensor] | None = None,
        cache: Cache | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """x: [B, T, C]. Returns [B, T, C]; see Transformer.forward for the other arguments."""
        if self.pre:
            x = x + self.dropout(self.attention(self.attention_norm(x), plan, rotation, cache, weights))
            return x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, plan, rotation, cache, weights)))
        return self.feedforward_norm(x + self.dropout(self.feedforward(x)))
