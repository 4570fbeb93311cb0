"""Memory planning: where each buffer of a program lies in a role's arena.

Buffers that are never needed at the same time share memory. A position is a step in the order of execution, or several
kernels in a row behind which the threads meet once (`meetings.py`). Within a
loop, a buffer that a single iteration both makes and uses is live between these two steps, any other one from the
loop's begin to its end. States lie where the caller says; arguments and results keep their place for the whole
program. What a thread has for itself within `Tiles` lies in its scratch memory, one kernel after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from alphac.ir.core import Value
from alphac.ir.passes.meetings import Meeting, kernels_of, meets
from alphac.ir.schedule import Buffer, Exchange, Kernel, Launch, Program, Repeat, Step, Tiles

ALIGNMENT = 64
Owned = int | Sequence[int]  # shards of a role, by strand if there are several


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offsets, one per buffer of the program, in the arena, of private buffers in a thread's scratch memory; and
    the bytes that are needed of both."""

    offsets: tuple[int, ...]
    arena: int
    scratch: int


@dataclass(frozen=True)
class Life:
    """First and last position at which a buffer is needed."""

    start: int
    stop: int


def slots(shards: int) -> int:
    """Bound on the maximal aligned subtrees of a contiguous range of so many shards."""
    return max(1, 2 * (shards - 1).bit_length())


def buffer_bytes(buffer: Buffer, owned: Owned) -> int:
    """Bytes of a buffer on a role that owns so many shards."""
    shards = owned if isinstance(owned, int) else owned[buffer.strand]
    elements = buffer.per_shard * shards if buffer.per_shard else buffer.fixed
    if buffer.role == "nodes":
        elements *= slots(shards)
    return elements * buffer.type.dtype.bytes


def place_states(programs: Iterable[Program], shards: Owned) -> tuple[dict[str, int], int]:
    """Offsets of all states of a module by name, and the bytes they take: the same for all of its programs."""
    offsets: dict[str, int] = {}
    end = 0
    for program in programs:
        for buffer in program.buffers:
            name = _state(buffer)
            if name is not None and name not in offsets:
                offsets[name] = end
                end += _aligned(buffer_bytes(buffer, shards))
    return offsets, end


def plan_memory(program: Program, shards: Owned, states: Mapping[str, int], base: int, scratch: int) -> MemoryPlan:
    """Place the buffers of a program: states at `states`, private ones behind the `scratch` bytes that kernels take of
    a thread's scratch memory, everything else from byte `base` on."""
    shared = {b: life for b, life in lifetimes(program).items() if b.role not in ("state", "private")}
    offsets, arena = _placed(shared, shards, base)
    most = scratch
    for tiles in _tiles(program.steps):
        places, end = _placed(_private_lives(tiles), shards, _aligned(scratch))
        offsets |= places
        most = max(most, end)
    for buffer in program.buffers:
        name = _state(buffer)
        if name is not None:
            offsets[buffer] = states[name]
    return MemoryPlan(tuple(offsets[b] for b in program.buffers), arena, most)


def _placed(lives: Mapping[Buffer, Life], shards: Owned, base: int) -> tuple[dict[Buffer, int], int]:
    """Offsets from `base` on, larger buffers first, and where the last one ends."""
    offsets: dict[Buffer, int] = {}
    placed: list[tuple[int, int, Life]] = []
    end = base
    for buffer in sorted(lives, key=lambda b: -buffer_bytes(b, shards)):
        life, size = lives[buffer], _aligned(buffer_bytes(buffer, shards))
        offset = _best_fit(size, base, [(s, e) for s, e, o in placed if o.start <= life.stop and life.start <= o.stop])
        offsets[buffer] = offset
        placed.append((offset, offset + size, life))
        end = max(end, offset + size)
    return offsets, end


def _tiles(steps: Iterable[Step]) -> Iterator[Tiles]:
    for step in steps:
        if isinstance(step, Tiles):
            yield step
        elif isinstance(step, Repeat):
            yield from _tiles(step.steps)


def _private_lives(tiles: Tiles) -> dict[Buffer, Life]:
    """From which to which kernel of a tile each private buffer is needed."""
    lives: dict[Buffer, Life] = {}
    for position, launch in enumerate(tiles.steps):
        for buffer in launch.kernel.buffers():
            if buffer.role == "private":
                lives[buffer] = Life(lives[buffer].start if buffer in lives else position, position)
    return lives


def lifetimes(program: Program) -> dict[Buffer, Life]:
    """When each buffer is needed. One that nobody touches has a place, but for one moment only."""
    walk = _Walk()
    walk.steps(program.steps, ())
    lives = {b: walk.life(b) for b in program.buffers}
    for _, buffer in program.results:
        lives[buffer] = Life(lives[buffer].start, walk.position)
    for buffer in program.buffers:
        if buffer.role in ("state", "argument"):
            lives[buffer] = Life(-1, walk.position)
    return lives


@dataclass(frozen=True)
class _Access:
    position: int
    writes: bool  # and does not read
    loops: tuple[Repeat, ...]  # around it
    stacked: frozenset[Value]  # indices of the loops along which a slice is written


class _Walk:
    """Numbers the steps and notes every access to a buffer."""

    def __init__(self) -> None:
        self.position = 0
        self.accesses: dict[Buffer, list[_Access]] = {}
        self.spans: dict[Repeat, Life] = {}

    def steps(self, steps: Sequence[Step], loops: tuple[Repeat, ...]) -> None:
        for step, meeting in zip(steps, meets(steps), strict=True):
            if isinstance(step, Repeat):
                start = self.position
                self.steps(step.steps, (*loops, step))
                self.spans[step] = Life(start, self.position)
            elif isinstance(step, Launch | Tiles):
                for kernel in kernels_of(step):
                    self._kernel(kernel, loops)
            elif isinstance(step, Exchange):
                self._note((b for b, _ in step.buffers), loops)
            else:
                self._note(step.buffers, loops)
            self.position += meeting == Meeting.ALWAYS

    def _kernel(self, kernel: Kernel, loops: tuple[Repeat, ...]) -> None:
        read = {v.buffer for v in kernel.reads.values()}
        for _, view in kernel.stores:
            stacked = frozenset(index for _, index in view.slices)
            access = _Access(self.position, view.buffer not in read, loops, stacked)
            self.accesses.setdefault(view.buffer, []).append(access)
        self._note(read, loops)

    def _note(self, buffers: Iterable[Buffer], loops: tuple[Repeat, ...]) -> None:
        for buffer in buffers:
            self.accesses.setdefault(buffer, []).append(_Access(self.position, False, loops, frozenset()))

    def life(self, buffer: Buffer) -> Life:
        accesses = self.accesses.get(buffer, [])
        if not accesses:
            return Life(0, 0)
        start, stop = accesses[0].position, accesses[-1].position
        for loop in {id(r): r for a in accesses for r in a.loops}.values():
            first = next(a for a in accesses if loop in a.loops)
            within = all(loop in a.loops for a in accesses)
            if not (within and first.writes and loop.index not in first.stacked):
                start, stop = min(start, self.spans[loop].start), max(stop, self.spans[loop].stop)
        return Life(start, stop)


def _best_fit(size: int, base: int, taken: list[tuple[int, int]]) -> int:
    """Where `size` bytes go: the smallest gap between taken ranges that holds them, else behind them."""
    best, waste, end = -1, -1, base
    for start, stop in sorted(taken):
        gap = start - end
        if gap >= size and (best < 0 or gap - size < waste):
            best, waste = end, gap - size
        end = max(end, stop)
    return best if best >= 0 else end


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _state(buffer: Buffer) -> str | None:
    return buffer.port.name if buffer.role == "state" and buffer.port is not None else None
