"""How a contraction is cut: register tiles by the target's registers, blocks by its caches."""

from __future__ import annotations

from dataclasses import dataclass

from alphac.backends.target import Target

LEAF = 256
ROWS = (12, 8, 6, 4, 3, 2, 1)
VECTORS = (4, 2, 1)
BLOCK_COLUMNS = 256
BLOCK_ROWS = 96
SLOTS_BYTES = 384 << 10  # of the stack of partial sums
PACK_BYTES = 640 << 10  # of both packed operands


@dataclass(frozen=True)
class Tiling:
    """A register tile is `tile_rows` by `vectors` vectors (`tile_columns` elements); a block `rows` by `columns`, of
    which `terms` terms are packed at a time; `slots` partial sums of a block may wait for each other."""

    tile_rows: int
    vectors: int
    tile_columns: int
    rows: int
    columns: int
    terms: int
    slots: int

    @property
    def slot(self) -> int:
        """Elements from one partial sum to the next."""
        return self.rows * self.columns


def tiling(rows: int, columns: int, terms: int, slots: int, element: int, target: Target) -> Tiling:
    """Cut a product of `rows` by `columns` with `terms` terms a shard, of elements of `element` bytes. `slots` partial
    sums may have to wait."""
    tile_rows, vectors = register_tile(rows, columns, element, target)
    width = vectors * vector_width(element, target)
    block_columns = min(-(-columns // width), max(1, BLOCK_COLUMNS // width)) * width
    block_rows = min(-(-rows // tile_rows), max(1, BLOCK_ROWS // tile_rows)) * tile_rows
    while slots * block_rows * block_columns * element > SLOTS_BYTES:
        if block_columns >= block_rows and block_columns > width:
            block_columns = -(-block_columns // width // 2) * width
        elif block_rows > tile_rows:
            block_rows = -(-block_rows // tile_rows // 2) * tile_rows
        elif block_columns > width:
            block_columns = -(-block_columns // width // 2) * width
        else:
            break
    room = PACK_BYTES // (element * (block_rows + block_columns))
    packed = min(-(-terms // LEAF), max(1, room // LEAF)) * LEAF
    return Tiling(tile_rows, vectors, width, block_rows, block_columns, packed, slots)


def vector_width(element: int, target: Target) -> int:
    """Elements in a vector."""
    return max(1, target.lanes * 4 // element)


def register_tile(rows: int, columns: int, element: int, target: Target) -> tuple[int, int]:
    """Rows and vectors of the tile that takes the fewest cycles: two fma or loads a cycle, a chain's next fma after
    four."""

    def cycles(shape: tuple[int, int]) -> tuple[float, int]:
        height, vectors = shape
        tiles = -(-rows // height) * -(-columns // (vectors * vector_width(element, target)))
        return tiles * max(height * vectors / 2, (height + vectors) / 2, 4.0) + tiles, -height * vectors

    fitting = [(h, v) for h in ROWS for v in VECTORS if h * v + v + 1 <= target.registers]
    return min(fitting, key=cycles)


def shapes(registers: int) -> list[tuple[int, int]]:
    """All register tiles that fit."""
    return [(h, v) for h in ROWS for v in VECTORS if h * v + v + 1 <= registers]
