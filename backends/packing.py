"""The operands of a contraction's block: read where they lie if a register tile can be, else packed into scratch.

    rows       a tile reads one element of each of its rows per term: side by side along the terms, or along the rows
    columns    a tile reads vectors of columns per term: panels of one tile's columns, term after term

Packing pulls elements like every other kernel, so that whatever is inlined (windows, masks, casts) just works. A plain
operand whose columns lie along the terms is transposed in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alphac.backends.evaluation import Array, Frame, Index, named, size
from alphac.backends.indexing import Affine, Symbol, number
from alphac.backends.tiling import Tiling
from alphac.ir.core import Value
from alphac.ir.schedule import View
from alphac.ir.typesys import Dim, DType

Put = Callable[[Index, Index, Affine, Affine], None]


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
class Block:
    """The part of the result being made: rows from `row`, columns from `column` on (flat indices over their axes)."""

    batch: Index
    row: Affine
    rows: Affine
    column: Affine
    columns: Affine


@dataclass(frozen=True)
class Part:
    """Where a block's elements of one operand are: `start` + `across` * (row or column) + `along` * term, counted
    from the first that are packed; columns: `panel` elements from one tile's to the next tile's."""

    name: str
    start: Affine
    across: int
    along: int
    panel: int = 0


@dataclass(frozen=True)
class Place:
    """A plain operand in memory: the element of flat free index x and flat summed index k is at `start` + `across` x +
    `along` k of the view's buffer."""

    view: View
    start: Affine
    across: int
    along: int


class Packing:
    """Both operands of a contraction. `summed`: the contracted axes, the grain's with all its shards."""

    def __init__(self, frame: Frame, dtype: DType, rows: Side, columns: Side, summed: list[Dim], plan: Tiling) -> None:
        self.frame, self.dtype = frame, dtype
        self.rows, self.columns, self.summed = rows, columns, summed
        self.plan = plan
        self.arrays: dict[str, Array] = {}

    def parts(self, block: Block, first: Affine, terms: Affine, group: str | None) -> tuple[Part, Part]:
        """Where the rows' and the columns' operands are, for `terms` terms from the flat summed index `first` on.
        `group`: a variable that is the same while columns packed earlier serve again."""
        rows = self._rows_in_place(block, first)
        columns = self._columns_in_place(block, first)
        if columns is None:
            columns = self._packed_columns(block, first, terms, group)
        if rows is None:
            rows = self._packed_rows(block, first, terms)
        return rows, columns

    # ------------------------------------------------------------------ in place
    def _rows_in_place(self, block: Block, first: Affine) -> Part | None:
        """Contiguous along the terms; or along the rows, if these fill whole tiles."""
        place = self._place(self.rows, block.batch)
        whole = self.rows.count % self.plan.tile_rows == number(0)
        if place is None or not (place.along == 1 or (place.across == 1 and whole)):
            return None
        return self._part(place, block.row, first)

    def _columns_in_place(self, block: Block, first: Affine) -> Part | None:
        """Contiguous along the columns, which fill whole tiles. Packing pays if the terms are far apart and a panel
        serves many rows."""
        place, plan = self._place(self.columns, block.batch), self.plan
        if place is None or place.across != 1 or place.along < 1 or self.columns.count % plan.tile_columns != number(0):
            return None
        if size(self.rows.axes) > 2 * plan.rows and place.along > 8 * plan.tile_columns:
            return None
        return self._part(place, block.column, first)

    def _part(self, place: Place, start: Affine, first: Affine) -> Part:
        at = place.start + start * place.across + first * place.along
        name = self.frame.names[id(place.view.buffer)]
        return Part(name, at, place.across, place.along, self.plan.tile_columns * place.across)

    def _place(self, side: Side, batch: Index) -> Place | None:
        """The operand's own memory, if it is a plain load of the dtype that is summed, with one stride per side."""
        if side.operand.type.dtype != self.dtype:
            return None
        level = self.frame.source.level + 1
        free = Symbol("x0", level, 0, max(0, size(side.axes) - 1))
        term = Symbol("k0", level, 0, size(self.summed) - 1)
        x, k = (Affine(((v, 1),)) for v in (free, term))
        found = self.frame.place(side.operand, self._index(side, batch, named(side.axes, x), named(self.summed, k)))
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

    # ------------------------------------------------------------------ packed
    def _array(self, name: str, elements: int) -> Array:
        if name not in self.arrays:
            self.arrays[name] = self.frame.array(name, self.dtype, elements)
        return self.arrays[name]

    def _packed_rows(self, block: Block, first: Affine, terms: Affine) -> Part:
        plan, side = self.plan, self.rows
        stride = plan.terms + 16  # rows that begin in different sets of the cache
        array = self._array("rows", plan.rows * stride)
        by_terms = self._along_terms(side, block.batch) or size(side.axes) == 1
        across, along = (stride, 1) if by_terms else (1, plan.rows)

        def put(free: Index, summed: Index, r: Affine, k: Affine) -> None:
            element = self.frame.value(side.operand, self._index(side, block.batch, free, summed))
            at = (r - block.row) * across + (k - first) * along
            self.frame.put(array, at, self.frame.k.cast(element, self.dtype))

        self.frame.source.line("# the rows")
        self._fill(side, block.row, block.rows, first, terms, by_terms, put)
        return Part(array.name, number(0), across, along)

    def _packed_columns(self, block: Block, first: Affine, terms: Affine, group: str | None) -> Part:
        frame, plan = self.frame, self.plan
        width, panel = plan.tile_columns, plan.tile_columns * plan.terms
        array = self._array("panel", plan.columns * plan.terms)
        place = self._place(self.columns, block.batch)
        by_terms = self._along_terms(self.columns, block.batch)

        def pack() -> None:
            frame.source.line("# the columns of one tile side by side")
            with frame.loop("p", number(0), (block.columns + (width - 1)) // width, plan.columns // width) as p:
                start = block.column + p * width
                count = frame.least(block.column + block.columns - start, width)
                if place is not None and place.along == 1:
                    self._transpose(array, p * panel, self._part(place, start, first), count, terms)
                else:
                    self._fill_panel(array, p * panel, block, (start, count), (first, terms), by_terms)

        if group is None:
            pack()
        else:
            with frame.source.block(f"if {group} != packed:"):
                frame.source.line(f"packed = {group}")
                pack()
        return Part(array.name, number(0), 1, width, panel)

    def _transpose(self, array: Array, to: Affine, part: Part, count: Affine, terms: Affine) -> None:
        index = self.frame.source.index
        self.frame.source.line(
            f"transpose_{self.plan.vectors}({array.name}, address({array.name}, {index(to)}),"
            f" address({part.name}, {index(part.start)}), {part.across}, {index(count)}, {index(terms)})"
        )

    def _fill_panel(
        self,
        array: Array,
        to: Affine,
        block: Block,
        columns: tuple[Affine, Affine],
        terms: tuple[Affine, Affine],
        by_terms: bool,
    ) -> None:
        side = self.columns

        def put(free: Index, summed: Index, c: Affine, k: Affine) -> None:
            element = self.frame.value(side.operand, self._index(side, block.batch, free, summed))
            at = to + (k - terms[0]) * self.plan.tile_columns + (c - columns[0])
            self.frame.put(array, at, self.frame.k.cast(element, self.dtype))

        self._fill(side, *columns, *terms, by_terms, put)

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
