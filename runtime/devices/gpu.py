"""GPUs: a device with memory of its own, which goes through a segment's launches one by one.

A role's arena exists twice, at the same offsets: on the host, where the runtime writes arguments and reads results, and
on the device. Around a run, arguments go there and results come back; around an exchange, its nodes; states only when
somebody looks at them. What drives the hardware is a `Driver`: `devices/cuda.py`, or a simulation.

The object of a GPU target is a line of JSON, the launches of every segment (as `alphac.backends.gpu.segment` writes
them), and the kernels' code behind it.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from alphac.runtime.arena import TABLE, Arena, Array, merges_of, table_of
from alphac.runtime.combine import widen
from alphac.runtime.errors import BundleRefused
from alphac.runtime.records import ClassRecord, Manifest, ProgramRecord, StepRecord

LOOPS = 8  # first entry of a program's table for the indices of loops that the runtime runs
MOST = 4096  # launches that are recorded together
BLOCKS = 1 << 16  # at most so many are started: kernels stride over what is left
TILES = 65535  # along a grid's second axis
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

    def launch(self, launch: Launch) -> None:
        """Start a kernel."""
        ...

    def record(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """What starts these kernels, one after the other, as often as it is called."""
        ...

    def describe(self) -> dict[str, str | int]:
        """Which device this is, for records."""
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
        # Of tiles all iterations run at once, each with private buffers of its own.
        launches = [action for actions in segments.values() for action in _launches(actions)]
        self.scratch_bytes = -(-record.scratch // 64) * 64
        owned = max(record.owned)
        most = max((_iterations(action, owned) for action in launches if action["tiles"]), default=1)
        self.scratch = self.driver.allocate(max(self.scratch_bytes * most, 1))
        self.rooms = [self.driver.allocate(max(1, size)) for size in _rooms(launches, owned)]
        self.merges = [self._merges(k, count) for k, count in enumerate(record.owned)]
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
            for symbol, strand in _symbols(program).items():
                if symbol not in segments:
                    raise BundleRefused(f"{record.object} lacks the segment `{symbol}`", help="compile again")
                self._numbers[symbol] = len(self._segments)
                self._segments.append((_Segment(self, program, segments[symbol], strand), name))

    def _merges(self, strand: int, count: int) -> int:
        """The place of a strand's merges."""
        merges = self.arena.integers(merges_of(strand), count)
        place = self.driver.allocate(max(merges.nbytes, 8))
        if count:
            self.driver.write(place, merges)
        return place

    # ------------------------------------------------------------------ segments
    def address(self, symbol: str) -> int:
        """The number of a segment."""
        return self._numbers[symbol]

    def run(self, number: int, table: int) -> int:
        """Go through a segment: 0, or the number of the guard that stopped it."""
        segment, name = self._segments[number]
        entries = self.arena.integers(table_of(name, 0), TABLE)
        return segment.run([int(i) for i in entries[LOOPS:TABLE]])

    def launch(self, segment: str, kernel: int, indices: Sequence[int]) -> None:
        """Run the kernel of that number in a segment."""
        self._segments[self._numbers[segment]][0].launch(kernel, indices)

    def cpu_seconds(self) -> list[float]:
        """Of worker threads: there are none."""
        return []

    def describe(self) -> dict[str, str | int]:
        return self.driver.describe()

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
        place, view = self._place(program, buffer)
        if view.size:  # of a strand of which the role owns shards
            self.driver.write(place, view)

    def read(self, program: ProgramRecord, buffer: int) -> Array:
        place, view = self._place(program, buffer)
        if view.size:
            self.driver.read(place, view)
        return view

    def _place(self, program: ProgramRecord, buffer: int) -> tuple[int, Array]:
        offset = self.offsets[program.name][buffer]
        return self.place(program, buffer), self.arena.view(program.buffers[buffer], offset)

    def place(self, program: ProgramRecord, buffer: int) -> int:
        """The address of a buffer, or of a room."""
        if buffer < 0:
            return self.rooms[-1 - buffer]
        base = self.scratch if program.buffers[buffer].role == "private" else self.base
        return base + self.offsets[program.name][buffer]


@dataclass(frozen=True)
class Launch:
    """A kernel's start: `blocks` for each of `tiles` iterations, `threads` to a block, every argument 8 bytes."""

    function: Any
    blocks: int
    tiles: int
    threads: int
    arguments: tuple[int, ...]

    def parts(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """As many iterations of tiles as a grid takes at a time, and the arguments for these."""
        for begin in range(0, self.tiles, TILES):
            arguments = (*self.arguments[:-2], begin, self.arguments[-1]) if begin else self.arguments
            yield min(TILES, self.tiles - begin), arguments

    def starts(self) -> Iterator[tuple[tuple[int, int, int], Any]]:
        """The grids to start, and for each where its arguments lie: an array of pointers, which is good until the next
        is asked for."""
        for tiles, arguments in self.parts():
            count = len(arguments)
            values = (ctypes.c_uint64 * count)(*(a & 0xFFFF_FFFF_FFFF_FFFF for a in arguments))
            base = ctypes.addressof(values)
            places = (ctypes.c_void_p * count)(*(base + 8 * i for i in range(count)))
            yield (self.blocks, tiles, 1), places


class _Segment:
    """A segment's actions with everything filled in that does not change; launches between two guards are recorded as
    one if no index of a loop that the runtime runs is among their arguments."""

    def __init__(self, device: GpuDevice, program: ProgramRecord, actions: list[Action], strand: int) -> None:
        self.device, self.program = device, program
        self.guards = 0
        first, shards = device.arena.ranges[strand]
        self.tail = (shards, first, device.merges[strand])
        self.launches = list(_launches(actions))
        self._run = self._sequence(actions, 0)

    def run(self, outer: list[int]) -> int:
        """`outer`: the indices of the loops around the segment that the runtime runs."""
        return self._run(outer)

    def launch(self, number: int, indices: Sequence[int]) -> None:
        """Run one kernel. Of tiles all iterations are one launch, which stands for the first."""
        action = self.launches[number]
        tiles = indices[action["loops"] :]
        first = [self.tail[1] * size if grows else 0 for size, grows in action["tiles"]]
        if list(tiles) == first:
            for launch in self._launches(action, indices[: action["loops"]]):
                self.device.driver.launch(launch)

    # ------------------------------------------------------------------ what to do
    def _sequence(self, actions: list[Action], depth: int) -> Run:
        made: list[Run] = []
        fixed: list[Launch] = []

        def flush() -> None:
            if fixed:
                made.append(_Recorded(self.device.driver, tuple(fixed)).run)
                fixed.clear()

        for action in actions:
            found = self._expanded(action, ()) if not depth else None
            if found is not None:
                fixed += found
            else:
                flush()
                made.append(self._action(action, depth))
        flush()

        def run(indices: list[int]) -> int:
            for each in made:
                stopped = each(indices)
                if stopped:
                    return stopped
            return 0

        return run

    def _expanded(self, action: Action, inner: tuple[int, ...]) -> list[Launch] | None:
        """The launches of an action whose loops are `inner`; None if there are others, or guards."""
        if "launch" in action:
            return self._launches(action, inner) if action["loops"] == len(inner) else None
        if "guard" in action:
            return None
        found: list[Launch] = []
        for index in _turns(action):
            for step in action["steps"]:
                more = self._expanded(step, (*inner, index))
                if more is None or len(found) > MOST:
                    return None
                found += more
        return found

    def _action(self, action: Action, depth: int) -> Run:
        if "launch" in action:
            driver, loops = self.device.driver, action["loops"]

            def launch(indices: list[int]) -> int:
                outer = indices[: loops - depth]
                for each in self._launches(action, (*outer, *indices[len(indices) - depth :])):
                    driver.launch(each)
                return 0

            return launch
        if "guard" in action:
            return self._guard(action["guard"])
        body = self._sequence(action["steps"], depth + 1)

        def repeat(indices: list[int]) -> int:
            for index in _turns(action):
                stopped = body([*indices, index])
                if stopped:
                    return stopped
            return 0

        return repeat

    def _launches(self, action: Action, indices: Sequence[int]) -> list[Launch]:
        """Of a kernel: what makes its parts, and it."""
        return [self._launch(each, indices) for each in _with_parts([action])]

    def _launch(self, action: Action, indices: Sequence[int]) -> Launch:
        device, shards = self.device, self.tail[0]
        threads, count, each, grows = action["grid"]
        blocks = max(1, min(BLOCKS, -(-(count * shards if grows else count) // each)))
        pointers = [device.place(self.program, b) for b in action["buffers"]]
        arguments = (*pointers, *indices, *self.tail, *((0, device.scratch_bytes) if action["tiles"] else ()))
        function = device.driver.function(action["launch"])
        return Launch(function, blocks, _iterations(action, shards), threads, arguments)

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


class _Recorded:
    """Launches that are the same every time: the driver may run them as one."""

    def __init__(self, driver: Driver, launches: tuple[Launch, ...]) -> None:
        self._driver, self._launches = driver, launches
        self._again: Callable[[], None] | None = None

    def run(self, indices: list[int]) -> int:
        if self._again is None:
            self._again = self._driver.record(self._launches)
        self._again()
        return 0


def _launches(actions: Sequence[Action]) -> Iterator[Action]:
    for action in actions:
        if "launch" in action:
            yield action
        yield from _launches(action.get("steps", ()))


def _rooms(launches: Sequence[Action], shards: int) -> list[int]:
    """The bytes of every room: a launch's buffers -1, -2 and so on, which last until its kernel's last launch."""
    needed = [[size * shards if grows else size for size, grows in a["rooms"]] for a in _with_parts(launches)]
    return [max(sizes) for sizes in zip(*needed, strict=True)]


def _with_parts(launches: Sequence[Action]) -> Iterator[Action]:
    for action in launches:
        yield from (*action["before"], action)


def _turns(action: Action) -> range:
    count = action["repeat"]
    return range(count - 1, -1, -1) if action["reverse"] else range(count)


def _iterations(action: Action, shards: int) -> int:
    n = 1
    for size, grows in action["tiles"]:
        n *= size * shards if grows else size
    return n


def _symbols(program: ProgramRecord) -> dict[str, int]:
    """The segments of a program, and their strands; of a role that owns all shards, all strands are the same."""

    def within(steps: Sequence[StepRecord]) -> Iterator[tuple[str, int]]:
        for step in steps:
            if step.kind == "segment":
                yield step.symbol, step.strand
            yield from within(step.steps)

    found = dict(within(program.steps))
    if program.whole:
        found.setdefault(program.whole, 0)
    return found
