"""Multi-head attention with its projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from maskzoo.attention import attend
from maskzoo.transformer.positional import rotate

if TYPE_CHECKING:
    from maskzoo.planning import Plan
    from maskzoo.transformer.cache import Cache
    from maskzoo.transformer.transformer import TransformerConfig


class AttentionLayer(nn.Module):
    """Projections around `maskzoo.attend`: multi-head, or grouped-query when there are fewer key and value heads.

    Raises:
        ValueError: what `attend` refuses.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_width = config.heads, config.key_value_heads, config.head_width
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(
            config.width, (self.heads + 2 * self.kv_heads) * self.head_width, bias=config.linear_bias
        )  # rows: queries, keys, values
        self.out = nn.Linear(config.width, config.width, bias=config.linear_bias)
        self.q_norm = nn.RMSNorm(self.head_width, eps=1e-6) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_width, eps=1e-6) if config.qk_norm else None

    def forward(
        self,
        x: Tensor,
        plan: Plan,
        rotation: tuple[Tensor, Tensor] | None = None,
        cache: Cache | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """x: [B, T, C]. Returns [B, T, C]; appends the weights [B, H, T, Tk] to `weights` when that is given."""
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, -1, self.head_width).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            precise = self.q_norm.weight.dtype  # under autocast wider than q's, and mixing the two is slow
            q, k = self.q_norm(q.to(precise)).to(v.dtype), self.k_norm(k.to(precise)).to(v.dtype)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if cache is not None:
            k, v = cache.append(self.layer, k, v)
        dropout = self.dropout if self.training else 0.0
        if weights is None:
            mixed = attend(q, k, v, plan, dropout_p=dropout)
        else:
            mixed, layer_weights = attend(q, k, v, plan, dropout_p=dropout, return_weights=True)
            weights.append(layer_weights)
        return self.out(mixed.transpose(1, 2).reshape(B, T, C))
