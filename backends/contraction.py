"""Contractions in the canonical order (design §3): leaves of 256 terms, each one ascending chain of fma from +0.

The axes of the result fall into batch (in both operands), rows and columns; a vector holds columns. A thread takes row tiles
of blocks of columns one after another:

    pack the columns' operand    panel[k][columns of one tile], unless it lies like that already
    pack the rows' operand       likewise
    for every tile               multiply(…): a leaf's chain in registers, merged with earlier leaves, into `tile`
    epilogue                     the stored values from `tile`, by rows

Packing pulls elements like every other kernel does, so that whatever is inlined (windows, masks, casts) just works. Partial
sums of leaves, and of shards under a `combine`, are slots of `tile`, merged in registers as the tree says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alphac.backends.evaluation import Array, Frame, Index, owned, physical, size
from alphac.backends.indexing import Affine, Symbol, number, symbol, unflatten
from alphac.backends.reduction import Nodes
from alphac.backends.tiling import Tiling, tiling
from alphac.ir.core import Op, Value
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.schedule import View
from alphac.ir.typesys import BF16, F32, SHARD, Dim

LEAF = 256
ALONE = 1 << 15  # terms; a contraction of fewer runs on thread 0


def emit_contract(frame: Frame, op: Op, combine: Op | None) -> None:
    """The kernel of a contraction, alone or under a combine."""
    _Contraction(frame, op, combine).emit()


@dataclass(frozen=True)
class _Side:
    """One operand, its free axes, and the range of them that this role owns."""

    operand: Value
    axes: list[Dim]
    low: Affine
    high: Affine

    @property
    def count(self) -> Affine:
        return self.high - self.low


@dataclass(frozen=True)
class _Source:
    """Where a block's elements of one operand are: `start` + `across` * (row or column) + `along` * k, counted from the
    block's first; for packed columns, `panel` elements from one tile's columns to the next."""

    name: str
    start: Affine
    across: int
    along: int
    panel: int


@dataclass(frozen=True)
class _Block:
    """The part of the result being made: rows from `row`, columns from `column` on (global flat indices)."""

    batch: dict[str, Affine]
    row: Affine
    rows: Affine
    column: Affine
    columns: Affine


class _Contraction:
    def __init__(self, frame: Frame, op: Op, combine: Op | None) -> None:
        self.frame, self.op, self.combine = frame, op, combine
        self.source = frame.source
        result = op.result.type
        self.dtype = F32 if result.dtype == BF16 else result.dtype
        self.summed = contracted_axes(op)
        self.grain = next((d for d in self.summed if d.shards), None)
        self.shards = self.grain.shards if self.grain is not None else 1
        self.terms = size(self.summed) // self.shards
        self.leaves = -(-self.terms // LEAF)
        axes = [d for d in physical(result) if not (combine is not None and d.name == SHARD)]
        first, second = op.operands
        self.batch = [d for d in axes if first.type.has(d.name) == second.type.has(d.name)]
        self.rows, self.columns = self._sides(axes)
        self.plan: Tiling = tiling(
            size(self.rows.axes), size(self.columns.axes), self.terms, self._most_leaves(), self.dtype.bytes, frame.target
        )
        plan = self.plan
        self.tile = frame.array("tile", self.dtype, self.plan.slots * plan.rows * plan.columns)
        self.packed: dict[str, Array] = {}

    def _most_leaves(self) -> int:
        """A bound for the stack: leaves of a shard, and under a combine all shards, which may lie unaligned."""
        return self.leaves if not self._merged else self.leaves * self.shards * 4

    @property
    def _merged(self) -> bool:
        """Whether shards are put together in `tile`: not for bf16, every node of which is rounded."""
        return self.combine is not None and self.op.result.type.dtype != BF16

    def _sides(self, axes: list[Dim]) -> tuple[_Side, _Side]:
        """Rows and columns. The result's innermost axis belongs to the columns unless these would be very few."""
        sides: list[_Side] = []
        for operand, other in (self.op.operands, self.op.operands[::-1]):
            free = [d for d in axes if operand.type.has(d.name) and not other.type.has(d.name)]
            sides.append(_Side(operand, free, *self.frame.owned_range(free)))
        rows, columns = sides
        last = next((d for d in reversed(axes) if d not in self.batch), None)
        if last is not None and last in rows.axes:
            rows, columns = columns, rows
        few = 64 // self.dtype.bytes // 2
        if size(columns.axes) < few and size(rows.axes) >= 2 * size(columns.axes):
            rows, columns = columns, rows
        return rows, columns

    # ------------------------------------------------------------------ the loop over blocks
    def emit(self) -> None:
        frame, source, plan = self.frame, self.source, self.plan
        low, high = frame.owned_range(self.batch)
        tiles = self._variable((self.rows.count + (plan.tile_rows - 1)) // plan.tile_rows, "n")
        blocks = self._variable((self.columns.count + (plan.columns - 1)) // plan.columns, "n")
        text = " * ".join(t for t in map(source.index, (tiles, blocks, high - low)) if t != "1") or "1"
        if " " in text and text.count("*") and ("+" in text or "-" in text):
            text = " * ".join(f"({source.index(t)})" for t in (tiles, blocks, high - low))
        name = source.name("n")
        source.line(f"{name} = {text}")
        work = size(self.batch) * size(self.rows.axes) * size(self.columns.axes) * self.terms
        if work <= ALONE:
            source.line("lo = 0")
            source.line(f"hi = {name} if thread == 0 else 0")
        else:
            source.line(f"lo = div({name} * thread, threads)")
            source.line(f"hi = div({name} * (thread + 1), threads)")
        at = source.name("n")
        source.line(f"{at} = lo")
        keep = self._keeps_panels()
        if keep:
            source.line("packed = -1")
        with source.block(f"while {at} < hi:"):
            group, tile = self._divide(at, tiles)
            batch, block = self._divide(group, blocks)
            count = source.name("n")
            most = plan.rows // plan.tile_rows
            source.line(f"{count} = minimum(minimum({source.index(tiles)} - {tile}, hi - {at}), {most})")
            flat = low + self._symbol(batch, size(self.batch))
            made = self._block(flat, self._symbol(block, 1 << 31), self._symbol(tile, 1 << 31), count)
            self._compute(made, group if keep else None)
            source.line(f"{at} += {count}")

    def _variable(self, form: Affine, prefix: str) -> Affine:
        if form.is_constant:
            return form
        name = self.source.define(self.source.index(form), self.source.level, prefix)
        return symbol(name, self.source.level, 0, 1 << 31)

    def _symbol(self, text: str, bound: int) -> Affine:
        return number(int(text)) if text.isdigit() else symbol(text, self.source.level, 0, max(0, bound - 1))

    def _divide(self, text: str, by: Affine) -> tuple[str, str]:
        """Quotient and remainder of a variable."""
        source = self.source
        if by == number(1):
            return text, "0"
        quotient, rest, divisor = source.name("n"), source.name("n"), source.index(by)
        source.line(f"{quotient} = div({text}, {divisor})")
        source.line(f"{rest} = {text} - {quotient} * {divisor}")
        return quotient, rest

    def _block(self, batch: Affine, block: Affine, tile: Affine, tiles: str) -> _Block:
        plan, source = self.plan, self.source
        index = dict(zip((d.name for d in self.batch), unflatten(batch, [d.size for d in self.batch]), strict=True))
        row, column = self.rows.low + tile * plan.tile_rows, self.columns.low + block * plan.columns
        rows = source.name("n")
        source.line(f"{rows} = minimum({plan.tile_rows} * {tiles}, {source.index(self.rows.high - row)})")
        columns = number(size(self.columns.axes))
        if columns.constant > plan.columns or not self.columns.count.is_constant:
            name = source.name("n")
            source.line(f"{name} = minimum({plan.columns}, {source.index(self.columns.high - column)})")
            columns = symbol(name, source.level, 0, plan.columns)
        return _Block(index, row, symbol(rows, source.level, 0, plan.rows), column, columns)

    def _keeps_panels(self) -> bool:
        """Whether packed columns serve the next block of rows too."""
        return not self.combine and self.terms <= self.plan.terms and size(self.rows.axes) > self.plan.rows

    # ------------------------------------------------------------------ one block
    def _compute(self, block: _Block, group: str | None) -> None:
        frame, source = self.frame, self.source
        if self.combine is None:
            self._shard(block, block.batch.get(SHARD, number(0)), group)
            self._elements(block, self._finish)
            return
        nodes = Nodes(frame, self.combine)
        if self._merged:
            source.line("top = 0")
            self._shards(block)
            with frame.loop("s", number(0), self._top(), 1 << 31) as slot:
                self._elements(block, lambda index, at: self._put_node(nodes, slot, index, at))
            return
        nodes.clear()
        with frame.loop("s", frame.first, frame.first + frame.shards, self.shards) as shard:
            self._shard(block, shard, None)
            push = nodes.top_place()
            self._elements(block, lambda index, at: nodes.store(push, index, self._rounded(at)))
            with source.block(f"for _ in range(merge[{source.index(shard - frame.first)}]):"):
                place = nodes.pop()
                self._elements(block, lambda index, at: nodes.merge(place, index))
            nodes.grow()

    def _top(self) -> Affine:
        name = self.source.name("n")
        self.source.line(f"{name} = top")
        return symbol(name, self.source.level, 0, 1 << 31)

    def _rounded(self, at: Affine):  # noqa: ANN202
        return self.frame.k.cast(self.frame.scratch_element(self.tile, at), self.op.result.type.dtype)

    def _put_node(self, nodes: Nodes, slot: Affine, index: Index, at: Affine) -> None:
        element = self.frame.scratch_element(self.tile, slot * self.plan.slot + at)
        nodes.store(slot * nodes.slot, index, element)

    def _finish(self, index: Index, at: Affine) -> None:
        result = self._rounded(at)
        self.frame.results[self.op.result] = lambda _: result
        self.frame.store_all(index)

    def _elements(self, block: _Block, body: Callable[[Index, Affine], None]) -> None:
        """Run `body(index, place in a slot)` for all elements of a block."""
        frame, width = self.frame, self.plan.columns

        def row(rows: Index, r: Affine) -> None:
            def element(columns: Index, c: Affine) -> None:
                body({**block.batch, **rows, **columns}, (r - block.row) * width + (c - block.column))

            self._over(self.columns.axes, block.column, block.columns, element)

        self._over(self.rows.axes, block.row, block.rows, row, size(self.rows.axes))

    def _over(
        self, axes: list[Dim], start: Affine, count: Affine, body: Callable[[Index, Affine], None], run: int | None = None
    ) -> None:
        if not axes:
            body({}, number(0))
        else:
            self.frame.flat_loop(axes, start, start + count, body, run)

    # ------------------------------------------------------------------ shards and leaves
    def _shard(self, block: _Block, shard: Affine, group: str | None) -> None:
        """All terms of one shard; the sum is in slot 0."""
        start = shard * self.terms if self.grain is not None else number(0)
        self._chunks(block, start, None, group)

    def _shards(self, block: _Block) -> None:
        """All owned shards; the slots below `top` are the subtrees that are left."""
        frame, source, together = self.frame, self.source, max(1, self.plan.terms // self.terms)
        last = source.index(frame.first + frame.shards)
        name = source.name("s")
        with source.block(f"for {name} in range({source.index(frame.first)}, {last}, {together}):"):
            first = symbol(name, source.level, 0, self.shards - 1)
            count = number(1)
            if together > 1:
                shards = source.name("n")
                source.line(f"{shards} = minimum({together}, {last} - {name})")
                count = symbol(shards, source.level, 0, together)
            self._chunks(block, first * self.terms, (first, count), None)
            with frame.loop("s", first, first + count, self.shards) as shard:
                source.line(f"top += 1 - merge[{source.index(shard - frame.first)}]")

    def _chunks(self, block: _Block, start: Affine, shards: tuple[Affine, Affine] | None, group: str | None) -> None:
        """Terms from `start` on, of one shard or of several whole ones (first, count): pack and multiply as many at a time
        as scratch holds."""
        frame, source, plan = self.frame, self.source, self.plan
        if self.terms <= plan.terms:
            terms = number(self.terms)
            if shards is not None and not shards[1].is_constant:
                terms = self._variable(shards[1] * self.terms, "n")
            a, b = self._pack(block, start, terms, group)
            self._tiles(block, a, b, number(0), shards)
            return
        with frame.loop("k", number(0), number(-(-self.terms // plan.terms)), self.terms) as chunk:
            first = chunk * plan.terms
            count = frame.k.minimum(frame.k.from_affine(number(self.terms) - first), plan.terms)
            a, b = self._pack(block, start + first, frame.k.affine(count), None)
            self._tiles(block, a, b, first, shards)

    def _tiles(self, block: _Block, a: _Source, b: _Source, first: Affine, shards: tuple[Affine, Affine] | None) -> None:
        """Multiply every tile: leaves of the chunk whose first term is `first`, or of whole shards."""
        frame, source, plan = self.frame, self.source, self.plan
        with frame.loop("p", number(0), (block.columns + (plan.tile_columns - 1)) // plan.tile_columns, 1 << 20) as panel:
            with frame.loop("m", number(0), (block.rows + (plan.tile_rows - 1)) // plan.tile_rows, 1 << 20) as tile:
                place = tile * (plan.tile_rows * plan.columns) + panel * plan.tile_columns
                if shards is None or not self._merged:
                    self._leaves(block, a, b, tile, panel, place, first, number(0), None)
                    return
                depth = source.name("d")
                source.line(f"{depth} = top")
                with frame.loop("s", shards[0], shards[0] + shards[1], self.shards) as shard:
                    here, merges = source.name("n"), source.name("n")
                    source.line(f"{here} = {depth}")
                    source.line(f"{merges} = merge[{source.index(shard - frame.first)}]")
                    base = symbol(here, source.level, 0, 1 << 20)
                    skip = (shard - shards[0]) * self.terms
                    self._leaves(block, a, b, tile, panel, place, first, base, merges, skip)
                    source.line(f"{depth} += 1 - {merges}")

    def _leaves(
        self, block: _Block, a: _Source, b: _Source, tile: Affine, panel: Affine, place: Affine, first: Affine,
        base: Affine, merges: str | None, skip: Affine | None = None,
    ) -> None:  # fmt: skip
        """The leaves of a chunk, of one shard and one tile. `base`: slots in use; `merges`: of this shard with earlier ones;
        `skip`: terms of earlier shards in what is packed."""
        frame, source, plan = self.frame, self.source, self.plan
        skip = skip if skip is not None else number(0)
        if self.leaves == 1:
            self._multiply(block, a, b, tile, panel, place + base * plan.slot, skip, number(self.terms), merges or "0")
            return
        start, count = first // LEAF, min(plan.terms // LEAF, self.leaves)
        stop = frame.k.affine(frame.k.minimum(frame.k.from_affine(start + count), self.leaves))
        with frame.loop("l", start, stop, self.leaves) as leaf:
            text = source.index(leaf)
            depth = symbol(source.define(f"popcount({text})", source.level, "n"), source.level, 0, 64)
            times = source.define(f"merges_after({text}, {self.leaves})", source.level, "n")
            if merges is not None:
                times = f"{times} + select({text} == {self.leaves - 1}, {merges}, 0)"
            terms = frame.k.affine(frame.k.minimum(frame.k.from_affine(number(self.terms) - leaf * LEAF), LEAF))
            at = skip + leaf * LEAF - first
            self._multiply(block, a, b, tile, panel, place + (base + depth) * plan.slot, at, terms, times)

    def _multiply(
        self, block: _Block, a: _Source, b: _Source, tile: Affine, panel: Affine, place: Affine, k: Affine, terms: Affine,
        merges: str,
    ) -> None:  # fmt: skip
        source, plan = self.source, self.plan
        row = tile * plan.tile_rows
        form = "rows" if a.along == 1 else "columns"
        rows = source.index(a.start + row * a.across + k * a.along)
        columns = source.index(b.start + panel * b.panel + k * b.along)
        stride = a.across if form == "rows" else a.along
        source.line(
            f"multiply_{form}_{plan.tile_rows}x{plan.vectors}({self.tile.name}, {source.index(terms)},"
            f" address({a.name}, {rows}), {stride}, {source.index(block.rows - row)},"
            f" address({b.name}, {columns}), {b.along},"
            f" address({self.tile.name}, {source.index(place)}), {plan.columns}, {plan.slot}, {merges})"
        )

    # ------------------------------------------------------------------ operands
    def _pack(self, block: _Block, first: Affine, terms: Affine, group: str | None) -> tuple[_Source, _Source]:
        """Where the two operands' elements are, after packing them if need be. `first`: the flat index over the summed axes
        of the first of `terms`. `group`: a variable that says whether columns packed earlier serve."""
        a = self._in_place(self.rows, block.batch, block.row, first, self.plan.tile_rows, rows=True)
        b = self._in_place(self.columns, block.batch, block.column, first, self.plan.tile_columns, rows=False)
        if b is None:
            b = self._packed_columns(block, first, terms, group)
        if a is None:
            a = self._packed_rows(block, first, terms)
        return a, b

    def _value(self, side: _Side, batch: Index, free: Index, summed: Index) -> tuple[Value, dict[str, Affine]]:
        index = {**batch, **free, **summed}
        if self.grain is not None:
            index.pop(SHARD, None)
        names = set(side.operand.type.names)
        return side.operand, {n: i for n, i in index.items() if n in names}

    def _in_place(self, side: _Side, batch: Index, start: Affine, first: Affine, tile: int, rows: bool) -> _Source | None:
        """The operand's own memory, if a tile can be read there: it is a plain load, contiguous along the columns (which
        must fill whole tiles) or, for the rows' operand, along the summed axes."""
        frame = self.frame
        if side.operand.type.dtype != self.dtype:
            return None
        place = self._affine_place(side, batch)
        if place is None:
            return None
        view, flat, across, along = place
        whole = (side.count % tile) == number(0)
        fits = along == 1 or (across == 1 and whole) if rows else across == 1 and whole and self._near(along)
        if not fits or (not rows and along < 1):
            return None
        return _Source(frame.names[id(view.buffer)], flat + start * across + first * along, across, along, tile * across)

    def _near(self, along: int) -> bool:
        """Whether columns in place are as good as packed: read often enough, packing pays for close rows of a tile."""
        return size(self.rows.axes) <= 2 * self.plan.rows or along <= 8 * self.plan.tile_columns

    def _affine_place(self, side: _Side, batch: Index) -> tuple[View, Affine, int, int] | None:
        """The operand's view and its flat index as start + across * (flat free index) + along * (flat summed index)."""
        level = self.source.level + 1
        free = Symbol("x0", level, 0, max(0, size(side.axes) - 1))
        term = Symbol("k0", level, 0, size(self.summed) - 1)
        indices = [
            dict(zip((d.name for d in axes), unflatten(Affine(((v, 1),)), [d.size for d in axes]), strict=True))
            for axes, v in ((side.axes, free), (self.summed, term))
        ]
        place = self.frame.place(*self._value(side, batch, *indices))
        if place is None:
            return None
        view, flat = place
        across, along = flat.coefficient(free), flat.coefficient(term)
        if across is None or along is None:
            return None
        return view, flat - Affine(((free, 1),)) * across - Affine(((term, 1),)) * along, across, along

    def _array(self, name: str, elements: int) -> Array:
        if name not in self.packed:
            self.packed[name] = self.frame.array(name, self.dtype, elements)
        return self.packed[name]

    def _along_terms(self, side: _Side, batch: Index) -> bool:
        """Whether most of what an operand is made of lies contiguous along the summed axes rather than the free ones."""
        frame = self.frame
        axes = (side.axes, self.summed)
        level = frame.source.level
        with frame.source.trial() as source:
            source.blocks.append([])
            source.known.append({})
            symbols = [
                [Symbol(f"x{i}_{d.name}", level + 1, 0, d.size - 1) for d in part] for i, part in enumerate(axes)
            ]
            free, summed = (
                {d.name: Affine(((s, 1),)) for d, s in zip(part, names, strict=True)}
                for part, names in zip(axes, symbols, strict=True)
            )
            loads, frame.loads = frame.loads, {}
            frame.value(*self._value(side, batch, free, summed))
            found, frame.loads = frame.loads, loads
        votes = 0
        inner = [next((s for s in reversed(part) if s.high > 0), None) for part in symbols]
        for value, places in found.items():
            for flat in places:
                strides = [abs(flat.coefficient(s) or 0) if s is not None else 0 for s in inner]
                votes += value.type.size * ((strides[1] == 1) - (strides[0] == 1))
        return votes > 0

    def _packed_rows(self, block: _Block, first: Affine, terms: Affine) -> _Source:
        plan, side = self.plan, self.rows
        array = self._array("rows", plan.rows * (plan.terms + 16))
        by_terms = self._along_terms(side, block.batch) or size(side.axes) == 1
        across, along = (plan.terms + 16, 1) if by_terms else (1, plan.rows)

        def put(free: Index, summed: Index, r: Affine, k: Affine) -> None:
            element = self.frame.k.cast(self.frame.value(*self._value(side, block.batch, free, summed)), self.dtype)
            self.frame.put(array, (r - block.row) * across + (k - first) * along, element)

        self._fill(side, block.row, block.rows, first, terms, by_terms, put)
        return _Source(array.name, number(0), across, along, 0)

    def _packed_columns(self, block: _Block, first: Affine, terms: Affine, group: str | None) -> _Source:
        frame, plan, side = self.frame, self.plan, self.columns
        width, panel = plan.tile_columns, plan.tile_columns * plan.terms
        array = self._array("panel", plan.columns * plan.terms)
        by_terms = self._along_terms(side, block.batch)

        def pack() -> None:
            with frame.loop("p", number(0), (block.columns + (width - 1)) // width, 1 << 20) as p:
                start = block.column + p * width
                count = frame.k.minimum(frame.k.from_affine(block.column + block.columns - start), width)

                def put(free: Index, summed: Index, c: Affine, k: Affine) -> None:
                    element = frame.k.cast(frame.value(*self._value(side, block.batch, free, summed)), self.dtype)
                    frame.put(array, p * panel + (k - first) * width + (c - start), element)

                self._fill(side, start, frame.k.affine(count), first, terms, by_terms, put)

        if group is None:
            pack()
        else:
            with self.source.block(f"if {group} != packed:"):
                self.source.line(f"packed = {group}")
                pack()
        return _Source(array.name, number(0), 1, width, panel)

    def _fill(
        self, side: _Side, start: Affine, count: Affine, first: Affine, terms: Affine, by_terms: bool,
        put: Callable[[Index, Index, Affine, Affine], None],
    ) -> None:  # fmt: skip
        """Run `put` for all elements of an operand's part, the contiguous axis innermost."""
        free, summed = (side.axes, start, count), (self.summed, first, terms)
        if by_terms:
            self._over(
                *free, lambda i, x: self._over(*summed, lambda s, k: put(i, s, x, k)), run=max(1, size(side.axes))
            )
        else:
            self._over(*summed, lambda s, k: self._over(*free, lambda i, x: put(i, s, x, k)), run=size(self.summed))


def has_owned(axes: list[Dim]) -> bool:
    """Whether a role holds only part of these axes."""
    return any(owned(d) for d in axes)
