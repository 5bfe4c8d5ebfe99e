"""Which parameter gets which rule, and the ranges of the configuration."""

from typing import Any

import pytest
import torch

from maskzoo.tasks.training.optimizer import TABLE_RATE, OptimizerConfig, build_optimizer
from maskzoo.transformer.language_model import LanguageModel
from maskzoo.transformer.transformer import TransformerConfig


def model(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(
        TransformerConfig(layers=2, width=32, heads=2, context=16, **options), 40, bias="relative(buckets=8)"
    )


def decayed(built: Any, of: LanguageModel) -> set[str]:
    names = {id(parameter): name for name, parameter in of.named_parameters()}
    return {names[id(p)] for group in built.param_groups if group["weight_decay"] for p in group["params"]}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_only_matrices_inside_blocks_decay(name: str) -> None:
    net = model(tied=False, position="learned")
    found = decayed(build_optimizer(net, OptimizerConfig(name=name)), net)
    expected = {name for name, p in net.named_parameters() if ".blocks." in name and p.ndim == 2}
    assert found == expected and expected


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_parameter_is_trained_once(name: str) -> None:
    net = model()
    built = build_optimizer(net, OptimizerConfig(name=name))
    given = [id(p) for group in built.param_groups for p in group["params"]]
    assert sorted(given) == sorted(id(p) for p in net.parameters())


def test_muon_state_goes_round() -> None:
    def step(net: LanguageModel, built: Any, number: int) -> None:
        torch.manual_seed(number)
        tokens = torch.randint(40, (2, 16))
        net(tokens).logsumexp(-1).sum().backward()
        built.step()
        built.zero_grad()

    straight, stopped = model(), model()
    one = build_optimizer(straight, OptimizerConfig(name="muon"))
    two = build_optimizer(stopped, OptimizerConfig(name="muon"))
    step(straight, one, 1), step(stopped, two, 1)
    resumed = build_optimizer(stopped, OptimizerConfig(name="muon"))
    resumed.load_state_dict(two.state_dict())
    for group in resumed.param_groups:
        group["lr"] = group["lr"] * 0.5
    for group in one.param_groups:
        group["lr"] = group["lr"] * 0.5
    step(straight, one, 2), step(stopped, resumed, 2)
    for a, b in zip(straight.parameters(), stopped.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": -1}, ["optimizer.lr=-1", "> 0"]),
        ({"lr": float("nan")}, ["optimizer.lr=nan", "> 0"]),
        ({"lr_final": 1.5}, ["optimizer.lr_final=1.5", ">= 0", "<= 1"]),
        ({"betas": [0.9]}, ["optimizer.betas=[0.9]", "two"]),
        ({"betas": [0.9, 1.0]}, ["optimizer.betas[1]=1.0", "< 1"]),
        ({"warmup_steps": -3}, ["optimizer.warmup_steps=-3", ">= 0"]),
        ({"name": "adam"}, ["optimizer.name='adam'", "adamw, muon", "Did you mean 'adamw'?"]),
        ({"schedule": "cosin"}, ["optimizer.schedule='cosin'", "Did you mean 'cosine'?"]),
    ],
)
def test_bad_values_are_refused_with_key_value_and_range(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        OptimizerConfig(**values)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_bias_tables_move_faster(name: str) -> None:
    net = model()
    built = build_optimizer(net, OptimizerConfig(name=name, lr=2e-3))
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    fast = {names[id(p)] for group in built.param_groups if group["lr"] == TABLE_RATE * 2e-3 for p in group["params"]}
    assert fast == {"bias.weight"}
