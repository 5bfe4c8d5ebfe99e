"""The module and the head that a planted fault is in."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskzoo.audit.locating import NOWHERE, locate, locate_asymmetry, locate_coupling
from maskzoo.audit.subject import Subject

T, C = 8, 16
BEHIND = torch.arange(T)[:, None] - torch.arange(T)
CAUSAL = BEHIND >= 0
AHEAD_BY_ONE = BEHIND >= -1
X = torch.randn(2, T, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def subject(model: nn.Module) -> Subject:
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return Subject(model.double().eval(), X)


def other(place: int) -> Tensor:
    changed = X.clone()
    changed[:, place] += 1
    return changed


class Encoder(nn.Module):
    """torch's encoder layers, each with the visible pairs that it is given."""

    def __init__(self, *visible: Tensor) -> None:
        super().__init__()
        self.visible = visible
        layers = (nn.TransformerEncoderLayer(C, 4, 32, batch_first=True, dropout=0.1) for _ in visible)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer, visible in zip(self.layers, self.visible, strict=True):
            x = layer(x, src_mask=~visible)
        return x


class HeadsFirst(nn.Module):
    """Attention whose heads are visible to hooks, with a rule for each."""

    def __init__(self, visible: Tensor) -> None:
        super().__init__()
        self.heads, self.visible = 4, visible
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible)
        return self.out(mixed.transpose(1, 2).flatten(2))


class TorchHeads(nn.Module):
    def __init__(self, visible: Tensor) -> None:
        super().__init__()
        self.attention, self.visible = nn.MultiheadAttention(C, 4, batch_first=True), visible

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, attn_mask=~self.visible.repeat(len(x), 1, 1), need_weights=False)[0]


class Channels(nn.Module):
    """Layers that want [B, C, T]."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.transpose(1, 2)).transpose(1, 2)


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.forwards, self.both = nn.GRU(C, C), nn.GRU(C, C, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(self.forwards(x.transpose(0, 1))[0])[0].transpose(0, 1)


class Thrice(nn.Module):
    """One attention, called three times, the last time with another rule."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        for visible in (CAUSAL, CAUSAL, AHEAD_BY_ONE):
            x = x + self.attention(x, x, x, attn_mask=~visible)[0]
        return x


class OwnMean(nn.Module):
    """Mixes positions in its own code, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + x.mean(1, keepdim=True))


class FirstSeesAll(nn.Module):
    """The first position takes in the mean of all; every later layer hands that on, as it may."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :1] + x.mean(1, keepdim=True), x[:, 1:]], dim=1)


def one_head(number: int) -> Tensor:
    visible = CAUSAL.repeat(4, 1, 1)
    visible[number] = AHEAD_BY_ONE
    return visible


@pytest.mark.parametrize(
    ("make", "layer", "head"),
    [
        (lambda: Encoder(AHEAD_BY_ONE, CAUSAL), "layers.0.self_attn", None),
        (lambda: Encoder(CAUSAL, AHEAD_BY_ONE), "layers.1.self_attn", None),
        (lambda: nn.Sequential(nn.Linear(C, C), HeadsFirst(one_head(3))), "1", 3),
        (lambda: nn.Sequential(nn.Linear(C, C), TorchHeads(one_head(2))), "1.attention", 2),
        (lambda: nn.Sequential(nn.Linear(C, C), TorchHeads(one_head(0))), "1.attention", 0),
        (lambda: nn.Sequential(HeadsFirst(CAUSAL), HeadsFirst(AHEAD_BY_ONE)), "1", None),
        (
            lambda: Channels(nn.ConstantPad1d((2, 0), 0), nn.Conv1d(C, C, 3), nn.Conv1d(C, C, 3, padding=1)),
            "layers.2",
            None,
        ),
        (lambda: Channels(nn.Conv1d(C, C, 1), nn.LayerNorm(T)), "layers.1", None),
        (SequenceFirst, "both", None),
        (Thrice, "attention (call 3)", None),
        (OwnMean, "the model's own forward, before last", None),
        (lambda: nn.Sequential(nn.Linear(C, C), OwnMean()), "1", None),
        (lambda: nn.Sequential(FirstSeesAll(), Encoder(CAUSAL)), "0", None),
        (lambda: nn.Sequential(nn.LSTM(C, C, batch_first=True), FirstOf(), nn.Linear(C, C), OwnMean()), "3", None),
    ],
)
def test_first_module_at_fault(make: Callable[[], nn.Module], layer: str, head: int | None) -> None:
    place = locate(subject(make()), other(6), CAUSAL, query=5)
    assert (place.layer, place.head) == (layer, head)


class FirstOf(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0]


@pytest.mark.parametrize(("sizes", "layer"), [((4, 3), "layers.0.self_attn"), ((3, 4), "layers.1.self_attn")])
def test_a_layer_that_reaches_further_than_its_rule(sizes: tuple[int, ...], layer: str) -> None:
    windows = [CAUSAL & (size > BEHIND) for size in sizes]
    place = locate(subject(Encoder(*windows)), other(0), CAUSAL & (BEHIND < 3), query=5)
    assert place.layer == layer


def test_stages_of_several_sound_layers_are_not_blamed() -> None:
    window, wide = CAUSAL & (BEHIND < 2), CAUSAL & (BEHIND < 4)
    model = nn.Sequential(Encoder(window, window), Encoder(window, wide))
    assert locate(subject(model), other(0), window, query=6).layer == "1.layers.1.self_attn"


def test_without_a_permission_the_query_tells() -> None:
    place = locate(subject(Encoder(CAUSAL, AHEAD_BY_ONE)), other(6), query=5)
    assert place.layer == "layers.1.self_attn"
    with pytest.raises(ValueError, match="permission"):
        locate(subject(nn.Linear(C, C)), other(6))


@pytest.mark.parametrize("make", [lambda: Encoder(CAUSAL, CAUSAL), SequenceFirst])
def test_a_permitted_influence_is_nowhere(make: Callable[[], nn.Module]) -> None:
    rule = torch.ones(T, T, dtype=torch.bool) if make is SequenceFirst else CAUSAL
    assert locate(subject(make()), other(3), rule) == NOWHERE


def test_functions_are_searched_through_the_modules_they_call() -> None:
    model = subject(Encoder(CAUSAL, AHEAD_BY_ONE)).module
    assert model is not None
    called = Subject(lambda x: 2 * model(x), X)
    assert locate(called, other(6), CAUSAL).layer == "Encoder.layers.1.self_attn"
    assert locate(Subject(lambda x: x.flip(1), X), other(6), CAUSAL) == NOWHERE


def test_nothing_is_left_behind() -> None:
    model = Encoder(CAUSAL, AHEAD_BY_ONE).double().eval()
    state = torch.get_rng_state()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    handle = model.register_forward_hook(count)
    locate(Subject(model, X), other(6), CAUSAL)
    locate(Subject(lambda x: model(x), X), other(6), CAUSAL)
    handle.remove()
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks
    assert torch.equal(torch.get_rng_state(), state) and not model.training and calls >= 2  # by the function alone


def test_a_scripted_module_takes_no_hooks() -> None:
    scripted = torch.jit.script(Channels(nn.Conv1d(C, C, 3, padding=1)).double())
    outer = nn.Sequential(nn.Linear(C, C).double(), nn.Sequential(scripted), nn.Linear(C, C).double())
    assert locate(Subject(outer, X), other(6), CAUSAL).layer == "1"
    assert locate(Subject(scripted, X), other(6), CAUSAL) == NOWHERE


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_rows_that_are_mixed() -> None:
    changed = X.clone()
    changed[1] += 1
    model = nn.Sequential(nn.Linear(C, C), nn.GELU(), Centred(), nn.Linear(C, C))
    assert locate_coupling(subject(model), changed).layer == "2"


def test_positions_that_do_not_move_along() -> None:
    order = torch.tensor([1, 0, *range(2, T)])
    full = torch.ones(T, T, dtype=torch.bool)
    model = nn.Sequential(Encoder(full), Encoder(CAUSAL), Encoder(full))
    assert locate_asymmetry(subject(model), X[:, order], order).layer == "1.layers.0.self_attn"
