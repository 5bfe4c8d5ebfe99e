"""Sound models by hand: attention, recurrences, convolutions, graphs, and ways of calling and answering."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, LENGTH, HEADS = 16, 12, 2


def case(model, permits="causal", inputs=None, **options):
    inputs = torch.randn(2, LENGTH, WIDTH) if inputs is None else inputs
    return {"model": model, "inputs": inputs, "permits": permits, **options}


class Then(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


class Attention(nn.Module):
    def __init__(self, window=LENGTH):
        super().__init__()
        self.window, self.qkv = window, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        q, k, v = self.qkv(x).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, 1)
        visible = (back >= 0) & (back < self.window)
        return x + F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2).flatten(2)


class CausalConvolution(nn.Module):
    def __init__(self, kernel, dilation=1):
        super().__init__()
        self.left = dilation * (kernel - 1)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, kernel, dilation=dilation)

    def forward(self, x):
        return self.convolution(F.pad(x.transpose(1, 2), (self.left, 0))).transpose(1, 2)


def attention():
    return case(nn.Sequential(Attention(), Attention()))


def windows_add_up():
    return case(nn.Sequential(Attention(3), Attention(3)), "window(3)", layers=2, reached={0, 1, 2, 3, 4})


def large_finite_mask():
    class Finite(Attention):
        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            return x + (q @ k.transpose(1, 2) / 4).masked_fill(hidden, -1e9).softmax(-1) @ v

    return case(Finite())


def zeroed_and_renormalised():
    class Again(Attention):
        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            visible = torch.ones(x.shape[1], x.shape[1]).tril()
            weights = (q @ k.transpose(1, 2) / 4).exp() * visible
            return x + (weights / weights.sum(-1, keepdim=True)).to(v.dtype) @ v

    return case(Again())


def zero_initialised_output():
    class Zero(Attention):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(WIDTH, WIDTH)
            nn.init.zeros_(self.out.weight)

        def forward(self, x):
            return x + self.out(super().forward(x) - x)

    return case(nn.Sequential(Zero(), Zero()))


def dilated_convolutions():
    """A11: the span is 6, of which four positions are reached."""
    promised = lambda q, k: (q - k == 0) | (q - k == 1) | (q - k == 4) | (q - k == 5)  # noqa: E731
    model = nn.Sequential(CausalConvolution(2), CausalConvolution(2, dilation=4))
    return case(model, promised, layers=1, reached={0, 1, 4, 5})


def three_convolutions_of_two():
    """A12: the last of eight positions reaches four."""
    model = nn.Sequential(*(nn.Sequential(CausalConvolution(2), nn.GELU()) for _ in range(3)))
    return case(model, "window(2)", inputs=torch.randn(2, 8, WIDTH), layers=3, reached={0, 1, 2, 3})


def padded_and_cropped_convolution():
    class Cropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=2)

        def forward(self, x):
            return self.convolution(x.transpose(1, 2))[..., :-2].transpose(1, 2)

    return case(Cropped(), "window(3)", layers=1)


def gru():
    return case(First(nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)), reached=set(range(LENGTH)))


def lstm_with_dropout():
    return case(First(nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=0.3)))


def both_ways():
    return case(First(nn.GRU(WIDTH, 8, batch_first=True, bidirectional=True)), "all")


def scan():
    """A diagonal state space: s_t = a s_(t-1) + b x_t, in place."""

    class Scan(nn.Module):
        def __init__(self):
            super().__init__()
            self.decay, self.enter = nn.Parameter(torch.rand(WIDTH)), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            state, entered, outputs = torch.zeros_like(x[:, 0]), self.enter(x), []
            for t in range(x.shape[1]):
                state = self.decay.sigmoid() * state + entered[:, t]
                outputs.append(state)
            return torch.stack(outputs, 1)

    return case(Scan())


def cumulative_mean():
    def mean(x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]

    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Then(mean)))


def fourier_convolution():
    class Fourier(nn.Module):
        """A long convolution with room for its tail; only rounding comes from the future."""

        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(LENGTH, WIDTH))

        def forward(self, x):
            T = x.shape[1]
            spectrum = torch.fft.rfft(x, n=2 * T, dim=1) * torch.fft.rfft(self.kernel[:T], n=2 * T, dim=0)
            return torch.fft.irfft(spectrum, n=2 * T, dim=1)[:, :T]

    return case(Fourier())


def token_shift():
    return case(
        nn.Sequential(Then(lambda x: x + F.pad(x, (0, 0, 1, 0))[:, :-1]), nn.Linear(WIDTH, WIDTH)),
        "window(2)",
        layers=1,
    )


def feedforward_alone():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)), lambda q, k: q == k)


def attention_with_dropout_in_training():
    return case(nn.Sequential(nn.Dropout(0.2), Attention(), nn.Dropout(0.2), Attention()).train())


def torch_encoder():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
            return self.encoder(x, mask=mask, is_causal=True)

    return case(Encoder())


def torch_encoder_over_padding():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x, src_key_padding_mask):
            return self.encoder(x, src_key_padding_mask=src_key_padding_mask)

    padding = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [7]])
    rule = {"permits": ~padding[:, None, :] | torch.eye(LENGTH, dtype=torch.bool), "blind_spots": False}
    return case(Encoder(), inputs={"x": torch.randn(2, LENGTH, WIDTH), "src_key_padding_mask": padding}, **rule)


def torch_decoder():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True), 1)

        def forward(self, target, memory):
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=target.dtype)
            return self.decoder(target, memory, tgt_mask=mask, tgt_is_causal=True)

    return case(Decoder(), inputs=(torch.randn(2, LENGTH, WIDTH), torch.randn(2, 5, WIDTH)))


def encoder_and_decoder_seen_from_the_source():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.Transformer(WIDTH, HEADS, 1, 1, 32, batch_first=True)

        def forward(self, source, target):
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=target.dtype)
            return self.transformer(source, target, tgt_mask=mask)

    return case(Whole(), "all", inputs=(torch.randn(2, 7, WIDTH), torch.randn(2, 5, WIDTH)), watch=0)


def waits_for_two():
    class Simultaneous(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, source, target):
            hidden = torch.arange(source.shape[1]) >= torch.arange(target.shape[1])[:, None] + 2
            return target + self.attention(target, source, source, attn_mask=hidden)[0]

    inputs = (torch.randn(2, 10, WIDTH), torch.randn(2, 8, WIDTH))
    return case(Simultaneous(), lambda q, k: k < q + 2, inputs=inputs, watch=0, layers=1)


def plain_function():
    return case(lambda x: x.cumsum(1).tanh())


def in_place():
    def changed(x):
        x = x.clone()
        x[:, 1:] += x[:, :-1].clone()
        return x.mul_(2).tanh_()

    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Then(changed)), "window(2)", layers=1)


def input_changed_in_place():
    """What a caller gives is overwritten."""

    def changed(x):
        return x.mul_(2).cumsum(1)

    return case(Then(changed))


def answers_a_dictionary():
    return case(nn.Sequential(Attention(), Then(lambda x: {"logits": x, "other": x.flip(1)})))


def answers_a_tuple():
    return case(nn.Sequential(Attention(), Then(lambda x: (x, x.mean(1)))))


def chosen_output():
    model = nn.Sequential(Attention(), Then(lambda x: {"states": [x.flip(1), x]}))
    return case(model, output=lambda answer: answer["states"][1])


def not_contiguous():
    return case(
        nn.Sequential(CausalConvolution(3), Then(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)[..., ::2])),
        "window(3)",
        layers=1,
    )


def integers_beside_numbers():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.attention = nn.Embedding(7, WIDTH), Attention()

        def forward(self, ids, features):
            return self.attention(self.embedding(ids) + features)

    return case(Both(), inputs=(torch.randint(0, 7, (2, LENGTH)), torch.randn(2, LENGTH, WIDTH)))


def numbers_beside_integers():
    return {**integers_beside_numbers(), "watch": 1}


def buffer_of_a_mask():
    class Buffered(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(32, 32).tril() / torch.arange(1, 33)[:, None])
            self.own = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            T = x.shape[1]
            return self.mask[:T, :T] @ self.own(x)

    return case(Buffered())


def one_layer_twice():
    layer = Attention(3)
    return case(nn.Sequential(layer, nn.GELU(), layer), "window(3)", layers=2)


def bfloat16():
    return case(nn.Sequential(Attention(), Attention()).bfloat16(), inputs=torch.randn(2, LENGTH, WIDTH).bfloat16())


def time_first():
    gru = nn.GRU(WIDTH, WIDTH)
    batch_first = nn.Sequential(Then(lambda x: x.transpose(0, 1)), First(gru), Then(lambda x: x.transpose(0, 1)))
    return case(batch_first)


def channels_first():
    model = nn.Sequential(Then(lambda x: F.pad(x, (2, 0))), nn.Conv1d(5, 6, 3))
    return case(model, "window(3)", inputs=torch.randn(2, 5, LENGTH), axis=2, layers=1)


def batch_norm_that_is_frozen():
    class Frozen(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    transposed = Then(lambda x: x.transpose(1, 2))
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), transposed, Frozen(WIDTH), transposed), lambda q, k: q == k)


def experts_without_a_limit():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(WIDTH, 3)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x):
            choice = self.gate(x).argmax(-1)
            result = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                result[choice == number] = expert(x[choice == number])
            return result

    return case(nn.Sequential(Attention(), Experts()))


def pooled():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), Then(lambda x: x.mean(1))), "all", axis=(1, None))


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 2]])


def adjacency():
    visible = torch.eye(6, dtype=torch.bool)
    visible[EDGES[1], EDGES[0]] = True
    return visible


class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return (self.own(x) + torch.zeros_like(x).index_add(1, EDGES[1], self.other(x)[:, EDGES[0]])).tanh()


def messages():
    return case(Messages(), adjacency(), inputs=torch.randn(2, 6, WIDTH), layers=1, lengths=(6,))


def two_rounds_of_messages():
    model = nn.Sequential(Messages(), Messages())
    return case(model, adjacency(), inputs=torch.randn(2, 6, WIDTH), layers=2, lengths=(6,))


def set_without_order():
    encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
    return case(encoder, "all", inputs=torch.randn(2, 6, WIDTH), symmetric=True)


def sum_over_a_set():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), Then(lambda x: x.sum(1)))
    return case(model, "all", inputs=torch.randn(2, 6, WIDTH), symmetric=True, axis=(1, None))


SOUND = (
    attention,
    windows_add_up,
    large_finite_mask,
    zeroed_and_renormalised,
    zero_initialised_output,
    dilated_convolutions,
    three_convolutions_of_two,
    padded_and_cropped_convolution,
    gru,
    lstm_with_dropout,
    both_ways,
    scan,
    cumulative_mean,
    fourier_convolution,
    token_shift,
    feedforward_alone,
    attention_with_dropout_in_training,
    torch_encoder,
    torch_encoder_over_padding,
    torch_decoder,
    encoder_and_decoder_seen_from_the_source,
    waits_for_two,
    plain_function,
    in_place,
    input_changed_in_place,
    answers_a_dictionary,
    answers_a_tuple,
    chosen_output,
    not_contiguous,
    integers_beside_numbers,
    numbers_beside_integers,
    buffer_of_a_mask,
    one_layer_twice,
    bfloat16,
    time_first,
    channels_first,
    batch_norm_that_is_frozen,
    experts_without_a_limit,
    pooled,
    messages,
    two_rounds_of_messages,
    set_without_order,
    sum_over_a_set,
)


@pytest.mark.parametrize("specimen", SOUND, ids=lambda specimen: specimen.__name__)
def test_sound_model_gives_no_finding(specimen, clean):
    assert clean(specimen).ok
