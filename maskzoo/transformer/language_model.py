"""A language model: embedding, Transformer, output layer, and the one rule they obey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import maskzoo.biases
import maskzoo.masks
from maskzoo.biases.base import Bias
from maskzoo.masks.base import Mask
from maskzoo.planning import Plan, plan
from maskzoo.positions import Positions
from maskzoo.transformer.cache import Cache
from maskzoo.transformer.precision import computing_dtype
from maskzoo.transformer.transformer import Transformer, TransformerConfig


class LanguageModel(nn.Module):
    """Logits of the next token at every position.

    The same rule serves training and step-by-step decoding: `mask` and `bias` are read at the positions given.

    Initialisation: with config.tied the output layer is the embedding matrix (Press and Wolf 2017), which is then
    N(0, 0.02) (Radford et al. 2019); with sinusoidal positions, in which they would drown, the embeddings are
    multiplied by sqrt(width) (Vaswani et al. 2017, section 3.4). Untied, the embedding is N(0, 1), so that an
    optimizer's step is small beside it (measured: 0.09 nats less loss after 140 steps than from 0.02), and the output
    layer N(0, 0.02).

    Args:
        config: the shape of the Transformer.
        vocabulary: how many different tokens there are.
        mask: who sees whom, as text or as a Mask.
        bias: score offsets as text, such as "alibi"; None for none. With config.bias_per_layer each layer learns tables
            of its own, otherwise all share them.

    Attributes:
        tokenizer_state: set by `maskzoo.load`: what the tokenizer is made from.
        scores: set by `maskzoo.load`: the figures written with the checkpoint.
    """

    def __init__(
        self, config: TransformerConfig, vocabulary: int, mask: str | Mask = "causal", bias: str | None = None
    ) -> None:
        super().__init__()
        if isinstance(vocabulary, bool) or not isinstance(vocabulary, int) or vocabulary < 1:
            raise ValueError(f"vocabulary must be a whole number of at least 1, got {vocabulary!r}")
        self.config, self.vocabulary = config, vocabulary
        self.mask = maskzoo.masks.parse(mask) if isinstance(mask, str) else mask
        self.bias = maskzoo.biases.parse(bias, heads=config.heads)
        if config.bias_per_layer and self.bias is None:
            raise ValueError("bias_per_layer=true gives each layer tables of its own for a bias, but there is no bias")
        # `bias` is all layers', or the first one's.
        further = config.layers - 1 if config.bias_per_layer else 0
        biases = [maskzoo.biases.parse(bias, heads=config.heads) for _ in range(further)]
        self.further_biases: Sequence[Bias] = nn.ModuleList(biases)  # type: ignore[arg-type, assignment]
        self.embedding = nn.Embedding(vocabulary, config.width)
        self.embedding_scale = config.width**0.5 if config.tied and config.position == "sinusoidal" else 1.0
        self.transformer = Transformer(config)
        self.head = nn.Linear(config.width, vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02 if config.tied else 1.0)
        nn.init.normal_(self.head.weight, std=0.02)
        if config.tied:
            self.head.weight = self.embedding.weight
        self.tokenizer_state: dict[str, Any] = {}
        self.scores: dict[str, float] = {}

    def forward(
        self,
        tokens: Tensor,
        at: Positions | None = None,
        cache: Cache | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Logits [B, T, vocabulary] of the token that follows each of `tokens`, [B, T] int64.

        Args:
            tokens: token ids; any valid id stands in padding places.
            at: where the tokens stand. Default: each row is one sequence, which continues what `cache` holds.
            cache: keys and values of the positions read before; the new ones are added to it.
            weights: a list that receives the attention weights of each layer.

        Raises:
            ValueError: tokens of a wrong shape or type or outside the vocabulary; positions of another shape; an index
                beyond the learned positions; a full cache.
        """
        self._check(tokens)
        if at is None:
            T = tokens.shape[1]
            at = Positions.tokens(T).to(tokens.device) if cache is None else cache.following(T)
        if at.batch not in (1, len(tokens)) or at.length != tokens.shape[1]:
            raise ValueError(f"tokens have shape {list(tokens.shape)} and their positions {[at.batch, at.length]}")
        x = self.embedding(tokens) * self.embedding_scale
        rule = self.plan(at, k_at=None if cache is None else cache.extend(at))
        # One plan for all layers, or the same with each layer's tables.
        own = [rule, *(rule.with_bias(bias) for bias in self.further_biases)] if self.config.bias_per_layer else rule
        return self.head(self.transformer(x, own, at, cache, weights))

    def plan(self, at: Positions, k_at: Positions | None = None) -> Plan:
        """The plan that every layer runs under for queries at `at` and keys at `k_at` (default: the same).

        With config.bias_per_layer its bias is the first layer's.
        """
        return plan(self.mask, at, bias=self.bias, heads=self.config.heads, k_at=k_at)

    def audit_rule(self) -> tuple[Mask, int]:
        """The rule, and how many layers apply it, for `maskzoo.audit.check`."""
        return self.mask, self.config.layers

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache on this model's device, in the number type that its keys are computed in."""
        weight = self.embedding.weight
        return Cache(self.config, batch, capacity, dtype=computing_dtype(weight), device=weight.device)

    @torch.no_grad()
    def attention_weights(self, tokens: Tensor, at: Positions | None = None) -> list[Tensor]:
        """The attention weights [B, H, T, T] of every layer, without dropout. Rows are queries, columns keys."""
        weights: list[Tensor] = []
        with evaluating(self):
            self(tokens, at, weights=weights)
        return weights

    def _check(self, tokens: Tensor) -> None:
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens must be whole numbers (int64), got {tokens.dtype}")
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise ValueError(f"tokens must have shape [B, T] with at least one token, got {list(tokens.shape)}")
        low, high = tokens.aminmax()
        if int(low) < 0 or int(high) >= self.vocabulary:
            row, place = ((tokens < 0) | (tokens >= self.vocabulary)).nonzero()[0].tolist()
            raise ValueError(
                f"token id {int(tokens[row, place])} at row {row}, place {place} is outside the vocabulary: "
                f"ids reach from 0 to {self.vocabulary - 1}"
            )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) for a while; the mode is put back afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
