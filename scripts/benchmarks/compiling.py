"""The GPU kernels compiled ahead of time, without a GPU: from the launches that the passes really make."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from maskzoo.kernels.offsets import CodeTerm, Offsets, StoredTerm
from maskzoo.kernels.tiles import from_visible
from maskzoo.kernels.triton import passes
from maskzoo.kernels.triton.configurations import Configuration, configurations
from maskzoo.kernels.triton.schedule import scheduled

TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 163 * 1024),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm_100": (GPUTarget("cuda", 100, 32), 227 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
}
"""Devices by name, with the shared memory that a program may have there."""

FEATURES = ("plain", "code", "stored", "dense", "softcap", "dropout", "grouped")

TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.uint8: "*u8",
}


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, as the passes make it."""

    kernel: JITFunction[Any]
    arguments: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self) -> str:
        """The kernel, and whether it is the variant for inputs that are not finite."""
        repair = " (repair)" if self.arguments.get("REPAIR") else ""
        return self.kernel.__name__.removesuffix("_kernel") + repair


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes of its device; None where the compiler does not say.

    Attributes:
        registers: of a thread.
        stack: bytes of a thread in slow memory, where registers are spilled to.
        shared: bytes of shared memory of a program.
        wgmma: products by warp groups, the fast ones of Hopper.
    """

    registers: int | None
    stack: int | None
    shared: int
    wgmma: int


def launches(
    width: int, dtype: torch.dtype, feature: str, target: str, number: int = 0, queries: int = 256
) -> Iterator[Launch]:
    """Every launch of a forward and backward pass with the configurations of this number (the last, if fewer)."""
    shared_memory = TARGETS[target][1]

    def configuration(kind: str, padded: int, *_: Any) -> Configuration:
        known = configurations(kind, padded, dtype, shared_memory)
        return known[min(number, len(known) - 1)]

    made: list[Launch] = []

    def keep(kernel: JITFunction[Any], *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
        made.append(Launch(kernel, dict(zip(kernel.arg_names, arguments, strict=False)) | named, options))

    precision = "ieee" if target.startswith("gfx") else "tf32"
    with (
        mock.patch.object(JITFunction, "run", keep),
        mock.patch.object(passes, "chosen", configuration),
        mock.patch.object(passes, "precision", lambda q: precision),
        mock.patch.object(passes, "multiprocessors", lambda device: 132),
    ):
        _pass(width, dtype, feature, queries)
    return iter(made)


def _pass(width: int, dtype: torch.dtype, feature: str, queries: int) -> None:
    heads, keys = 4, 1024
    shared = 2 if feature == "grouped" else 1
    q = torch.zeros(1, heads, queries, width, dtype=dtype)
    k, v = (torch.zeros(1, heads // shared, keys, width, dtype=dtype) for _ in range(2))
    tiles = from_visible(torch.ones(1, 1, queries, keys, dtype=torch.bool).tril(keys - queries), 128)
    terms: dict[str, Any] = {}
    if feature == "code":
        codes = torch.arange(queries)[None] + keys - 1, torch.arange(keys)[None]
        terms["code"] = CodeTerm(*codes, torch.zeros(heads, keys + queries - 1))
    elif feature == "stored":
        place = torch.zeros(int(tiles.rows.count.sum()), dtype=torch.int32)
        terms["stored"] = StoredTerm(torch.zeros(1, 128, 128, dtype=torch.uint8), place, torch.zeros(heads, 32))
    elif feature == "dense":
        terms["dense"] = torch.zeros(1, heads, queries, keys)
    dropout_p = 0.1 if feature == "dropout" else 0.0
    call = passes.Call(
        scheduled(tiles),
        Offsets(**terms),
        scale=0.125,
        softcap=30.0 if feature == "softcap" else None,
        dropout_p=dropout_p,
        seed=torch.zeros(1, dtype=torch.int64) if dropout_p else None,
    )
    out, logsum, bad = passes.forward_pass(q, k, v, call)
    needed = [True] * 3 + ["code" in terms, "stored" in terms, "dense" in terms]
    passes.backward_pass(torch.zeros_like(out), None, q, k, v, out, logsum, bad, call, needed)


def compiled(launch: Launch, target: str) -> Resources:
    """The kernel compiled as this launch would have it."""
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    fixed = {parameter.name for parameter in launch.kernel.params if parameter.is_constexpr}
    signature: dict[str, Any] = {}
    for place, name in enumerate(launch.kernel.arg_names):
        value = launch.arguments[name]
        if name in fixed:
            signature[name], constants[(place,)] = "constexpr", value
        else:
            signature[name] = _typed(value, (place,), constants, attributes)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    made = triton.compile(source, target=TARGETS[target][0], options=dict(launch.options))
    registers, stack = _usage(made.asm["cubin"]) if "cubin" in made.asm else (None, None)
    return Resources(registers, stack, made.metadata.shared, made.asm.get("ptx", "").count("wgmma.mma_async"))


def _typed(value: Any, path: tuple[int, ...], constants: dict[Any, Any], attributes: dict[Any, Any]) -> Any:
    """The type of an argument as Triton's launcher takes it: 1 and None are constants, multiples of 16 are marked."""
    if isinstance(value, tuple):
        found = [_typed(own, (*path, place), constants, attributes) for place, own in enumerate(value)]
        return type(value)(*found)
    if value is None or (type(value) is int and value == 1):
        constants[path] = value
        return "constexpr"
    if isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0):
        attributes[path] = [["tt.divisibility", 16]]
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _usage(binary: bytes) -> tuple[int, int]:
    """Registers and stack of the one kernel in a binary for NVIDIA's devices."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
        file.write(binary)
    try:
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        os.unlink(file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])
