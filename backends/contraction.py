"""Contractions in the canonical order (design §3): leaves of 256 terms, each one ascending chain of fma from +0.

The axes of the result fall into batch (in both operands), rows and columns; a vector holds columns. A thread takes row
tiles of blocks of columns one after another:

    pack                         what cannot be read in place (packing.py)
    for every tile               multiply(…): a leaf's chain in registers, merged with earlier leaves, into `tile`
    epilogue                     the stored values from `tile`, by rows

Partial sums of leaves, and of shards under a `combine`, are slots of `tile`: a stack, merged in registers as the tree
says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alphac.backends.convolution import windows_in_memory
from alphac.backends.evaluation import Frame, Index, named, owned, physical, size
from alphac.backends.indexing import Affine, number, symbol
from alphac.backends.packing import Block, Packing, Part, Side
from alphac.backends.printer import Handle
from alphac.backends.reduction import Columns, Nodes, Terms, combine_partials, store_partials
from alphac.backends.stream import emit_rows, suits_rows
from alphac.backends.tiling import LEAF, tiling
from alphac.ir.core import Op
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.typesys import BF16, F32, SHARD, Dim

ALONE = 1 << 15  # terms in all; fewer are left to thread 0
MANY = 1 << 31


def emit_contract(frame: Frame, op: Op, combine: Op | None) -> None:
    """The kernel of a contraction, alone or under a combine."""
    chains = _Chains(frame, op, combine is not None)
    windows = windows_in_memory(frame, op, combine)
    if windows is not None:
        windows.emit()
    elif combine is None and suits_rows(frame, op):
        emit_rows(frame, op)
    elif not chains.suit:
        _Contraction(frame, op, combine).emit()
    elif combine is None:
        store_partials(frame, op, Columns(chains))
    else:
        combine_partials(frame, combine, Columns(chains))


class _Chains(Terms):
    """The terms of a contraction whose result's innermost axes are in both operands (a depthwise convolution): no
    element of an operand serves several results of a vector, so each result has a chain of its own."""

    leaf = LEAF
    lanes = 1

    def __init__(self, frame: Frame, op: Op, combined: bool) -> None:
        super().__init__(frame, op, combined, contracted_axes(op))
        first, second = op.operands
        shared = [first.type.has(d.name) and second.type.has(d.name) and not owned(d) for d in self.axes]
        cut = next((i + 1 for i in reversed(range(len(shared))) if not shared[i]), 0)
        self.inner = self.axes[cut:]
        free = [d for d, s in zip(self.axes, shared, strict=True) if not s and d.name != SHARD]
        most = max(size([d for d in free if v.type.has(d.name)]) for v in (first, second))
        # Otherwise a vector of columns is fuller.
        self.suit = size(self.inner) > 1 and min(size(free) // most, size(free)) < min(8, size(self.inner))

    def identity(self) -> Handle:
        return self.frame.k.const(0, self.accumulator)

    def add(self, sum_: Handle, kept: Index, reduced: Index, shard: Affine | None) -> Handle:
        k = self.frame.k
        x, y = (self.element(v, kept, reduced, shard) for v in self.op.operands)
        return k.fma(x, y, sum_) if self.accumulator.is_float else k.add(k.mul(x, y), sum_)

    def combine(self, x: Handle, y: Handle) -> Handle:
        return self.frame.k.add(x, y)


@dataclass(frozen=True)
class _Chunk:
    """What is packed: terms from `first` on, counted within a shard, or all terms of `count` shards from `shard` on."""

    first: Affine
    shard: Affine
    count: Affine


class _Contraction:
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
        # Shards may lie unaligned in their tree: at most twice as deep a stack.
        most = self.leaves * self.shards**2 if self.merged else self.leaves
        shape = (size(self.rows.axes), size(self.columns.axes), self.terms)
        self.plan = tiling(*shape, most.bit_length() + (most > 1), self.dtype.bytes, frame.target)
        self.tile = frame.array("tile", self.dtype, self.plan.slots * self.plan.slot)
        self.packing = Packing(frame, self.dtype, self.rows, self.columns, summed, self.plan)

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

    # ------------------------------------------------------------------ the loop over blocks
    def emit(self) -> None:
        frame, source, plan = self.frame, self.source, self.plan
        low, high = frame.owned_range(self.batch)
        tiles = self._variable((self.rows.count + (plan.tile_rows - 1)) // plan.tile_rows)
        blocks = self._variable((self.columns.count + (plan.columns - 1)) // plan.columns)
        factors = [source.index(f) for f in (tiles, blocks, high - low) if f != number(1)]
        total = " * ".join(f if f.isalnum() else f"({f})" for f in factors) or "1"
        if size(self.batch) * size(self.rows.axes) * size(self.columns.axes) * self.terms <= ALONE:
            source.line("lo = 0")
            source.line(f"hi = {total} if thread == 0 else 0")
        else:
            source.line(f"lo = div({total} * thread, threads)")
            source.line(f"hi = div({total} * (thread + 1), threads)")
        at = source.name("n")
        source.line(f"{at} = lo")
        # Packed columns serve the next block of rows too, if all terms are packed at once.
        keep = self.combine is None and self.terms <= plan.terms and size(self.rows.axes) > plan.rows
        if keep:
            source.line("packed = -1")
        with source.block(f"while {at} < hi:"):
            group, tile = self._divide(at, tiles)
            batch, block = self._divide(group, blocks)
            count = source.name("n")
            most = plan.rows // plan.tile_rows
            source.line(f"{count} = minimum(minimum({source.index(tiles)} - {tile}, hi - {at}), {most})")
            index = named(self.batch, low + self._symbol(batch, size(self.batch)))
            made = self._block(index, self._symbol(block, MANY), self._symbol(tile, MANY), count)
            self._compute(made, group if keep else None)
            source.line(f"{at} += {count}")

    def _variable(self, form: Affine) -> Affine:
        if form.is_constant:
            return form
        text = self.source.index(form)
        name = text if text.isidentifier() else self.source.define(text, self.source.level, "n")
        return symbol(name, self.source.level, 0, MANY)

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

    def _block(self, batch: Index, block: Affine, tile: Affine, tiles: str) -> Block:
        plan, source = self.plan, self.source
        row, column = self.rows.low + tile * plan.tile_rows, self.columns.low + block * plan.columns
        rows = source.name("n")
        source.line(f"{rows} = minimum({plan.tile_rows} * {tiles}, {source.index(self.rows.high - row)})")
        columns = number(size(self.columns.axes))
        if columns.constant > plan.columns or not self.columns.count.is_constant:
            name = source.name("n")
            source.line(f"{name} = minimum({plan.columns}, {source.index(self.columns.high - column)})")
            columns = symbol(name, source.level, 0, plan.columns)
        return Block(batch, row, symbol(rows, source.level, 0, plan.rows), column, columns)

    # ------------------------------------------------------------------ one block
    def _compute(self, block: Block, group: str | None) -> None:
        frame, source = self.frame, self.source
        if self.combine is None:
            self._shard(block, block.batch.get(SHARD, number(0)), group)
            self._elements(block, self._finish)
            return
        nodes = Nodes(frame, self.combine)
        source.line("top = 0")
        if self.merged:
            self._shards(block)
            full = source.name("n")
            source.line(f"{full} = top")
            with frame.loop("s", number(0), symbol(full, source.level, 0, MANY), MANY) as slot:
                self._elements(block, lambda index, at: self._put_node(nodes, slot, index, at))
            return
        with frame.loop("s", frame.first, frame.first + frame.shards, self.shards) as shard:
            self._shard(block, shard, None)
            push = nodes.top_place()
            self._elements(block, lambda index, at: nodes.store(push, index, self._sum(at)))
            with source.block(f"for _ in range(merge[{source.index(shard - frame.first)}]):"):
                place = nodes.pop()
                self._elements(block, lambda index, _: nodes.merge(place, index))
            nodes.grow()

    def _sum(self, at: Affine) -> Handle:
        """An element of the topmost slot, in the result's dtype."""
        return self.frame.k.cast(self.frame.scratch_element(self.tile, at), self.op.result.type.dtype)

    def _put_node(self, nodes: Nodes, slot: Affine, index: Index, at: Affine) -> None:
        nodes.store(slot * nodes.slot, index, self._sum(slot * self.plan.slot + at))

    def _finish(self, index: Index, at: Affine) -> None:
        result = self._sum(at)
        self.frame.results[self.op.result] = lambda _: result
        self.frame.store_all(index)

    def _elements(self, block: Block, body: Callable[[Index, Affine], None]) -> None:
        """Run `body(index, place in a slot)` for all elements of a block."""
        over, width = self.frame.over, self.plan.columns

        def row(rows: Index, r: Affine) -> None:
            def element(columns: Index, c: Affine) -> None:
                body({**block.batch, **rows, **columns}, (r - block.row) * width + (c - block.column))

            over(self.columns.axes, block.column, block.columns, element)

        self.source.line("# what is stored")
        over(self.rows.axes, block.row, block.rows, row, run=size(self.rows.axes))

    # ------------------------------------------------------------------ shards and leaves
    def _shard(self, block: Block, shard: Affine, group: str | None) -> None:
        """All terms of one shard; their sum is in slot 0."""
        self._chunks(block, shard if self.grain is not None else number(0), number(1), group)

    def _shards(self, block: Block) -> None:
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
            self._chunks(block, first, count, None)
            with frame.loop("s", first, first + count, self.shards) as shard:
                source.line(f"top += 1 - merge[{source.index(shard - frame.first)}]")

    def _chunks(self, block: Block, shard: Affine, shards: Affine, group: str | None) -> None:
        """Some whole shards: pack and multiply as many terms at a time as scratch holds."""
        frame, plan, start = self.frame, self.plan, shard * self.terms
        if self.terms <= plan.terms:
            terms = self._variable(shards * self.terms)
            parts = self.packing.parts(block, start, terms, group)
            self._tiles(block, parts, _Chunk(number(0), shard, shards))
            return
        with frame.loop("k", number(0), number(-(-self.terms // plan.terms)), self.terms) as chunk:
            first = chunk * plan.terms
            terms = frame.least(number(self.terms) - first, plan.terms)
            parts = self.packing.parts(block, start + first, terms, None)
            self._tiles(block, parts, _Chunk(first, shard, shards))

    def _tiles(self, block: Block, parts: tuple[Part, Part], chunk: _Chunk) -> None:
        """Multiply every tile of a block."""
        frame, source, plan = self.frame, self.source, self.plan
        panels = (block.columns + (plan.tile_columns - 1)) // plan.tile_columns
        tiles = (block.rows + (plan.tile_rows - 1)) // plan.tile_rows
        source.line("# tile by tile, leaf by leaf")
        most = plan.columns // plan.tile_columns, plan.rows // plan.tile_rows
        with frame.loop("p", number(0), panels, most[0]) as panel, frame.loop("m", number(0), tiles, most[1]) as tile:
            calls = _Calls(self, block, parts, chunk, tile, panel)
            if not self.merged:
                calls.leaves(number(0), number(0), None)
                return
            depth = source.name("d")
            source.line(f"{depth} = top")
            with frame.loop("s", chunk.shard, chunk.shard + chunk.count, self.shards) as shard:
                here, merges = source.name("n"), source.name("n")
                source.line(f"{here} = {depth}")
                source.line(f"{merges} = merge[{source.index(shard - frame.first)}]")
                skip = (shard - chunk.shard) * self.terms
                calls.leaves(skip, symbol(here, source.level, 0, MANY), merges)
                source.line(f"{depth} += 1 - {merges}")


@dataclass(frozen=True)
class _Calls:
    """The calls of `multiply` for one tile."""

    contraction: _Contraction
    block: Block
    parts: tuple[Part, Part]
    chunk: _Chunk
    tile: Affine
    panel: Affine

    def leaves(self, skip: Affine, base: Affine, merges: str | None) -> None:
        """The leaves of one shard that are in the chunk. `skip`: packed terms of earlier shards; `base`: slots in use;
        `merges`: how often the shard's sum is merged with earlier shards'."""
        c, frame, source = self.contraction, self.contraction.frame, self.contraction.source
        plan = c.plan
        if c.leaves == 1:
            self._multiply(skip, number(c.terms), base, merges or "0")
            return
        start = self.chunk.first // LEAF
        stop = frame.least(start + min(plan.terms // LEAF, c.leaves), c.leaves)
        with frame.loop("l", start, stop, c.leaves) as leaf:
            text = source.index(leaf)
            depth = symbol(source.define(f"popcount({text})", source.level, "n"), source.level, 0, 64)
            times = source.define(f"merges_after({text}, {c.leaves})", source.level, "n")
            if merges is not None:
                times = f"{times} + select({text} == {c.leaves - 1}, {merges}, 0)"
            terms = frame.least(number(c.terms) - leaf * LEAF, LEAF)
            self._multiply(skip + leaf * LEAF - self.chunk.first, terms, base + depth, times)

    def _multiply(self, k: Affine, terms: Affine, slot: Affine, merges: str) -> None:
        c, source = self.contraction, self.contraction.source
        plan, tile, (a, b) = c.plan, c.tile.name, self.parts
        form, stride = ("rows", a.across) if a.along == 1 else ("columns", a.along)
        row = self.tile * plan.tile_rows
        rows = source.index(a.start + row * a.across + k * a.along)
        columns = source.index(b.start + self.panel * b.panel + k * b.along)
        place = source.index(row * plan.columns + self.panel * plan.tile_columns + slot * plan.slot)
        source.line(
            f"multiply_{form}_{plan.tile_rows}x{plan.vectors}({tile}, {source.index(terms)},"
            f" address({a.name}, {rows}), {stride}, {source.index(self.block.rows - row)},"
            f" address({b.name}, {columns}), {b.along},"
            f" address({tile}, {place}), {plan.columns}, {plan.slot}, {merges})"
        )
