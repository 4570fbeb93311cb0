"""Why a guard stopped a step: its kernels are run again, one by one on one thread, until one makes a bad number.

The guard comes before any state is written, so that everything the step read is still there. All roles replay, each
exchange included, because the same guard stopped all of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime.arena import Array, merges_of
from alphac.runtime.combine import widen
from alphac.runtime.devices import Remote
from alphac.runtime.executor import Exchange, Exchanged, Executor, Program, Segment, Step, around
from alphac.runtime.records import KernelRecord, LoopRecord

Numbered = tuple[int, KernelRecord]  # a kernel, and its place in its segment


@dataclass(frozen=True)
class Culprit:
    """The kernel that first stored a number that is not finite; `value` names the buffer, `what` is `nan` or `inf`."""

    op: str
    span: str
    value: str
    what: str

    def __str__(self) -> str:
        where = f" ({self.span})" if self.span else ""
        return f"`{self.op}`{where} made the first {self.what}, in `{self.value}`"


class Replay:
    """Runs a program's kernels one by one up to the segment that was stopped."""

    def __init__(self, executor: Executor, name: str, stopped: Segment, exchange: Exchange | None) -> None:
        self._executor, self._exchange, self._stopped = executor, exchange, stopped
        self._program: Program = executor.programs[name]
        self._written: set[int] = set()
        self._strand = 0  # of the segment that is run
        self._indices: list[int] = []
        self._infinite: Culprit | None = None  # −∞ may be a mask: it is named only if nothing else is found
        self._found: Culprit | None = None
        self._foreign = False  # what came of an exchange is bad already, though this role's part of it was not
        self._there = _on_device(executor, self._program) or _Host(executor, self._program)

    def run(self) -> Culprit | None:
        """The culprit; None if this role's part made none."""
        self._steps(self._program.steps)
        return None if self._foreign else self._found or self._infinite

    def _steps(self, steps: Sequence[Step]) -> bool:
        """Whether the stopped segment was reached."""
        for step in steps:
            if isinstance(step, Segment):
                self._there.enter(step)
                self._strand = step.record.strand
                kernels = [pair for pair in enumerate(step.record.kernels) if step.symbols[pair[0]]]
                self._kernels(kernels, 0, [])
                if step is self._stopped:
                    return True
            elif isinstance(step, Exchanged):
                if self._exchange is not None:
                    self._there.exchange(self._exchange, step)
                    self._foreign = self._foreign or (self._found is None and _came_bad(step))
            else:
                for index in step.indices:
                    self._program.turn(step, index)
                    self._indices.append(index)
                    done = self._steps(step.steps)
                    self._indices.pop()
                    if done:
                        return True
        return False

    def _kernels(self, kernels: Sequence[Numbered], depth: int, inner: list[int]) -> None:
        for loop, members in groupby(kernels, lambda k: k[1].loops[depth] if len(k[1].loops) > depth else None):
            body = list(members)
            if loop is None:
                for number, kernel in body:
                    self._launch(number, kernel, inner)
            else:
                for index in self._turns(loop):
                    self._kernels(body, depth + 1, [*inner, index])

    def _turns(self, loop: LoopRecord) -> Iterator[int]:
        """The indices of a loop; along the grain's axis, those that this role owns."""
        first, shards = self._executor.ranges[self._strand]
        first, stop = (loop.rows * n for n in (first, first + shards))
        return iter(range(first, stop)) if loop.rows else _indices(loop)

    def _launch(self, number: int, kernel: KernelRecord, inner: list[int]) -> None:
        """Run one kernel and look at what it stored; kernels that write a state come after the guard and are left
        out."""
        if self._found is not None or self._foreign:
            return
        buffers = self._program.record.buffers
        stored = kernel.buffers[: kernel.stores]
        if any(buffers[b].role == "state" for b in stored):
            return
        for b in stored:
            if b not in self._written:
                self._there.clear(b)  # what lies there is another value's, which nobody needs any more
                self._written.add(b)
        self._there.call(number, kernel, [*self._indices, *inner], self._strand)
        for b in stored:
            self._there.fetch(b)
            what = _not_finite(self._program.views[b], buffers[b].dtype)
            culprit = Culprit(kernel.op, kernel.span, buffers[b].name, what)
            if what in ("nan", "inf"):
                self._found = culprit
                return
            if what and self._infinite is None:
                self._infinite = culprit


class _Host:
    """Kernels of a program in this process's memory."""

    def __init__(self, executor: Executor, program: Program) -> None:
        self._executor, self._program = executor, program
        self._functions: dict[str, int] = {}
        self._symbols: tuple[str, ...] = ()

    def enter(self, segment: Segment) -> None:
        """The kernels that follow are this segment's."""
        self._symbols = segment.symbols

    def exchange(self, exchange: Exchange, step: Exchanged) -> None:
        exchange(step)

    def clear(self, buffer: int) -> None:
        """Fill a buffer with zeros."""
        self._program.views[buffer][...] = 0

    def fetch(self, buffer: int) -> None:
        """Have a buffer's numbers in its view."""

    def call(self, number: int, kernel: KernelRecord, indices: Sequence[int], strand: int) -> None:
        """Run the kernel of that number of a strand's segment on one thread. `indices`: of all loops around it."""
        program, arena, symbol = self._program, self._executor.arena, self._symbols[number]
        if symbol not in self._functions:
            self._functions[symbol] = self._executor.library.address(symbol)
        pointers = [int(program.tables[strand][16 + b]) for b in kernel.buffers]
        first, shards = arena.ranges[strand]
        integers = [*indices, shards, first, arena.address(merges_of(strand)), arena.address("scratch"), 0, 1]
        kinds = [ctypes.c_void_p] * len(pointers) + [ctypes.c_int64] * len(integers)
        ctypes.CFUNCTYPE(None, *kinds)(self._functions[symbol])(*pointers, *integers)


class _Remote:
    """Kernels of a program on a device with memory of its own; it finds them by their place in a segment."""

    def __init__(self, remote: Remote, program: Program) -> None:
        self._remote, self._program = remote, program
        self._segment = ""
        self._numbers: dict[int, int] = {}

    def enter(self, segment: Segment) -> None:
        """The device counts the kernels that are there."""
        there = [number for number, symbol in enumerate(segment.symbols) if symbol]
        self._segment, self._numbers = segment.record.symbol, {number: k for k, number in enumerate(there)}

    def exchange(self, exchange: Exchange, step: Exchanged) -> None:
        around(self._remote, self._program.record, exchange)(step)

    def clear(self, buffer: int) -> None:
        self._program.views[buffer][...] = 0
        self._remote.write(self._program.record, buffer)

    def fetch(self, buffer: int) -> None:
        self._remote.read(self._program.record, buffer)

    def call(self, number: int, kernel: KernelRecord, indices: Sequence[int], strand: int) -> None:
        self._remote.launch(self._segment, self._numbers[number], indices)


def _on_device(executor: Executor, program: Program) -> _Remote | None:
    return None if executor.remote is None else _Remote(executor.remote, program)


def _indices(loop: LoopRecord) -> Iterator[int]:
    return iter(range(loop.count - 1, -1, -1) if loop.reverse else range(loop.count))


def _came_bad(exchanged: Exchanged) -> bool:
    pairs = zip(exchanged.nodes, exchanged.dtypes, strict=True)
    return any(_not_finite(nodes[0], dtype) in ("nan", "inf") for nodes, dtype in pairs)


def _not_finite(view: Array, dtype: str) -> str:
    """`nan`, `inf`, `-inf` or nothing: the worst that a buffer holds."""
    if dtype not in ("f32", "f64", "bf16"):
        return ""
    numbers: npt.NDArray[Any] = widen(view) if dtype == "bf16" else view
    if np.isfinite(numbers).all():
        return ""
    if np.isnan(numbers).any():
        return "nan"
    return "inf" if (numbers == np.inf).any() else "-inf"
