"""Contractions of `numeric fast` regions by matrix instructions: products of bf16, summed in f32.

The loop is that of contraction.py. Of 32 terms at a time both operands' parts lie in the block's memory in bf16, a line
of four blocks of eight terms for every row (or column):

    block b of line x      is the (b ^ x // 2 % 4)-th of the line, so that lanes that load or store together do not meet
                           in a bank

A thread converts eight terms of a line at once, whose elements are pulled as ever: what is inlined just works, and is
rounded as the processor's realization rounds it. The block's waves divide the tile; a lane has the sums that the
instruction gives it (matrix.py). Terms beyond the last are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from alphac.backends.evaluation import Index, size
from alphac.backends.gpu import THREADS
from alphac.backends.gpu.contraction import Contraction, Pull, Spread
from alphac.backends.gpu.frame import GpuFrame
from alphac.backends.gpu.matrix import BLOCK, TERMS, WORDS, Matrix, Sums
from alphac.backends.gpu.matrix_intrinsics import matrix_functions
from alphac.backends.gpu.tiling import matrix_tile
from alphac.backends.indexing import Affine, number
from alphac.ir.core import Op
from alphac.ir.errors import InternalError
from alphac.ir.typesys import BF16, F32, I32

BLOCKS = TERMS // BLOCK  # of a line, pulled at a time
FEW = 8  # rows or columns; with fewer, most of an instruction would be for nothing
SUMS = 32  # of a thread; with more, a multiprocessor has registers for one block


def suits_matrix(frame: GpuFrame, op: Op) -> bool:
    """Whether a contraction may be made by matrix instructions, there are some, and it is large enough."""
    if frame.target.matrix is None or op.name != "contract_fast" or op.result.type.dtype not in (F32, BF16):
        return False
    first, second = (v.type for v in op.operands)
    free = [
        size([d for d in a.dims if op.result.type.has(d.name) and not b.has(d.name)])
        for a, b in ((first, second), (second, first))
    ]
    return min(free) >= FEW


class MatrixContraction(Contraction):
    """The kernel of such a contraction."""

    leaf = 1024
    step = TERMS

    @property
    def matrix(self) -> Matrix:
        found = self.frame.target.matrix
        if found is None:
            raise InternalError(f"{self.frame.target.name} has no matrix instruction")
        return found

    def cut(self, rows: int, columns: int) -> tuple[tuple[int, int], tuple[Spread, Spread]]:
        """Rows and columns are those of the instruction's result."""
        matrix, waves = self.matrix, THREADS // self.matrix.lanes
        tiles = matrix_tile(rows, columns, size(self.batch), waves * matrix.rows * matrix.columns)
        self.waves = _arranged(tiles, waves, matrix)
        each = [t // w for t, w in zip(tiles, self.waves, strict=True)]
        shape = (matrix.rows, matrix.columns)
        self.pieces = each[0] // shape[0], each[1] // shape[1]
        spreads = [
            Spread(n * sums.count, sums.run, sums.apart, start, 1, tile - 1)
            for n, sums, start, tile in zip(self.pieces, (matrix.down, matrix.across), ("ty", "tx"), tiles, strict=True)
        ]
        return tiles, (spreads[0], spreads[1])

    def prepare(self) -> None:
        frame, source, matrix = self.frame, self.source, self.matrix
        self.parts = tuple(
            frame.shared_array(name, I32, 2 * side.tile * BLOCKS * WORDS)
            for name, side in (("row_tile", self.rows), ("column_tile", self.columns))
        )
        frame.neighbours = True
        frame.intrinsics |= matrix_functions(matrix, *self.pieces)
        if self.rows.each * self.columns.each > SUMS:
            frame.fitting = 1
        lane, wave, apart = frame.own % matrix.lanes, frame.own // matrix.lanes, matrix.lanes // matrix.lines
        line, part = (lane // apart, lane % apart) if matrix.inner else (lane % matrix.lines, lane // matrix.lines)
        across = self.waves[1]
        for name, form in (
            ("line", line),
            ("part", part),
            ("down", wave // across * (self.rows.tile // self.waves[0])),
            ("across", wave % across * (self.columns.tile // across)),
        ):
            source.line(f"{name} = {source.index(form)}")
        source.line(f"ty = {_start('down', matrix.down)}")
        source.line(f"tx = {_start('across', matrix.across)}")

    def pulls(self, batch: Index, starts: tuple[Affine, Affine]) -> Sequence[Pull]:
        return [
            _Blocks(self, side, batch, start, array, BLOCKS * WORDS)
            for side, start, array in zip((self.rows, self.columns), starts, self.parts, strict=True)
        ]

    def term(self, text: str, k: Affine, count: Affine) -> str:
        if count == number(self.step):
            return text
        return f"select({self.source.index(k)} < {self.source.index(count)}, {text}, f32(0.0))"

    def multiply(self, offsets: list[str], at: Affine) -> None:
        a, b = self.parts
        name = f"multiply_{self.matrix.name}_{self.pieces[0]}x{self.pieces[1]}"
        places = f"{a.name}, {offsets[0]}, {b.name}, {offsets[1]}"
        self.source.line(f"{name}({self.acc.name}, {places}, down, across, line, part)")


def _start(base: str, sums: Sums) -> str:
    terms = [f"{n} * {name}" if n > 1 else name for n, name in ((sums.line, "line"), (sums.block, "part")) if n]
    return " + ".join([base, *terms])


def _arranged(tile: tuple[int, int], waves: int, matrix: Matrix) -> tuple[int, int]:
    """How many waves a tile has below and beside each other: their parts are as square as they can be, since a wave
    loads all rows and columns of its part."""
    fitting = [
        (down, waves // down)
        for down in (1, 2, 4, 8)
        if waves % down == 0 and tile[0] % (down * matrix.rows) == 0 and tile[1] % (waves // down * matrix.columns) == 0
    ]
    return min(fitting, key=lambda w: tile[0] // w[0] + tile[1] // w[1])


class _Blocks(Pull):
    """One operand's part, in words; each thread rounds a block at a time."""

    run = BLOCK

    def put(self, place: Affine, x: Affine, k: Affine, texts: Sequence[str]) -> None:
        source = self.source
        block = source.name("n")
        source.line(f"{block} = ({source.index(k // BLOCK)}) ^ ({source.index(x // 2 % BLOCKS)})")
        at = f"{source.index(place + x * self.pitch)} + {WORDS} * {block}"
        source.line(f"keep_words({self.array.name}, {at}, {', '.join(texts)})")
