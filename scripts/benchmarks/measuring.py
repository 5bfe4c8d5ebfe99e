"""Time and memory: contestants that take turns, and functions in a fresh process with limits."""

import multiprocessing
import os
import resource
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

SHORTEST_TURN = 0.02
"""Seconds: a call that takes less is repeated within a turn."""

FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Ratio:
    """How many times longer one contestant took than another."""

    of_medians: float
    low: float
    high: float

    def __str__(self) -> str:
        median, low, high = (f"{x:.2f}" if x >= 0.1 else f"{x:.2g}" for x in (self.of_medians, self.low, self.high))
        return f"{median} ({low} … {high})"


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, list[float]]:
    """The seconds of each call in each round. Who begins alternates.

    Every call has been made before and is warm. A first round, which is not counted, finds out how often a call fits
    into a turn, and how many rounds fit into `seconds`; three are made in any case.
    """
    if not calls:
        return {}
    once = {name: _seconds(call, 1) for name, call in calls.items()}
    repeats = {name: max(1, round(SHORTEST_TURN / max(once[name], 1e-6))) for name in calls}
    round_seconds = sum(once[name] * repeats[name] for name in calls)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(max(FEWEST_ROUNDS, min(rounds, int(seconds / round_seconds)))):
        for name in list(calls)[:: -1 if number % 2 else 1]:
            times[name].append(_seconds(calls[name], repeats[name]))
    return times


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def ratio(slow: Sequence[float], fast: Sequence[float]) -> Ratio:
    """Of the medians, with the lowest and highest ratio within a round that both were in."""
    within = [a / b for a, b in zip(slow, fast, strict=False)]
    return Ratio(statistics.median(slow) / statistics.median(fast), min(within), max(within))


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return _status("VmRSS")


class Peak:
    """The most memory that the process holds from here on, above what it holds now.

    Linux only: `ru_maxrss` would also count what came before, and what the parent held when it made this process.
    """

    def __init__(self, base: int | None = None) -> None:
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")
        self.base = resident() if base is None else base

    def bytes(self) -> int:
        return max(0, _status("VmHWM") - self.base)


def _status(name: str) -> int:
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


class Unfinished(Exception):
    """A function that ended otherwise than by returning, and why."""


def in_child(function: Callable[..., Any], *arguments: Any, seconds: float, gibibytes: float) -> Any:
    """What the function returns in a fresh process of its own.

    Args:
        function, arguments: picklable; the function is found by its module and name.
        seconds: after so many the process is ended.
        gibibytes: how much memory it may ask for.

    Raises:
        Unfinished: time or memory ran out, or the function raised.
    """
    fresh = multiprocessing.get_context("spawn")
    receiving, sending = fresh.Pipe(duplex=False)
    process = fresh.Process(target=_child, args=(sending, gibibytes, function, arguments))
    process.start()
    sending.close()
    try:
        if not receiving.poll(seconds):
            raise Unfinished(f"more than {seconds:.0f} s")
        finished, result = receiving.recv()
    except EOFError:
        process.join()
        raise Unfinished(f"ended by signal or exit status {process.exitcode}") from None
    finally:
        _end(process)
    if not finished:
        out_of_memory = "allocate memory" in result or result.startswith("MemoryError")
        raise Unfinished(f"more than {gibibytes:g} GiB" if out_of_memory else result)
    return result


def _child(sending: Connection, gibibytes: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.setsid()  # so that compilers it starts end with it
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    limit = int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        sending.send((True, function(*arguments)))
    except Exception as error:
        sending.send((False, one_line(error)))


def _end_with_parent(parent: int) -> None:
    """A child that outlives its killed parent would disturb whatever is measured next."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def _end(process: Any) -> None:
    if process.is_alive():
        process.join(1)
    if process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no group of its own yet
            process.kill()
    process.join()


def one_line(error: Exception) -> str:
    """An error's type and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def machine() -> dict[str, Any]:
    """The processor, the number of cores and threads, and the versions; the load just now."""
    import torch

    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "load_average": os.getloadavg()[0],
    }
