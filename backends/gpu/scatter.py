"""scatter_add on a grid: a block makes a row of the table, a thread a column of it.

    for every leaf of 256 positions     each thread looks whether one of them holds the row; if any does, every thread
                                        adds up its column of those, in order
    behind every leaf                   its sums are merged as the tree says

Sums start from +0, so that a leaf without the row leaves +0, as if its updates had been looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable

from alphac.backends.evaluation import Index, named
from alphac.backends.gpu import THREADS
from alphac.backends.gpu.frame import GpuFrame
from alphac.backends.indexing import Affine, number, symbol
from alphac.backends.printer import Handle
from alphac.backends.reduction import Emit, Partials, each_leaf, leaf_size
from alphac.backends.special import LEAF, Scatter
from alphac.ir.core import Op
from alphac.ir.typesys import I64, Dim

SHORT = 32  # positions that one thread looks at for an entry of the table
assert LEAF == THREADS, "a thread looks at one position of a leaf"


def scatter(frame: GpuFrame, op: Op, combined: bool) -> Partials:
    """The table of a scatter_add, in the form that suits how many updates there are."""
    alone = Scatter(frame, op, combined)
    return alone if alone.count <= SHORT else _Row(frame, op, combined)


class _Row(Scatter):
    """A task is a row and up to 256 columns."""

    frame: GpuFrame

    def __init__(self, frame: GpuFrame, op: Op, combined: bool) -> None:
        super().__init__(frame, op, combined)
        self.tasks = [*self.outer, Dim("row", self.dim.size), Dim("tile", -(-self.width // THREADS))]
        frame.together = 1
        self.found = frame.shared_array("found", I64, 2 * LEAF)  # of this leaf and, in turn, of the next
        self.some = frame.shared_array("some", I64, 2)
        for name in ("turn", "tag"):
            frame.source.line(f"{name} = 0")

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        self._mine(task, body)

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        frame = self.frame
        if self.table is None:
            self.table = frame.array("table", self.accumulator, self.slots)
        table = self.table

        def merge(slot: Affine) -> None:
            left, right = frame.scratch_element(table, slot), frame.scratch_element(table, slot + 1)
            frame.put(table, slot, frame.k.add(left, right))

        each_leaf(
            frame,
            number(self.leaves),
            LEAF,
            lambda first, slot: frame.put(table, slot, self._leaf(task, shard, first)),
            merge,
        )
        dtype = self.op.result.type.dtype
        sum_ = frame.scratch_element(table, number(0))
        self._mine(task, lambda index: emit(index, frame.k.cast(sum_, dtype)))

    def _mine(self, task: Index, body: Callable[[Index], None]) -> None:
        """Run `body` for the index of this thread's entry, if it has one."""
        frame, column = self.frame, task["tile"] * THREADS + self.frame.own
        with frame.source.block(f"if {frame.source.index(column)} < {self.width}:"):
            own = frame.variable(column, self.width)
            outer = {d.name: task[d.name] for d in self.outer}
            body({**outer, self.dim.name: task["row"], **named(self.inner, own)})

    def _leaf(self, task: Index, shard: Affine | None, first: Affine) -> Handle:
        """The sum of a leaf's updates of this thread's entry."""
        frame, source = self.frame, self.frame.source
        hit, sum_ = source.name("c"), source.name("c")
        turn = symbol("turn", source.level, 0, 1)
        source.line("tag += 1")
        source.line(f"{hit} = 0")
        mine = first + frame.own
        with source.block(f"if {source.index(mine)} < {self.count}:"):
            chosen = self.chosen(self.position(task, shard, frame.variable(mine, self.count)))
            with source.block(f"if {frame.k.text(chosen)} == {source.index(task['row'])}:"):
                source.line(f"{hit} = 1")
                source.line(f"{self.some.name}[{source.index(turn)}] = tag")
        source.line(f"{self.found.name}[{source.index(turn * LEAF + frame.own)}] = {hit}")
        frame.barrier()
        source.line(f"{sum_} = {frame.k.text(frame.k.const(0, self.accumulator))}")
        with (
            source.block(f"if {self.some.name}[{source.index(turn)}] == tag:"),
            frame.loop("r", number(0), leaf_size(frame, self.count, LEAF, first), LEAF) as r,
            source.block(f"if {self.found.name}[{source.index(turn * LEAF + r)}] == 1:"),
        ):
            at = self.position(task, shard, frame.variable(first + r, self.count))
            before = Handle(self.accumulator, sum_, source.level)

            def add(index: Index) -> None:
                update = frame.k.cast(self.update({**at, **index}), self.accumulator)
                source.line(f"{sum_} = {frame.k.text(frame.k.add(before, update))}")

            self._mine(task, add)
        source.line("turn = 1 - turn")
        return Handle(self.accumulator, sum_, source.level)
