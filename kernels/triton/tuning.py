"""Choosing a configuration: the candidates are timed once on the device at hand, and the choice is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
import triton
from torch import Tensor
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError

from maskzoo.kernels.triton.configurations import Configuration, configurations
from maskzoo.kernels.triton.device import is_interpreted, shared_memory

folder: Path | None = None
"""Where choices are kept for other processes, as triton.json; None for nowhere. Whoever uses the kernels sets it."""

UNFIT = (OutOfResources, PTXASError, CompileTimeAssertionFailure)
"""What a device or compiler answers to a configuration that it cannot take."""

_chosen: dict[str, int] = {}


def chosen(kind: str, width: int, q: Tensor, features: str, launch: Callable[[Configuration], object]) -> Configuration:
    """The configuration for a kernel: from memory, else from the folder, else measured now.

    Nothing is measured in the interpreter or while a CUDA graph is captured: then it is the first candidate.

    Args:
        kind: which kernel, one of `configurations.KINDS`.
        width: of the wider head, padded.
        features: what else the kernel was compiled for, in words.
        launch: runs the kernel on the inputs at hand; it may run many times.
    """
    candidates = configurations(kind, width, q.dtype, shared_memory(q.device))
    if len(candidates) == 1 or is_interpreted() or not q.is_cuda:
        return candidates[0]
    key = f"{torch.cuda.get_device_name(q.device)}, triton {triton.__version__}, {kind}, {width}, {q.dtype}, {features}"
    if key not in _chosen:
        _chosen.update(_stored())
    if key not in _chosen:
        if torch.cuda.is_current_stream_capturing():
            return candidates[0]
        _chosen[key] = fastest([_timed(launch, candidate) for candidate in candidates])
        _store()
    return candidates[min(_chosen[key], len(candidates) - 1)]


def fastest(seconds: Sequence[float]) -> int:
    """The place of the least; the first where none is finite, so that its error is seen."""
    return min(range(len(seconds)), key=lambda place: seconds[place])


def _timed(launch: Callable[[Configuration], object], candidate: Configuration) -> float:
    try:
        return float(triton.testing.do_bench(lambda: launch(candidate), warmup=5, rep=25, return_mode="median"))
    except UNFIT:
        return float("inf")


def _stored() -> dict[str, int]:
    with suppress(OSError, ValueError, AttributeError):
        if folder is not None:
            found = json.loads((folder / "triton.json").read_text(encoding="utf-8"))
            return {str(key): int(place) for key, place in found.items()}
    return {}


def _store() -> None:
    """A folder that cannot be written only means that choices are kept in memory."""
    if folder is None:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f"triton.json.{os.getpid()}.part"
        aside.write_text(json.dumps({**_stored(), **_chosen}, indent=1), encoding="utf-8")
        aside.replace(folder / "triton.json")
