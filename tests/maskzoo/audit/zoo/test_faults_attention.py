"""Faults planted in attention written by hand and in torch's own modules."""

import pytest
import torch
from torch import nn

WIDTH, HEADS, LENGTH, VOCABULARY = 16, 2, 16, 11


class Attention(nn.Module):
    """Sound causal attention; a fault overrides one of its three steps."""

    def __init__(self, width=WIDTH, heads=HEADS):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def visible(self, T):
        return torch.ones(T, T, dtype=torch.bool).tril()

    def weights(self, scores, visible):
        return scores.masked_fill(~visible, float("-inf")).softmax(-1)

    def mixed(self, weights, v):
        return weights @ v

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        mixed = self.mixed(self.weights(scores, self.visible(T)), v)
        return self.out(mixed.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), attention
        self.feedforward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)
        )

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.feedforward(x)


class Model(nn.Module):
    """Two blocks over token ids."""

    def __init__(self, *attentions):
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block(attention) for attention in attentions)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def case(*attentions, permits="causal", **options):
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
    return {"model": Model(*attentions), "inputs": tokens, "permits": permits, **options}


def inverted_mask():
    class Inverted(Attention):
        def visible(self, T):
            return torch.ones(T, T, dtype=torch.bool).triu()

    return case(Inverted(), Inverted())


def one_position_ahead():
    class Ahead(Attention):
        def visible(self, T):
            return torch.ones(T, T, dtype=torch.bool).tril(1)

    return case(Attention(), Ahead())


def zeroed_after_softmax():
    class After(Attention):
        def weights(self, scores, visible):
            return scores.softmax(-1) * visible

    return case(After(), Attention())


def finite_mask_beaten_by_large_logits():
    class Beaten(Attention):
        def weights(self, scores, visible):
            return (scores - 1e4 * ~visible).softmax(-1)

    faulty = Beaten()
    with torch.no_grad():
        faulty.qkv.weight.mul_(400)
    return case(Attention(), faulty)


def weak_additive_mask():
    class Weak(Attention):
        def weights(self, scores, visible):
            return (scores - 9.0 * ~visible).softmax(-1)

    return case(Weak(), Attention())


def softmax_over_queries():
    class Columns(Attention):
        def weights(self, scores, visible):
            return scores.masked_fill(~visible, float("-inf")).softmax(-2)

    return case(Columns(), Attention())


def only_one_head():
    class OneHead(Attention):
        def visible(self, T):
            visible = super().visible(T).repeat(self.heads, 1, 1)
            visible[1] = True
            return visible

    return case(Attention(), OneHead())


def only_the_second_layer():
    class Unmasked(Attention):
        def visible(self, T):
            return torch.ones(T, T, dtype=torch.bool)

    return case(Attention(), Unmasked(), Attention())


def tile_edge():
    class Edge(Attention):
        def visible(self, T):
            visible = super().visible(T)
            edge = torch.arange(7, T - 1, 8)
            visible[edge, edge + 1] = True
            return visible

    return case(Attention(), Edge())


def partial_last_tile():
    class Rounded(Attention):
        def visible(self, T):
            visible = super().visible(T)
            if T % 4:
                visible[T - T % 4 :, T - T % 4 :] = True
            return visible

    return case(Rounded())


def window_too_wide():
    class Wide(Attention):
        def visible(self, T):
            back = torch.arange(T)[:, None] - torch.arange(T)
            return (back >= 0) & (back <= 3)

    return case(Wide(), permits="window(3)", layers=1, violates=lambda query, key: query - key >= 3)


def window_too_narrow():
    class Narrow(Attention):
        def visible(self, T):
            back = torch.arange(T)[:, None] - torch.arange(T)
            return (back >= 0) & (back < 3)

    return case(Narrow(), permits="window(4)", layers=1)


def layer_dropped():
    class Windowed(Attention):
        def visible(self, T):
            back = torch.arange(T)[:, None] - torch.arange(T)
            return (back >= 0) & (back < 3)

    class Skipping(Windowed):
        def forward(self, x):
            return torch.zeros_like(x)

    return case(Windowed(), Skipping(), permits="window(3)", layers=2)


def head_zeroed():
    class Zeroed(Attention):
        def visible(self, T):
            visible = super().visible(T).repeat(self.heads, 1, 1)
            visible[0] = torch.eye(T, dtype=torch.bool)
            return visible

        def mixed(self, weights, v):
            return torch.stack([weights[:, 0] @ v[:, 0], 0 * (weights[:, 1] @ v[:, 1])], dim=1)

    return case(Zeroed(), layers=1)


def only_in_bf16_autocast():
    class Autocast(Attention):
        def visible(self, T):
            visible = super().visible(T)
            return torch.ones_like(visible) if torch.is_autocast_enabled("cpu") else visible

    return case(Attention(), Autocast())


def only_in_bf16_weights():
    class Half(Attention):
        def weights(self, scores, visible):
            if scores.dtype == torch.bfloat16:
                return scores.softmax(-1)
            return super().weights(scores, visible)

    return case(Half())


def only_in_training():
    class Training(Attention):
        def weights(self, scores, visible):
            if self.training:
                return nn.functional.dropout(scores.softmax(-1), 0.1)
            return super().weights(scores, visible)

    return case(Attention(), Training())


def row_that_sees_nothing_is_nan():
    class Strict(Attention):
        def visible(self, T):
            return torch.ones(T, T, dtype=torch.bool).tril(-1)

    return case(Strict())


def last_row_never_written():
    class Unwritten(Model):
        def forward(self, tokens):
            logits = torch.zeros(*tokens.shape, VOCABULARY, dtype=self.head.weight.dtype)
            logits[:, :-1] = super().forward(tokens)[:, :-1]
            return logits

    return {**case(), "model": Unwritten(Attention())}


def keys_of_the_first_row():
    class FirstRow(Attention):
        def mixed(self, weights, v):
            return weights @ v[:1]

    return case(Attention(), FirstRow())


def normalised_over_rows():
    class Rows(Attention):
        def weights(self, scores, visible):
            return scores.masked_fill(~visible, -1e9).softmax(0)

    return case(Rows())


def scaled_by_the_largest_of_all():
    class Scaled(Attention):
        def mixed(self, weights, v):
            return weights @ (v / v.abs().amax(dim=(-2, -1), keepdim=True))

    return case(Scaled(), Attention())


def documents_not_separated():
    import maskzoo

    at = maskzoo.Positions.packed([6, 10])
    return case(Attention(), at=at, violates=lambda query, key: (query < 6) != (key < 6))


class Padded(nn.Module):
    """Attention both ways over padded tokens; `axis` is where the padding is applied, -2 for queries."""

    def __init__(self, axis):
        super().__init__()
        self.axis = axis
        self.embedding, self.attention, self.head = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, 3),
        )

    def forward(self, tokens, attention_mask):
        q, k, v = self.attention(self.embedding(tokens)).chunk(3, -1)
        real = attention_mask.bool()[:, None, :] if self.axis == -1 else attention_mask.bool()[:, :, None]
        scores = (q @ k.transpose(1, 2) / 4).masked_fill(~real, -1e9)
        return self.head(scores.softmax(-1) @ v)


def padding_applied_to_queries():
    mask = (torch.arange(12) < torch.tensor([[12], [7]])).long()
    inputs = {"tokens": torch.randint(0, VOCABULARY, (2, 12)), "attention_mask": mask}
    return {"model": Padded(-2), "inputs": inputs, "permits": "full", "layers": 1}


def padding_forgotten():
    import maskzoo

    class Forgotten(Padded):
        def forward(self, tokens):
            return super().forward(tokens, torch.ones_like(tokens))

    at = maskzoo.Positions.tokens([7, 7], padded_to=12)
    tokens = torch.randint(0, VOCABULARY, (2, 12))
    rule = {"permits": "full", "at": at, "violates": lambda query, key: query < 7 <= key}
    return {"model": Forgotten(-1), "inputs": tokens, **rule}


def multihead_attention_given_visible():
    class Torch(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x):
            past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(-1)
            return x + self.attention(x, x, x, attn_mask=past, need_weights=False)[0]

    return {"model": Torch(), "inputs": torch.randn(2, 10, WIDTH), "permits": "causal"}


def multihead_attention_with_one_open_head():
    class Torch(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

        def forward(self, x):
            hidden = torch.ones(4, x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            hidden[2] = False
            return x + self.attention(x, x, x, attn_mask=hidden.repeat(len(x), 1, 1))[0]

    return {"model": Torch(), "inputs": torch.randn(2, 10, WIDTH), "permits": "causal"}


def encoder_without_its_mask():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return {"model": model, "inputs": torch.randn(2, 10, WIDTH), "permits": "causal"}


def decoder_without_target_mask():
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True), 1)
    return {"model": model, "inputs": (torch.randn(2, 9, WIDTH), torch.randn(2, 5, WIDTH)), "permits": "causal"}


def waits_one_too_few():
    class Simultaneous(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, source, target):
            hidden = torch.arange(source.shape[1]) >= torch.arange(target.shape[1])[:, None] + 3
            return target + self.attention(target, source, source, attn_mask=hidden)[0]

    inputs = (torch.randn(2, 12, WIDTH), torch.randn(2, 8, WIDTH))
    rule = {"permits": lambda q, k: k < q + 2, "layers": 1, "watch": 0}
    return {"model": Simultaneous(), "inputs": inputs, **rule, "violates": lambda query, key: key >= query + 2}


FAULTS = {
    inverted_mask: ("leak", {"layer": "blocks.0.attention"}),
    one_position_ahead: ("leak", {"layer": "blocks.1.attention"}),
    zeroed_after_softmax: ("leak", {"layer": "blocks.0.attention"}),
    finite_mask_beaten_by_large_logits: ("leak", {"layer": "blocks.1.attention"}),
    weak_additive_mask: ("leak", {"layer": "blocks.0.attention"}),
    softmax_over_queries: ("leak", {"layer": "blocks.0.attention"}),
    only_one_head: ("leak", {"layer": "blocks.1.attention", "head": 1}),
    only_the_second_layer: ("leak", {"layer": "blocks.1.attention"}),
    tile_edge: ("leak", {"layer": "blocks.1.attention"}),
    partial_last_tile: ("leak", {}),
    window_too_wide: ("leak", {"layer": "blocks.0.attention"}),
    window_too_narrow: ("blind spot", {}),
    layer_dropped: ("blind spot", {}),
    head_zeroed: ("blind spot", {}),
    only_in_bf16_autocast: ("leak", {}),
    only_in_bf16_weights: ("leak", {}),
    only_in_training: ("leak", {}),
    row_that_sees_nothing_is_nan: ("dead query", {"query": 0}),
    last_row_never_written: ("dead query", {"query": LENGTH - 1}),
    keys_of_the_first_row: ("batch coupling", {"layer": "blocks.1.attention"}),
    normalised_over_rows: ("batch coupling", {"layer": "blocks.0.attention", "also": ["leak"]}),
    scaled_by_the_largest_of_all: ("leak", {"layer": "blocks.0.attention"}),
    documents_not_separated: ("leak", {"also": ["companion dependence"]}),
    padding_applied_to_queries: ("companion dependence", {}),
    padding_forgotten: ("leak", {"also": ["companion dependence"]}),
    multihead_attention_given_visible: ("leak", {"layer": "attention"}),
    multihead_attention_with_one_open_head: ("leak", {"layer": "attention", "head": 2}),
    encoder_without_its_mask: ("leak", {}),
    decoder_without_target_mask: ("leak", {}),
    waits_one_too_few: ("leak", {"layer": "attention"}),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_found_and_named(fault, found):
    kind, expected = FAULTS[fault]
    assert found(fault, kind, **expected).findings
