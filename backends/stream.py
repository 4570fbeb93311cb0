"""Kernels that go over rows once, block by block (blocks.py).

    emit_rows      a contraction of rows with few columns, and its epilogue
    emit_stream    several ops of the same rows: what is computed of a block of rows stays in scratch, and the leaf of
                   every sum over the rows is pushed on a stack of its own

A stream's threads share the pieces of shards: aligned runs of blocks, whose partial sums the kernels of the `combine`s
put together. So few shards keep many threads busy, and the tree is what it always is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alphac.backends.blocks import Block, Lying, products, row_product
from alphac.backends.evaluation import Array, Frame, named, size
from alphac.backends.indexing import Affine, number, symbol
from alphac.backends.printer import Handle
from alphac.backends.reduction import body_of, each_leaf, kind_of
from alphac.backends.simd_rows import dot_columns
from alphac.backends.tiling import vector_width
from alphac.ir.core import Op, Value
from alphac.ir.ops.define import definition
from alphac.ir.schedule import BLOCK, Stage, View, pieces
from alphac.ir.typesys import SHARD, Dim

ROWS = 64  # fewer do not fill the vectors of `dots` and its threads
UNIT = 16  # threads' shares are multiples of so many rows


# ---------------------------------------------------------------------- contractions of rows
def suits_rows(frame: Frame, op: Op) -> bool:
    """Whether a contraction is one of many rows, whose terms lie side by side, with few columns."""
    result = op.result.type
    if result.dtype.bits < 32 or result.is_partial:
        return False
    rows, columns = _sides(op)
    most = min(max(dot_columns(frame.target.registers)), vector_width(result.dtype.bytes, frame.target) - 1)
    if any(d in columns for d in rows) or size(rows) < ROWS or size(columns) > most:
        return False
    block = Block(frame, rows)
    x, _, terms, _ = row_product(op, block.names)
    found = block.memory(x, terms)
    return found is not None and found.column == 1 and size(terms) > 1


def _sides(op: Op) -> list[list[Dim]]:
    """The operands' axes in the result, the longer ones first."""
    return sorted(([d for d in op.result.type.dims if v.type.has(d.name)] for v in op.operands), key=size, reverse=True)


def emit_rows(frame: Frame, op: Op) -> None:
    """The kernel of a contraction that suits."""
    rows, _ = _sides(op)
    block = Block(frame, rows)
    block.factor(op)
    low, high = frame.share(*frame.owned_range(rows), size(rows), UNIT)
    source = frame.source
    name = source.name("b")
    with source.block(f"for {name} in range({source.index(low)}, {source.index(high)}, {BLOCK}):"):
        start = symbol(name, source.level, 0, size(rows))
        block.begin(start, frame.least(high - start, BLOCK))
        block.contract(op)
        values = [v for v, _ in frame.kernel.stores]
        inner = block.inner(op.result)
        block.map(values, inner, block.across(values, inner), [None] * len(values), store=True)


# ---------------------------------------------------------------------- streams
def emit_stream(frame: Frame) -> None:
    """The kernel of all stages of a stream."""
    _Stream(frame).emit()


@dataclass
class _Sum:
    """A sum over the rows: its results lie side by side in slots of `stack`. `axes` are the results' in that order."""

    op: Op
    axes: list[Dim]
    stack: Lying
    view: View
    leaf: Callable[[Affine], None]

    @property
    def width(self) -> int:
        return size(self.axes)


class _Stream:
    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.stages = frame.kernel.stages
        self.grain = next(d for v in frame.kernel.reads for d in v.type.dims if d.shards)
        self.block = Block(frame, [self.grain])
        self.length = self.grain.size // self.grain.shards
        self.run, self.pieces = pieces(self.length)
        self.blocks = -(-self.length // BLOCK)
        self.sums: list[_Sum] = []
        self.views = dict(frame.kernel.stores)

    def emit(self) -> None:
        frame, source, shards = self.frame, self.frame.source, self.grain.shards
        for stage in self.stages:
            if stage.anchor is not None and not stage.sums and definition(stage.anchor).shape == "contract":
                self.block.factor(stage.anchor)
        low, high = frame.first * self.pieces, (frame.first + frame.shards) * self.pieces
        low, high = frame.share(low, high, shards * self.pieces)
        with frame.loop("e", low, high, shards * self.pieces) as e:
            shard, piece = e // self.pieces, e % self.pieces
            begin = piece * self.run
            count = number(self.blocks) if self.pieces == 1 else frame.least(number(self.blocks) - begin, self.run)

            def leaf(first: Affine, slot: Affine) -> None:
                row = begin * BLOCK + first
                name = source.name("n")
                source.line(f"{name} = {source.index(shard * self.length + row)}")
                rows = frame.least(number(self.length) - row, BLOCK)
                self.block.begin(symbol(name, source.level, 0, self.grain.size - 1), rows)
                for stage in self.stages:
                    self._stage(stage)
                for made in self.sums:
                    made.leaf(slot)

            def merge(slot: Affine) -> None:
                for made in self.sums:
                    self._merge(made, slot)

            each_leaf(frame, count, BLOCK, leaf, merge)
            for made in self.sums:
                self._store(made, shard, piece)

    # ------------------------------------------------------------------ stages
    def _stage(self, stage: Stage) -> None:
        block, op = self.block, stage.anchor
        if op is not None and stage.sums:
            self.sums.append(self._reduction(op) if definition(op).shape == "reduce" else self._contraction(op))
            return
        if op is not None:
            block.contract(op) if definition(op).shape == "contract" else block.reduce(op)
        inner = block.inner(stage.values[0])
        summed = self._summed(inner) if stage is self._last else []
        values = [v for v in stage.values if op is None or v is not op.result or v in self.views] + summed
        if not values:
            return
        across = block.across(values, inner)
        read = {*summed, *(v for s in self.stages if s is not stage for v in self._needed(s))}
        if op is not None:
            read.discard(op.result)  # which is kept already
        kept = [block.room(v, inner, across) if v in read else None for v in values]
        block.map(values, inner, across, kept, store=True)
        for value, lying in zip(values, kept, strict=True):
            if lying is not None:
                block.known(value, inner, lying)

    @property
    def _last(self) -> Stage | None:
        """The last stage that makes values of rows."""
        return next((s for s in reversed(self.stages) if not s.sums), None)

    def _summed(self, inner: list[Dim]) -> list[Value]:
        """What is computed of rows for a sum alone: in one loop with the last stage, which may share a part of it."""
        made = {v for s in self.stages for v in (*s.values, *(s.anchor.results if s.anchor else ()))}
        operands = dict.fromkeys(v for s in self.stages if s.sums and s.anchor for v in s.anchor.operands)
        return [
            v
            for v in operands
            if v not in made
            and v.op is not None
            and v not in self.frame.kernel.reads
            and definition(v.op).shape == "elementwise"
            and self.block.inner(v) == inner
        ]

    def _needed(self, stage: Stage) -> set[Value]:
        """What a stage reads of other stages' values."""
        made = {v for s in self.stages if s is not stage for v in (*s.values, *(s.anchor.results if s.anchor else ()))}
        own = set(stage.values)
        todo = list(stage.anchor.operands if stage.sums and stage.anchor is not None else stage.values)
        seen: set[Value] = set()
        while todo:
            value = todo.pop()
            if value not in seen:
                seen.add(value)
                if value.op is not None and (
                    value in own or (value not in made and value not in self.frame.kernel.reads)
                ):
                    todo.extend(value.op.operands)
        return seen & made

    # ------------------------------------------------------------------ sums over the rows
    def _stack(self, op: Op, axes: list[Dim]) -> Lying:
        slots = self.run.bit_length() + 1 if self.run > 1 else 1
        array = self.frame.array("sum", op.result.type.dtype, slots * size(axes))
        return Lying(array.name, array.dtype, number(0), size(axes), 1)

    def _reduction(self, op: Op) -> _Sum:
        frame, block, kind = self.frame, self.block, kind_of(op)
        (operand,) = op.operands
        axes = block.inner(operand)
        stack, index = self._stack(op, axes), frame.source.index
        found = block.lying(operand, axes)
        if found.row != 1 and found.column != 1:
            found = block.lying(operand, axes, aligned="columns")

        def leaf(slot: Affine) -> None:
            place = slot * size(axes)
            if found.row == 1:
                with frame.loop("j", number(0), number(size(axes)), size(axes)) as j:
                    start = index(found.start + j * found.column)
                    text = f"lanes_{kind}({found.name}, {start}, {index(block.count)})"
                    frame.source.line(f"{stack.name}[{index(place + j)}] = {text}")
            else:
                frame.source.line(
                    f"columns_{kind}({stack.name}, {stack.address(frame, place)}, {found.address(frame)}, {found.row},"
                    f" {index(block.count)}, {size(axes)})"
                )

        return _Sum(op, axes, stack, self.views[op.result], leaf)

    def _contraction(self, op: Op) -> _Sum:
        """The operand with more columns is the right one: a vector holds columns of it."""
        frame, block = self.frame, self.block
        left, right = sorted(op.operands, key=lambda v: size(block.inner(v)))
        heights, widths = block.inner(left), block.inner(right)
        axes = [*heights, *widths]
        stack = self._stack(op, axes)
        rows, columns = block.lying(left, heights), block.lying(right, widths, aligned="columns")

        def leaf(slot: Affine) -> None:
            to = Lying(stack.name, stack.dtype, slot * size(axes), size(widths), 1)
            products(frame, to, rows, size(heights), columns, number(size(widths)), block.count)

        return _Sum(op, axes, stack, self.views[op.result], leaf)

    def _merge(self, made: _Sum, slot: Affine) -> None:
        """A slot takes its sum with the next."""
        frame, stack = self.frame, Array(made.stack.name, made.stack.dtype, 0)
        with frame.loop("j", number(0), number(made.width), made.width) as j:
            at = slot * made.width + j
            x, y = frame.scratch_element(stack, at), frame.scratch_element(stack, at + made.width)
            frame.put(stack, at, self._joined(made.op, x, y))

    def _joined(self, op: Op, x: Handle, y: Handle) -> Handle:
        k = self.frame.k
        return k.add(x, y) if definition(op).shape == "contract" else body_of(op)(k, x, y)

    def _store(self, made: _Sum, shard: Affine, piece: Affine) -> None:
        frame, stack = self.frame, Array(made.stack.name, made.stack.dtype, 0)
        buffer = made.view.buffer
        with frame.loop("j", number(0), number(made.width), made.width) as j:
            at = frame.flat(made.view, {SHARD: shard, **named(made.axes, j)}) + piece * buffer.fixed
            frame.store(frame.names[id(buffer)], stack.dtype, at, frame.scratch_element(stack, j))
