"""Contractions on a grid, in the canonical order: leaves of 256 terms, each one ascending chain of fma from +0.

A block of 16 by 16 threads makes a tile of the result, of which a thread holds up to 8 by 8 elements in registers:

    for every leaf, 16 terms at a time      both operands' parts, of the tile's rows and of its columns, are put into
                                            the block's memory (twice, in turn, so that one barrier is enough), the
                                            next ones are asked for; every thread multiplies and adds
    behind every leaf                       its sums are merged with those that wait in local memory, as the tree says
    epilogue                                the stored values

Rows and columns beyond the result repeat the last one: they are computed and not stored. Pulling elements works as in
every other kernel, so that what is inlined (windows, masks, casts) just works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alphac.backends.evaluation import Axes, Index, named, owned, physical, size
from alphac.backends.gpu import THREADS
from alphac.backends.gpu.frame import MANY, GpuFrame, Shared
from alphac.backends.gpu.intrinsics import SIDE, WIDE, tile_functions
from alphac.backends.gpu.reduction import Alone
from alphac.backends.gpu.tiling import TERMS, tile
from alphac.backends.indexing import Affine, Symbol, number, symbol
from alphac.backends.printer import Handle
from alphac.backends.reduction import Nodes, Terms, combine_partials, store_partials
from alphac.backends.target import Grid
from alphac.ir.core import Op, Value
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.typesys import BF16, F32, SHARD, Dim

LEAF = 256
THIN = 4  # rows or columns; with fewer, tiles would be empty, and each result has a thread of its own


class _Chains(Terms):
    """The terms of a contraction, one chain a leaf."""

    leaf = LEAF
    lanes = 1

    def __init__(self, frame: GpuFrame, op: Op, combined: bool) -> None:
        super().__init__(frame, op, combined, contracted_axes(op))
        self.inner = []

    def identity(self) -> Handle:
        return self.frame.k.const(0, self.accumulator)

    def add(self, sum_: Handle, kept: Index, reduced: Index, shard: Affine | None) -> Handle:
        k = self.frame.k
        x, y = (self.element(v, kept, reduced, shard) for v in self.op.operands)
        return k.fma(x, y, sum_) if self.accumulator.is_float else k.add(k.mul(x, y), sum_)

    def combine(self, x: Handle, y: Handle) -> Handle:
        return self.frame.k.add(x, y)


@dataclass(frozen=True)
class Spread:
    """Which of a tile's rows (or columns) a thread has, `each` of them: runs of `run` that are `apart`, the first at
    `scale` times the variable `start`, which is at most `most`."""

    each: int
    run: int
    apart: int
    start: str
    scale: int
    most: int


@dataclass(frozen=True)
class Side:
    """One operand, its free axes, the range of them that this role owns, how many of them a tile has, and which of
    these a thread."""

    operand: Value
    axes: list[Dim]
    low: Affine
    high: Affine
    tile: int
    spread: Spread

    @property
    def each(self) -> int:
        return self.spread.each

    @property
    def tiles(self) -> Affine:
        return (self.high - self.low + (self.tile - 1)) // self.tile

    def element(self, i: Affine) -> Affine:
        """Which row (or column) of the tile a thread's i-th is."""
        s = self.spread
        return i + (i // s.run) * (s.apart - s.run) + symbol(s.start, 0, 0, s.most) * s.scale


class Contraction:
    """The kernel of a contraction, alone or under a combine."""

    leaf = LEAF  # terms of which sums are merged with those that wait
    step = TERMS  # terms that are pulled together

    def __init__(self, frame: GpuFrame, op: Op, combine: Op | None) -> None:
        self.frame, self.op, self.combine, self.source = frame, op, combine, frame.source
        result = op.result.type
        self.dtype = F32 if result.dtype == BF16 else result.dtype
        # Every node of a combine in bf16 is rounded: shards are then put together in the nodes' memory.
        self.merged = combine is not None and result.dtype != BF16
        self.summed = contracted_axes(op)
        self.grain = next((d for d in self.summed if d.shards), None)
        self.shards = self.grain.shards if self.grain is not None else 1
        self.terms = size(self.summed) // self.shards
        self.leaves = -(-self.terms // self.leaf)
        axes = [d for d in physical(result) if not (combine is not None and d.name == SHARD)]
        first, second = op.operands
        self.batch = [d for d in axes if first.type.has(d.name) == second.type.has(d.name)]
        self.rows, self.columns = self._sides(axes)
        counts = size(self.rows.axes), size(self.columns.axes)
        self.thin = min(counts) < THIN
        # Shards may lie unaligned in their tree: at most twice as deep a stack.
        most = self.leaves * self.shards**2 if self.merged else self.leaves
        self.slots = most.bit_length() + (most > 1)

    def _sides(self, axes: list[Dim]) -> tuple[Side, Side]:
        """Rows and columns. The result's innermost axis belongs to the columns."""
        operands = list(self.op.operands)
        free = [[d for d in axes if v.type.has(d.name) and d not in self.batch] for v in operands]
        last = next((d for d in reversed(axes) if d not in self.batch), None)
        if last is not None and last in free[0]:
            operands.reverse()
            free.reverse()
        tiles, spreads = self.cut(*(size(f) for f in free))
        rows, columns = (
            Side(v, f, *self.frame.owned_range(f), t, s)
            for v, f, t, s in zip(operands, free, tiles, spreads, strict=True)
        )
        return rows, columns

    # ------------------------------------------------------------------ what a thread does of a tile
    def cut(self, rows: int, columns: int) -> tuple[tuple[int, int], tuple[Spread, Spread]]:
        """A tile's rows and columns, and which of them a thread has."""
        tiles = tile(rows, columns, size(self.batch), self.dtype.bytes, self.frame.target.scratch)
        spreads: list[Spread] = []
        for count, start in zip(tiles, ("ty", "tx"), strict=True):
            run = min(count // SIDE, WIDE // self.dtype.bytes)
            spreads.append(Spread(count // SIDE, run, run * SIDE, start, run, SIDE - 1))
        return tiles, (spreads[0], spreads[1])

    def prepare(self) -> None:
        """The block's memory, and where a thread is."""
        frame, source = self.frame, self.source
        self.pitches = tuple(side.tile + WIDE // self.dtype.bytes for side in (self.rows, self.columns))
        self.parts = tuple(
            frame.shared_array(name, self.dtype, 2 * TERMS * pitch)
            for name, pitch in zip(("row_tile", "column_tile"), self.pitches, strict=True)
        )
        source.line(f"ty = {source.index(frame.own // SIDE)}")
        source.line(f"tx = {source.index(frame.own % SIDE)}")

    def pulls(self, batch: Index, starts: tuple[Affine, Affine]) -> Sequence[Pull]:
        """What fills the block's memory."""
        return [
            Pull(self, side, batch, start, array, pitch)
            for side, start, array, pitch in zip(
                (self.rows, self.columns), starts, self.parts, self.pitches, strict=True
            )
        ]

    def multiply(self, offsets: list[str], at: Affine) -> None:
        """Add the products of the terms from the shard's term `at` on, which lie at `offsets` of the parts."""
        (a, b), (pa, pb) = self.parts, self.pitches
        self.source.line(
            f"tile_multiply({self.acc.name}, {a.name}, {offsets[0]}, {b.name}, {offsets[1]}, {pa}, {pb}, ty, tx,"
            f" {self.source.index(self.count(at))})"
        )

    def term(self, text: str, k: Affine, count: Affine) -> str:
        """What is put into the block's memory for the k-th of the terms that are pulled together, `count` of which are
        to be multiplied."""
        return text

    # ------------------------------------------------------------------ the loop over tiles
    def emit(self) -> None:
        """Write the kernel."""
        if not self.thin:
            self._tiles()
            return
        chains = Alone(self.frame, _Chains(self.frame, self.op, self.combine is not None))
        if self.combine is None:
            store_partials(self.frame, self.op, chains)
        else:
            combine_partials(self.frame, self.combine, chains)

    def _tiles(self) -> None:
        frame, source = self.frame, self.source
        rows, columns = self.rows, self.columns
        frame.intrinsics |= tile_functions(rows.each, columns.each)
        self.acc = frame.array("acc", self.dtype, rows.each * columns.each)
        self.stack = frame.array("stack", self.dtype, self.slots * rows.each * columns.each)
        self.prepare()
        source.line("turn = 0")
        low, high = frame.owned_range(self.batch)
        down, across = (self._known(side.tiles) for side in (rows, columns))
        frame.grid = self._grid()
        factors = [f for f in (down, across, self._known(high - low)) if f != number(1)]
        total = " * ".join(f"({source.index(f)})" for f in factors) or "1"
        name = source.name("e")
        with source.block(f"for {name} in range(block, {total}, blocks):"):
            rest, column = self._divide(name, across)
            batch, row = self._divide(rest, down)
            index = named(self.batch, low + self._symbol(batch, size(self.batch)))
            self._tile(
                index,
                rows.low + self._symbol(row, -(-size(rows.axes) // rows.tile)) * rows.tile,
                columns.low + self._symbol(column, -(-size(columns.axes) // columns.tile)) * columns.tile,
            )

    def _grid(self) -> Grid:
        """A block for every tile."""
        count, each, grows = 1, 1, False
        for axes, tile_ in ((self.batch, 1), (self.rows.axes, self.rows.tile), (self.columns.axes, self.columns.tile)):
            if axes and owned(axes[0]):
                count, each, grows = count * size(axes) // (axes[0].shards or axes[0].size), tile_, True
            else:
                count *= -(-size(axes) // tile_)
        return Grid(THREADS, count, each, grows)

    def _known(self, form: Affine) -> Affine:
        if form.is_constant:
            return form
        return symbol(self.source.define(self.source.index(form), self.source.level, "n"), self.source.level, 0, MANY)

    def _symbol(self, text: str, bound: int) -> Affine:
        return number(int(text)) if text.isdigit() else symbol(text, self.source.level, 0, max(0, bound - 1))

    def _divide(self, text: str, by: Affine) -> tuple[str, str]:
        """Quotient and remainder of a variable."""
        if by == number(1):
            return text, "0"
        source = self.source
        quotient, rest, divisor = source.name("n"), source.name("n"), source.index(by)
        source.line(f"{quotient} = div({text}, {divisor})")
        source.line(f"{rest} = {text} - {quotient} * {divisor}")
        return quotient, rest

    # ------------------------------------------------------------------ one tile
    def _tile(self, batch: Index, row: Affine, column: Affine) -> None:
        frame, source = self.frame, self.source
        starts = row, column
        if self.combine is None:
            self._shard(batch, starts, batch.get(SHARD, number(0)), number(0), None)
            self._elements(batch, starts, self._finish)
            return
        nodes = Nodes(frame, self.combine)
        source.line("top = 0")
        with frame.loop("s", frame.first, frame.first + frame.shards, self.shards) as shard:
            merges = f"merge[{source.index(shard - frame.first)}]"
            if self.merged:
                here = source.name("n")
                source.line(f"{here} = top")
                self._shard(batch, starts, shard, symbol(here, source.level, 0, MANY), merges)
                source.line(f"top += 1 - {merges}")
            else:
                self._shard(batch, starts, shard, number(0), None)
                self._into_nodes(nodes, batch, starts, merges)
        if self.merged:
            full = source.name("n")
            source.line(f"{full} = top")
            with frame.loop("s", number(0), symbol(full, source.level, 0, MANY), MANY) as slot:
                at = slot * (self.rows.each * self.columns.each)
                self._elements(batch, starts, lambda index, e: nodes.store(slot * nodes.slot, index, self._sum(at + e)))

    def _into_nodes(self, nodes: Nodes, batch: Index, starts: tuple[Affine, Affine], merges: str) -> None:
        """A shard's sums onto the stack in the nodes' memory."""
        push = nodes.top_place()
        self._elements(batch, starts, lambda index, at: nodes.store(push, index, self._sum(at)))
        with self.source.block(f"for _ in range({merges}):"):
            place = nodes.pop()
            self._elements(batch, starts, lambda index, _: nodes.merge(place, index))
        nodes.grow()

    def _sum(self, at: Affine) -> Handle:
        """A sum in local memory, in the result's dtype."""
        return self.frame.k.cast(self.frame.scratch_element(self.stack, at), self.op.result.type.dtype)

    def _finish(self, index: Index, at: Affine) -> None:
        result = self._sum(at)
        self.frame.results[self.op.result] = lambda _: result
        self.frame.store_all(index)

    def _elements(self, batch: Index, starts: tuple[Affine, Affine], body: Callable[[Index, Affine], None]) -> None:
        """Run `body(index, place in a slot)` for this thread's elements of the tile."""
        frame, rows, columns = self.frame, self.rows, self.columns
        with frame.loop("i", number(0), number(rows.each), rows.each) as i:
            row = starts[0] + rows.element(i)
            with self._inside(rows, row) as r, frame.loop("j", number(0), number(columns.each), columns.each) as j:
                column = starts[1] + columns.element(j)
                with self._inside(columns, column) as c:
                    body({**batch, **self._at(rows, r), **self._at(columns, c)}, i * columns.each + j)

    def _inside(self, side: Side, at: Affine) -> _Guard:
        return _Guard(self.frame, side, at)

    def _at(self, side: Side, flat: Affine) -> Index:
        return named(side.axes, flat)

    # ------------------------------------------------------------------ leaves
    def _shard(
        self, batch: Index, starts: tuple[Affine, Affine], shard: Affine, base: Affine, merges: str | None
    ) -> None:
        """All terms of one shard: their sum lands in the slot that follows `base` full ones, merged with `merges` of
        them."""
        frame, source = self.frame, self.source
        skip = shard * self.terms if self.grain is not None else number(0)
        pulls = self.pulls(batch, starts)
        for pull in pulls:
            pull.fetch(skip, number(0))
        with frame.loop("l", number(0), number(self.leaves), self.leaves) as leaf:
            source.line(f"tile_clear({self.acc.name})")
            first = leaf * self.leaf
            steps = (frame.least(number(self.terms) - first, self.leaf) + (self.step - 1)) // self.step
            with frame.loop("k", number(0), steps, self.leaf // self.step) as step:
                self._step(pulls, skip, first + step * self.step)
            text = source.index(leaf)
            depth = source.name("d")
            waiting = "0" if self.leaves == 1 else f"popcount({text})"
            source.line(f"{depth} = {source.index(base)} + {waiting}")
            times = "0" if self.leaves == 1 else f"merges_after({text}, {self.leaves})"
            if merges is not None:
                times += f" + {merges}" if self.leaves == 1 else f" + select({text} == {self.leaves - 1}, {merges}, 0)"
            if times != "0":
                with source.block(f"for _ in range({times}):"):
                    source.line(f"{depth} -= 1")
                    source.line(f"tile_merge({self.acc.name}, {self.stack.name}, {depth})")
            source.line(f"tile_push({self.acc.name}, {self.stack.name}, {depth})")

    def _step(self, pulls: Sequence[Pull], skip: Affine, at: Affine) -> None:
        """Multiply some terms, from the shard's term `at` on, while the next are on their way."""
        frame, source = self.frame, self.source
        turn = symbol("turn", source.level, 0, 1)
        offsets = [source.index(pull.keep(skip, at, turn)) for pull in pulls]
        frame.barrier()
        if self.terms > self.step and any(pull.ahead for pull in pulls):
            with source.block(f"if {source.index(at)} < {self.terms - self.step}:"):
                after = frame.variable((at + self.step) // self.step, self.terms // self.step + 1)
                following = after * self.step
                for pull in pulls:
                    pull.fetch(skip, following)
        self.multiply(offsets, at)
        source.line("turn = 1 - turn")

    def count(self, at: Affine) -> Affine:
        """How many terms are multiplied together from the shard's term `at` on."""
        whole = self.terms % self.step == 0
        return number(self.step) if whole else self.frame.least(number(self.terms) - at, self.step)


class Pull:
    """One operand's part for a tile's rows (or columns) from `start` on: `step` terms at a time go into the block's
    memory, neighbours in memory by neighbours, each thread `run` consecutive terms in each of its turns. What is just
    loaded is `ahead`: on its way to this thread's registers while the terms before it are multiplied; what is computed
    as well would wait for what it loads there and then."""

    run = 1

    def __init__(self, whole: Contraction, side: Side, batch: Index, start: Affine, array: Shared, pitch: int) -> None:
        self.whole, self.frame, self.source = whole, whole.frame, whole.source
        self.side, self.batch, self.start, self.array, self.pitch = side, batch, start, array, pitch
        self.runs = side.tile * whole.step // self.run
        self.turns = max(1, self.runs // THREADS)
        self.along_terms = self._along_terms()
        self.ahead = self.frame.place(side.operand, self._index(number(0), number(0))) is not None
        self.registers = [self.source.name("v") for _ in range(self.turns * self.run if self.ahead else 0)]

    def fetch(self, skip: Affine, at: Affine) -> None:
        """Load the terms from the shard's term `at` on, if that is done ahead."""
        for n, register in enumerate(self.registers):
            x, k = self._mine(number(n // self.run))
            self.source.line(f"{register} = {self._element(x, k + n % self.run, skip, at)}")

    def keep(self, skip: Affine, at: Affine, turn: Affine) -> Affine:
        """Put the terms from `at` on into the block's memory; where they are."""
        place = turn * (self.array.elements // 2)
        if self.ahead:
            for u in range(self.turns):
                self.put(place, *self._mine(number(u)), self.registers[u * self.run : (u + 1) * self.run])
        else:
            with self.frame.loop("u", number(0), number(self.turns), self.turns) as u:
                x, k = self._mine(u)
                self.put(place, x, k, [self._element(x, k + e, skip, at) for e in range(self.run)])
        return place

    def put(self, place: Affine, x: Affine, k: Affine, texts: Sequence[str]) -> None:
        """Put the terms from the k-th on of the tile's row (or column) x into the part that begins at a place."""
        (text,) = texts
        self.source.line(f"{self.array.name}[{self.source.index(place + k * self.pitch + x)}] = {text}")

    def _mine(self, u: Affine) -> tuple[Affine, Affine]:
        """Of which row (or column) of the tile this thread pulls terms in its turn u, and from which on. Threads that
        are more than there is to pull do what others do too."""
        flat = u * THREADS + self.frame.own if self.runs >= THREADS else self.frame.own % self.runs
        runs = self.whole.step // self.run
        if self.along_terms:
            return flat // runs, flat % runs * self.run
        return flat % self.side.tile, flat // self.side.tile * self.run

    def _element(self, x: Affine, k: Affine, skip: Affine, at: Affine) -> str:
        side, whole, count = self.side, self.whole, self.whole.count(at)
        span, step = size(side.axes), whole.step
        free = self._clamped(self.start + x, side.high, span, span % side.tile == 0 and not _cut(side))
        term = skip + at + self._clamped(k, count, step, count == number(step))
        value = self.frame.value(side.operand, self._index(free, term))
        return whole.term(self.frame.k.text(self.frame.k.cast(value, whole.dtype)), k, count)

    def _index(self, free: Affine, term: Affine) -> Index:
        index = {**self.batch, **named(self.side.axes, free), **named(self.whole.summed, term)}
        return {n: index[n] for n in self.side.operand.type.names}

    def _clamped(self, form: Affine, end: Affine, bound: int, whole: bool) -> Affine:
        """The form, or the last index before `end`, which is at most `bound`; the form itself if it is `whole`."""
        if whole:
            return form
        source = self.source
        name = source.name("n")
        source.line(f"{name} = minimum({source.index(form)}, {source.index(end - 1)})")
        return symbol(name, source.level, 0, bound - 1)

    def _along_terms(self) -> bool:
        """Whether most of what an operand is made of lies contiguous along the summed axes rather than the free
        ones."""
        level, operand = self.source.level + 1, self.side.operand
        parts: tuple[Axes, Axes] = (self.side.axes, self.whole.summed)
        symbols = [[Symbol(f"x{i}_{d.name}", level, 0, d.size - 1) for d in part] for i, part in enumerate(parts)]
        index = dict(self.batch)
        for part, names in zip(parts, symbols, strict=True):
            index |= {d.name: Affine(((s, 1),)) for d, s in zip(part, names, strict=True)}
        inner = [next((s for s in reversed(part) if s.high > 0), None) for part in symbols]
        votes = 0
        wanted = {n: index[n] for n in operand.type.names}
        for value, flat in self.frame.loaded(operand, wanted, level):
            strides = [abs(flat.coefficient(s) or 0) if s is not None else 0 for s in inner]
            votes += value.type.size * ((strides[1] == 1) - (strides[0] == 1))
        return votes > 0


def _cut(side: Side) -> bool:
    """Whether a role's own part of a side may end within a tile although the whole does not."""
    return bool(side.axes) and owned(side.axes[0])


class _Guard:
    """A block for rows (or columns) that the role owns; entering gives the index as a variable of that block, so that
    nothing that depends on it is loaded before it is known to exist."""

    def __init__(self, frame: GpuFrame, side: Side, at: Affine) -> None:
        self.frame, self.side, self.at = frame, side, at
        self.context = frame.source.block(f"if {frame.source.index(at)} < {frame.source.index(side.high)}:")

    def __enter__(self) -> Affine:
        self.context.__enter__()
        return self.frame.variable(self.at, size(self.side.axes))

    def __exit__(self, *details: object) -> None:
        self.context.__exit__(None, None, None)
