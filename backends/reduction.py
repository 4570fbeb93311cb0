"""Reductions and combines in the canonical order (design §3).

A leaf of 1,024 elements runs in 16 strided lanes, lanes fold in halves, leaves merge as in a binary counter:

    part[d] = lanes_add(leaf, 0, n)          where the reduced axis is innermost: a vector holds 16 elements of it
    lane[16 * …] = lane[…] + x               else: a vector holds elements that are kept, each with 16 lanes in scratch

A `combine` pushes each shard's partial onto a stack in its buffer of nodes and merges the two topmost as often as the
table `merges` says, so that what is left are the maximal aligned subtrees of the shards that this role owns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from alphac.backends.evaluation import Array, Frame, Index, named, physical, size
from alphac.backends.indexing import Affine, number, symbol, unflatten
from alphac.backends.printer import Handle
from alphac.ir.core import Op, Value
from alphac.ir.ops.define import definition
from alphac.ir.ops.reduce import reduced_axes
from alphac.ir.schedule import split
from alphac.ir.typesys import BF16, F32, SHARD, Dim, DType

LEAF = 1024
LANES = 16
TILES = (128, 64, 32, 16)  # kept elements that are reduced together
FEW = 1 << 15  # elements: dividing fewer among threads does not pay
NEAR = 256 << 10  # bytes of a leaf that the second level of cache holds beside other things
Emit = Callable[[Index, Handle], None]


class Partials(Protocol):
    """What a combine puts together, or a kernel stores: results of one shard, task by task.

    tasks   axes of the tasks; with `shard` (first) unless a combine runs over the shards inside each task
    weight  work of one task, in elements of a plain map
    """

    tasks: list[Dim]
    weight: int

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        """Compute a task's results and give each, with its index, to `emit`."""
        ...

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        """Run `body` for the index of every result of a task."""
        ...


def emit_reduce(frame: Frame, op: Op) -> None:
    """The kernel of a reduction that no combine takes over."""
    store_partials(frame, op, reduction(frame, op, combined=False))


def store_partials(frame: Frame, op: Op, partials: Partials) -> None:
    """Run all tasks; their results are the anchor's, from which the stored values are made."""

    def finish(index: Index, result: Handle) -> None:
        frame.results[op.result] = lambda _: result
        frame.store_all(index)

    frame.tasks(partials.tasks, partials.weight, lambda task: partials.run(task, task.get(SHARD), finish))


def emit_combine(frame: Frame, op: Op, inner: Op | None) -> None:
    """The kernel of a combine whose operand is read, or made by a reduction or a special op."""
    from alphac.backends.special import Scatter

    if inner is None:
        combine_partials(frame, op, Read(frame, op))
    elif definition(inner).shape == "reduce":
        combine_partials(frame, op, reduction(frame, inner, combined=True))
    else:
        combine_partials(frame, op, Scatter(frame, inner, combined=True))


def combine_partials(frame: Frame, op: Op, partials: Partials) -> None:
    """Push every owned shard's results onto the nodes' stack, and merge."""
    nodes = Nodes(frame, op)

    def task_(task: Index) -> None:
        nodes.clear()
        with frame.loop("s", frame.first, frame.first + frame.shards, 1 << 31) as shard:
            push = nodes.top_place()
            partials.run(task, shard, lambda index, result: nodes.store(push, index, result))
            with frame.source.block(f"for _ in range(merge[{frame.source.index(shard - frame.first)}]):"):
                place = nodes.pop()
                partials.each(task, lambda index: nodes.merge(place, index))
            nodes.grow()

    frame.tasks(partials.tasks, partials.weight * 4, task_)


class Nodes:
    """The stack of subtrees in the buffer of a combine's result: `top` slots of it are full."""

    def __init__(self, frame: Frame, op: Op) -> None:
        (self.value, self.view), *more = frame.kernel.stores
        assert self.value is op.result and not more, "a combine's result is complete only after its exchange"
        self.frame, self.op = frame, op
        self.name = frame.names[id(self.view.buffer)]
        self.slot = self.view.buffer.fixed
        self.dtype = self.value.type.dtype

    def clear(self) -> None:
        self.frame.source.line("top = 0")

    def top_place(self) -> Affine:
        """Where slot `top` starts."""
        source = self.frame.source
        name = source.name("n")
        source.line(f"{name} = {self.slot} * top")
        return symbol(name, source.level, 0, 1 << 40)

    def pop(self) -> Affine:
        """One slot less; where the slot begins that takes the sum of the two topmost."""
        self.frame.source.line("top -= 1")
        name = self.frame.source.name("n")
        self.frame.source.line(f"{name} = {self.slot} * top")
        return symbol(name, self.frame.source.level, 0, 1 << 40)

    def grow(self) -> None:
        self.frame.source.line("top += 1")

    def store(self, place: Affine, index: Index, value: Handle) -> None:
        """Store into the slot that begins at `place`."""
        self.frame.store(self.name, self.dtype, place + self.frame.flat(self.view, index), value)

    def merge(self, place: Affine, index: Index) -> None:
        """One element of the slot at `place` becomes its sum with that of the next slot."""
        frame = self.frame
        at = place + frame.flat(self.view, index)
        left, right = (frame.element(self.name, self.dtype, i) for i in (at, at + self.slot))
        self.frame.store(self.name, self.dtype, at, joined(frame, self.op, left, right))


def joined(frame: Frame, op: Op, x: Handle, y: Handle) -> Handle:
    """Two elements combined as the op does; bf16 is rounded."""
    body, narrow = definition(op).body, x.dtype == BF16
    assert body is not None
    result = body(frame.k, *(frame.k.cast(v, F32) if narrow else v for v in (x, y)))
    return frame.k.cast(result, BF16) if narrow else result


class Read:
    """Partials that lie in memory."""

    def __init__(self, frame: Frame, op: Op) -> None:
        self.frame, self.op, self.value = frame, op, op.operands[0]
        self.axes = physical(op.result.type)
        total = size(self.axes)
        self.tile = min(total, 1024, frame.widest)
        self.tasks = [Dim("tile", -(-total // self.tile))]
        self.weight = self.tile * self.value.type.dim(SHARD).size

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        assert shard is not None
        self.each(task, lambda index: emit(index, self._partial({**index, SHARD: shard})))

    def _partial(self, index: Index) -> Handle:
        """A shard's element; of a stream's, the pieces of it put together by the tree."""
        view = self.frame.kernel.reads.get(self.value)
        if view is None or view.buffer.pieces == 1:
            return self.frame.value(self.value, index)
        name, flat = self.frame.names[id(view.buffer)], self.frame.flat(view, index)

        def node(start: int, stop: int) -> Handle:
            if stop - start == 1:
                return self.frame.element(name, self.value.type.dtype, flat + start * view.buffer.fixed)
            middle = start + split(stop - start)
            return joined(self.frame, self.op, node(start, middle), node(middle, stop))

        return node(0, view.buffer.pieces)

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        total = size(self.axes)
        low = task["tile"] * self.tile
        high = self.frame.least(low + self.tile, total)
        if not self.axes:
            body({})
            return
        self.frame.flat_loop(self.axes, low, high, lambda index, _: body(index))


# ---------------------------------------------------------------------- reductions
def reduction(frame: Frame, op: Op, combined: bool) -> Partials:
    """The results of a reduction, by the form that suits how its operand lies in memory."""
    terms = Elements(frame, op, combined)
    return Columns(terms) if terms.inner else _Rows(terms)


class Terms(ABC):
    """What is summed in which order: `count` terms to one result, in leaves of `leaf` by `lanes` lanes. `axes` are the
    result's, without `shard` if a combine runs over the shards; `inner` those that may share a vector."""

    leaf: int
    lanes: int
    inner: list[Dim]

    def __init__(self, frame: Frame, op: Op, combined: bool, summed: list[Dim]) -> None:
        self.frame, self.op = frame, op
        dtype = op.operands[0].type.dtype
        self.accumulator: DType = F32 if dtype == BF16 else dtype
        self.reduced = list(summed)
        self.grain = next((d for d in self.reduced if d.shards), None)
        if self.grain is not None:  # a shard's own rows
            self.reduced[0] = Dim(self.grain.name, self.grain.size // self.grain.shards)
        self.count = size(self.reduced)
        self.leaves = -(-self.count // self.leaf)
        self.axes = [d for d in physical(op.result.type) if not (combined and d.name == SHARD)]

    @abstractmethod
    def identity(self) -> Handle:
        """What every lane starts from."""
        ...

    @abstractmethod
    def add(self, sum_: Handle, kept: Index, reduced: Index, shard: Affine | None) -> Handle:
        """A lane after one more term."""
        ...

    @abstractmethod
    def combine(self, x: Handle, y: Handle) -> Handle:
        """Two lanes, or two leaves."""
        ...

    def rounded(self, x: Handle) -> Handle:
        """A sum in the result's dtype."""
        return self.frame.k.cast(x, self.op.result.type.dtype)

    def element(self, operand: Value, kept: Index, reduced: Index, shard: Affine | None) -> Handle:
        """An element of an operand, in the accumulator's dtype."""
        index, names = self.index(kept, reduced, shard), operand.type.names
        value = self.frame.value(operand, {n: index[n] for n in names})
        return self.frame.k.cast(value, self.accumulator)

    def index(self, kept: Index, reduced: Index, shard: Affine | None) -> dict[str, Affine]:
        """Kept and reduced indices; the grain's axis, if reduced, counts within `shard`."""
        index = {**kept, **reduced}
        if self.grain is not None:
            assert shard is not None
            index[self.grain.name] = shard * (self.grain.size // self.grain.shards) + index[self.grain.name]
            index.pop(SHARD, None)
        return index

    def each_leaf(self, leaf: Callable[[Affine, Affine], None], merge: Callable[[Affine], None]) -> None:
        """Run `leaf(first element, slot)` for every leaf, `merge(slot)` as often as the tree says; see `each_leaf`."""
        each_leaf(self.frame, number(self.leaves), self.leaf, leaf, merge)

    def slots(self) -> int:
        """How many partial sums of leaves there may be at a time."""
        return self.leaves.bit_length() + 1 if self.leaves > 1 else 0

    def leaf_size(self, first: Affine) -> Affine:
        """Elements of the leaf that begins at `first`."""
        return leaf_size(self.frame, self.count, self.leaf, first)


class Elements(Terms):
    """The terms of a reduction."""

    leaf = LEAF
    lanes = LANES

    def __init__(self, frame: Frame, op: Op, combined: bool) -> None:
        super().__init__(frame, op, combined, reduced_axes(op))
        (self.operand,) = op.operands
        order, reduced = physical(self.operand.type), {d.name for d in self.reduced}
        self.inner = order[max(i for i, d in enumerate(order) if d.name in reduced) + 1 :]
        self.kind = kind_of(op)

    def identity(self) -> Handle:
        identity = definition(self.op).identity
        assert identity is not None
        return identity(self.frame.k, self.accumulator)

    def add(self, sum_: Handle, kept: Index, reduced: Index, shard: Affine | None) -> Handle:
        return self.combine(sum_, self.element(self.operand, kept, reduced, shard))

    def combine(self, x: Handle, y: Handle) -> Handle:
        return body_of(self.op)(self.frame.k, x, y)


def leaf_size(frame: Frame, count: int, leaf: int, first: Affine) -> Affine:
    """Of `count` elements in leaves of `leaf`: how many are in the leaf that begins at `first`."""
    if count <= leaf:
        return number(count)
    return frame.least(number(count) - first, leaf) if count % leaf else number(leaf)


def each_leaf(
    frame: Frame, leaves: Affine, size_: int, leaf: Callable[[Affine, Affine], None], merge: Callable[[Affine], None]
) -> None:
    """Run `leaf(first element, slot)` for every leaf, then `merge(slot)` as often as the tree says: the slot takes its
    sum with the next. The last sum is in slot 0."""
    if leaves == number(1):
        leaf(number(0), number(0))
        return
    source = frame.source
    depth = source.name("d")
    source.line(f"{depth} = 0")
    count = source.index(leaves)
    with frame.loop("l", number(0), leaves, leaves.high) as i:
        here = source.name("n")
        source.line(f"{here} = {depth}")
        leaf(i * size_, symbol(here, source.level, 0, 64))
        with source.block(f"for _ in range(merges_after({source.index(i)}, {count})):"):
            source.line(f"{depth} -= 1")
            below = source.name("n")
            source.line(f"{below} = {depth}")
            merge(symbol(below, source.level, 0, 64))
        source.line(f"{depth} += 1")


def body_of(op: Op) -> Callable[..., Any]:
    """How a reduction joins two elements."""
    body = definition(op).body
    assert body is not None
    return body


def kind_of(op: Op) -> str:
    """The operation of Scalars that a reduction is made of."""
    return body_of(op)(_Kind(), None, None)


class _Kind:
    """Stands for Scalars and tells which of its operations a reduction is made of."""

    def __getattr__(self, name: str) -> Callable[[Any, Any], str]:
        return lambda x, y: name


@dataclass
class _Rows:
    """The innermost axis is reduced: results one by one."""

    common: Elements

    def __post_init__(self) -> None:
        self.frame = self.common.frame
        self.tasks = self.common.axes
        self.weight = self.common.count
        self.leaf: Array | None = None
        self.parts: Array | None = None

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        body(task)

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        common, frame = self.common, self.frame
        if common.leaves > 1 and self.parts is None:
            self.parts = frame.array("part", common.accumulator, common.slots())
        total: list[Handle] = []

        def leaf(first: Affine, slot: Affine) -> None:
            size_ = common.leaf_size(first)
            memory, start = self._elements(task, shard, first, size_)
            text = f"lanes_{common.kind}({memory}, {frame.source.index(start)}, {frame.source.index(size_)})"
            name = frame.source.name("t")
            frame.source.line(f"{name} = {text}")
            total.append(Handle(common.accumulator, name, frame.source.level))
            if self.parts is not None:
                frame.put(self.parts, slot, total[-1])

        def merge(slot: Affine) -> None:
            assert self.parts is not None
            left, right = (frame.scratch_element(self.parts, i) for i in (slot, slot + 1))
            frame.put(self.parts, slot, common.combine(left, right))

        common.each_leaf(leaf, merge)
        result = total[-1] if self.parts is None else frame.scratch_element(self.parts, number(0))
        emit(task, common.rounded(result))

    def _elements(self, task: Index, shard: Affine | None, first: Affine, count: Affine) -> tuple[str, Affine]:
        """Memory that holds a leaf's elements side by side, and where they begin: the operand's own, or scratch."""
        common, frame = self.common, self.frame
        axes = common.reduced
        inner = symbol("r0", frame.source.level + 1, 0, common.count - 1)
        sizes = [d.size for d in axes]
        index = dict(zip((d.name for d in axes), unflatten(inner, sizes), strict=True))
        place = frame.place(common.operand, common.index(task, index, shard))
        if place is not None and common.accumulator == common.operand.type.dtype:
            view, flat = place
            start = flat - inner
            if flat.coefficient(next(iter(inner.symbols()))) == 1 and not _mentions(start, inner):
                return frame.names[id(view.buffer)], start + first
        if self.leaf is None:
            self.leaf = frame.array("leaf", common.accumulator, min(LEAF, common.count))
        array = self.leaf

        def fill(index: Index, flat: Affine) -> None:
            frame.put(array, flat - first, common.element(common.operand, task, index, shard))

        frame.flat_loop(axes, first, first + count, fill)
        return array.name, number(0)


def _mentions(form: Affine, variable: Affine) -> bool:
    return bool(form.symbols() & variable.symbols())


@dataclass
class Columns:
    """The innermost axes are kept: a tile of their elements together, every one with its own lanes."""

    common: Terms

    def __post_init__(self) -> None:
        common = self.common
        self.frame = common.frame
        self.inner = common.inner
        self.outer = [d for d in common.axes if d not in self.inner]
        width = size(self.inner)
        self.width = width
        most = 1 if common.op.operands[0].type.size <= FEW else 8
        self.tile = next((t for t in TILES if size(self.outer) * width // t >= most), TILES[-1])
        if width <= max(self.tile, 48):
            self.tile = width
        self.tasks = [*self.outer, Dim("tile", -(-width // self.tile))]
        self.weight = common.count * self.tile
        self.used = min(common.lanes, common.count)
        self.lanes: Array | None = None
        self.parts: Array | None = None
        self.rows: Array | None = None

    def _columns(self, task: Index, body: Callable[[Index, Affine], None]) -> None:
        """Run `body(index, column)` for the kept elements of a tile."""
        with self.frame.loop("j", number(0), self._count(task), self.tile) as j:
            body(self._kept(task, j), j)

    def _count(self, task: Index) -> Affine:
        """How many kept elements a tile has."""
        if self.width % self.tile == 0:
            return number(self.tile)
        return self.frame.least(number(self.width) - task["tile"] * self.tile, self.tile)

    def _kept(self, task: Index, column: Affine) -> Index:
        outer = {d.name: task[d.name] for d in self.outer}
        return {**outer, **named(self.inner, task["tile"] * self.tile + column)}

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        self._columns(task, lambda index, _: body(index))

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        common, frame = self.common, self.frame
        if self.parts is None:
            self.parts = frame.array("part", common.accumulator, max(1, common.slots()) * self.tile)
        parts = self.parts

        def merge(slot: Affine) -> None:
            with frame.loop("j", number(0), number(self.tile), self.tile) as j:
                at = slot * self.tile + j
                left, right = frame.scratch_element(parts, at), frame.scratch_element(parts, at + self.tile)
                frame.put(parts, at, common.combine(left, right))

        common.each_leaf(lambda first, slot: self._leaf(task, shard, first, parts, slot * self.tile), merge)
        self._columns(task, lambda index, j: emit(index, common.rounded(frame.scratch_element(parts, j))))

    def _leaf(self, task: Index, shard: Affine | None, first: Affine, sums: Array, at: Affine) -> None:
        """The sums of one leaf, side by side from `at` on."""
        if isinstance(self.common, Elements):
            found = self._in_rows(self.common, task, shard, first)
            if found is not None:
                self._leaf_in_registers(self.common, task, first, found, (sums, at))
                return
        if self.lanes is None:
            self.lanes = self.frame.array("lane", self.common.accumulator, self.used * self.tile)
        lanes = self.lanes
        self._leaf_in_memory(task, shard, first, lanes)
        with self.frame.loop("j", number(0), number(self.tile), self.tile) as j:
            self.frame.put(sums, at + j, self.frame.scratch_element(lanes, j))

    def _in_rows(
        self, common: Elements, task: Index, shard: Affine | None, first: Affine
    ) -> tuple[str, Affine, int] | None:
        """Memory that holds a leaf's rows, each with its kept elements side by side: where they begin, and elements
        from row to row. It is the operand's own, or scratch if that is small; None if lanes in memory do better."""
        frame, tile = self.frame, self.tile
        most = min(LEAF, common.count)
        level = frame.source.level
        r, j = symbol("r0", level + 1, 0, common.count - 1), symbol("j0", level + 2, 0, tile - 1)
        place = frame.place(common.operand, common.index(self._kept(task, j), named(common.reduced, r), shard))
        if place is not None and common.accumulator == common.operand.type.dtype:
            view, flat = place
            (row,), (column,) = r.symbols(), j.symbols()
            stride = flat.coefficient(row)
            if stride and flat.coefficient(column) == 1 and most * stride * common.accumulator.bytes <= NEAR:
                return frame.names[id(view.buffer)], flat - r * stride - j + first * stride, stride
        if most * tile * common.accumulator.bytes > NEAR // 8:
            return None
        if self.rows is None:
            self.rows = frame.array("row", common.accumulator, most * tile)
        rows = self.rows
        with frame.loop("r", first, first + common.leaf_size(first), common.count) as r:
            reduced, start = named(common.reduced, r), (r - first) * tile
            self._columns(
                task, lambda kept, j: frame.put(rows, start + j, common.element(common.operand, kept, reduced, shard))
            )
        return rows.name, number(0), tile

    def _leaf_in_registers(
        self, common: Elements, task: Index, first: Affine, rows: tuple[str, Affine, int], to: tuple[Array, Affine]
    ) -> None:
        index, (memory, start, stride), (sums, at) = self.frame.source.index, rows, to
        self.frame.source.line(
            f"columns_{common.kind}({sums.name}, address({sums.name}, {index(at)}), address({memory}, {index(start)}),"
            f" {stride}, {index(common.leaf_size(first))}, {index(self._count(task))})"
        )

    def _leaf_in_memory(self, task: Index, shard: Affine | None, first: Affine, lanes: Array) -> None:
        common, frame, tile = self.common, self.frame, self.tile
        with frame.loop("e", number(0), number(self.used * tile), self.used * tile) as e:
            frame.put(lanes, e, common.identity())
        with frame.loop("r", first, first + common.leaf_size(first), common.count) as r:
            reduced = named(common.reduced, r)
            lane = (r % common.lanes) * tile

            def add(index: Index, j: Affine) -> None:
                frame.put(lanes, lane + j, common.add(frame.scratch_element(lanes, lane + j), index, reduced, shard))

            self._columns(task, add)
        # A lane that no element went to holds the identity: merging it would change nothing.
        half = common.lanes // 2
        while half:
            count = min(half, self.used - half) * tile
            if count > 0:
                with frame.loop("e", number(0), number(count), count) as e:
                    pair = frame.scratch_element(lanes, e), frame.scratch_element(lanes, e + half * tile)
                    frame.put(lanes, e, common.combine(*pair))
            half //= 2
