"""Ops with loops of their own.

argmax, argmin, cumsum     one pass along an axis; what is carried lies in variables if the axis is innermost, else in
                           scratch, a tile of the inner axes together
scatter_add                sums of updates by leaves of 256 positions, in a block of the table that fits into scratch
"""

from __future__ import annotations

from collections.abc import Callable

from alphac.backends.evaluation import Array, Frame, Index, named, physical, size
from alphac.backends.indexing import Affine, number
from alphac.backends.printer import Handle
from alphac.backends.reduction import Emit, each_leaf, leaf_size, store_partials
from alphac.ir.core import Op
from alphac.ir.ops.special import scattered_axes
from alphac.ir.typesys import BF16, F32, I32, I64, SHARD, Dim, DType

TILE = 64
LEAF = 256
BLOCK_BYTES = 256 << 10  # of the tables that wait to be merged


def emit_special(frame: Frame, op: Op) -> None:
    """The kernel of a special op that no combine takes over."""
    if op.name == "scatter_add":
        store_partials(frame, op, Scatter(frame, op, combined=False))
    elif op.name == "cumsum":
        _cumsum(frame, op)
    else:
        _arg(frame, op)


# ---------------------------------------------------------------------- one pass along an axis
class _Carried:
    """A value carried along an axis, one for each element of a tile: a variable, or scratch if there are several."""

    def __init__(self, frame: Frame, name: str, dtype: DType, tile: int) -> None:
        self.frame, self.dtype = frame, dtype
        self.array = frame.array(name, dtype, tile) if tile > 1 else None
        self.variable = frame.source.name("c")

    def get(self, j: Affine) -> Handle:
        if self.array is not None:
            return self.frame.scratch_element(self.array, j)
        return Handle(self.dtype, self.variable, self.frame.source.level)

    def set(self, j: Affine, value: Handle) -> None:
        if self.array is not None:
            self.frame.put(self.array, j, value)
        else:
            self.frame.source.line(f"{self.variable} = {self.frame.k.text(value)}")


class _Pass:
    """The loops of a pass along an axis of an operand: outer axes, tiles of the inner ones, the axis, a tile's
    elements."""

    def __init__(self, frame: Frame, op: Op) -> None:
        self.frame, self.operand = frame, op.operands[0]
        type_ = self.operand.type
        self.dim = type_.dim(str(op.attributes["dim"]))
        order = physical(type_)
        at = order.index(self.dim)
        self.outer, self.inner = order[:at], order[at + 1 :]
        self.width = size(self.inner)
        self.tile = min(TILE, self.width, frame.widest)
        self.accumulator = F32 if type_.dtype == BF16 else type_.dtype

    def run(self, body: Callable[[Index], None]) -> None:
        """Run `body(task)` for every task."""
        axes = [*self.outer, Dim("tile", -(-self.width // self.tile))]
        self.frame.tasks(axes, 2 * self.dim.size * self.tile, body)

    def elements(self, task: Index, body: Callable[[Index, Affine], None]) -> None:
        """Run `body(index without the axis, place in the tile)` for a tile's elements."""
        frame = self.frame
        outer = {d.name: task[d.name] for d in self.outer}
        if self.tile == 1 and self.width == 1:
            body({**outer, **{d.name: number(0) for d in self.inner}}, number(0))
            return
        low = task["tile"] * self.tile
        count = frame.least(number(self.width) - low, self.tile) if self.width % self.tile else number(self.tile)
        with frame.loop("j", number(0), count, self.tile) as j:
            inner = named(self.inner, low + j)
            body({**outer, **inner}, j)

    def element(self, index: Index, i: Affine) -> Handle:
        return self.frame.k.cast(self.frame.value(self.operand, {**index, self.dim.name: i}), self.accumulator)


def _cumsum(frame: Frame, op: Op) -> None:
    loops, k = _Pass(frame, op), frame.k
    total = _Carried(frame, "total", loops.accumulator, loops.tile)
    count = loops.dim.size

    def task_(task: Index) -> None:
        loops.elements(task, lambda index, j: total.set(j, k.const(0, loops.accumulator)))
        with frame.loop("i", number(0), number(count), count) as step:
            i = number(count - 1) - step if op.attributes["reverse"] else step

            def add(index: Index, j: Affine) -> None:
                total.set(j, k.add(total.get(j), loops.element(index, i)))
                result = k.cast(total.get(j), op.result.type.dtype)
                frame.results[op.result] = lambda _: result
                frame.store_all({**index, loops.dim.name: i})

            loops.elements(task, add)

    loops.run(task_)


def _arg(frame: Frame, op: Op) -> None:
    loops, k = _Pass(frame, op), frame.k
    best = _Carried(frame, "best", loops.accumulator, loops.tile)
    place = _Carried(frame, "place", I32, loops.tile)
    beats = k.gt if op.name == "argmax" else k.lt

    def start(index: Index, j: Affine) -> None:
        best.set(j, loops.element(index, number(0)))
        place.set(j, k.const(0, I32))

    def finish(index: Index, j: Affine) -> None:
        result = place.get(j)
        frame.results[op.result] = lambda _: result
        frame.store_all(index)

    def task_(task: Index) -> None:
        loops.elements(task, start)
        with frame.loop("i", number(1), number(loops.dim.size), loops.dim.size) as i:

            def step(index: Index, j: Affine) -> None:
                x, top = loops.element(index, i), best.get(j)
                better = beats(x, top)
                if loops.accumulator.is_float:  # the first NaN beats all
                    better = k.or_(better, k.and_(k.ne(x, x), k.eq(top, top)))
                chosen = k.where(better, k.cast(k.from_affine(i), I32), place.get(j))
                best.set(j, k.where(better, x, top))
                place.set(j, chosen)

            loops.elements(task, step)
        loops.elements(task, finish)

    loops.run(task_)


# ---------------------------------------------------------------------- scatter_add
class Scatter:
    """`Partials` of a scatter_add: a task makes a block of table rows by a tile of columns. Columns are the innermost
    axes that the index lacks."""

    def __init__(self, frame: Frame, op: Op, combined: bool) -> None:
        self.frame, self.op = frame, op
        self.index, self.updates = op.operands
        dim = op.attributes["dim"]
        assert isinstance(dim, Dim)
        self.dim = dim
        dtype = op.result.type.dtype
        self.accumulator: DType = F32 if dtype == BF16 else dtype
        self.summed = scattered_axes(op)
        self.grain = next((d for d in self.summed if d.shards), None)
        if self.grain is not None:  # a shard's own rows
            self.summed[0] = Dim(self.grain.name, self.grain.size // self.grain.shards)
        self.count = size(self.summed)
        self.leaves = -(-self.count // LEAF)
        self.slots = self.leaves.bit_length() + 1 if self.leaves > 1 else 1
        axes = [d for d in physical(op.result.type) if d.name != dim.name and not (combined and d.name == SHARD)]
        cut = next((i + 1 for i in reversed(range(len(axes))) if self.index.type.has(axes[i].name)), 0)
        if axes and axes[0].name == SHARD:
            cut = max(cut, 1)
        self.outer, self.inner = axes[:cut], axes[cut:]
        self.width = size(self.inner)
        self.tile = min(self.width, TILE if size(self.outer) > 1 else TILE // 2, frame.widest)
        room = BLOCK_BYTES // (self.accumulator.bytes * self.tile * self.slots)
        self.rows = max(1, min(dim.size, room, frame.widest))
        self.tasks = [*self.outer, Dim("block", -(-dim.size // self.rows)), Dim("tile", -(-self.width // self.tile))]
        self.weight = self.rows * self.tile + self.count * self.tile
        self.slot = self.rows * self.tile
        self.table: Array | None = None

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        self._entries(task, lambda index, _: body(index))

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        frame = self.frame
        if self.table is None:
            self.table = frame.array("table", self.accumulator, self.slots * self.slot)
        table = self.table

        def leaf(first: Affine, slot: Affine) -> None:
            with frame.loop("e", number(0), number(self.slot), self.slot) as e:
                frame.put(table, slot * self.slot + e, frame.k.const(0, self.accumulator))
            with frame.loop("r", first, first + leaf_size(frame, self.count, LEAF, first), self.count) as r:
                self._add(task, shard, r, slot * self.slot)

        def merge(slot: Affine) -> None:
            with frame.loop("e", number(0), number(self.slot), self.slot) as e:
                at = slot * self.slot + e
                left, right = frame.scratch_element(table, at), frame.scratch_element(table, at + self.slot)
                frame.put(table, at, frame.k.add(left, right))

        each_leaf(frame, number(self.leaves), LEAF, leaf, merge)
        dtype = self.op.result.type.dtype
        self._entries(task, lambda index, at: emit(index, frame.k.cast(frame.scratch_element(table, at), dtype)))

    def position(self, task: Index, shard: Affine | None, r: Affine) -> dict[str, Affine]:
        """The indices of a shard's r-th position, and the outer ones."""
        position = named(self.summed, r)
        if self.grain is not None:
            assert shard is not None
            rows = self.grain.size // self.grain.shards
            position[self.grain.name] = shard * rows + position[self.grain.name]
        outer = {d.name: task[d.name] for d in self.outer if not (d.name == SHARD and self.grain is not None)}
        return {**outer, **position}

    def chosen(self, position: Index) -> Handle:
        """The row that the position's updates go to."""
        k, names = self.frame.k, self.index.type.names
        chosen = self.frame.value(self.index, {n: i for n, i in position.items() if n in names})
        return k.minimum(k.maximum(k.cast(chosen, I64), 0), self.dim.size - 1)

    def update(self, index: Index) -> Handle:
        """The update at a position and inner indices."""
        names = self.updates.type.names
        return self.frame.value(self.updates, {n: i for n, i in index.items() if n in names})

    def _add(self, task: Index, shard: Affine | None, r: Affine, base: Affine) -> None:
        """Add the updates of one position."""
        frame, k, table = self.frame, self.frame.k, self.table
        assert table is not None
        position = self.position(task, shard, r)
        row = k.affine(self.chosen(position)) - task["block"] * self.rows

        def add() -> None:
            def column(inner: Index, j: Affine) -> None:
                at = base + row * self.tile + j
                update = k.cast(self.update({**position, **inner}), self.accumulator)
                frame.put(table, at, k.add(frame.scratch_element(table, at), update))

            self._columns(task, column)

        if self.rows == self.dim.size:
            add()
            return
        place = frame.source.index(row)
        with frame.source.block(f"if ({place} >= 0) & ({place} < {self.rows}):"):
            add()

    def _columns(self, task: Index, body: Callable[[Index, Affine], None]) -> None:
        frame = self.frame
        if self.width == 1:
            body({d.name: number(0) for d in self.inner}, number(0))
            return
        low = task["tile"] * self.tile
        count = frame.least(number(self.width) - low, self.tile) if self.width % self.tile else number(self.tile)
        with frame.loop("j", number(0), count, self.tile) as j:
            inner = named(self.inner, low + j)
            body(inner, j)

    def _entries(self, task: Index, body: Callable[[Index, Affine], None]) -> None:
        """Run `body(index, place in slot 0)` for the entries of a task's block of the table."""
        frame = self.frame
        first = task["block"] * self.rows
        whole = self.dim.size % self.rows == 0
        count = number(self.rows) if whole else frame.least(number(self.dim.size) - first, self.rows)
        outer = {d.name: task[d.name] for d in self.outer}
        with frame.loop("r", number(0), count, self.rows) as r:
            row = {self.dim.name: first + r}
            self._columns(task, lambda inner, j: body({**outer, **row, **inner}, r * self.tile + j))
