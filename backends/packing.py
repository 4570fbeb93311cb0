"""The operands of a contraction: read where they lie if a register tile can be, else packed into scratch.

    rows       a tile reads one element of each of its rows per term. Packed: row after row, if they are computed along
               the terms; else tile after tile, term after term
    columns    a tile reads vectors of columns per term. Packed: one tile's columns, term after term

Packing pulls elements like every other kernel, so that whatever is inlined (windows, masks, casts) just works. Of a
plain operand, vectors are copied, or transposed in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from alphac.backends.evaluation import Array, Frame, Index, named, size
from alphac.backends.indexing import Affine, Symbol, number, symbol
from alphac.backends.printer import Handle
from alphac.backends.tiling import CHUNK, L1_SETS, L2_SETS, LEAF, LINE, WHOLE, Tile, Tiling, crowded
from alphac.ir.core import Value
from alphac.ir.schedule import View
from alphac.ir.typesys import Dim, DType

LARGE = 1 << 18  # bytes of a buffer that lies outside of the nearer caches
Put = Callable[[Index, Index, Affine, Affine], None]
_Runs = tuple[int, int]  # how many of the free axes, and of the summed ones, lie outside of a run


@dataclass(frozen=True)
class Side:
    """One operand, its free axes, and the range of them that this role owns."""

    operand: Value
    axes: list[Dim]
    low: Affine
    high: Affine

    @property
    def count(self) -> Affine:
        return self.high - self.low


@dataclass(frozen=True)
class Part:
    """Where a tile's elements of one operand are: row or column i and term k at `start` + `across` * i + `along` * k,
    terms counted from the first of the chunk."""

    name: str
    start: Affine
    across: int
    along: int


@dataclass(frozen=True)
class Place:
    """A plain operand in memory: the element of flat free index x and flat summed index k is at `start` + `across` x +
    `along` k of the view's buffer."""

    view: View
    start: Affine
    across: int
    along: int


class Packing:
    """Both operands of a contraction. `summed`: the contracted axes, the grain's with all its shards; `terms` of them
    are summed in one kernel; `batch`: any index of the batch's axes."""

    multiply = "multiply"  # what takes the operands so packed,
    pair = 1  # and how many terms at a time

    def __init__(
        self, frame: Frame, dtype: DType, rows: Side, columns: Side, summed: list[Dim], terms: int, tile: Tile,
        batch: list[Dim],
    ) -> None:  # fmt: skip
        self.frame, self.dtype, self.tile = frame, dtype, tile
        self.rows, self.columns, self.summed, self._terms = rows, columns, summed, terms
        self.arrays: dict[str, Array] = {}
        level = frame.source.level + 1
        index = {d.name: symbol(f"b_{d.name}", level, 0, d.size - 1) for d in batch}
        self._outer = self._rows_outside(index)
        self.rows_packed = not self._rows_suit(self._at(rows, index, number(0), self._outer), terms)
        self.columns_packed = not self._columns_suit(self._place(columns, index), terms)

    def _rows_outside(self, batch: Index) -> int:
        """How many axes of the rows lie outside of runs (of a stack over the layers of a loop, say, one example's rows)
        in which tiles of rows lie as a whole; 0 if the rows are one run, or none are."""
        axes, height = self.rows.axes, self.tile.rows
        for outer in range(len(axes)):
            whole = size(axes[outer:]) % height == 0 and self.rows.low % height == number(0)
            if (not outer or whole) and self._at(self.rows, batch, self.rows.low, outer) is not None:
                return outer
        return 0

    def _rows_suit(self, place: Place | None, terms: int) -> bool:
        """Whether rows are read in place: contiguous along the terms, or along the rows. Packing pays if the cache
        cannot hold what of them serves several tiles."""
        if place is None or not self.exact or (place.along != 1 and place.across != 1):
            return False
        if -(-size(self.columns.axes) // self.tile.columns) < 3:
            return True
        if place.along == 1:
            return not crowded(place.across * self.dtype.bytes, self.tile.rows, L1_SETS)
        return not crowded(place.along * self.dtype.bytes, terms, L2_SETS)

    def _columns_suit(self, place: Place | None, terms: int) -> bool:
        """Whether columns are read in place: contiguous along the columns. Packing pays if they serve many rows, unless
        they lie as well where they are: nearby, or in whole lines that the nearest cache can hold."""
        if place is None or place.across != 1 or place.along < 1:
            return False
        if not self.columns.count.is_constant and self.columns.count % self.tile.columns != number(0):
            return False
        if size(self.rows.axes) <= 4 * self.tile.rows:
            return True
        stride = place.along * self.dtype.bytes
        lines = min(terms, LEAF) * self.tile.columns * self.dtype.bytes // LINE
        if _bytes(place) < LARGE:
            return not crowded(stride, lines, L2_SETS)
        return stride % LINE == 0 and not crowded(stride, lines, L1_SETS)

    @property
    def exact(self) -> bool:
        """Whether the rows fill whole tiles, or the rest is known."""
        return self.rows.count.is_constant or self.rows.count % self.tile.rows == number(0)

    # ------------------------------------------------------------------ rows
    def rows_part(self, batch: Index, row: Affine, tile: Affine, first: Affine, plan: Tiling) -> Part:
        """Where number `tile` of a block's tiles of rows is, from flat summed index `first` on; `row`: the block's
        first."""
        if not self.rows_packed:
            return self._part(self.rows, batch, row + tile * self.tile.rows, first, self._outer)
        if self._rows_along_terms(batch):
            stride = plan.terms + LINE // self.dtype.bytes  # rows that begin in different sets of the cache
            array = self._array("rows", plan.rows * stride)
            return Part(array.name, tile * (stride * self.tile.rows), stride, 1)
        array = self._array("rows", plan.rows * plan.terms)
        return Part(array.name, tile * (self.tile.rows * plan.terms), 1, self.tile.rows)

    def pack_rows(
        self, batch: Index, row: Affine, tiles: tuple[Affine, Affine], first: Affine, terms: Affine, plan: Tiling
    ) -> None:
        """Pack a block's rows: tiles of the range `tiles`. `row`: the block's first."""
        frame, side, height = self.frame, self.rows, self.tile.rows
        start, stop = tiles
        part = self.rows_part(batch, row, number(0), first, plan)
        array = self.arrays["rows"]
        frame.source.line("# the rows")
        if part.along == 1:

            def put(free: Index, summed: Index, r: Affine, k: Affine) -> None:
                element = self._element(side, batch, free, summed)
                frame.put(array, (r - row) * part.across + (k - first), element)

            low = row + start * height
            count = self._least((stop - start) * height, side.high - low)
            self._fill(side, low, count, first, terms, True, put)
            return
        with frame.loop("m", start, stop, plan.rows // height) as m:
            low = row + m * height
            to = self.rows_part(batch, row, m, first, plan).start
            self._pack(array, to, side, batch, low, height, first, terms)

    def rows_ahead(self, batch: Index, row: Affine, first: Affine, tile: Affine) -> Part | None:
        """Where number `tile` of a block's tiles of rows is read in place: about a line of every term."""
        start, line = row + tile * self.tile.rows, LINE // self.dtype.bytes
        place = self._at(self.rows, batch, start, self._outer)
        if place is None or self.rows_packed or self.tile.rows > line or _bytes(place) < LARGE:
            return None
        part = self._part(self.rows, batch, start, first, self._outer)
        if place.across == 1:
            return replace(part, start=part.start + (self.tile.rows - 1))
        return replace(part, along=line) if place.along == 1 and place.across == self._terms else None

    def _rows_along_terms(self, batch: Index) -> bool:
        return self.tile.rows == 1 or size(self.rows.axes) == 1 or self._along_terms(self.rows, batch)

    # ------------------------------------------------------------------ columns
    def columns_part(self, batch: Index, column: Affine, first: Affine, plan: Tiling, panel: Affine) -> Part:
        """Where a tile's columns are, number `panel` of a strip, from flat column index `column` and flat summed index
        `first` on."""
        if not self.columns_packed:
            return self._part(self.columns, batch, column, first)
        each = self.tile.columns * plan.terms
        return Part(self._array("panel", each * max(1, plan.strip)).name, panel * each, 1, self.tile.columns)

    def pack_columns(
        self, batch: Index, column: Affine, first: Affine, terms: Affine, plan: Tiling, panel: Affine
    ) -> None:
        """Pack one tile's columns, number `panel` of a strip."""
        self.frame.source.line("# the columns of one tile")
        start = self.columns_part(batch, column, first, plan, panel).start
        self._pack(self.arrays["panel"], start, self.columns, batch, column, self.tile.columns, first, terms)

    def columns_ahead(self, batch: Index, column: Affine, first: Affine, lines: int) -> Part | None:
        """Where the next tile's columns come from, if that is plain memory: `across` apart are so many lines of one
        term, or as many that lie behind, and `along` those of the next."""
        place = self._place(self.columns, batch)
        line = LINE // self.dtype.bytes
        if place is None or _bytes(place) < LARGE:
            return None
        part = self._part(self.columns, batch, column + self.tile.columns, first)
        if place.across == 1:
            return replace(part, start=part.start + (line - 1), across=lines * line)
        if place.along == 1 and place.across == self._terms:
            return replace(part, across=lines * line * self._terms, along=lines * line)
        return None

    # ------------------------------------------------------------------ in place
    def _part(self, side: Side, batch: Index, start: Affine, first: Affine, outer: int = 0) -> Part:
        place = self._at(side, batch, start, outer)
        assert place is not None
        name = self.frame.names[id(place.view.buffer)]
        return Part(name, place.start + first * place.along, place.across, place.along)

    def _at(self, side: Side, batch: Index, start: Affine, outer: int = 0) -> Place | None:
        """The place from flat free index `start` on, within a run of all but the `outer` outermost free axes."""
        run, skip = number(0), start
        if outer:
            length = size(side.axes[outer:])
            run, skip = start // length, start % length
        place = self._place(side, batch, (outer, 0), (run, number(0)) if outer else ())
        return place and replace(place, start=place.start + skip * place.across)

    def _place(self, side: Side, batch: Index, runs: _Runs = (0, 0), at: tuple[Affine, ...] = ()) -> Place | None:
        """The operand's own memory, if it is a plain load of the dtype that is summed, with one stride per side; if
        the sides are cut into runs, of those with numbers `at`, of the free axes and the summed ones."""
        if side.operand.type.dtype != self.dtype:
            return None
        level = self.frame.source.level + 1
        (outer_free, inner_free), (outer, inner) = (
            (axes[:c], axes[c:]) for axes, c in zip((side.axes, self.summed), runs, strict=True)
        )
        free = Symbol("x0", level, 0, max(0, size(inner_free) - 1))
        term = Symbol("k0", level, 0, size(inner) - 1)
        x, k = (Affine(((v, 1),)) for v in (free, term))
        frees, summed = named(inner_free, x), named(inner, k)
        if at:
            frees |= named(outer_free, at[0])
            summed |= named(outer, at[1])
        found = self.frame.place(side.operand, self._index(side, batch, frees, summed))
        if found is None:
            return None
        view, flat = found
        across, along = flat.coefficient(free), flat.coefficient(term)
        if across is None or along is None:
            return None
        return Place(view, flat - x * across - k * along, across, along)

    def _index(self, side: Side, batch: Index, free: Index, summed: Index) -> dict[str, Affine]:
        index = {**batch, **free, **summed}
        return {n: index[n] for n in side.operand.type.names}

    def _element(self, side: Side, batch: Index, free: Index, summed: Index) -> Handle:
        element = self.frame.value(side.operand, self._index(side, batch, free, summed))
        return self.frame.k.cast(element, self.dtype)

    # ------------------------------------------------------------------ packed
    def _array(self, name: str, elements: int) -> Array:
        if name not in self.arrays:
            self.arrays[name] = self.frame.array(name, self.dtype, elements)
        return self.arrays[name]

    def _least(self, form: Affine, limit: Affine) -> Affine:
        """The lesser of two counts."""
        k = self.frame.k
        return k.affine(k.minimum(k.from_affine(form), k.from_affine(limit)))

    def _greatest(self, form: Affine, limit: Affine) -> Affine:
        """The greater of two counts."""
        k = self.frame.k
        return k.affine(k.maximum(k.from_affine(form), k.from_affine(limit)))

    def _pack(
        self, array: Array, to: Affine, side: Side, batch: Index, start: Affine, most: int, first: Affine, terms: Affine
    ) -> None:
        """Pack `most` rows or columns, fewer at the end, term after term."""
        frame = self.frame
        whole = side.count % most == number(0)
        count = number(most) if whole else frame.least(side.high - start, most)
        runs = self._runs(side, batch, most, first)
        if runs is not None:
            self._move_runs(array, to, side, batch, start, most, count, first, terms, runs)
            return

        def put(free: Index, summed: Index, x: Affine, k: Affine) -> None:
            element = self._element(side, batch, free, summed)
            frame.put(array, to + (k - first) * most + (x - start), element)

        self._fill(side, start, count, first, terms, self._along_terms(side, batch), put)

    def _moves(self, place: Place | None, most: int) -> bool:
        """Whether vectors of plain memory can be copied or transposed."""
        if place is None:
            return False
        return place.across == 1 or (place.along == 1 and most % self.tile.lanes == 0)

    def _runs(self, side: Side, batch: Index, most: int, first: Affine) -> _Runs | None:
        """How many of the free axes, and of the summed ones, lie outside of the runs that can be moved (of a stack over
        the layers of a loop, say, each example's terms; of heads, each one's rows); None if there are none, or chunks
        do not hold whole runs of terms."""
        level = self.frame.source.level + 1
        for split in range(max(1, len(side.axes))):
            for cut in range(len(self.summed)):
                length = size(self.summed[cut:])
                held = not cut or self._terms <= WHOLE or CHUNK % length == 0
                outer = (side.axes[:split], self.summed[:cut])
                at = tuple(symbol(f"o{i}", level, 0, size(axes) - 1) for i, axes in enumerate(outer))
                place = self._place(side, batch, (split, cut), at)
                alike = not split or (place is not None and place.across == 1)
                if held and alike and (not cut or first % length == number(0)) and self._moves(place, most):
                    return split, cut
        return None

    def _move_runs(
        self, array: Array, to: Affine, side: Side, batch: Index, start: Affine, most: int, count: Affine,
        first: Affine, terms: Affine, runs: _Runs,
    ) -> None:  # fmt: skip
        """Copy or transpose what a tile has of every run."""
        frame, (split, cut) = self.frame, runs
        width, length = size(side.axes[split:]), size(self.summed[cut:])
        pieces, turns = size(side.axes[:split]), size(self.summed[:cut])
        low, high = (start // width, (start + (count + (width - 1))) // width) if split else (number(0), number(1))
        with frame.loop("p", low, high, pieces) as piece:
            begin, skip, left = start, number(0), count
            if split:
                begin = self._greatest(start - piece * width, number(0))
                left = self._least(start + count - piece * width, number(width)) - begin
                skip = piece * width + begin - start
            run_low, run_high = (first // length, (first + terms) // length) if cut else (number(0), number(1))
            with frame.loop("o", run_low, run_high, turns) as run:
                place = self._place(side, batch, runs, (piece, run))
                assert place is not None
                there, span = (to + (run * length - first) * most, number(length)) if cut else (to, terms)
                behind = begin * place.across + (number(0) if cut else first * place.along)
                self._move(array, there + skip, place, behind, most, left, span)

    def _move(
        self, array: Array, to: Affine, place: Place, skip: Affine, most: int, count: Affine, terms: Affine
    ) -> None:
        """Copy or transpose vectors from `skip` elements behind a place on. A copy writes no more than it is told, so
        that pieces may lie side by side; a transposition fills the whole tile."""
        index = self.frame.source.index
        function, stride = f"copy_{most}", place.along
        if place.across != 1:
            function, stride = f"transpose_{most // self.tile.lanes}", place.across
        name = self.frame.names[id(place.view.buffer)]
        self.frame.source.line(
            f"{function}({array.name}, address({array.name}, {index(to)}), address({name},"
            f" {index(place.start + skip)}), {stride}, {index(count)}, {index(terms)})"
        )

    def _fill(
        self, side: Side, start: Affine, count: Affine, first: Affine, terms: Affine, by_terms: bool, put: Put
    ) -> None:
        """Run `put` for all elements of an operand's part, the side along which they are contiguous innermost."""
        over = self.frame.over
        if by_terms:

            def row(free: Index, x: Affine) -> None:
                over(self.summed, first, terms, lambda summed, k: put(free, summed, x, k))

            over(side.axes, start, count, row, run=size(side.axes))
        else:

            def term(summed: Index, k: Affine) -> None:
                over(side.axes, start, count, lambda free, x: put(free, summed, x, k))

            over(self.summed, first, terms, term, run=size(self.summed))

    def _along_terms(self, side: Side, batch: Index) -> bool:
        """Whether most of what an operand is made of lies contiguous along the summed axes rather than the free
        ones."""
        frame = self.frame
        level = frame.source.level + 1
        parts = (side.axes, self.summed)
        symbols = [[Symbol(f"x{i}_{d.name}", level, 0, d.size - 1) for d in part] for i, part in enumerate(parts)]
        free, summed = (
            {d.name: Affine(((s, 1),)) for d, s in zip(part, names, strict=True)}
            for part, names in zip(parts, symbols, strict=True)
        )
        index = self._index(side, batch, free, summed)
        inner = [next((s for s in reversed(part) if s.high > 0), None) for part in symbols]
        votes = 0
        for value, flat in frame.loaded(side.operand, index, level):
            strides = [abs(flat.coefficient(s) or 0) if s is not None else 0 for s in inner]
            votes += value.type.size * ((strides[1] == 1) - (strides[0] == 1))
        return votes > 0


def _bytes(place: Place) -> int:
    type_ = place.view.buffer.type
    return type_.size * type_.dtype.bytes
