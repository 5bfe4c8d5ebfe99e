"""Choices between configurations: measured once, kept, and never where nothing can be measured."""

import json

import pytest
import torch

tuning = pytest.importorskip("maskzoo.kernels.triton.tuning", reason="no Triton")


class OnGpu:
    """What `chosen` reads of queries on a device."""

    dtype, device, is_cuda = torch.bfloat16, torch.device("cuda", 0), True


@pytest.fixture
def device(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(tuning, "shared_memory", lambda device: 227 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a device")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(tuning, "folder", tmp_path / "cache")
    monkeypatch.setattr(tuning, "_chosen", {})
    return tmp_path / "cache" / "triton.json"


def timer(monkeypatch, seconds):
    """Every candidate is launched, and takes what stands in `seconds` in turn."""
    seen = []

    def timed(launch, candidate):
        launch(candidate)
        return seconds[len(seen) - 1]

    monkeypatch.setattr(tuning, "_timed", timed)
    return seen


def test_the_fastest_is_kept_for_this_and_other_processes(device, monkeypatch):
    seen = timer(monkeypatch, [3.0, 1.0, 2.0])
    candidates = tuning.configurations("forward", 128, torch.bfloat16, 227 * 1024)
    assert tuning.chosen("forward", 128, OnGpu, "plain", seen.append) == candidates[1]
    assert seen == list(candidates)
    assert tuning.chosen("forward", 128, OnGpu, "plain", seen.append) == candidates[1]
    assert len(seen) == len(candidates), "nothing is measured again"
    assert list(json.loads(device.read_text()).values()) == [1]
    monkeypatch.setattr(tuning, "_chosen", {})
    assert tuning.chosen("forward", 128, OnGpu, "plain", seen.append) == candidates[1]
    assert len(seen) == len(candidates)


def test_other_features_are_measured_by_themselves(device, monkeypatch):
    seen = timer(monkeypatch, [3.0, 1.0, 2.0, 1.0, 2.0, 3.0])
    tuning.chosen("forward", 128, OnGpu, "plain", seen.append)
    candidates = tuning.configurations("forward", 128, torch.bfloat16, 227 * 1024)
    assert tuning.chosen("forward", 128, OnGpu, "code", seen.append) == candidates[0]


def test_what_a_device_cannot_take_is_left_out():
    assert tuning.fastest([float("inf"), 2.0, 1.0]) == 2
    assert tuning.fastest([float("inf"), float("inf")]) == 0


def test_a_configuration_that_does_not_fit_takes_for_ever(monkeypatch):
    def refuse(*_, **__):
        raise tuning.OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(tuning.triton.testing, "do_bench", refuse)
    assert tuning._timed(lambda own: None, None) == float("inf")


def test_nothing_is_measured_while_a_graph_is_captured(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    seen = timer(monkeypatch, [])
    first = tuning.configurations("forward", 128, torch.bfloat16, 227 * 1024)[0]
    assert tuning.chosen("forward", 128, OnGpu, "plain", seen.append) == first
    assert not seen and not device.exists()


def test_nothing_is_measured_in_the_interpreter():
    q = torch.zeros(1, 1, 8, 16)
    first = tuning.configurations("forward", 64, q.dtype, 2**18)[0]
    assert tuning.chosen("forward", 64, q, "plain", lambda own: pytest.fail("launched")) == first


@pytest.mark.parametrize("content", ["", "[1]", '{"a": "b"}'])
def test_a_broken_file_is_as_none(device, monkeypatch, content):
    device.parent.mkdir()
    device.write_text(content)
    seen = timer(monkeypatch, [1.0, 2.0, 3.0])
    assert tuning.chosen("forward", 128, OnGpu, "plain", seen.append)
    assert len(seen) == 3


def test_every_configuration_cuts_a_tile_evenly():
    from maskzoo.kernels.triton.configurations import KINDS

    for kind in KINDS:
        for width in (16, 32, 64, 128, 256):
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                for shared_memory in (64 * 1024, 163 * 1024, 227 * 1024):
                    for own in tuning.configurations(kind, width, dtype, shared_memory):
                        assert 128 % own.block_m == 128 % own.block_n == 0
