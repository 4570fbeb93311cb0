"""Blocks of rows: what a kernel computes for up to 1,024 rows at a time, in scratch, before it turns to the next ones.

A row is one index along the outermost axes (`axes`) of some values; the other axes of a value are its columns. A value
that is not read from memory lies in scratch for the block's rows:

    side by side     row r, column j at r * columns + j
    across           row r, column j at j * 1024 + r: vectors of rows

Contractions of a row with few columns, and reductions of a row, become SIMD loops over the block (simd_rows.py,
simd_columns.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from alphac.backends.evaluation import Array, Frame, Index, named, size
from alphac.backends.indexing import Affine, number, symbol
from alphac.backends.printer import Handle
from alphac.backends.reduction import each_leaf, kind_of, leaf_size
from alphac.backends.simd_rows import chain_shapes, dot_columns
from alphac.backends.tiling import LEAF, vector_width
from alphac.ir.core import Op, Value
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.ops.reduce import reduced_axes
from alphac.ir.schedule import BLOCK
from alphac.ir.typesys import Dim, DType

PACKED = ("bf16", "bool")  # stored in another form than registers hold them
AHEAD = 16 << 10  # bytes: how far before their use rows are fetched
Inner = Sequence[Dim]


@dataclass(frozen=True)
class Lying:
    """Where a value's elements are: row r, column j of the block at `start` + r * `row` + j * `column`."""

    name: str
    dtype: DType
    start: Affine
    row: int
    column: int

    def address(self, frame: Frame, more: Affine | int = 0) -> str:
        return f"address({self.name}, {frame.source.index(self.start + more)})"


class Block:
    """The block that is computed: `count` rows from `first` on, which `begin` sets inside the loop over blocks."""

    def __init__(self, frame: Frame, axes: Sequence[Dim]) -> None:
        self.frame, self.axes, self.names = frame, list(axes), {d.name for d in axes}
        self.first, self.count = number(0), number(0)
        self.scratch: dict[tuple[Value, tuple[Dim, ...]], Lying] = {}
        self.read: list[Lying] = []
        self.factors: dict[Op, Lying] = {}

    def begin(self, first: Affine, count: Affine) -> None:
        self.first, self.count = first, count

    def index(self, row: Affine) -> dict[str, Affine]:
        """The index along the rows' axes of a row of the block."""
        return named(self.axes, self.first + row)

    def inner(self, value: Value) -> list[Dim]:
        """A value's columns."""
        return [d for d in value.type.dims if d.name not in self.names]

    def rows(self, body: Callable[[Affine], None]) -> None:
        with self.frame.loop("r", number(0), self.count, BLOCK) as r:
            body(r)

    # ------------------------------------------------------------------ where values lie
    def lying(self, value: Value, inner: Inner, aligned: str = "") -> Lying:
        """Where a value lies, its columns in the order of `inner`: in memory, in scratch already, or put there now.
        `aligned`: "columns" if a row's columns must be side by side, "rows" if a column's rows must be."""
        for found in (self.scratch.get((value, tuple(inner))), self.memory(value, inner)):
            if found is not None:
                beside = found.row == 1 if aligned == "rows" else found.column == 1 or size(inner) == 1
                if beside or not aligned:
                    return found
        return self.keep([value], inner, aligned == "rows" if aligned else self.across([value], inner))[0]

    def memory(self, value: Value, inner: Inner) -> Lying | None:
        """Where a value lies in memory, if it does and strides say where."""
        frame, (r, j) = self.frame, self._trial(inner)
        place = frame.place(value, {**self.index(r), **named(inner, j)})
        if place is None or value.type.dtype.name in PACKED:
            return None
        view, flat = place
        return lying_by(frame.names[id(view.buffer)], value.type.dtype, flat, r, j)

    def across(self, values: Sequence[Value], inner: Inner) -> bool:
        """Whether values are better laid out across: nothing of which they are made has its columns side by side."""
        frame, (r, j) = self.frame, self._trial(inner)
        if size(inner) == 1:
            return True
        self.read.clear()
        index = {**self.index(r), **named(inner, j)}
        loads = [flat for v in values for _, flat in frame.loaded(v, index, frame.source.level + 1)]
        (column,) = j.symbols()
        beside = any(column in flat.symbols() and flat.coefficient(column) == 1 for flat in loads)
        return not beside and not any(l.column == 1 and l.row != 1 for l in self.read)

    def _trial(self, inner: Inner) -> tuple[Affine, Affine]:
        """A row and a column, for looking at where they are."""
        level = self.frame.source.level + 1
        return symbol("r0", level, 0, BLOCK - 1), symbol("j0", level, 0, max(size(inner) - 1, 1))

    # ------------------------------------------------------------------ values into scratch
    def keep(self, values: Sequence[Value], inner: Inner, across: bool) -> list[Lying]:
        """Compute values of the same axes for the block's rows, and keep them."""
        made = [self.room(v, inner, across) for v in values]
        self.map(values, inner, across, made)
        for value, lying in zip(values, made, strict=True):
            self.known(value, inner, lying)
        return made

    def room(self, value: Value, inner: Inner, across: bool) -> Lying:
        """Scratch for a value. The same in every block."""
        columns = size(inner)
        array = self.frame.array(value.hint or "row", value.type.dtype, columns * BLOCK)
        strides = (1, BLOCK) if across or columns == 1 else (columns, 1)
        return Lying(array.name, value.type.dtype, number(0), *strides)

    def known(self, value: Value, inner: Inner, lying: Lying) -> None:
        """From now on a value's elements are taken from scratch."""
        self.scratch[value, tuple(inner)] = lying

        def element(index: Index) -> Handle:
            self.read.append(lying)
            row, column = flattened(self.axes, index) - self.first, flattened(inner, index)
            return self.frame.scratch_element(_array(lying), row * lying.row + column * lying.column)

        self.frame.results[value] = element

    def map(
        self, values: Sequence[Value], inner: Inner, across: bool, kept: Sequence[Lying | None], store: bool = False
    ) -> None:
        """Evaluate values for all rows and columns; put them into scratch, and `store` those that the kernel
        stores."""
        frame = self.frame
        views = dict(frame.kernel.stores) if store else {}

        def element(r: Affine, j: Affine) -> None:
            index = {**self.index(r), **named(inner, j)}
            handles = [frame.value(v, index) for v in values]
            for value, handle, lying in zip(values, handles, kept, strict=True):
                if lying is not None:
                    frame.put(_array(lying), r * lying.row + j * lying.column, handle)
                if value in views:
                    view = views[value]
                    frame.store(frame.names[id(view.buffer)], value.type.dtype, frame.flat(view, index), handle)

        columns = size(inner)
        if across or columns == 1:
            with frame.loop("j", number(0), number(columns), columns) as j:
                self.rows(lambda r: element(r, j))
        else:

            def row(r: Affine) -> None:
                with frame.loop("j", number(0), number(columns), columns) as j:
                    element(r, j)

            self.rows(row)

    # ------------------------------------------------------------------ ops with loops of their own
    def reduce(self, op: Op) -> Lying:
        """Every row's reduction over all of its columns, at most one leaf."""
        frame, (operand,) = self.frame, op.operands
        axes = reduced_axes(op)
        found, kind = self.lying(operand, axes), kind_of(op)
        made = self.room(op.result, [], True)
        index = frame.source.index
        if found.row == 1:
            frame.source.line(
                f"columns_{kind}({made.name}, {made.address(frame)}, {found.address(frame)}, {found.column},"
                f" {size(axes)}, {index(self.count)})"
            )
        else:
            found = found if found.column == 1 else self.lying(operand, axes, aligned="columns")

            def row(r: Affine) -> None:
                text = f"lanes_{kind}({found.name}, {index(found.start + r * found.row)}, {size(axes)})"
                frame.source.line(f"{made.name}[{index(r)}] = {text}")

            self.rows(row)
        self.known(op.result, [], made)
        return made

    def factor(self, op: Op) -> None:
        """Before all blocks: where the other operand of a contraction of rows lies (terms as rows), in scratch if need
        be."""
        frame, (_, w, terms, columns) = self.frame, row_product(op, self.names)
        level, count, width = frame.source.level + 1, size(terms), size(columns)
        k, j = symbol("k0", level, 0, max(count - 1, 1)), symbol("j0", level, 0, max(width - 1, 1))
        place = frame.place(w, {**named(terms, k), **named(columns, j)})
        if place is not None:
            found = lying_by(frame.names[id(place[0].buffer)], w.type.dtype, place[1], k, j)
            if found is not None:
                self.factors[op] = found
                return
        array = frame.array("factor", w.type.dtype, count * width)
        with (
            frame.loop("k", number(0), number(count), count) as k,
            frame.loop("j", number(0), number(width), width) as j,
        ):
            frame.put(array, k * width + j, frame.value(w, {**named(terms, k), **named(columns, j)}))
        self.factors[op] = Lying(array.name, w.type.dtype, number(0), width, 1)

    def contract(self, op: Op) -> Lying:
        """Every row's products with few columns."""
        frame = self.frame
        x, _, terms, columns = row_product(op, self.names)
        found = self.lying(x, terms)
        if found.row != 1 and found.column != 1:
            found = self.lying(x, terms, aligned="columns")
        count, leaves = size(terms), -(-size(terms) // LEAF)
        slot = size(columns) * BLOCK
        slots = leaves.bit_length() + 1 if leaves > 1 else 1
        array = frame.array(op.result.hint or "product", op.result.type.dtype, slots * slot)
        made = Lying(array.name, array.dtype, number(0), 1, BLOCK)

        def leaf(first: Affine, at: Affine) -> None:
            factor = self.factors[op]
            factor = replace(factor, start=factor.start + first * factor.row)
            part = replace(found, start=found.start + first * found.column)
            to = replace(made, start=at * slot)
            terms = leaf_size(frame, count, LEAF, first)
            if found.column == 1:
                self._dots(to, part, factor, size(columns), terms)
            else:
                right = replace(part, row=part.column, column=1)
                products(frame, replace(to, row=BLOCK, column=1), factor, size(columns), right, self.count, terms)

        def merge(at: Affine) -> None:
            with frame.loop("e", number(0), number(slot), slot) as e:
                x, y = (frame.scratch_element(array, at * slot + e + more) for more in (0, slot))
                frame.put(array, at * slot + e, frame.k.add(x, y))

        each_leaf(frame, number(leaves), LEAF, leaf, merge)
        self.known(op.result, columns, made)
        return made

    def _dots(self, to: Lying, x: Lying, factor: Lying, columns: int, terms: Affine) -> None:
        """Rows whose terms are side by side: transposed in registers."""
        frame, index, j = self.frame, self.frame.source.index, 0
        ahead = 0 if any(a.name == x.name for a in frame.arrays) else AHEAD
        while j < columns:
            step = next(c for c in dot_columns(frame.target.registers) if c <= columns - j)
            frame.source.line(
                f"dots_{step}({to.name}, {to.address(frame, j * BLOCK)}, {BLOCK}, {x.address(frame)}, {x.row},"
                f" {index(self.count)}, {index(terms)},"
                f" {factor.address(frame, j * factor.column)}, {factor.row}, {factor.column}, {ahead})"
            )
            j += step


def lying_by(name: str, dtype: DType, flat: Affine, row: Affine, column: Affine) -> Lying | None:
    """Where elements lie whose place is `flat`, if that is linear in two variables."""
    strides = [flat.coefficient(s) for v in (row, column) for s in v.symbols()]
    by_row, by_column = strides
    if by_row is None or by_column is None:
        return None
    return Lying(name, dtype, flat - row * by_row - column * by_column, by_row, by_column)


def row_product(op: Op, rows: set[str]) -> tuple[Value, Value, list[Dim], list[Dim]]:
    """A contraction's operand with the rows, the other one, the summed axes, and the other one's own."""
    x, w = op.operands if any(op.operands[0].type.has(n) for n in rows) else op.operands[::-1]
    return x, w, contracted_axes(op), [d for d in op.result.type.dims if d.name not in rows]


def products(frame: Frame, to: Lying, left: Lying, height: int, right: Lying, width: Affine, terms: Affine) -> None:
    """`to` (row i, column j) becomes the sum over at most 1,024 terms k of left (row k, column i) times right (row k,
    column j), whose columns are side by side."""
    source, shapes = frame.source, chain_shapes(frame.target.registers)
    vector = vector_width(to.dtype.bytes, frame.target)
    i = 0
    while i < height:
        rows = min(max(h for h, _ in shapes), height - i)
        vectors = max(v for h, v in shapes if h == rows and (v == 1 or v <= -(-width.high // vector)))
        step = vectors * vector
        with frame.loop("j", number(0), (width + (step - 1)) // step, -(-width.high // step)) as j:
            source.line(
                f"chains_{rows}x{vectors}({to.name}, {to.address(frame, j * step + i * to.row)}, {to.row},"
                f" {left.address(frame, i * left.column)}, {left.row}, {left.column},"
                f" {right.address(frame, j * step)}, {right.row},"
                f" {source.index(width - j * step)}, {source.index(terms)})"
            )
        i += rows


def flattened(axes: Sequence[Dim], index: Index) -> Affine:
    """The row-major index over some axes."""
    flat = number(0)
    for d in axes:
        flat = flat * d.size + index[d.name]
    return flat


def _array(lying: Lying) -> Array:
    return Array(lying.name, lying.dtype, 0)
