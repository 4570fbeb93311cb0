"""Contractions with windows, without storing the windows: every element of these lies somewhere in memory, where the
rows of a tile are a fixed way apart, and so are the terms of every row. The canonical order is contraction.py's.

    rows      (…, i, j) of an image's places, or (…, di, c) of a kernel's
    terms     two tables say where a term's element is, in the windows and in the other operand
    columns   side by side in memory, or packed

A thread takes row tiles, many at a time:

    for every leaf of 256 terms:  for every tile:  multiply(…), merged with earlier leaves, into `tile`
    epilogue                      the stored values from `tile`, by rows

Tiles at the edge of an image with zeros around it leave out the terms that multiply these (window_tiles.py), if what
they would be multiplied with is finite; where a sum might have another bit than with them, it is computed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, product

from alphac.backends.evaluation import Array, Axes, Frame, Index, named, owned, physical, size
from alphac.backends.indexing import Affine, Symbol, number, symbol
from alphac.backends.reduction import Nodes
from alphac.backends.simd_windows import all_finite, multiply_inside, multiply_windows
from alphac.backends.tiling import LEAF, vector_width
from alphac.backends.window_tiles import Level, Part, Rows, Run
from alphac.ir.core import Op, Value
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.ops.define import definition
from alphac.ir.ops.rules import attribute, number_attribute
from alphac.ir.typesys import BF16, I32, I64, SHARD, Dim

ALONE = 1 << 15  # terms in all; fewer are left to thread 0
TABLE = 8192  # terms, at most, whose places are in the tables
PACKED = 1 << 18  # elements, at most, that are packed
BLOCK = 8 << 10  # bytes of a block's tiles
STACK = 384 << 10  # and of all their partial sums
FARTHEST = 1 << 31  # entries of a table are less
MANY = 1 << 31
EDGES = 3  # ranges of rows, at most, along one axis that differ in what they read outside of an image


def windows_in_memory(frame: Frame, op: Op, combine: Op | None) -> WindowProduct | None:
    """The kernel of a contraction, alone or under a combine, if an operand is windows that lie in memory and this form
    suits it."""
    for slid, other in (op.operands, op.operands[::-1]):
        if _is_windows(frame, slid):
            product = WindowProduct(frame, op, combine, slid, other)
            return product if product.suits() else None
    return None


def _is_windows(frame: Frame, value: Value) -> bool:
    while value not in frame.kernel.reads and value.op is not None and definition(value.op).shape == "index":
        if value.op.name == "window":
            return True
        if len(value.op.operands) != 1:
            return False
        (value,) = value.op.operands
    return False


# ---------------------------------------------------------------------- where elements are
@dataclass(frozen=True)
class _Lattice:
    """Where an operand is in memory: element x is at `start` + the sum of strides · x."""

    name: str
    start: Affine
    strides: dict[str, int]

    def offset(self, index: Index) -> Affine:
        """How far an element is from the one with index 0 along these axes."""
        found = number(0)
        for name, at in index.items():
            found = found + at * self.strides.get(name, 0)
        return found

    def reach(self, axes: Axes) -> int:
        """How far the elements along some axes are apart, at most."""
        return sum(abs(self.strides.get(d.name, 0)) * (d.size - 1) for d in axes)


def _levels(axes: Axes, lattice: _Lattice) -> list[Level]:
    """The axes in as few levels as possible, outermost first; the grain's axis stays alone."""
    found: list[Level] = []
    for d in reversed(axes):
        stride, inner = lattice.strides[d.name], found[0] if found else None
        if d.size == 1 and not owned(d):
            continue
        if inner is not None and not owned(d) and stride == inner.count * inner.stride:
            found[0] = Level((d, *inner.axes), d.size * inner.count, inner.stride)
        else:
            found.insert(0, Level((d,), d.size, stride))
    return found


# ---------------------------------------------------------------------- the kernel
class WindowProduct:
    """A contraction of windows `slid` with another operand."""

    def __init__(self, frame: Frame, op: Op, combine: Op | None, slid: Value, other: Value) -> None:
        self.frame, self.op, self.combine, self.slid, self.other = frame, op, combine, slid, other
        self.source = frame.source
        self.dtype = op.result.type.dtype
        axes = [d for d in physical(op.result.type) if not (combine is not None and d.name == SHARD)]
        self.batch = [d for d in axes if slid.type.has(d.name) == other.type.has(d.name)]
        self.rows = [d for d in axes if d not in self.batch and slid.type.has(d.name)]
        self.columns = [d for d in axes if d not in self.batch and other.type.has(d.name)]
        self.summed = contracted_axes(op)
        self.grain = next((d for d in self.summed if d.shards), None)
        self.shards = self.grain.shards if self.grain is not None else 1
        if self.grain is not None:  # a shard's own rows
            self.summed[0] = Dim(self.grain.name, self.grain.size // self.shards)
        self.terms = size(self.summed)
        self.leaves = -(-self.terms // LEAF)

    def suits(self) -> bool:
        """Whether the form suits the shape, and the windows lie in memory; plans the kernel."""
        width = vector_width(self.dtype.bytes, self.frame.target)
        if self.dtype == BF16 or 2 * size(self.columns) < width or self.terms == 1:
            return False
        batch = {d.name: symbol(f"b_{d.name}", self.source.level, 0, d.size - 1) for d in self.batch}
        left, right = self._lattice(self.slid, batch), self._lattice(self.other, batch)
        if left is None or any(left.strides[d.name] < 0 for d in self.rows):
            return False
        self._plan(left, right)
        return all(x.reach(self.summed) < FARTHEST for x in (left, right) if x is not None)

    def _plan(self, left: _Lattice, right: _Lattice | None) -> None:
        """Tiles, blocks of them, and how many terms are prepared at a time."""
        target, bytes_ = self.frame.target, self.dtype.bytes
        levels = [x for x in _levels(self.rows, left) if not any(owned(d) for d in x.axes)]
        self.outer, self.inner = [Level(), Level(), *levels][-2:]
        tiled = (*self.outer.axes, *self.inner.axes)
        self.rest = [d for d in self.rows if d not in tiled and (d.size > 1 or owned(d))]
        self.ones = {d.name: number(0) for d in self.rows if d not in (*tiled, *self.rest)}
        rows = Rows(self.outer, self.inner, size(self.columns), bytes_, target)
        self.parts = [rows.whole()]
        self.width = self.parts[0].tile.vectors * vector_width(bytes_, target)
        self.panels = -(-size(self.columns) // self.width)
        self.row = self.panels * self.width  # elements from a row of `tile` to the next
        self.in_place = right is not None and self._side_by_side(right)
        most = TABLE if self.in_place else min(TABLE, PACKED // self.row)
        self.chunk = self.terms if self.terms <= most else min(self.terms, max(1, most // LEAF) * LEAF)
        # Shards may lie unaligned in their tree: at most twice as deep a stack.
        sums = self.leaves * self.shards**2 if self.combine is not None else self.leaves
        self.slots = sums.bit_length() + (sums > 1)
        alike = right is not None and all(right.strides.get(d.name, 0) >= 0 for d in (*self.columns, *self.summed))
        if self.combine is None and self.in_place and alike and self.chunk == self.terms and self.dtype.is_float:
            self.parts = rows.cut(self.summed, self._runs())

    def _block_of(self, part: Part) -> int:
        """How many tiles of a part wait together."""
        fitting = min(BLOCK, STACK // self.slots) // (part.tile.height * self.row * self.dtype.bytes)
        return max(1, min(fitting, size(self.rest) * part.tiles))

    def _slot(self, part: Part) -> int:
        """Elements of their partial sums."""
        return self._block_of(part) * part.tile.height * self.row

    def _choose(self, part: Part, fewer: _Fewer | None) -> None:
        """Go on with a part."""
        self.part, self.fewer = part, fewer
        self.block, self.slot = self._block_of(part), self._slot(part)

    def _runs(self) -> dict[str, list[Run]]:
        """By axes of rows: along which terms an image with zeros around it is met inside."""
        level = self.source.level + 1
        symbols = {d.name: Symbol(f"x_{d.name}", level, 0, d.size - 1) for d in self.slid.type.dims}
        found = self.frame.located(self.slid, {n: Affine(((s, 1),)) for n, s in symbols.items()})
        runs: dict[str, list[Run]] = {}
        value, index = found or (self.slid, {})
        dims = value.type.dims
        while value.op is not None and value.op.name == "pad":
            attributes = value.op.attributes
            to, low = attribute(attributes, "to", Dim), attribute(attributes, "low", int)
            if to in dims and number_attribute(attributes, "value") == 0:
                inside = range(low, to.size - attribute(attributes, "high", int))
                self._met(index[to.name], symbols, inside, runs)
            (value,) = value.op.operands
        return runs

    def _met(self, at: Affine, symbols: dict[str, Symbol], inside: range, runs: dict[str, list[Run]]) -> None:
        """Which terms of an axis read an index inside, for every row of another."""
        here = {n: c for n, s in symbols.items() if (c := at.coefficient(s))}
        rows = [d for d in self.rows if d.name in here]
        terms = [d for d in self.summed if d.name in here]
        if len(rows) != 1 or len(terms) != 1 or len(at.terms) != 2:
            return
        (row,), (term,) = rows, terms
        found: list[Run] = []
        for r in range(row.size):
            start = at.constant + here[row.name] * r
            met = [k for k in range(term.size) if start + here[term.name] * k in inside]
            if not met or len(found) > EDGES:
                return
            ends = met[0], met[-1] + 1
            if found and found[-1].terms == ends:
                found[-1] = replace(found[-1], stop=r + 1)
            else:
                found.append(Run(r, r + 1, term.name, ends))
        runs[row.name] = found

    def _side_by_side(self, right: _Lattice) -> bool:
        """Whether the other operand's columns can be read where they are, whole vectors of them."""
        contiguous = all(x.stride == 1 for x in _levels(self.columns, right)[-1:])
        return contiguous and len(_levels(self.columns, right)) < 2 and size(self.columns) % self.width == 0

    def _lattice(self, value: Value, batch: Index) -> _Lattice | None:
        """Where an operand is for given batch indices, if it is plainly loaded, at a fixed way per step of an axis."""
        level = self.source.level + 1
        axes = [d.name for d in (*self.rows, *self.columns, *self.summed) if value.type.has(d.name)]
        symbols = {n: Symbol(f"x_{n}", level, 0, value.type.dim(n).size - 1) for n in axes}
        index = {**batch, **{n: Affine(((s, 1),)) for n, s in symbols.items()}}
        found = self.frame.place(value, {n: index[n] for n in value.type.names})
        if found is None:
            return None
        view, flat = found
        strides: dict[str, int] = {}
        for name, variable in symbols.items():
            stride = flat.coefficient(variable)
            if stride is None:
                return None
            strides[name] = stride
        for name, stride in strides.items():
            flat = flat - index[name] * stride
        return _Lattice(self.frame.names[id(view.buffer)], flat, strides)

    # ------------------------------------------------------------------ the loop over blocks of tiles
    def emit(self) -> None:
        frame, source = self.frame, self.source
        lanes = frame.target.lanes
        for part in self.parts:
            frame.intrinsics[part.tile.name] = multiply_windows(part.tile, lanes)
            if part.terms:
                frame.intrinsics[part.tile.inside] = multiply_inside(part.tile, lanes)
                frame.intrinsics["all_finite"] = all_finite(lanes)
        self.sums = frame.array("tile", self.dtype, self.slots * max(map(self._slot, self.parts)))
        self.tables = [frame.array(name, I32, self.chunk) for name in ("left", "right")]
        fewer = [self._made_fewer(part) if part.terms else None for part in self.parts]
        self.panel = None if self.in_place else frame.array("panel", self.dtype, self.chunk * self.row)
        small = frame.alone = size(self.batch) * size(self.rows) * size(self.columns) * self.terms <= ALONE
        start, stop = frame.owned_range(self.batch)
        with (
            source.block("if thread == 0:") if small else nullcontext(),
            frame.loop("b", start, stop, size(self.batch)) as b,
        ):
            batch = named(self.batch, b)
            if self.chunk == self.terms:
                self._fill_tables(batch, number(0), number(self.terms))
                if self.grain is None:
                    self._pack(batch, None, number(0), number(self.terms))
            if any(fewer):
                self.finite = self._all_finite(batch)
            for part, some in zip(self.parts, fewer, strict=True):
                self._choose(part, some)
                if some is not None:
                    self._fill_fewer(batch, some)
                self._tiles(batch, shared=not small)

    def _tiles(self, batch: Index, shared: bool) -> None:
        """The tiles of a part, block by block."""
        frame, source = self.frame, self.source
        low, high = (x * self.part.tiles for x in frame.owned_range(self.rest))
        bound = size(self.rest) * self.part.tiles
        if shared:
            low, high = frame.share(low, high, bound)
        name = source.name("n")
        with source.block(f"for {name} in range({source.index(low)}, {source.index(high)}, {self.block}):"):
            first = symbol(name, source.level, 0, bound - 1)
            count = number(1) if self.block == 1 else frame.least(high - first, self.block)
            self._block(_Block(batch, first, count))

    def _block(self, block: _Block) -> None:
        if self.combine is None:
            shard = block.batch[SHARD] if self.grain is not None else None
            self._shard(block, shard, number(0), "0")
            self._elements(block, self._finish)
            return
        frame, source, nodes = self.frame, self.source, Nodes(self.frame, self.combine)
        source.line("top = 0")
        with frame.loop("s", frame.first, frame.first + frame.shards, MANY) as shard:
            depth, merges = source.name("d"), source.name("n")
            source.line(f"{depth} = top")
            source.line(f"{merges} = merge[{source.index(shard - frame.first)}]")
            self._shard(block, shard, symbol(depth, source.level, 0, 64), merges)
            source.line(f"top += 1 - {merges}")
        full = source.name("n")
        source.line(f"{full} = top")
        with frame.loop("s", number(0), symbol(full, source.level, 0, 64), 64) as slot:

            def put(index: Index, at: Affine) -> None:
                nodes.store(slot * nodes.slot, index, frame.scratch_element(self.sums, slot * self.slot + at))

            self._elements(block, put)

    def _finish(self, index: Index, at: Affine) -> None:
        result = self.frame.scratch_element(self.sums, at)
        self.frame.results[self.op.result] = lambda _: result
        self.frame.store_all(index)

    def _shard(self, block: _Block, shard: Affine | None, base: Affine, merges: str) -> None:
        """All terms of one shard. `base`: slots in use; `merges`: how often its sum is merged with earlier shards'."""
        with self.frame.loop("k", number(0), number(-(-self.terms // self.chunk)), self.terms) as chunk:
            first = chunk * self.chunk
            count = self.frame.least(number(self.terms) - first, self.chunk)
            if self.chunk < self.terms:
                self._fill_tables(block.batch, first, count)
            if self.chunk < self.terms or self.grain is not None:
                self._pack(block.batch, shard, first, count)
            self._leaves(block, shard, first, base, merges)

    def _leaves(self, block: _Block, shard: Affine | None, first: Affine, base: Affine, merges: str) -> None:
        """Every tile of a block, for the leaves that begin in the chunk at `first`."""
        frame, source = self.frame, self.source
        start = first // LEAF
        stop = frame.least(start + -(-self.chunk // LEAF), self.leaves)
        source.line("# leaf by leaf, tile by tile")
        with (
            frame.loop("p", number(0), number(self.panels), self.panels) as panel,
            frame.loop("l", start, stop, self.leaves) as leaf,
        ):
            terms = frame.least(number(self.terms) - leaf * LEAF, LEAF)
            slot, times = self._merging(leaf, base, merges)
            left, right = self._lattices(block.batch)
            inside = self._global({}, shard)
            if right is None:
                assert self.panel is not None
                name, columns = self.panel.name, panel * (self.chunk * self.width)
            else:
                name, columns = right.name, right.start + right.offset(inside) + panel * self.width
            index = source.index
            tables = [f"address({t.name}, {index(leaf * LEAF - first)})" for t in self.tables]
            if self.fewer is not None:
                begun, count = self._some(self.fewer, leaf)
            with frame.loop("t", number(0), block.count, self.block) as t:
                rows, outer, inner = self._tile(block.first + t)
                corner = self._index(rows, outer.start, inner.start)
                begin = left.start + left.offset({**corner, **inside})
                place = slot * self.slot + t * (self.part.tile.height * self.row) + panel * self.width

                def multiply(function: str, terms: str, tables: Sequence[str], more: str = "") -> str:
                    return (
                        f"{function}({self.sums.name}, {terms}, address({left.name}, {index(begin)}), {tables[0]},"
                        f" address({name}, {index(columns)}), {tables[1]},"
                        f" address({self.sums.name}, {index(place)}), {self.row}, {self.slot}, {times}{more})"
                    )

                all_ = multiply(self.part.tile.name, index(terms), tables)
                if self.fewer is None:
                    source.line(all_)
                else:
                    places = [f"address({t.name}, {begun})" for t in self.fewer.tables]
                    refused = source.name("n")
                    some = multiply(self.part.tile.inside, count, places, f", {self.finite}")
                    source.line(f"{refused} = {some}")
                    with source.block(f"if {refused} != 0:"):
                        source.line(all_)

    def _merging(self, leaf: Affine, base: Affine, merges: str) -> tuple[Affine, str]:
        """The slot on which a leaf's sum is pushed, and how often it is merged with those below."""
        source = self.source
        if self.leaves == 1:
            return base, merges
        text = source.index(leaf)
        depth = symbol(source.define(f"popcount({text})", source.level, "n"), source.level, 0, 64)
        times = source.define(f"merges_after({text}, {self.leaves})", source.level, "n")
        if merges != "0":
            times = f"{times} + select({text} == {self.leaves - 1}, {merges}, 0)"
        return base + depth, times

    # ------------------------------------------------------------------ rows of a tile
    def _tile(self, number_: Affine) -> tuple[Affine, _Span, _Span]:
        """Of a tile: the rest's index, and its rows of both levels. A last tile that would reach beyond its level
        starts earlier; the rows it shares with the tile before it are stored by that one."""
        part = self.part
        position = number_ % part.tiles
        return (
            number_ // part.tiles,
            self._span(position // part.across, part.tile.outer, part.outer),
            self._span(position % part.across, part.tile.inner, part.inner),
        )

    def _span(self, tile: Affine, height: int, rows: tuple[int, int]) -> _Span:
        (first, count), low = rows, tile * height
        ends = (self.frame.least(low, count - height), low, self.frame.least(low + height, count))
        return _Span(*(end + first for end in ends))

    def _index(self, rest: Affine, outer: Affine, inner: Affine) -> Index:
        levels = ((self.rest, rest), (self.outer.axes, outer), (self.inner.axes, inner))
        found = dict(self.ones)
        for axes, flat in levels:
            found |= named(axes, flat)
        return found

    def _elements(self, block: _Block, body: Callable[[Index, Affine], None]) -> None:
        """Run `body(index, place in a slot)` for all elements of a block, the result's innermost axis innermost."""
        frame = self.frame
        self.source.line("# what is stored")
        with frame.loop("t", number(0), block.count, self.block) as t:
            rest, outer, inner = self._tile(block.first + t)

            def row(each: Callable[[Index, Affine], None]) -> None:
                with (
                    frame.loop("r", outer.low, outer.high, self.outer.count) as o,
                    frame.loop("r", inner.low, inner.high, self.inner.count) as i,
                ):
                    r = (o - outer.start) * self.part.tile.inner + (i - inner.start) + t * self.part.tile.height
                    each(self._index(rest, o, i), r * self.row)

            def column(each: Callable[[Index, Affine], None]) -> None:
                frame.over(self.columns, number(0), number(size(self.columns)), each)

            def element(x: Index, at: Affine) -> Callable[[Index, Affine], None]:
                return lambda y, also: body({**block.batch, **x, **y}, at + also)

            if self.columns[-1] is physical(self.op.result.type)[-1]:
                row(lambda x, at: column(element(x, at)))
            else:
                column(lambda x, at: row(element(x, at)))

    # ------------------------------------------------------------------ tables and packing
    def _fill_tables(self, batch: Index, first: Affine, count: Affine) -> None:
        """Where the elements of `count` terms from `first` on are, in both operands."""
        frame = self.frame
        left, right = self._lattices(batch)

        def put(index: Index, k: Affine) -> None:
            other = right.offset(index) if right is not None else (k - first) * self.width
            for table, place in zip(self.tables, (left.offset(index), other), strict=True):
                frame.put(table, k - first, frame.k.cast(frame.k.from_affine(place), I32))

        self.source.line("# where a term's elements are")
        frame.over(self.summed, first, count, put)

    def _made_fewer(self, part: Part) -> _Fewer:
        """Memory for the tables of a part's terms. Leaves are counted among all terms."""
        starts = [0] * (self.leaves + 1)
        ranges = [range(*part.terms.get(d.name, (0, d.size))) for d in self.summed]
        for index in product(*ranges):
            flat = 0
            for d, i in zip(self.summed, index, strict=True):
                flat = flat * d.size + i
            starts[flat // LEAF + 1] += 1
        count = sum(starts)
        tables = [self.frame.array(name, I32, count) for name in ("left", "right")]
        return _Fewer(tables, self.frame.array("starts", I64, self.leaves + 1), list(accumulate(starts)), part.terms)

    def _fill_fewer(self, batch: Index, fewer: _Fewer) -> None:
        """Where the elements of a part's terms are, and which of them a leaf begins with."""
        frame = self.frame
        left, right = self._lattices(batch)
        assert right is not None
        for leaf, start in enumerate(fewer.counts):
            frame.put(fewer.starts, number(leaf), frame.k.const(start, I64))
        lows = {d.name: fewer.terms.get(d.name, (0, d.size)) for d in self.summed}

        def put(index: Index, k: Affine) -> None:
            at = {n: i + lows[n][0] for n, i in index.items()}
            for table, place in zip(fewer.tables, (left.offset(at), right.offset(at)), strict=True):
                frame.put(table, k, frame.k.cast(frame.k.from_affine(place), I32))

        self.source.line("# where they are of the terms inside the image")
        axes = [Dim(n, stop - start) for n, (start, stop) in lows.items()]
        frame.over(axes, number(0), number(size(axes)), put)

    def _some(self, fewer: _Fewer, leaf: Affine) -> tuple[str, str]:
        """Of a leaf, the first of a part's terms and how many."""
        source = self.source
        begin, end = (f"{fewer.starts.name}[{source.index(x)}]" for x in (leaf, leaf + 1))
        names = source.name("n"), source.name("n")
        source.line(f"{names[0]} = {begin}")
        source.line(f"{names[1]} = {end} - {names[0]}")
        return names

    def _all_finite(self, batch: Index) -> str:
        """Whether all that windows are multiplied with is finite."""
        _, right = self._lattices(batch)
        assert right is not None
        axes = (*self.columns, *self.summed)
        inside = self._global({}, batch[SHARD] if self.grain is not None else None)
        start, count = right.start + right.offset(inside), right.reach(axes) + 1
        index = self.source.index
        name = self.source.name("n")
        self.source.line(f"{name} = all_finite({self.sums.name}, address({right.name}, {index(start)}), {count})")
        return name

    def _pack(self, batch: Index, shard: Affine | None, first: Affine, count: Affine) -> None:
        """The other operand's columns for some terms, unless they are read in place: panels of one tile's columns, term
        after term."""
        frame, array = self.frame, self.panel
        if array is None:
            return
        self.source.line("# the columns of one tile side by side")
        with frame.loop("p", number(0), number(self.panels), self.panels) as panel:
            start = panel * self.width
            columns = frame.least(number(size(self.columns)) - start, self.width)

            def term(summed: Index, k: Affine) -> None:
                to = panel * (self.chunk * self.width) + (k - first) * self.width

                def column(free: Index, c: Affine) -> None:
                    index = {**batch, **free, **self._global(summed, shard)}
                    element = frame.value(self.other, {n: index[n] for n in self.other.type.names})
                    frame.put(array, to + (c - start), element)

                frame.over(self.columns, start, columns, column)

            frame.over(self.summed, first, count, term, run=self.terms)

    def _global(self, summed: Index, shard: Affine | None) -> Index:
        """Indices of summed axes, the grain's counted within a shard, as they are in the operands."""
        if self.grain is None or shard is None:
            return summed
        start = shard * (self.grain.size // self.shards)
        return {**summed, self.grain.name: start + summed.get(self.grain.name, number(0))}

    def _lattices(self, batch: Index) -> tuple[_Lattice, _Lattice | None]:
        """Where both operands are; of the second, None if it is packed."""
        left = self._lattice(self.slid, batch)
        assert left is not None
        return left, self._lattice(self.other, batch) if self.in_place else None


@dataclass(frozen=True)
class _Fewer:
    """The terms of a part: where their elements are, with which of them every leaf starts, and that as numbers."""

    tables: list[Array]
    starts: Array
    counts: list[int]
    terms: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class _Block:
    """Row tiles `first` … `first` + `count`."""

    batch: Index
    first: Affine
    count: Affine


@dataclass(frozen=True)
class _Span:
    """A tile's rows along one level: the tile begins at `start`; it stores `low` … `high`."""

    start: Affine
    low: Affine
    high: Affine
