"""Contractions in the canonical order (design §3): leaves of 256 terms, each one ascending chain of fma from +0.

The axes of the result fall into batch (in both operands), rows and columns; a vector holds columns. A thread takes
blocks of rows, and of these one register tile's columns after the other:

    pack                         what cannot be read in place (packing.py): a block's rows, a panel of columns
    for every tile of rows       multiply(…): a leaf's chain in registers, merged with earlier leaves, into `tile`
        epilogue                 the stored values from `tile`

Partial sums of leaves, and of shards under a `combine`, are slots of `tile`: a stack, merged in registers as the tree
says. If there are more terms than are packed at once, `tile` holds a block's, and the epilogue follows the last terms.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import gcd

from alphac.backends.chains import Chains
from alphac.backends.convolution import windows_in_memory
from alphac.backends.evaluation import Frame, Index, named, physical, size
from alphac.backends.indexing import Affine, Symbol, number, symbol
from alphac.backends.packing import LARGE, Packing, Part, Side
from alphac.backends.pair_packing import PairPacking, suits_pairs
from alphac.backends.printer import Handle
from alphac.backends.reduction import Columns, Nodes, combine_partials, store_partials
from alphac.backends.stream import emit_rows, suits_rows
from alphac.backends.tile_calls import MANY, Ahead, Calls, Chunk, Target, Unit
from alphac.backends.tiling import LEAF, LINE, register_tile, tiling
from alphac.backends.unread import Test, tests
from alphac.backends.walk import Block, Walk, variable
from alphac.ir.core import Op
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.typesys import BF16, F32, SHARD, Dim

FEW = 32  # terms, of which a tile is multiplied too soon to wait for anything


def emit_contract(frame: Frame, op: Op, combine: Op | None) -> None:
    """The kernel of a contraction, alone or under a combine."""
    chains = Chains(frame, op, combine is not None)
    windows = windows_in_memory(frame, op, combine)
    if windows is not None:
        windows.emit()
    elif combine is None and suits_rows(frame, op):
        emit_rows(frame, op)
    elif not chains.suit:
        Contraction(frame, op, combine).emit()
    elif combine is None:
        store_partials(frame, op, Columns(chains))
    else:
        combine_partials(frame, combine, Columns(chains))


Finish = Callable[[Unit], None]
Body = Callable[[Index, Affine], None]


class Contraction:
    """The kernel of a contraction in the making."""

    def __init__(self, frame: Frame, op: Op, combine: Op | None) -> None:
        self.frame, self.op, self.combine = frame, op, combine
        self.source = frame.source
        result = op.result.type
        self.dtype = F32 if result.dtype == BF16 else result.dtype
        # Every node of a combine in bf16 is rounded: shards are then put together in memory.
        self.merged = combine is not None and result.dtype != BF16
        summed = contracted_axes(op)
        self.grain = next((d for d in summed if d.shards), None)
        self.shards = self.grain.shards if self.grain is not None else 1
        self.terms = size(summed) // self.shards
        self.leaves = -(-self.terms // LEAF)
        axes = [d for d in physical(result) if not (combine is not None and d.name == SHARD)]
        first, second = op.operands
        self.batch = [d for d in axes if first.type.has(d.name) == second.type.has(d.name)]
        self.rows, self.columns = self._sides(axes)
        terms = self.terms * self.shards if self.merged else self.terms
        rows, columns, element = size(self.rows.axes), size(self.columns.axes), self.dtype.bytes
        self.tile = register_tile(rows, columns, self.terms, _multiple(self.rows.count), element, frame.target)
        what = (self.rows, self.columns, summed, terms, self.tile, self.batch)
        paired = suits_pairs(frame, op, self.terms)
        self.packing = PairPacking(frame, *what) if paired else Packing(frame, self.dtype, *what)
        # Shards may lie unaligned in their tree: at most twice as deep a stack.
        most = self.leaves * self.shards**2 if self.merged else self.leaves
        packed = (self.packing.rows_packed, self.packing.columns_packed)
        self.plan = tiling(rows, columns, terms, most.bit_length() + (most > 1), element, self.tile, packed)
        if combine is not None and not self.merged:
            self.plan = replace(self.plan, strip=0)  # shard by shard
        # All rows of a block are packed for all its columns.
        self.kept = (
            self.packing.rows_packed
            and self.plan.whole
            and columns > self.tile.columns
            and (self.merged or combine is None)
        )
        self.sums = frame.array("tile", self.dtype, self.plan.slots * self.plan.slot)
        self.tests = tests(frame.kernel, op.result) if combine is None and self.plan.whole else frozenset[Test]()

    def _sides(self, axes: list[Dim]) -> tuple[Side, Side]:
        """Rows and columns. The result's innermost axis belongs to the columns unless these would be very few."""
        sides: list[Side] = []
        for operand, other in (self.op.operands, self.op.operands[::-1]):
            free = [d for d in axes if operand.type.has(d.name) and not other.type.has(d.name)]
            sides.append(Side(operand, free, *self.frame.owned_range(free)))
        rows, columns = sides
        last = next((d for d in reversed(axes) if d not in self.batch), None)
        if last is not None and last in rows.axes:
            rows, columns = columns, rows
        few = 32 // self.dtype.bytes
        if size(columns.axes) < few and size(rows.axes) >= 2 * size(columns.axes):
            rows, columns = columns, rows
        return rows, columns

    def emit(self) -> None:
        """The kernel's source."""
        Walk(self, self._compute).emit()

    # ------------------------------------------------------------------ one block
    def _compute(self, block: Block) -> None:
        if self.combine is None:
            self._shard(block, block.batch.get(SHARD, number(0)), lambda unit: self._elements(unit, self._store))
            return
        nodes = Nodes(self.frame, self.combine)
        if self.merged:
            self._shards(block, lambda unit: self._put_nodes(nodes, unit))
        else:
            self._shard_by_shard(block, nodes)

    def _shard_by_shard(self, block: Block, nodes: Nodes) -> None:
        """Push every shard's sums onto the nodes in memory, and merge there."""
        frame, source = self.frame, self.source
        nodes.clear()
        with frame.loop("s", frame.first, frame.first + frame.shards, self.shards) as shard:
            push = nodes.top_place()

            def put(index: Index, at: Affine) -> None:
                nodes.store(push, index, self._sum(at))

            self._shard(block, shard, lambda unit: self._elements(unit, put))
            with source.block(f"for _ in range(merge[{source.index(shard - frame.first)}]):"):
                place = nodes.pop()
                self._elements(self._whole_unit(block), lambda index, _: nodes.merge(place, index))
            nodes.grow()

    def _sum(self, at: Affine) -> Handle:
        """A complete sum, in the result's dtype."""
        return self.frame.k.cast(self.frame.scratch_element(self.sums, at), self.op.result.type.dtype)

    def _store(self, index: Index, at: Affine) -> None:
        result = self._sum(at)
        self.frame.results[self.op.result] = lambda _: result
        self.frame.store_all(index)

    def _put_nodes(self, nodes: Nodes, unit: Unit) -> None:
        """The sums of the subtrees that are left, in slots below `top`."""
        full = self.source.name("n")
        self.source.line(f"{full} = top{' - 1' if self._target(unit) else ''}")
        with self.frame.loop("s", number(0), symbol(full, self.source.level, 0, MANY), MANY) as slot:

            def put(index: Index, at: Affine) -> None:
                nodes.store(slot * nodes.slot, index, self._sum(slot * self.plan.slot + at))

            self._elements(unit, put)

    def _elements(self, unit: Unit, body: Body) -> None:
        """Run `body(index, place in a slot)` for all elements of a unit."""
        width = self.plan.width

        def row(rows: Index, i: Affine) -> None:
            self._each(
                self.columns.axes,
                unit.column,
                unit.columns,
                lambda columns, j: body({**unit.batch, **rows, **columns}, i * width + j),
            )

        self.source.line("# what is stored")
        self._each(self.rows.axes, unit.row, unit.rows, row)

    def _each(self, axes: list[Dim], start: Affine, count: Affine, body: Body) -> None:
        """Run `body(index, number)` for `count` indices from the flat `start` on."""
        i = symbol("i0", self.source.level + 1, 0, max(0, count.high - 1))
        if any(_slope(form, i) is None for form in named(axes, start + i).values()):
            self.frame.over(axes, start, count, lambda index, flat: body(index, flat - start))
            return
        with self.frame.loop("e", number(0), count, count.high) as i:
            body(named(axes, start + i), i)

    def _target(self, unit: Unit) -> Target | None:
        """Where sums are stored if that is all that happens to them, in memory where columns lie side by side."""
        (value, view), *more = self.frame.kernel.stores
        result = self.op.result
        exact = all(s.count.is_constant or s.count % of == number(0) for s, of in self._cuts)
        if not self.plan.whole or not exact or result.type.dtype != self.dtype:
            return None
        if not self.merged and (self.combine is not None or more or value is not result):
            return None
        i, j = (symbol(n, self.source.level + 1, 0, c.high - 1) for n, c in (("i0", unit.rows), ("j0", unit.columns)))
        rows, columns = named(self.rows.axes, unit.row + i), named(self.columns.axes, unit.column + j)
        flat = self.frame.flat(view, {**unit.batch, **rows, **columns})
        across, along = _slope(flat, i), _slope(flat, j)
        if across is None or along is None or (along != 1 and size(self.columns.axes) > 1):
            return None
        return Target(self.frame.names[id(view.buffer)], flat - i * across - j * along, across, view.buffer.fixed)

    def _whole_unit(self, block: Block) -> Unit:
        row = block.row + block.start * self.tile.rows
        rows = (block.stop - block.start) * self.tile.rows
        return self._unit(block, row, rows, block.column, number(self.plan.width))

    def _unit(self, block: Block, row: Affine, rows: Affine, column: Affine, columns: Affine) -> Unit:
        """Rows and columns that exist of so many."""
        left = [
            count if side.count % of == number(0) else self._at_most(side.high - start, count)
            for (side, of), start, count in zip(self._cuts, (row, column), (rows, columns), strict=True)
        ]
        return Unit(block.batch, row, left[0], column, left[1])

    @property
    def _cuts(self) -> tuple[tuple[Side, int], tuple[Side, int]]:
        """Both sides, and how many rows or columns are made together."""
        return (self.rows, self.tile.rows), (self.columns, self.plan.width)

    def _at_most(self, left: Affine, count: Affine) -> Affine:
        k = self.frame.k
        return k.affine(k.minimum(k.from_affine(left), k.from_affine(count)))

    # ------------------------------------------------------------------ shards and chunks
    def _shard(self, block: Block, shard: Affine, finish: Finish) -> None:
        """All terms of one shard."""
        self._chunks(block, shard if self.grain is not None else number(0), number(1), finish)
        if not self.plan.whole:
            finish(self._whole_unit(block))

    def _shards(self, block: Block, finish: Finish) -> None:
        """All owned shards; the slots below `top` are the subtrees that are left."""
        frame, source = self.frame, self.source
        if self.plan.whole:
            self._chunks(block, frame.first, frame.shards, finish)
            return
        source.line("top = 0")
        together = max(1, self.plan.terms // self.terms)
        last = source.index(frame.first + frame.shards)
        name = source.name("s")
        with source.block(f"for {name} in range({source.index(frame.first)}, {last}, {together}):"):
            first = symbol(name, source.level, 0, self.shards - 1)
            count = number(1)
            if together > 1:
                shards = source.name("n")
                source.line(f"{shards} = minimum({together}, {last} - {name})")
                count = symbol(shards, source.level, 0, together)
            self._chunks(block, first, count, finish)
            with frame.loop("s", first, first + count, self.shards) as shard:
                source.line(f"top += 1 - merge[{source.index(shard - frame.first)}]")
        finish(self._whole_unit(block))

    def _chunks(self, block: Block, shard: Affine, shards: Affine, finish: Finish) -> None:
        """Some whole shards, as many terms at a time as are packed; `finish` what is whole."""
        plan = self.plan
        if plan.whole or self.terms <= plan.terms:
            terms = variable(self.source, shards * self.terms)
            self._chunk(block, Chunk(number(0), shard, shards), terms, finish)
            return
        with self.frame.loop("k", number(0), number(-(-self.terms // plan.terms)), self.terms) as chunk:
            first = chunk * plan.terms
            terms = self.frame.least(number(self.terms) - first, plan.terms)
            self._chunk(block, Chunk(first, shard, shards), terms, finish)

    def _chunk(self, block: Block, chunk: Chunk, terms: Affine, finish: Finish) -> None:
        """Pack, and multiply tile by tile."""
        frame, plan, packing = self.frame, self.plan, self.packing
        start = chunk.shard * self.terms + chunk.first
        if packing.rows_packed and not self.kept:
            packing.pack_rows(block.batch, block.row, (block.start, block.stop), start, terms, plan)
        with frame.loop("p", number(0), block.panels, block.panels.high) as panel:
            column = block.column + panel * self.tile.columns
            if packing.columns_packed and not plan.strip:
                packing.pack_columns(block.batch, column, start, terms, plan, number(0))
            with frame.loop("m", block.start, block.stop, MANY) as m:
                row = block.row + m * self.tile.rows
                unit = self._unit(block, row, number(self.tile.rows), column, number(self.tile.columns))
                place = number(0)
                if not plan.whole:
                    place = (m - block.start) * (self.tile.rows * plan.width) + panel * self.tile.columns
                rows = packing.rows_part(block.batch, block.row, start, plan)
                kept = block.panel + panel if plan.strip else number(0)  # else packed for this tile alone
                columns = packing.columns_part(block.batch, column, start, plan, kept)
                target = self._target(unit)
                if plan.whole and not plan.strip and self.combine is None and self.terms >= FEW:
                    self._fetch(unit)
                ahead = self._ahead(block, column, block.panel + panel, start, m)
                with self._unless_unread(unit):
                    Calls(self, unit, (rows, columns), chunk, m, place, target, ahead).emit()
                if plan.whole and (target is None or self.merged):
                    finish(unit)

    def _unless_unread(self, unit: Unit) -> AbstractContextManager[None]:
        """A block for what multiplies a tile, if its sums are not always read."""
        ranges: dict[str, tuple[Affine, Affine]] = {}
        for side, low, count in ((self.rows, unit.row, unit.rows), (self.columns, unit.column, unit.columns)):
            if len(side.axes) == 1:
                ranges[side.axes[0].name] = (low, count)
        found = sorted(filter(None, (t.passed(self.source, ranges) for t in self.tests)))
        return self.source.block(f"if {' & '.join(f'({c})' for c in found)}:") if found else nullcontext()

    def _fetch(self, unit: Unit) -> None:
        """Ask for what the epilogue of a tile reads and writes while the tile is multiplied: it is a few lines of every
        row, which no hardware foresees."""
        frame, columns, level = self.frame, named(self.columns.axes, unit.column), self.source.level + 1
        lines = -(-self.tile.columns * self.dtype.bytes // LINE)
        any_row = named(self.rows.axes, symbol("r0", level, 0, max(0, size(self.rows.axes) - 1)))
        with self.source.trial(level):
            if not self._touched({**unit.batch, **any_row, **columns}):
                return

        def row(rows: Index, r: Affine) -> None:
            index = {**unit.batch, **rows, **columns}
            for name, flat in self._touched(index).items():
                self.source.line(f"fetch_{lines}(address({name}, {self.source.index(flat)}))")

        frame.over(self.rows.axes, unit.row, unit.rows, row, run=size(self.rows.axes))

    def _touched(self, index: Index) -> dict[str, Affine]:
        """Where the stored values of an index, and what their epilogue reads, lie in large buffers, by their names."""
        frame, level = self.frame, self.source.level
        frame.results[self.op.result] = lambda _: Handle(self.op.result.type.dtype, "sum", level)
        places = [(view.buffer, frame.flat(view, index)) for _, view in frame.kernel.stores]
        for value, _ in frame.kernel.stores:
            loads = frame.loaded(value, index, level)
            places += [(frame.kernel.reads[v].buffer, flat) for v, flat in loads]
        del frame.results[self.op.result]
        return {
            frame.names[id(buffer)]: flat
            for buffer, flat in places
            if buffer.type.size * buffer.type.dtype.bytes >= LARGE and flat.level == level
        }

    def _ahead(self, block: Block, column: Affine, panel: Affine, start: Affine, tile: Affine) -> Ahead | None:
        """What is fetched while a tile is multiplied: by columns, the next tile's columns, dealt to the first tiles of
        rows; by strips, the next tile of rows, by the first tile of columns."""
        if not self.plan.whole:
            return None
        if self.plan.strip:
            part = self.packing.rows_ahead(block.batch, block.row, start, tile + 1)
            return part and self._lines(part, panel, 1, 1)
        lines = max(1, self.tile.columns * self.dtype.bytes // LINE)
        each = -(-lines // -(-size(self.rows.axes) // self.tile.rows))
        part = self.packing.columns_ahead(block.batch, column, start, each)
        return part and self._lines(part, tile - block.start, -(-lines // each), each)

    def _lines(self, part: Part, turn: Affine, turns: int, lines: int) -> Ahead:
        """In the first `turns` turns, so many lines of every term."""
        source = self.source
        place, along = source.name("n"), source.name("n")
        source.line(f"{place} = address({self.sums.name}, 0)")
        source.line(f"{along} = 0")
        with source.block(f"if {source.index(turn)} < {turns}:"):
            source.line(f"{place} = address({part.name}, {source.index(part.start + turn * part.across)})")
            source.line(f"{along} = {part.along}")
        return Ahead(place, along, lines)


def _slope(form: Affine, variable: Affine) -> int | None:
    """The coefficient of a variable; None if that is no number."""
    symbol_ = variable.terms[0][0]
    assert isinstance(symbol_, Symbol)
    return form.coefficient(symbol_)


def _multiple(count: Affine) -> int:
    """What a number of rows is known to be a multiple of."""
    return count.constant if count.is_constant else gcd(count.constant, *(c for _, c in count.terms))
