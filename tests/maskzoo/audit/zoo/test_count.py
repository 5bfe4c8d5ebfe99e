"""The zoo is large enough, and its specimens are what they say, by plain replacement of single inputs."""

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch


def load(path):
    name = f"counted_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


HERE = Path(__file__).parent
MODULES = [load(path) for path in sorted(HERE.glob("test_[fs][ao]u*_*.py"))]
JUDGE = load(HERE / "conftest.py")
LEAKS = [f for m in MODULES for f, e in getattr(m, "FAULTS", {}).items() if e[0] == "leak"]
SOUND = {
    getattr(specimen, "__name__", specimen): module.SOUND[specimen] if isinstance(specimen, str) else specimen
    for module in MODULES
    for specimen in getattr(module, "SOUND", ())
}


def test_zoo_holds_at_least_thirty_faults_and_thirty_sound_models():
    from maskzoo.audit.finding import KINDS

    planted = [f.__name__ for m in MODULES for name in ("FAULTS", "EXAMPLE_FAULTS") for f in getattr(m, name, ())]
    kinds = {expected[0] for m in MODULES for expected in getattr(m, "FAULTS", {}).values()}
    assert len(planted) == len(set(planted)) >= 30
    assert len(SOUND) >= 30
    assert set(KINDS) == kinds


@torch.no_grad()
def moved(case, training=False, autocast=False, length=None):
    """bool [B, Tq, Tk]: which outputs move with which input, each input replaced by itself."""
    values, given = JUDGE.watched_of(case)
    values = values[:, :length]
    pair = case.get("axis", 1)
    axis, output_axis = pair if isinstance(pair, tuple) else (pair, pair)
    model = copy.deepcopy(case["model"])
    if isinstance(model, torch.nn.Module):
        model.train(training)

    def run(tensor):
        arguments, named = given(tensor.clone())
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs = JUDGE.outputs_of(case, model(*arguments, **named)).clone()
        outputs = outputs.unsqueeze(1) if output_axis is None else outputs.movedim(output_axis, 1)
        return outputs.nan_to_num(7.0).flatten(2)

    before, columns = run(values), []
    allowed = 1e-5 * before.abs().max()
    for key in range(values.shape[axis]):
        change = torch.zeros_like(before)
        for _ in range(3):
            other = values.clone()
            one = other.select(axis, key)
            one.copy_(
                torch.randn_like(one) if one.is_floating_point() else torch.randint_like(one, int(values.max()) + 1)
            )
            change = torch.maximum(change, (run(other) - before).abs())
        columns.append((change > allowed).any(-1))
    return torch.stack(columns, -1)


@pytest.mark.parametrize("fault", LEAKS, ids=lambda fault: fault.__name__)
def test_planted_leak_is_one(fault):
    torch.manual_seed(0)
    case = fault()
    violates, length = case.get("violates", lambda query, key: key > query), JUDGE.watched_of(case)[0].shape[1]
    settings = [{}, {"training": True}, {"autocast": True}, {"length": length - 1}, {"length": length // 2}]
    for setting in settings:
        if any(violates(query, key) for _, query, key in moved(case, **setting).nonzero().tolist()):
            return
    model = case["model"].bfloat16()
    half = moved({**case, "model": model})
    assert any(violates(query, key) for _, query, key in half.nonzero().tolist())


@pytest.mark.parametrize("name", SOUND)
def test_sound_model_lets_nothing_through(name):
    torch.manual_seed(0)
    case = SOUND[name]()
    permits = case.get("permits", "causal")
    seen = moved(case) | moved(case, training=True)
    places = torch.arange(max(seen.shape[1:]))
    if callable(permits):
        allowed = permits(places[: seen.shape[1], None], places[None, : seen.shape[2]])
    elif isinstance(permits, torch.Tensor):
        depth = torch.linalg.matrix_power(permits.double(), case.get("layers") or 8)
        allowed = depth > 0
    elif "prefix" not in permits and "across" not in permits and permits not in ("all", "full"):
        allowed = places[:, None] >= places
    else:
        allowed = torch.ones(seen.shape[1:], dtype=torch.bool)
    assert not (seen & ~allowed).any()
    assert seen.any()
