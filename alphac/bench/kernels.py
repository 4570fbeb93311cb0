"""How long every kernel of a step takes: all are called one by one, in the step's own order, by the whole team."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from alphac.bench.ours import Losses, open_endless, open_machine
from alphac.runtime.arena import TABLE
from alphac.runtime.executor import Executor, Loop, Segment, Step
from alphac.runtime.records import KernelRecord
from alphac.runtime.training import Training

WARM, LEAST, SECONDS = 2, 5, 1.0  # steps before, and at least so many rounds, in about so many seconds
ROUNDS = 200
SCRATCH, SCRATCH_BYTES = 3, 4  # of what every kernel is told: shards, first, merges, scratch and its size
TEAM = ("i64 %thread", "i64 %threads")
NOTHING = "define i64 @nothing(ptr %table, i64 %thread, i64 %threads) {\n  ret i64 0\n}\n"


@dataclass(frozen=True)
class KernelTime:
    """Seconds that a kernel's calls take in one step together: the median, and the least, over rounds."""

    symbol: str
    op: str
    span: str
    buffers: tuple[str, ...]
    seconds: float
    least: float


def measure(path: Path, threads: int) -> list[KernelTime]:
    """Time the step's kernels of a bundle, in the order of their records."""
    machine, _ = open_machine(bundle := open_endless(path), threads)
    try:
        Training(machine, Losses(), WARM).run(0)
        probe = Probe(machine.executor, "step")
        began, rounds = time.monotonic(), list[list[float]]()
        while len(rounds) < LEAST or (len(rounds) < ROUNDS and time.monotonic() - began < SECONDS):
            rounds.append(probe.round())
    finally:
        machine.executor.close()
    buffers = bundle.manifest.programs["step"].buffers
    return [
        KernelTime(
            record.symbol,
            record.op,
            record.span,
            tuple(buffers[b].name for b in record.buffers),
            statistics.median(r[k] for r in rounds),
            min(r[k] for r in rounds),
        )
        for k, (record, _) in enumerate(probe.launches)
    ]


class Probe:
    """Calls a program's kernels one by one.

    A team calls functions that take a table, a kernel takes arguments. So every kernel gets a function that loads its
    arguments from a table of its own: pointers, loop indices, then what every kernel is told."""

    def __init__(self, executor: Executor, name: str) -> None:
        self._executor, self._program = executor, executor.programs[name]
        self.launches = list(_launches(self._program.steps, 0))
        self._numbers = {id(record): k for k, (record, _) in enumerate(self.launches)}
        address = executor.library.address
        text = [_caller(f"call_{k}", address(r.symbol), len(r.buffers), n) for k, (r, n) in enumerate(self.launches)]
        self._engine = _engine("\n".join([*text, NOTHING]))
        self._functions = [self._engine.get_function_address(f"call_{k}") for k in range(len(self.launches))]
        self._nothing = self._engine.get_function_address("nothing")
        self._tables = [self._table(record, indices) for record, indices in self.launches]
        self._seconds = [0.0] * len(self.launches)
        self._overhead = 0.0

    def round(self) -> list[float]:
        """Run one step; seconds of every kernel in it, in the order of `launches`, without the call of a team."""
        self._seconds = [0.0] * len(self.launches)
        self._overhead = min(self._time(self._nothing, self._tables[0]) for _ in range(5))
        self._steps(self._program.steps, [])
        return self._seconds

    def _table(self, record: KernelRecord, indices: int) -> npt.NDArray[np.int64]:
        arena = self._executor.arena
        pointers = [self._program.table[TABLE + b] for b in record.buffers]
        told = (arena.shards, arena.first, arena.address("merges"), arena.address("scratch"), arena.scratch_bytes)
        return np.array([*pointers, *[0] * indices, *told], np.int64)

    def _steps(self, steps: Sequence[Step], outer: list[int]) -> None:
        for step in steps:
            if isinstance(step, Segment):
                self._kernels(step.record.kernels, 0, outer)
            elif isinstance(step, Loop):
                for index in step.indices:
                    self._steps(step.steps, [*outer, index])

    def _kernels(self, kernels: Sequence[KernelRecord], depth: int, indices: list[int]) -> None:
        for loop, members in groupby(kernels, lambda k: k.loops[depth] if len(k.loops) > depth else None):
            body = list(members)
            if loop is None:
                for kernel in body:
                    self._call(kernel, indices)
            else:
                for index in range(loop.count - 1, -1, -1) if loop.reverse else range(loop.count):
                    self._kernels(body, depth + 1, [*indices, index])

    def _call(self, kernel: KernelRecord, indices: list[int]) -> None:
        number = self._numbers[id(kernel)]
        table, at = self._tables[number], len(kernel.buffers)
        table[at : at + len(indices)] = indices
        self._seconds[number] += max(0.0, self._time(self._functions[number], table) - self._overhead)

    def _time(self, function: int, table: npt.NDArray[np.int64]) -> float:
        run, address = self._executor.team.run, table.ctypes.data
        began = time.perf_counter()
        run(function, address)
        return time.perf_counter() - began


def _launches(steps: Sequence[Step], depth: int) -> Iterator[tuple[KernelRecord, int]]:
    """Every kernel, and how many loop indices it takes."""
    for step in steps:
        if isinstance(step, Segment):
            yield from ((record, depth + len(record.loops)) for record in step.record.kernels)
        elif isinstance(step, Loop):
            yield from _launches(step.steps, depth + 1)


def _caller(name: str, kernel: int, pointers: int, indices: int) -> str:
    """`i64 NAME(ptr table, i64 thread, i64 threads)`, which calls the kernel at an address."""
    lines: list[str] = []
    for entry in range(pointers + indices + SCRATCH_BYTES + 1):
        kind = "ptr" if entry < pointers else "i64"
        lines.append(f"  %p{entry} = getelementptr i64, ptr %table, i64 {entry}")
        lines.append(f"  %v{entry} = load {kind}, ptr %p{entry}")
    told = pointers + indices
    lines.append(f"  %offset = mul i64 %thread, %v{told + SCRATCH_BYTES}")
    lines.append(f"  %own = add i64 %offset, %v{told + SCRATCH}")
    values = [*(f"ptr %v{k}" for k in range(pointers)), *(f"i64 %v{k}" for k in range(pointers, told + SCRATCH))]
    lines.append(f"  call void inttoptr (i64 {kernel} to ptr)({', '.join([*values, 'i64 %own', *TEAM])})")
    return "\n".join([f"define i64 @{name}(ptr %table, i64 %thread, i64 %threads) {{", *lines, "  ret i64 0", "}"])


def _engine(text: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
