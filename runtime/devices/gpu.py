"""GPUs: a device with memory of its own, which goes through a segment's launches one by one.

A role's arena exists twice, at the same offsets: on the host, where the runtime writes arguments and reads results, and
on the device. Around a run, arguments go there and results come back; around an exchange, its nodes; states only when
somebody looks at them. What drives the hardware is a `Driver`: `devices/cuda.py`, or a simulation.

The object of a GPU target is a line of JSON, the launches of every segment (as `alphac.backends.gpu.segment` writes
them), and the kernels' code behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np

from alphac.runtime.arena import TABLE, Arena, Array
from alphac.runtime.combine import widen
from alphac.runtime.errors import BundleRefused
from alphac.runtime.records import ClassRecord, Manifest, ProgramRecord, StepRecord

LOOPS = 8  # first entry of a program's table for the indices of loops that the runtime runs
BLOCKS = 1 << 16  # at most so many are started: kernels stride over what is left
Action = dict[str, Any]
Run = Callable[[list[int]], int]


class Driver(Protocol):
    """What a GPU's driver does. Addresses are the device's own; everything happens in order."""

    def allocate(self, size: int) -> int:
        """So many bytes of zeros. Raises OutOfMemory."""
        ...

    def write(self, address: int, data: Array) -> None:
        """Copy to the device."""
        ...

    def read(self, address: int, into: Array) -> None:
        """Copy from the device, when all that was launched is done."""
        ...

    def function(self, symbol: str) -> Any:
        """A kernel. Raises KernelFailed if there is none."""
        ...

    def launch(self, function: Any, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        """Start a kernel; every argument is 8 bytes."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class GpuDevice:
    """A role's memory and code on a GPU. `make` drives it, given the kernels' code."""

    def __init__(
        self, code: bytes, make: Callable[[bytes], Driver], manifest: Manifest, record: ClassRecord, arena: Arena
    ) -> None:
        header, _, kernels = code.partition(b"\n")
        try:
            segments: dict[str, list[Action]] = json.loads(header)["segments"]
        except (ValueError, KeyError, TypeError):
            raise BundleRefused(f"{record.object} is no object of a GPU target", help="compile again") from None
        self.arena, self.manifest = arena, manifest
        self.driver = make(kernels)
        self.base = self.driver.allocate(max(record.arena, 1))
        merges = arena.integers("merges", record.shards)
        self.scratch = self.driver.allocate(max(record.scratch, 1))
        self.merges = self.driver.allocate(merges.nbytes)
        self.driver.write(self.merges, merges)
        self.offsets = {name: record.plans[name].offsets for name in manifest.programs}
        self._states = {  # of every state, its view on the host and its place here
            b.state: (arena.view(b, offset), self.base + offset)
            for name, program in manifest.programs.items()
            for b, offset in zip(program.buffers, self.offsets[name], strict=True)
            if b.role == "state"
        }
        self._fresh = True  # whether the host's states are the latest
        self._changed = True  # whether somebody may have changed them there
        self._segments: list[tuple[_Segment, str]] = []
        self._numbers: dict[str, int] = {}
        for name, program in manifest.programs.items():
            for symbol in dict.fromkeys(_symbols(program)):
                if symbol not in segments:
                    raise BundleRefused(f"{record.object} lacks the segment `{symbol}`", help="compile again")
                self._numbers[symbol] = len(self._segments)
                self._segments.append((_Segment(self, program, segments[symbol]), name))

    # ------------------------------------------------------------------ segments
    def address(self, symbol: str) -> int:
        """The number of a segment."""
        return self._numbers[symbol]

    def run(self, number: int, table: int) -> int:
        """Go through a segment: 0, or the number of the guard that stopped it."""
        segment, name = self._segments[number]
        entries = self.arena.integers(name, TABLE)
        return segment.run([int(i) for i in entries[LOOPS:TABLE]])

    def launch(self, segment: str, kernel: int, indices: Sequence[int]) -> None:
        """Run the kernel of that number in a segment."""
        self._segments[self._numbers[segment]][0].launches[kernel](list(indices))

    def cpu_seconds(self) -> list[float]:
        """Of worker threads: there are none."""
        return []

    def close(self) -> None:
        self.driver.close()

    # ------------------------------------------------------------------ memory
    def begin(self, program: ProgramRecord) -> None:
        """Before a run: its arguments, and states that were changed here, go to the device."""
        if self._changed:
            for view, place in self._states.values():
                self.driver.write(place, view)
            self._changed = False
        for port in program.arguments:
            if port.kind != "state":
                self.write(program, port.buffer)

    def end(self, program: ProgramRecord) -> None:
        """After a run: its results come back, states when they are asked for."""
        self._fresh = False
        for port in program.results:
            if port.kind != "state":
                self.read(program, port.buffer)

    def states(self) -> None:
        """Somebody is about to look at the states, or to change them."""
        if not self._fresh:
            for view, place in self._states.values():
                self.driver.read(place, view)
        self._fresh = self._changed = True

    def write(self, program: ProgramRecord, buffer: int) -> None:
        self.driver.write(*self._place(program, buffer))

    def read(self, program: ProgramRecord, buffer: int) -> Array:
        place, view = self._place(program, buffer)
        self.driver.read(place, view)
        return view

    def _place(self, program: ProgramRecord, buffer: int) -> tuple[int, Array]:
        offset = self.offsets[program.name][buffer]
        return self.place(program, buffer), self.arena.view(program.buffers[buffer], offset)

    def place(self, program: ProgramRecord, buffer: int) -> int:
        """The address of a buffer."""
        base = self.scratch if program.buffers[buffer].role == "private" else self.base
        return base + self.offsets[program.name][buffer]


class _Segment:
    """A segment's actions with everything filled in that does not change."""

    def __init__(self, device: GpuDevice, program: ProgramRecord, actions: list[Action]) -> None:
        self.device, self.program = device, program
        self.launches: list[Run] = []
        self.guards = 0
        self.depth = 0
        arena = device.arena
        self.tail = (arena.shards, arena.first, device.merges)
        self._run = self._sequence(actions)

    def run(self, outer: list[int]) -> int:
        """`outer`: the indices of the loops around the segment that the runtime runs."""
        return self._run(outer)

    def _sequence(self, actions: list[Action]) -> Callable[[list[int]], int]:
        made = [self._action(action) for action in actions]

        def run(indices: list[int]) -> int:
            for each in made:
                stopped = each(indices)
                if stopped:
                    return stopped
            return 0

        return run

    def _action(self, action: Action) -> Run:
        if "launch" in action:
            return self._launch(action)
        if "guard" in action:
            return self._guard(action["guard"])
        if "tiles" in action:
            return self._tiles(action)
        count = action["repeat"]
        turns = range(count - 1, -1, -1) if action["reverse"] else range(count)
        return self._loops([turns], action)

    def _tiles(self, action: Action) -> Run:
        """Every owned index of some axes; iterations may run in any order, and share the memory of one thread."""
        shards, first = self.tail[:2]
        ranges = [range(first * r, (first + shards) * r) if r else range(size) for size, r in action["tiles"]]
        return self._loops(ranges, action)

    def _launch(self, action: Action) -> Run:
        driver = self.device.driver
        function = driver.function(action["launch"])
        threads, count, each, grows = action["grid"]
        count = count * self.tail[0] if grows else count
        blocks = max(1, min(BLOCKS, -(-count // each)))
        pointers = [self.device.place(self.program, b) for b in action["buffers"]]
        inner, loops = self.depth, action["loops"]

        def run(indices: list[int]) -> int:
            outer = loops - inner
            chosen = [*indices[:outer], *(indices[len(indices) - inner :] if inner else ())]
            driver.launch(function, blocks, threads, [*pointers, *chosen, *self.tail])
            return 0

        self.launches.append(run)
        return run

    def _guard(self, buffers: list[int]) -> Run:
        self.guards += 1
        number = self.guards

        def run(indices: list[int]) -> int:
            for buffer in buffers:
                found = self.device.read(self.program, buffer).reshape(-1)[:1]
                value = widen(found) if self.program.buffers[buffer].dtype == "bf16" else found
                if not np.isfinite(value).all():
                    return number
            return 0

        return run

    def _loops(self, ranges: list[range], action: Action) -> Run:
        self.depth += len(ranges)
        body = self._sequence(action["steps"])
        self.depth -= len(ranges)

        def run(indices: list[int]) -> int:
            for inner in product(*ranges):
                stopped = body([*indices, *inner])
                if stopped:
                    return stopped
            return 0

        return run


def _symbols(program: ProgramRecord) -> Iterator[str]:
    """The segments of a program."""

    def within(steps: Sequence[StepRecord]) -> Iterator[str]:
        for step in steps:
            if step.kind == "segment":
                yield step.symbol
            yield from within(step.steps)

    yield from within(program.steps)
    if program.whole:
        yield program.whole
