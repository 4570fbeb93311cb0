"""Steps one by one, for a device with memory of its own, or for strands that are fed apart: what native code does in
bursts for the host."""

from __future__ import annotations

from collections.abc import Sequence

from alphac.runtime.burst import Burst
from alphac.runtime.combine import widen
from alphac.runtime.data import Feed
from alphac.runtime.executor import Executor, Program
from alphac.runtime.records import PortRecord


class Single:
    """Runs the steps of a program on the batches of a feed; in the place of a `Burst`."""

    def __init__(self, executor: Executor, program: Program, feed: Feed, strand: int = 0) -> None:
        self._executor, self._program, self._feed = executor, program, feed
        self._columns = [(port.name.partition(".")[2], out) for port, out in program.columns(strand)]
        self.scalars = [p for p in program.record.results if p.kind in ("loss", "metric")]

    def load(self, step: int) -> None:
        """Let the program's next run find this role's rows of batch number `step`, and the step's number."""
        rows = self._feed.take(step, 1).listed(self._feed.size).reshape(-1)
        for name, out in self._columns:
            self._feed.data.read(name, rows, out)
        for _, view in self._program.arguments("step"):
            view[...] = step

    def run(self, step: int, count: int) -> tuple[int, int]:
        """Run one step, whatever `count` would allow. Returns how many were finished, and the number of the guard that
        stopped it, or 0."""
        self.load(step)
        stopped = self._executor.run(self._program.name, None)
        return (1, 0) if stopped is None else (0, self._program.first_guard(stopped))

    def values(self, count: int) -> list[list[float]]:
        """The scalars of the last step, if it was finished."""
        return scalars_of(self._program, self.scalars, count)


class Several:
    """Runs the steps of a program whose strands are fed apart: `feeding` is what feeds each."""

    def __init__(self, executor: Executor, program: Program, feeding: Sequence[Burst | Single]) -> None:
        self._executor, self._program, self._feeding = executor, program, feeding
        self.scalars = feeding[0].scalars

    def load(self, step: int) -> None:
        """Let the program's next run find this role's rows of batch number `step`, and the step's number."""
        for each in self._feeding:
            each.load(step)

    def run(self, step: int, count: int) -> tuple[int, int]:
        """Run one step, as `Single` does."""
        self.load(step)
        stopped = self._executor.run(self._program.name, None)
        return (1, 0) if stopped is None else (0, self._program.first_guard(stopped))

    def values(self, count: int) -> list[list[float]]:
        """The scalars of the last step, if it was finished."""
        return scalars_of(self._program, self.scalars, count)


def scalars_of(program: Program, ports: Sequence[PortRecord], count: int) -> list[list[float]]:
    """What some scalars are now, `count` (at most one) times."""
    found: list[list[float]] = []
    for port in ports:
        value = program.value(port.buffer).reshape(-1)
        bf16 = program.record.buffers[port.buffer].dtype == "bf16"
        found.append([float((widen(value) if bf16 else value)[0])][:count])
    return found


Steps = Burst | Single | Several


def steps_of(executor: Executor, program: Program, feeds: Sequence[Feed]) -> Steps:
    """What runs a program's steps on this executor's device; `feeds` by strand."""
    kind = Burst if executor.remote is None else Single
    fed = [kind(executor, program, feed, strand) for strand, feed in enumerate(feeds) if feed.size]
    return fed[0] if len(feeds) == 1 else Several(executor, program, fed)
