"""How a contraction is cut: register tiles by the target's registers, blocks by its caches."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from alphac.backends.target import Target

LEAF = 256
LANES = 16  # a multiple of all vectors' elements
VECTORS = (4, 2, 1)
LINE = 64  # bytes of a cache line
L1_SETS, L2_SETS, WAYS = 64, 2048, 8
WHOLE = 4096  # terms; an operand with more is packed by chunks
CHUNK = 1024
BLOCK_ROWS, BLOCK_COLUMNS = 96, 256  # of a block whose partial sums wait for further chunks
SLOTS_BYTES = 384 << 10  # of these partial sums
ROWS_BYTES = 1 << 20  # of packed rows, unless these would be fewer than
ROWS = 256
STRIP_BYTES = 384 << 10  # of a strip's columns
STRIP_TILES = 4  # of rows for which a strip of columns pays
PACKING, COPY = (
    1.1,
    0.1,
)  # what it costs to pack rows because their number is not known: a factor, and cycles an element
LOOP = 0.5  # cycles of a term beside fma and loads
CALL = 8  # cycles between two leaves of a tile, and
QUEUE, WAIT = 16, 3  # for every line that is stored beyond what the processor can put off


@dataclass(frozen=True)
class Tile:
    """A register tile: `rows` by `vectors` vectors of `lanes` elements."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Tiling:
    """A block is `rows` by `panels` register tiles' columns. If it is `whole`, all terms are multiplied for one tile
    after the other, and `slots` partial sums of a tile may wait for each other; else `terms` terms at a time, and so
    many partial sums of a block. Of how many tiles the columns are a `strip`: 0 if blocks are made by columns."""

    tile: Tile
    rows: int
    panels: int
    terms: int
    slots: int
    whole: bool
    strip: int = 0

    @property
    def width(self) -> int:
        """Elements from one row to the next of a partial sum."""
        return self.panels * self.tile.columns

    @property
    def slot(self) -> int:
        """Elements from one partial sum to the next."""
        return (self.tile.rows if self.whole else self.rows) * self.width


def tiling(
    rows: int, columns: int, terms: int, slots: int, element: int, tile: Tile, packed: tuple[bool, bool]
) -> Tiling:
    """Cut a product with `terms` terms of `element` bytes, of which `slots` partial sums may have to wait. `packed`:
    whether the rows, and the columns, are."""
    tiles = -(-rows // tile.rows)
    if not any(packed) or terms <= WHOLE:
        if packed[0]:
            most = max(ROWS, ROWS_BYTES // (element * max(1, terms)))
            tiles = min(tiles, -(-most // tile.rows))
        terms = -(-terms // LANES) * LANES
        return Tiling(tile, tiles * tile.rows, 1, terms, slots, True, _strip(rows, columns, terms, element, tile))
    tiles, panels = min(tiles, max(1, BLOCK_ROWS // tile.rows)), max(1, BLOCK_COLUMNS // tile.columns)
    while slots * tiles * tile.rows * panels * tile.columns * element > SLOTS_BYTES and tiles * panels > 1:
        if panels * tile.columns >= tiles * tile.rows and panels > 1:
            panels = -(-panels // 2)
        elif tiles > 1:
            tiles = -(-tiles // 2)
        else:
            panels = -(-panels // 2)
    return Tiling(tile, tiles * tile.rows, panels, CHUNK, slots, whole=False)


def _strip(rows: int, columns: int, terms: int, element: int, tile: Tile) -> int:
    """How many tiles' columns the cache should hold: none, if there are fewer results than elements in the columns, so
    that it matters more to fetch these ahead."""
    if rows < max(terms, STRIP_TILES * tile.rows):
        return 0
    return max(1, min(-(-columns // tile.columns), STRIP_BYTES // (element * terms * tile.columns)))


def vector_width(element: int, target: Target) -> int:
    """Elements in a vector."""
    return max(1, target.lanes * 4 // element)


def register_tile(rows: int, columns: int, terms: int, unit: int, element: int, target: Target) -> Tile:
    """The register tile that takes the fewest cycles: two fma or loads a cycle, a chain's next fma after four; behind
    every leaf of so many terms its sums are stored. `unit`: what the number of rows is known to be a multiple of; if
    that is all of them, the rest is a smaller tile."""
    lanes, leaf = vector_width(element, target), min(terms, LEAF)

    def cycles(shape: tuple[int, int]) -> tuple[float, int]:
        height, vectors = shape
        exact = unit == rows or unit % height == 0
        total = 0.0
        for h, down in _cut(rows, height, exact):
            for v, across in _cut(-(-columns // lanes), vectors, exact=True):
                ends = CALL + WAIT * max(0, h * v * v * lanes * element / LINE - QUEUE)
                total += down * across * (max(h * v / 2, (h + v) / 2, 4.0) + LOOP + ends / leaf)
        return total if exact else total * PACKING + rows * COPY, -height * vectors

    most = max(rows, 1), max(1, -(-columns // lanes))
    if target.tile is not None:
        return Tile(min(target.tile[0], most[0]), min(target.tile[1], most[1]), lanes)
    fitting = [(h, v) for h, v in shapes(target.registers) if h <= most[0] and v <= most[1]]
    height, vectors = min(fitting, key=cycles)
    return Tile(height, vectors, lanes)


def _cut(count: int, size: int, exact: bool) -> list[tuple[int, int]]:
    """Sizes and how many of them."""
    if not exact:
        return [(size, -(-count // size))]
    return [(s, n) for s, n in ((size, count // size), (count % size, 1)) if s and n]


def shapes(registers: int) -> list[tuple[int, int]]:
    """All register tiles that fit."""
    return [(h, v) for v in (4, 3, 2, 1) for h in range(1, 25) if h * v + v + 1 <= registers]


def crowded(stride: int, lines: int, sets: int) -> bool:
    """Whether so many lines, `stride` bytes apart, take more ways of a cache's sets than half of what there is."""
    apart = gcd(stride, sets * LINE)
    return lines * 2 > WAYS * sets * LINE // max(apart, LINE)
