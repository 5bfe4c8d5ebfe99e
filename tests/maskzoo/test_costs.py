import json
from dataclasses import asdict, fields, replace
from functools import partial

import pytest
import torch

from maskzoo import costs
from maskzoo.costs import PROCESSOR, Constants, Counts, choose, decided

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache folder, and a memory in which nothing is known."""
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(costs, "_known", {})
    return tmp_path / "cache"


@pytest.fixture
def times(monkeypatch):
    """Counts how often the machine is measured, without doing it."""
    calls = []

    def made_up():
        calls.append(1)
        return replace(PROCESSOR, edges_pair=len(calls) * 1e-8)

    monkeypatch.setattr(costs, "measure", made_up)
    monkeypatch.setattr(costs.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return calls


def counts(length, *, area, pairs, units=8, groups=1, form="any"):
    """Counts of a square, with area and pairs as shares of it."""
    lines = groups * -(-length // 64)
    whole = groups * length**2
    return Counts(length, length, units, groups, round(area * whole), lines, round(pairs * whole), form)


@pytest.mark.parametrize(
    "name, given, kernel",
    [
        ("everything", counts(300, area=1.0, pairs=1.0, form="full"), "dense"),
        ("window of 256", counts(2000, area=0.15, pairs=0.12), "tiled"),
        ("documents of 512", counts(2000, area=0.145, pairs=0.128), "tiled"),
        ("molecules", counts(2000, area=0.07, pairs=0.002), "edges"),
        ("random graph of degree 8", counts(2000, area=0.86, pairs=0.004), "edges"),
        ("random graph of degree 8, many sequences", counts(2000, area=0.86, pairs=0.004, units=256), "edges"),
        ("a graph for each sequence", counts(500, area=0.9, pairs=0.008, units=64, groups=8), "edges"),
        ("causal, not long", counts(300, area=0.6, pairs=0.5, form="causal"), "dense"),
    ],
)
def test_the_built_in_constants_know_the_plain_cases(name, given, kernel):
    chosen, reason = choose(given, CPU)
    assert chosen == kernel, f"{name}: {reason}"
    assert all(word in reason for word in {"dense", "tiled", "edges"} - {kernel}) and " ms" in reason


def test_short_sequences_are_dense_without_a_look(folder, times):
    for form, pairs in (("any", 0.0001), ("full", 1.0)):
        kernel, reason = choose(counts(256, area=pairs, pairs=pairs, form=form), CPU)
        assert kernel == "dense" and "65,536" in reason
    assert not times and not folder.exists()


def test_sequences_of_middle_length_are_not_measured_for(folder, times):
    assert choose(counts(2047, area=0.1, pairs=0.1), CPU)[0] == "tiled"
    assert not times and not folder.exists()


def test_long_sequences_ask_for_this_machine_once(folder, times, monkeypatch):
    monkeypatch.setattr(costs, "MEASURED_FROM", 2**22)
    long = counts(4096, area=0.1, pairs=0.05)
    first = choose(long, CPU)
    assert choose(long, CPU) == first and len(times) == 1
    monkeypatch.setattr(costs, "_known", {})  # another process
    assert choose(long, CPU) == first and len(times) == 1
    stored = json.loads((folder / "costs.json").read_text())
    assert list(stored) == [costs._machine()]
    assert str(torch.__version__) in costs._machine() and f"{torch.get_num_threads()} threads" in costs._machine()


def test_another_machine_is_measured_beside_the_first(folder, times, monkeypatch):
    costs.measured()
    monkeypatch.setattr(costs, "_machine", lambda: "another")
    assert costs.measured().edges_pair == 2e-8
    assert len(json.loads((folder / "costs.json").read_text())) == 2


def test_other_devices_are_never_measured(folder, times):
    kernel, _ = choose(counts(4096, area=1.0, pairs=1.0, form="full"), torch.device("cuda"))
    assert kernel == "dense" and not times


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"machine": 3}', '{"machine": {"dense_full": 1.0}}', '{"machine": null}']
)
def test_a_spoiled_file_is_written_anew(folder, times, monkeypatch, content):
    monkeypatch.setattr(costs, "_machine", lambda: "machine")
    folder.mkdir()
    (folder / "costs.json").write_text(content)
    found = costs.measured()
    assert len(times) == 1
    assert json.loads((folder / "costs.json").read_text())["machine"] == asdict(found)


def test_values_that_cannot_be_are_not_believed(folder, times, monkeypatch):
    monkeypatch.setattr(costs, "_machine", lambda: "machine")
    folder.mkdir()
    for wrong in (-1.0, float("nan"), float("inf"), "1"):
        (folder / "costs.json").write_text(json.dumps({"machine": asdict(PROCESSOR) | {"dense_full": wrong}}))
        costs._known.clear()
        assert costs.measured().dense_full == PROCESSOR.dense_full
    assert len(times) == 4


def test_a_folder_that_cannot_be_written_leaves_them_in_memory(tmp_path, times, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path / "file"))
    monkeypatch.setattr(costs, "_known", {})
    assert costs.measured() is costs.measured()
    assert len(times) == 1 and (tmp_path / "file").read_text() == ""


def test_a_sparse_kernel_must_be_clearly_better():
    assert decided({"dense": 1.0, "tiled": 0.95, "edges": 0.91})[0] == "dense"
    assert decided({"dense": 1.0, "tiled": 0.7, "edges": 0.5})[0] == "edges"
    kernel, reason = decided({"dense": 0.02, "tiled": 0.005, "edges": 0.5})
    assert kernel == "tiled"
    assert reason == "about 5 ms forward and backward, against 20 ms dense and 500 ms edges"


def test_estimates_follow_the_counts():
    one = counts(1024, area=0.5, pairs=0.2)
    twice = replace(one, units=16)
    assert PROCESSOR.estimates(twice)["dense"] == pytest.approx(2 * PROCESSOR.estimates(one)["dense"])
    own = replace(one, groups=8, area=8 * one.area, lines=8 * one.lines, pairs=8 * one.pairs)
    assert PROCESSOR.estimates(own)["dense"] == PROCESSOR.estimates(one)["dense"]
    assert PROCESSOR.estimates(own)["tiled"] > PROCESSOR.estimates(one)["tiled"]
    per_form = {form: PROCESSOR.estimates(replace(one, form=form))["dense"] for form in ("any", "full", "causal")}
    assert per_form["causal"] < per_form["full"] <= per_form["any"]


def test_measuring_times_the_real_kernels(monkeypatch):
    monkeypatch.setattr(costs, "LENGTH", 128)
    monkeypatch.setattr(costs, "_fastest", partial(costs._fastest, patience=0.0))
    before = torch.get_rng_state()
    found = costs.measure()
    assert isinstance(found, Constants)
    assert all(0 <= getattr(found, field.name) < 1 for field in fields(Constants))
    assert found.dense_masked > 0 and found.tiled_pair >= 0
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_busy_machine_measures_is_kept_within_reason():
    wild = replace(costs.PROCESSOR, edges_row=1.0, tiled_line=0.0)
    kept = costs.plausible(wild)
    assert kept.edges_row == costs.DOUBT * costs.PROCESSOR.edges_row
    assert kept.tiled_line == costs.PROCESSOR.tiled_line / costs.DOUBT
    assert replace(kept, edges_row=1.0, tiled_line=0.0) == wild


def test_a_busy_machine_is_not_measured(folder, times, monkeypatch):
    monkeypatch.setattr(costs.os, "getloadavg", lambda: (100.0, 0.0, 0.0))
    assert costs.measured() == costs.PROCESSOR and not times and not folder.exists()
    monkeypatch.setattr(costs, "_known", {})  # another process, later
    monkeypatch.setattr(costs.os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    assert costs.measured().edges_pair == 1e-8 and len(times) == 1
