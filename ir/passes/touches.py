"""Where the bytes come from that kernels touch: how many others were touched since they were touched last, as in a
cache that forgets what lay idle longest.

A step is followed as it runs, its `Repeat`s iteration by iteration, after another such step. Within `Tiles` what is
touched again in the same iteration is as far away as what that iteration touched between.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from alphac.ir.core import Value
from alphac.ir.schedule import Kernel, Launch, Program, Repeat, Step, Tiles, View
from alphac.ir.typesys import SHARD, Dim

ITERATIONS = 48  # of a `Repeat` that are followed


@dataclass(frozen=True)
class Amount:
    """Something that a role does: `fixed`, whatever it owns, and so much more for each of its shards."""

    fixed: float = 0.0
    shard: float = 0.0

    def at(self, shards: float) -> float:
        return self.fixed + self.shard * shards

    def times(self, factor: float) -> Amount:
        return Amount(self.fixed * factor, self.shard * factor)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.fixed + other.fixed, self.shard + other.shard)


NOTHING = Amount()


@dataclass(frozen=True)
class Touch:
    """A buffer that a call touches: so many bytes of it, `since` so many others; whether they are `stored`."""

    bytes: Amount
    since: Amount
    stored: bool


Place = tuple[int, tuple[object, ...]]  # a buffer, and of which iterations


class _Trace:
    """Goes through the steps of a program in order, and remembers when each buffer was touched last."""

    def __init__(self) -> None:
        self.total = Amount()
        self.last: dict[Place, Amount] = {}
        self.latest: dict[int, Amount] = {}  # of any part of a buffer
        self.found: dict[int, Counter[Touch]] = {}
        self.indices: dict[Value, int] = {}

    def follow(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, Launch):
                self._launch(step.kernel)
            elif isinstance(step, Repeat):
                for turn in range(min(step.count, ITERATIONS)):
                    self.indices[step.index] = step.count - 1 - turn if step.reverse else turn
                    self.follow(step.steps)
            elif isinstance(step, Tiles):
                self._tiles(step)

    def _launch(self, kernel: Kernel) -> None:
        for view, stored in touched(kernel):
            self._touch(kernel, view, stored, view_bytes(view), view_bytes(view))

    def _tiles(self, tiles: Tiles) -> None:
        """All iterations of a kernel, then those of the next: but what lies between in one is little."""
        names = {d.name for d in tiles.dims}
        views = [(launch.kernel, view, stored) for launch in tiles.steps for view, stored in touched(launch.kernel)]
        sizes = [view_bytes(view) for _, view, _ in views]
        whole = Amount()
        for size in sizes:
            whole += size
        within, seen = Amount(), dict[Place, Amount]()
        for (kernel, view, stored), size in zip(views, sizes, strict=True):
            place, within = self._place(view, names), within + size
            if place in seen or view.buffer.role == "private":
                self._note(kernel, size, within + seen.get(place, within + whole.times(-1)).times(-1), stored)
            else:
                every = View(view.buffer, tuple(s for s in view.slices if s[0] not in names))
                self._touch(kernel, every, stored, size, view_bytes(every))
            seen[place] = within

    def _touch(self, kernel: Kernel, view: View, stored: bool, size: Amount, whole: Amount) -> None:
        place = self._place(view)
        before = self.last.get(place, self.latest.get(place[0], Amount()))
        self.total += whole
        self._note(kernel, size, self.total + before.times(-1), stored)
        self.last[place] = self.latest[place[0]] = self.total

    def _note(self, kernel: Kernel, size: Amount, since: Amount, stored: bool) -> None:
        self.found.setdefault(id(kernel), Counter())[Touch(size, since, stored)] += 1

    def _place(self, view: View, without: set[str] | frozenset[str] = frozenset()) -> Place:
        slices = (self.indices.get(index, name) for name, index in view.slices if name not in without)
        return id(view.buffer), tuple(slices)


def touches_of(program: Program) -> dict[Kernel, tuple[Touch, ...]]:
    """What every kernel of a step touches in a call, on the average."""
    trace = _Trace()
    trace.follow(program.steps)
    trace.found.clear()
    trace.follow(program.steps)
    made: dict[Kernel, tuple[Touch, ...]] = {}
    for kernel in program.kernels():
        counted = trace.found.get(id(kernel), Counter[Touch]())
        turns = max(1, sum(counted.values()) // max(1, len(touched(kernel))))
        made[kernel] = tuple(
            Touch(touch.bytes.times(times / turns), touch.since, touch.stored) for touch, times in counted.items()
        )
    return made


def touched(kernel: Kernel) -> list[tuple[View, bool]]:
    """What a kernel reads, and what it stores."""
    read = {(id(v.buffer), v.slices): v for v in kernel.reads.values()}
    stored = {(id(v.buffer), v.slices): v for _, v in kernel.stores}
    return [*((view, False) for view in read.values()), *((view, True) for view in stored.values())]


def count_of(dims: tuple[Dim, ...]) -> Amount:
    """How many elements these axes have on a role."""
    size = float(math.prod(d.size for d in dims))
    for d in dims:
        if d.shards or d.name == SHARD:
            return Amount(0.0, size / (d.shards or d.size))
    return Amount(size)


def view_bytes(view: View) -> Amount:
    """Bytes that a role has of what a view shows."""
    sliced = {name for name, _ in view.slices}
    kept = tuple(d for d in view.buffer.type.dims if d.name not in sliced)
    return count_of(kept).times(view.buffer.type.dtype.bytes)
