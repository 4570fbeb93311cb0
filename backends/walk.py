"""The order in which a thread makes the register tiles of a product: a range of all of them, outermost the batch, then
blocks of rows. Of a block,

    by columns   one tile's columns after the other; for each, all tiles of rows
    by strips    strips of columns whose terms the cache holds; of a strip, for one tile of rows after the other all
                 tiles of columns: results are then written from left to right, which the hardware foresees
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alphac.backends.evaluation import Index, named, size
from alphac.backends.indexing import Affine, number, symbol
from alphac.backends.printer import Source
from alphac.backends.tile_calls import MANY
from alphac.ir.typesys import SHARD

if TYPE_CHECKING:
    from alphac.backends.contraction import Contraction

ALONE = 1 << 15  # terms in all; fewer are left to thread 0
RUN = 16  # tiles of rows, of which each thread has at least so many if rows are divided among them
Pack = Callable[[tuple[Affine, Affine]], None]


@dataclass(frozen=True)
class Block:
    """Part of the result: rows from flat index `row` on, of which register tiles [start, stop) are to be made; of
    columns from `column` on, those of `panels` tiles, which begins with tile number `panel` of a strip."""

    batch: Index
    row: Affine
    start: Affine
    stop: Affine
    column: Affine
    panel: Affine
    panels: Affine


class Walk:
    """The loop over a product's tiles in the making; `compute` makes those of a block."""

    def __init__(self, contraction: Contraction, compute: Callable[[Block], None]) -> None:
        self.contraction, self.compute = contraction, compute
        self.frame, self.source, self.plan = contraction.frame, contraction.source, contraction.plan
        self.rows_in = self.columns_in = ""  # variables that say of which block, or strip, what is packed is

    def emit(self) -> None:
        """The loop."""
        c, source, plan = self.contraction, self.source, self.plan
        low, high = self.frame.owned_range(c.batch)
        tiles = variable(self.source, (c.rows.count + (plan.tile.rows - 1)) // plan.tile.rows)
        groups = variable(self.source, (c.columns.count + (plan.width - 1)) // plan.width)
        begin, tiles, by_rows = self._own_rows(tiles)
        each = self._product(tiles, groups)
        self._share(self._product(each, variable(self.source, high - low)), by_rows)
        at = source.name("n")
        source.line(f"{at} = lo")
        if c.kept:
            self.rows_in = self._nothing_packed()
        if plan.strip and c.packing.columns_packed:
            self.columns_in = self._nothing_packed()
        with source.block(f"while {at} < hi:"):
            batch, rest = ("0", at) if high - low == number(1) else self._divide(at, each)
            first, height, rest = self._rows_of_block(rest, tiles, groups)
            index = named(c.batch, low + self._symbol(batch, size(c.batch)))
            row = c.rows.low + (begin + first) * plan.tile.rows
            if plan.strip:
                count = self._in_strip(index, row, at, rest, height, groups)
            else:
                count = self._in_columns(index, row, at, rest, height)
            source.line(f"{at} += {count}")

    def _nothing_packed(self) -> str:
        name = self.source.name("n")
        self.source.line(f"{name} = -1")
        return name

    def _own_rows(self, tiles: Affine) -> tuple[Affine, Affine, str]:
        """The first of this thread's tiles of rows, their number, and the condition under which no other has them: if
        there is no batch to divide, there are more rows than columns, so that what all threads read is the lesser
        operand, and each has a run of them. What a thread made of its examples it then reads again."""
        source, (rows, columns) = self.source, (size(s.axes) for s in (self.contraction.rows, self.contraction.columns))
        self.frame.alone = size(self.contraction.batch) * rows * columns * self.contraction.terms <= ALONE
        if self.frame.alone or self.frame.kernel.alone or self.contraction.batch or rows < columns:
            return number(0), tiles, ""
        text, level = source.index(tiles), source.level
        by_rows = source.define(f"{text} >= {RUN} * threads", level, "n")
        begin = source.define(f"select({by_rows}, div({text} * thread, threads), 0)", level, "n")
        end = source.define(f"select({by_rows}, div({text} * (thread + 1), threads), {text})", level, "n")
        count = source.define(f"{end} - {begin}", level, "n")
        return symbol(begin, level, 0, MANY), symbol(count, level, 0, MANY), by_rows

    def _share(self, total: Affine, by_rows: str) -> None:
        """[lo, hi): what this thread does of `total`, all of it if it has rows of its own."""
        source, text = self.source, self.source.index(total)
        if self.frame.alone:
            source.line("lo = 0")
            source.line(f"hi = {text} if thread == 0 else 0")
            return
        product = text if text.isalnum() else f"({text})"
        for name, thread, own in (("lo", "thread", "0"), ("hi", "(thread + 1)", text)):
            part = f"div({product} * {thread}, threads)"
            source.line(f"{name} = {f'select({by_rows}, {own}, {part})' if by_rows else part}")

    def _rows_of_block(self, rest: str, tiles: Affine, groups: Affine) -> tuple[Affine, Affine, str]:
        """First tile and number of tiles of the block of rows that has number `rest` of a product's tiles, and its
        number within the block."""
        most = self.plan.rows // self.plan.tile.rows
        if self.plan.rows >= size(self.contraction.rows.axes):
            return number(0), tiles, rest
        block, rest = self._divide(rest, groups * most)
        first = self._symbol(block, MANY) * most
        return first, self.frame.least(tiles - first, most), rest

    # ------------------------------------------------------------------ the part of a block that is made in one turn
    def _in_columns(self, index: Index, row: Affine, at: str, rest: str, height: Affine) -> str:
        """From tile number `rest` of a block on, at most one tile's columns; their number."""
        c, source, plan = self.contraction, self.source, self.plan
        group, tile = self._divide(rest, height)
        count = source.name("n")
        source.line(f"{count} = minimum({source.index(height)} - {tile}, hi - {at})")
        start, turns = self._symbol(tile, MANY), symbol(count, source.level, 0, plan.rows // plan.tile.rows)
        column = c.columns.low + self._symbol(group, MANY) * plan.width
        panels = number(1)
        if plan.panels > 1:
            panels = self.frame.least(
                (c.columns.high - column + (plan.tile.columns - 1)) // plan.tile.columns, plan.panels
            )
        block = Block(index, row, start, start + turns, column, number(0), panels)
        if c.kept:
            more = f"hi - {at} > {source.index(height)} - {tile}"
            self._once(self.rows_in, _difference(at, rest), (start, start + turns), more, height, self._rows_of(block))
        self.compute(block)
        return count

    def _in_strip(self, index: Index, row: Affine, at: str, rest: str, height: Affine, groups: Affine) -> str:
        """From tile number `rest` of a block on, at most a strip's columns of one tile of rows; their number."""
        c, source, plan = self.contraction, self.source, self.plan
        block_rest, width, strip = rest, groups, "0"
        if plan.strip * plan.tile.columns < size(c.columns.axes):
            strip, rest = self._divide(rest, height * plan.strip)
            width = variable(self.source, self.frame.least(groups - self._symbol(strip, MANY) * plan.strip, plan.strip))
        tile, panel = self._divide(rest, width)
        wide, count = source.index(width), source.name("n")
        source.line(f"{count} = minimum({wide} - {panel}, hi - {at})")
        start, first = self._symbol(tile, MANY), self._symbol(panel, plan.strip)
        turns = symbol(count, source.level, 0, plan.strip)
        column = c.columns.low + (self._symbol(strip, MANY) * plan.strip + first) * plan.tile.columns
        block = Block(index, row, start, start + 1, column, first, turns)
        if c.kept:
            tiles = source.define(f"div({panel} + hi - {at} + {source.index(width - 1)}, {wide})", source.level, "n")
            needed = start, start + symbol(tiles, source.level, 0, MANY)
            more = f"{tiles} > {source.index(height)} - {tile}"
            self._once(self.rows_in, _difference(at, block_rest), needed, more, height, self._rows_of(block))
        if self.columns_in:
            more = f"hi - {at} > {wide} - {panel}"
            self._once(
                self.columns_in, _difference(at, rest), (first, first + turns), more, width, self._strip_of(block)
            )
        self.compute(block)
        return count

    def _once(self, known: str, key: str, needed: tuple[Affine, Affine], more: str, count: Affine, pack: Pack) -> None:
        """Pack pieces of what has this key, unless they are known to be: those needed, or all `count` if `more`."""
        source = self.source
        start, stop = source.name("n"), source.name("n")
        with source.block(f"if {key} != {known}:"):
            source.line(f"{known} = {key}")
            source.line(f"{start} = {source.index(needed[0])}")
            source.line(f"{stop} = {source.index(needed[1])}")
            with source.block(f"if {more}:"):
                source.line(f"{start} = 0")
                source.line(f"{stop} = {source.index(count)}")
            pack((symbol(start, source.level, 0, MANY), symbol(stop, source.level, 0, MANY)))

    def _terms(self, block: Block) -> tuple[Affine, Affine]:
        """The first term of all that are packed for a block, and their number."""
        c = self.contraction
        first = self.frame.first if c.merged else block.batch.get(SHARD, number(0))
        return first * c.terms, variable(self.source, self.frame.shards * c.terms) if c.merged else number(c.terms)

    def _rows_of(self, block: Block) -> Pack:
        def pack(tiles: tuple[Affine, Affine]) -> None:
            self.contraction.packing.pack_rows(block.batch, block.row, tiles, *self._terms(block), self.plan)

        return pack

    def _strip_of(self, block: Block) -> Pack:
        def pack(panels: tuple[Affine, Affine]) -> None:
            terms = self._terms(block)
            with self.frame.loop("p", *panels, self.plan.strip) as panel:
                column = block.column + (panel - block.panel) * self.plan.tile.columns
                self.contraction.packing.pack_columns(block.batch, column, *terms, self.plan, panel)

        return pack

    # ------------------------------------------------------------------ variables
    def _product(self, x: Affine, y: Affine) -> Affine:
        """The product of two variables."""
        if x.is_constant or y.is_constant:
            return variable(self.source, x * y.constant if y.is_constant else y * x.constant)
        text = f"{self.source.index(x)} * {self.source.index(y)}"
        return symbol(self.source.define(text, self.source.level, "n"), self.source.level, 0, MANY)

    def _symbol(self, text: str, bound: int) -> Affine:
        return number(int(text)) if text.isdigit() else symbol(text, self.source.level, 0, max(0, bound - 1))

    def _divide(self, text: str, by: Affine) -> tuple[str, str]:
        """Quotient and remainder of a variable."""
        source = self.source
        if by == number(1):
            return text, "0"
        quotient, rest, divisor = source.name("n"), source.name("n"), source.index(by)
        source.line(f"{quotient} = div({text}, {divisor})")
        source.line(f"{rest} = {text} - {quotient} * {divisor if divisor.isalnum() else f'({divisor})'}")
        return quotient, rest


def variable(source: Source, form: Affine) -> Affine:
    """A form as a variable, unless it is a number."""
    if form.is_constant:
        return form
    text = source.index(form)
    name = text if text.isidentifier() else source.define(text, source.level, "n")
    return symbol(name, source.level, 0, MANY)


def _difference(x: str, y: str) -> str:
    return "0" if x == y else f"{x} - {y}"
