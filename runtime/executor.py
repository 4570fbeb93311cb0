"""Executes a role's programs: one native call per segment, exchanges in between."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from alphac.runtime.arena import TABLE, Arena, Array, merges_of, ranges, table_of
from alphac.runtime.bundle import Bundle
from alphac.runtime.crew import Crew
from alphac.runtime.devices import HOST, Library, OpenDevice, Remote, device
from alphac.runtime.records import ClassRecord, PortRecord, ProgramRecord, StepRecord
from alphac.runtime.team import Team, libc_function

LOOPS = 8  # first entry of a table for the indices of loops that the runtime runs


@dataclass(frozen=True)
class Exchanged:
    """One exchange: `scope` is its number in the bundle; of each value, `nodes` holds the role's subtrees along its
    first axis, and takes the result in its first place. `strand`: whose shards are put together."""

    scope: int
    dtypes: tuple[str, ...]
    kinds: tuple[str, ...]
    nodes: tuple[Array, ...]
    buffers: tuple[int, ...] = ()  # of the program
    strand: int = 0


Exchange = Callable[[Exchanged], None]


class Program:
    """A program placed in an arena: its views, its tables (one for each strand, with the role's shards of it), and its
    steps ready to run. `symbols`: its kernels', in the order of its segments."""

    def __init__(
        self,
        record: ProgramRecord,
        arena: Arena,
        offsets: Sequence[int],
        library: Library,
        scope: int,
        symbols: Sequence[str],
    ) -> None:
        self.record, self.name = record, record.name
        self.views = [arena.view(b, o) for b, o in zip(record.buffers, offsets, strict=True)]
        places = [arena.place(b, o) for b, o in zip(record.buffers, offsets, strict=True)]
        self.tables = [arena.integers(table_of(record.name, k), TABLE + len(offsets)) for k in range(len(arena.ranges))]
        self.addresses = [arena.address(table_of(record.name, k)) for k in range(len(arena.ranges))]
        for k, (table, (first, shards)) in enumerate(zip(self.tables, arena.ranges, strict=True)):
            table[:7] = (
                shards,
                first,
                arena.address(merges_of(k)),
                arena.address("scratch"),
                arena.scratch_bytes,
                arena.address("barrier"),
                libc_function("sched_yield"),
            )
            table[TABLE:] = places
        self.scopes = scope
        left = iter(symbols)
        self.steps = tuple(self._prepare(step, library, left) for step in record.steps)
        self.whole = library.address(record.whole) if record.whole else 0

    def _prepare(self, step: StepRecord, library: Library, symbols: Iterator[str]) -> Segment | Exchanged | Loop:
        if step.kind == "segment":
            return Segment(library.address(step.symbol), step, tuple(islice(symbols, len(step.kernels))))
        if step.kind == "repeat":
            indices = range(step.count - 1, -1, -1) if step.reverse else range(step.count)
            return Loop(indices, LOOPS + step.index, tuple(self._prepare(s, library, symbols) for s in step.steps))
        self.scopes += 1
        dtypes = tuple(self.record.buffers[b].dtype for b in step.buffers)
        nodes = tuple(self.views[b] for b in step.buffers)
        return Exchanged(self.scopes - 1, dtypes, step.kinds, nodes, step.buffers, step.strand)

    def arguments(self, kind: str) -> list[tuple[PortRecord, Array]]:
        """The arguments of a kind, with their buffers."""
        return [(p, self.views[p.buffer]) for p in self.record.arguments if p.kind == kind]

    def columns(self, strand: int) -> list[tuple[PortRecord, Array]]:
        """The columns that a strand reads, with their buffers."""
        return [(p, view) for p, view in self.arguments("column") if self.record.buffers[p.buffer].strand == strand]

    def results(self, kind: str) -> list[tuple[PortRecord, Array]]:
        """The results of a kind, with their values: of combined ones, the root."""
        return [(p, self.value(p.buffer)) for p in self.record.results if p.kind == kind]

    def stopped_by(self, guard: int) -> Segment:
        """The segment that holds a guard, which counts (from 1) through the whole program."""
        for segment in _segments(self.steps):
            if guard <= len(segment.record.guards):
                return segment
            guard -= len(segment.record.guards)
        raise ValueError(f"{self.name} has no such guard")

    def first_guard(self, stopped: Segment) -> int:
        """The number, in the whole program, of a segment's first guard."""
        before = 1
        for segment in _segments(self.steps):
            if segment is stopped:
                return before
            before += len(segment.record.guards)
        raise ValueError(f"{self.name} has no such segment")

    def turn(self, loop: Loop, index: int) -> None:
        """Let a loop that the runtime runs be at an index."""
        for table in self.tables:
            table[loop.entry] = index

    def value(self, buffer: int) -> Array:
        """A buffer's value; of one of role `nodes`, the root."""
        view = self.views[buffer]
        return view[0] if self.record.buffers[buffer].role == "nodes" else view


@dataclass(frozen=True)
class Segment:
    """A segment's address; for replay its record, and the symbols of the record's kernels."""

    function: int
    record: StepRecord
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """A loop that the runtime runs: its index goes into the table's `entry`."""

    indices: range
    entry: int
    steps: tuple[Segment | Exchanged | Loop, ...]


Step = Segment | Exchanged | Loop


def _segments(steps: Sequence[Step]) -> Iterator[Segment]:
    for step in steps:
        if isinstance(step, Segment):
            yield step
        elif isinstance(step, Loop):
            yield from _segments(step.steps)


class Executor:
    """A role's memory, code and threads. `first` of the role's shards: one for each strand, or the same of
    all.

    `load` links an object (see `devices/cpu.py`), `open_device` opens a device with memory of its own (see
    `devices/gpu.py`), which then is `remote`. Raises OutOfMemory, KernelFailed, BundleRefused. Call `close` at the end.
    """

    def __init__(
        self,
        bundle: Bundle,
        record: ClassRecord,
        first: int | Sequence[int],
        threads: int,
        load: Callable[[bytes, Sequence[str], str], Library] | None = None,
        open_device: OpenDevice = device,
    ) -> None:
        if load is None:
            from alphac.runtime.devices.cpu import load
        manifest = bundle.manifest
        self.manifest, self.ranges = manifest, ranges(record, first)
        code = bundle.read(record.object)
        self.remote: Remote | None = None
        if record.device == HOST:
            self.library = load(code, record.features, record.object)
            self.arena = Arena(manifest, record, first, threads)
        else:
            self.arena = Arena(manifest, record, first, 1)
            self.library = self.remote = open_device(record.device)(code, manifest, record, self.arena)
        self.programs: dict[str, Program] = {}
        self._states: dict[str, Array] = {}
        scope = 0
        for name, program in manifest.programs.items():
            offsets = record.plans[name].offsets
            made = Program(program, self.arena, offsets, self.library, scope, record.symbols[name])
            scope = made.scopes
            self.programs[name] = made
            for buffer, view in zip(program.buffers, made.views, strict=True):
                if buffer.role == "state":
                    self._states.setdefault(buffer.state, view)
        self.scopes = scope
        self.team = self.remote or Team(self.library, self.arena)
        self.crew = Crew(self.arena.threads)
        weakref.finalize(self, self.team.close)

    @property
    def shards(self) -> int:
        """How many this role owns, of all strands."""
        return sum(count for _, count in self.ranges)

    @property
    def whole(self) -> bool:
        """Whether it owns all shards."""
        return all(count == self.manifest.shards for _, count in self.ranges)

    @property
    def states(self) -> dict[str, Array]:
        """Every state by name, as it is now; what is changed in it counts from the next run on."""
        if self.remote is not None:
            self.remote.states()
        return self._states

    def run(self, name: str, exchange: Exchange | None) -> Segment | None:
        """Run a program once. `exchange` is called for every exchange; None: this role owns all shards, and runs the
        program as a whole.

        Returns the segment in which a guard stopped it, or None."""
        program = self.programs[name]
        if self.remote is None:
            return self._run(program, exchange)
        self.remote.begin(program.record)
        try:
            return self._run(program, exchange and around(self.remote, program.record, exchange))
        finally:
            self.remote.end(program.record)

    def _run(self, program: Program, exchange: Exchange | None) -> Segment | None:
        if exchange is not None:
            return self._steps(program, program.steps, exchange)
        guard = self.team.run(program.whole, program.addresses[0]) if program.record.whole else 0
        return program.stopped_by(guard) if guard else None

    def _steps(self, program: Program, steps: Sequence[Step], exchange: Exchange) -> Segment | None:
        for step in steps:
            if isinstance(step, Segment):
                if self.team.run(step.function, program.addresses[step.record.strand]):
                    return step
            elif isinstance(step, Exchanged):
                exchange(step)
            else:
                for index in step.indices:
                    program.turn(step, index)
                    stopped = self._steps(program, step.steps, exchange)
                    if stopped is not None:
                        return stopped
        return None

    def close(self) -> None:
        """Stop the threads. May be called twice."""
        self.team.close()


def around(remote: Remote, program: ProgramRecord, exchange: Exchange) -> Exchange:
    """An exchange whose values are fetched from the device before it and sent there after it."""

    def moved(step: Exchanged) -> None:
        for buffer in step.buffers:
            remote.read(program, buffer)
        exchange(step)
        for buffer in step.buffers:
            remote.write(program, buffer)

    return moved
