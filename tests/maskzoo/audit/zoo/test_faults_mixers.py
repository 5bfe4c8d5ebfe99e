"""Faults planted in recurrent, convolutional and other mixers, in normalisations, routers and image models."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, LENGTH = 16, 16


def case(model, permits="causal", **options):
    return {"model": model, "inputs": torch.randn(3, LENGTH, WIDTH), "permits": permits, **options}


class Channels(nn.Module):
    """A module that wants [B, C, T], in a model of [B, T, C]."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Then(nn.Module):
    """A plain function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class First(nn.Module):
    """The first of a tuple."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


def bidirectional_gru():
    return case(First(nn.GRU(WIDTH, 8, batch_first=True, bidirectional=True)))


def bidirectional_second_lstm():
    first, second = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.LSTM(WIDTH, 8, batch_first=True, bidirectional=True)
    return case(nn.Sequential(First(first), First(second)))


def recurrent_over_the_batch():
    return case(First(nn.GRU(WIDTH, WIDTH)))


def reversed_recurrence():
    gru = First(nn.GRU(WIDTH, WIDTH, batch_first=True))
    return case(nn.Sequential(Then(lambda x: x.flip(1)), gru, Then(lambda x: x.flip(1))))


def convolution_padded_on_both_sides():
    return case(nn.Sequential(Channels(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)), nn.GELU()))


def one_padding_too_few_on_the_left():
    return case(nn.Sequential(Then(lambda x: F.pad(x, (0, 0, 3, 1))), Channels(nn.Conv1d(WIDTH, WIDTH, 5))))


def padding_that_ignores_the_dilation():
    near = nn.Sequential(Then(lambda x: F.pad(x, (0, 0, 1, 0))), Channels(nn.Conv1d(WIDTH, WIDTH, 2)))
    far = nn.Sequential(Then(lambda x: F.pad(x, (0, 0, 1, 3))), Channels(nn.Conv1d(WIDTH, WIDTH, 2, dilation=4)))
    return case(nn.Sequential(near, far))


def dilation_forgotten():
    near = nn.Sequential(Then(lambda x: F.pad(x, (0, 0, 1, 0))), Channels(nn.Conv1d(WIDTH, WIDTH, 2)))
    promised = lambda q, k: (q - k == 0) | (q - k == 1) | (q - k == 4) | (q - k == 5)  # noqa: E731
    return case(nn.Sequential(near, nn.Linear(WIDTH, WIDTH)), promised, layers=1)


def circular_fourier_convolution():
    class Fourier(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(LENGTH, WIDTH))

        def forward(self, x):
            T = x.shape[1]
            return torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(self.kernel[:T], dim=0), n=T, dim=1)

    return case(Fourier())


def scan_from_the_right():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Then(lambda x: x.flip(1).cumsum(1).flip(1))))


def token_mixing_layer():
    return case(nn.Sequential(Channels(nn.Linear(LENGTH, LENGTH)), nn.Linear(WIDTH, WIDTH)), lengths=(LENGTH,))


def roll_that_wraps():
    return case(nn.Sequential(Then(lambda x: x + x.roll(1, dims=1)), nn.Linear(WIDTH, WIDTH)))


def mean_over_the_future():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Then(lambda x: x - x.mean(dim=1, keepdim=True))))


def centred_average():
    return case(Channels(nn.AvgPool1d(3, stride=1, padding=1)))


def down_and_up_again():
    """Pairs are pooled and spread again, so that every even output sees the input after it."""

    def pooled(x):
        coarse = F.avg_pool1d(x.transpose(1, 2), 2, ceil_mode=True).repeat_interleave(2, dim=2)
        return x + coarse.transpose(1, 2)[:, : x.shape[1]]

    return case(nn.Sequential(Then(pooled), nn.Linear(WIDTH, WIDTH)))


def layer_norm_over_time():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Channels(nn.LayerNorm(LENGTH))), lengths=(LENGTH,))


def instance_norm_over_time():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Channels(nn.InstanceNorm1d(WIDTH))))


def group_norm_over_time():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Channels(nn.GroupNorm(2, WIDTH))))


def batch_norm():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Channels(nn.BatchNorm1d(WIDTH)), nn.GELU()))


def layer_norm_over_rows():
    class Rows(nn.Module):
        def forward(self, x):
            return (x - x.mean(0, keepdim=True)) / x.std(0, keepdim=True, correction=0).clamp(min=1e-3)

    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Rows()))


def expert_with_room_for_a_batch():
    class Router(nn.Module):
        """The first expert takes the first tokens of the batch that want it, the rest go on unchanged."""

        def __init__(self):
            super().__init__()
            self.gate, self.expert = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            wanted = (self.gate(x) > 0).squeeze(-1)
            place = wanted.flatten().cumsum(0).view_as(wanted)
            return torch.where((wanted & (place <= LENGTH // 2)).unsqueeze(-1), self.expert(x), x)

    return case(Router())


def expert_that_picks_its_tokens():
    class Picking(nn.Module):
        """Each row's expert takes the four tokens that fit best (expert choice), which later tokens decide on."""

        def __init__(self):
            super().__init__()
            self.gate, self.expert = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            score = self.gate(x).squeeze(-1)
            least = score.topk(min(4, x.shape[1]), dim=1).values[:, -1:]
            return torch.where((score >= least).unsqueeze(-1), self.expert(x), x)

    return case(Picking())


def scaled_by_the_largest():
    return case(nn.Sequential(nn.Linear(WIDTH, WIDTH), Then(lambda x: x / x.abs().amax(dim=(1, 2), keepdim=True))))


def raster_model_with_a_stem_that_looks_ahead():
    class Raster(nn.Module):
        """Pixels of a 4 x 4 image in raster order: causal, but for a convolution that is centred."""

        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
            self.rest = nn.GRU(WIDTH, WIDTH, batch_first=True)

        def forward(self, pixels):
            image = pixels.transpose(1, 2).unflatten(2, (4, 4))
            return self.rest(self.stem(image).flatten(2).transpose(1, 2))[0]

    return {"model": Raster(), "inputs": torch.randn(2, 16, 3), "permits": "causal", "lengths": (16,)}


def patches_in_column_order():
    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.rest = nn.GRU(3, WIDTH, batch_first=True)

        def forward(self, patches):
            columns = patches.unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2)
            return self.rest(columns)[0].unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2)

    return {"model": Columns(), "inputs": torch.randn(2, 16, 3), "permits": "causal", "lengths": (16,)}


def image_batch_norm():
    class Images(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, WIDTH, 2, stride=2), nn.BatchNorm2d(WIDTH)

        def forward(self, pixels):
            image = pixels.transpose(1, 2).unflatten(2, (4, 4))
            return self.norm(self.stem(image)).flatten(2).transpose(1, 2)

    return {
        "model": Images(),
        "inputs": torch.randn(3, 16, 3),
        "permits": "all",
        "blind_spots": False,
        "lengths": (16,),
    }


def only_odd_lengths():
    class Halves(nn.Module):
        """Odd lengths are completed by a copy of the last input at the front."""

        def __init__(self):
            super().__init__()
            self.rest = nn.GRU(WIDTH, WIDTH, batch_first=True)

        def forward(self, x):
            T = x.shape[1]
            if T % 2 and T > 1:
                x = torch.cat([x[:, -1:], x], dim=1)
            return self.rest(x)[0][:, -T:]

    return case(Halves())


def plain_function():
    return case(lambda x: x.cumsum(1) + x.flip(1).cumsum(1).flip(1).relu())


FAULTS = {
    bidirectional_gru: ("leak", {"layer": "inner"}),
    bidirectional_second_lstm: ("leak", {"layer": "1.inner"}),
    recurrent_over_the_batch: ("batch coupling", {"layer": "inner"}),
    reversed_recurrence: ("leak", {}),
    convolution_padded_on_both_sides: ("leak", {"layer": "0.inner"}),
    one_padding_too_few_on_the_left: ("leak", {}),
    padding_that_ignores_the_dilation: ("leak", {}),
    dilation_forgotten: ("blind spot", {}),
    circular_fourier_convolution: ("leak", {}),
    scan_from_the_right: ("leak", {"layer": "1"}),
    token_mixing_layer: ("leak", {"layer": "0.inner"}),
    roll_that_wraps: ("leak", {"layer": "0"}),
    mean_over_the_future: ("leak", {"layer": "1"}),
    centred_average: ("leak", {"layer": "inner"}),
    down_and_up_again: ("leak", {"layer": "0"}),
    layer_norm_over_time: ("leak", {"layer": "1.inner"}),
    instance_norm_over_time: ("leak", {"layer": "1.inner"}),
    group_norm_over_time: ("leak", {"layer": "1.inner"}),
    batch_norm: ("batch coupling", {"layer": "1.inner", "also": ["leak"]}),
    layer_norm_over_rows: ("batch coupling", {"layer": "1"}),
    expert_with_room_for_a_batch: ("batch coupling", {"also": ["companion dependence"]}),
    expert_that_picks_its_tokens: ("leak", {}),
    scaled_by_the_largest: ("leak", {"layer": "1"}),
    raster_model_with_a_stem_that_looks_ahead: ("leak", {}),
    patches_in_column_order: ("leak", {}),
    image_batch_norm: ("batch coupling", {"layer": "norm"}),
    only_odd_lengths: ("leak", {}),
    plain_function: ("leak", {}),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_found_and_named(fault, found):
    kind, expected = FAULTS[fault]
    assert found(fault, kind, **expected).findings
