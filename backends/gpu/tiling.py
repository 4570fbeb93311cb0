"""How a contraction is cut on a grid."""

from __future__ import annotations

from alphac.backends.gpu.intrinsics import SIDE, WIDE

TERMS = 16  # pulled into the block's memory at a time
SUMS = 1 << 15  # bytes of a tile's sums: 32 registers of each thread; with more, ptxas spills
BLOCKS = 128  # about as many as a GPU has multiprocessors: fewer would leave some without work
REUSE = 64  # rows and columns of a tile below which an element is loaded too often for what it serves


def shared_bytes(height: int, width: int, element: int) -> int:
    """Of the block's memory, what a tile's parts take: some terms, in two turns, each padded by the widest access."""
    return 2 * TERMS * ((height + width) * element + 2 * WIDE)


def tile(rows: int, columns: int, batch: int, element: int, memory: int) -> tuple[int, int]:
    """Rows and columns of a block's tile: as large as the result, the registers and the block's memory allow, smaller
    as long as that gives the grid enough blocks, but not so small that loading limits."""
    height, width = (min(128, SIDE << (-(-n // SIDE) - 1).bit_length()) for n in (rows, columns))
    while height * width * element > SUMS or shared_bytes(height, width, element) > memory:
        height, width = (height // 2, width) if height > width else (height, width // 2)
    floor = REUSE if min(rows, columns) >= 2 * REUSE else SIDE
    while batch * -(-rows // height) * -(-columns // width) < BLOCKS and max(height, width) > floor:
        height, width = (height // 2, width) if height >= width else (height, width // 2)
    return height, width


def matrix_tile(rows: int, columns: int, batch: int, least: int) -> tuple[int, int]:
    """The same for matrix instructions, whose operands are half as large and whose threads have up to 64 sums; `least`:
    what all of a block's waves make at a time."""
    height, width = (min(128, max(32, SIDE << (-(-n // SIDE) - 1).bit_length())) for n in (rows, columns))
    while height * width < least:
        height, width = (height * 2, width) if height < width else (height, width * 2)
    floor = REUSE if min(rows, columns) >= 2 * REUSE else 32
    while batch * -(-rows // height) * -(-columns // width) < BLOCKS and max(height, width) > floor:
        smaller = (height // 2, width) if height >= width else (height, width // 2)
        if smaller[0] * smaller[1] < least:
            break
        height, width = smaller
    return height, width
