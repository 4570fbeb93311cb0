"""How long every kernel of a step takes while the system trains, on all threads, by clocks in its code."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from alphac.bench.ours import Losses, open_endless, open_machine
from alphac.runtime.devices import Library
from alphac.runtime.devices.cpu import load
from alphac.runtime.training import Training

WARM, ROUNDS, SECONDS = 2, 7, 0.15  # steps before; rounds of about so many seconds
CALL = ctypes.CFUNCTYPE(ctypes.c_int64)


@dataclass(frozen=True)
class Profile:
    """Seconds per step: of every launch, as the mean over the threads, and of the whole step."""

    launches: tuple[float, ...]
    step: float


def measure(bundle: Path, code: Path, launches: int, stride: int, threads: int) -> Profile:
    """Train with instrumented code (`instrument.py`) and read its clocks: the median of some rounds."""
    kept: list[Library] = []

    def instrumented(_: bytes, features: Sequence[str], name: str) -> Library:
        kept.append(load(code.read_bytes(), features, name))
        return kept[0]

    machine, _ = open_machine(open_endless(bundle), threads, instrumented)
    try:
        address, now = (CALL(kept[0].address(f"profile_{name}")) for name in ("address", "now"))
        memory = (ctypes.c_int64 * (threads * stride)).from_address(address())
        ticks = np.ctypeslib.as_array(memory).reshape(threads, stride)[:, :launches]
        step, _ = Training(machine, Losses(), WARM).run(0)
        count, samples = 1, list[tuple[np.ndarray, float]]()
        while len(samples) < ROUNDS:
            ticks[...] = 0
            began, first = time.perf_counter(), now()
            step, _ = Training(machine, Losses(), step + count).run(step)
            seconds, passed = time.perf_counter() - began, now() - first
            if seconds < SECONDS / 2:
                count = max(2 * count, int(count * SECONDS / seconds))
                continue
            samples.append((ticks.mean(axis=0) * (seconds / passed / count), seconds / count))
    finally:
        machine.executor.close()
    medians = np.median([launch for launch, _ in samples], axis=0)
    return Profile(tuple(medians.tolist()), statistics.median(s for _, s in samples))
