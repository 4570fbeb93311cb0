"""What kernels' source calls for matrix instructions:

keep_words(words, at, x0, …, x7)      eight terms, rounded to bf16, in the block's memory from a word on
multiply_NAME_4x4(acc, a, at, b, bt, down, across, line, part)
                                      acc += a b for 4 by 4 results of an instruction: `at` is where the tile's part
                                      of the first operand begins, `down` the wave's first row, and so on
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from alphac.backends.gpu.matrix import BLOCK, TERMS, WORDS, Matrix
from alphac.backends.vector import I32, I64, element_pointer

F32 = ir.FloatType()
LINE = TERMS // 2  # words
FOUR = ir.VectorType(I32, WORDS)


def _words(builder: Any, pointer: Any, index: Any) -> Any:
    """The place of four words, which lie at a multiple of as many."""
    return builder.bitcast(element_pointer(builder, pointer, index, I32), FOUR.as_pointer())


def _vector(builder: Any, elements: list[Any]) -> Any:
    type_ = ir.VectorType(elements[0].type, len(elements))
    made = ir.Constant(type_, ir.Undefined)
    for i, element in enumerate(elements):
        made = builder.insert_element(made, element, I32(i))
    return made


def _library(builder: Any, name: str, result: Any, operands: list[Any]) -> Any:
    signature = ir.FunctionType(result, [x.type for x in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), operands)


@intrinsic
def keep_words(
    typing: Any, words: Any, at: Any, x0: Any, x1: Any, x2: Any, x3: Any, x4: Any, x5: Any, x6: Any, x7: Any
) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place, at, *terms = args
        pairs = [_vector(builder, terms[i : i + 2]) for i in range(0, BLOCK, 2)]
        made = _vector(builder, [_library(builder, "gpu_words", I32, [pair]) for pair in pairs])
        builder.store(made, _words(builder, place, at)).align = 4 * WORDS
        return context.get_dummy_value()

    return types.none(words, types.int64, *[types.float32] * BLOCK), generate


@cache
def matrix_functions(matrix: Matrix, rows: int, columns: int) -> dict[str, Any]:
    """The functions for a wave's part of a tile: so many results of an instruction below and beside each other."""

    @intrinsic
    def multiply(
        typing: Any, acc: Any, a: Any, at: Any, b: Any, bt: Any, down: Any, across: Any, line: Any, part: Any
    ) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            _Product(builder, matrix, rows, columns, *args).emit()
            return context.get_dummy_value()

        integers = [types.int64] * 4
        return types.none(acc, a, types.int64, b, types.int64, *integers), generate

    return {f"multiply_{matrix.name}_{rows}x{columns}": multiply, "keep_words": keep_words}


class _Product:
    """The terms in the block's memory, multiplied and added."""

    def __init__(self, builder: Any, matrix: Matrix, rows: int, columns: int, *args: Any) -> None:
        self.builder, self.matrix, self.rows, self.columns = builder, matrix, rows, columns
        self.acc, self.a, at, self.b, bt, down, across, self.line, self.part = args
        b = builder
        # Words of a lane's line of each operand: the wave's first row or column, and the lane's.
        self.first, self.second = (
            b.add(start, b.mul(b.add(low, self.line), I64(LINE))) for start, low in ((at, down), (bt, across))
        )
        self.turned = b.and_(b.lshr(self.line, I64(1)), I64(TERMS // BLOCK - 1))

    def emit(self) -> None:
        """Write it. Columns are loaded once, rows as they are multiplied."""
        matrix = self.matrix
        for deep in range(TERMS // matrix.depth):
            columns = [self._line(self.b, self.second, j * matrix.columns, deep) for j in range(self.columns)]
            for i in range(self.rows):
                rows = [self._line(self.a, self.first, i * matrix.rows + half, deep) for half in matrix.halves]
                for step in range(matrix.depth // matrix.terms):
                    taken = range(step * matrix.words, (step + 1) * matrix.words)
                    left = _vector(self.builder, [row[w] for w in taken for row in rows])
                    for j, column in enumerate(columns):
                        self._add(i, j, left, _vector(self.builder, [column[w] for w in taken]))

    def _line(self, array: Any, start: Any, below: int, deep: int) -> list[Any]:
        """The words that a lane holds of a line, so many below its own."""
        b, matrix, found = self.builder, self.matrix, []
        own = self.part if matrix.blocks > 1 else I64(0)
        for e in range(matrix.each):
            block = b.xor(b.add(own, I64(deep * matrix.depth // BLOCK + e)), self.turned)
            index = b.add(b.add(start, I64(below * LINE)), b.mul(block, I64(WORDS)))
            loaded = b.load(_words(b, array, index))
            loaded.align = 4 * WORDS
            found += [b.extract_element(loaded, I32(w)) for w in range(WORDS)]
        return found

    def _add(self, i: int, j: int, left: Any, right: Any) -> None:
        """One instruction, for the sums of row i and column j of the wave's part."""
        b, down, across = self.builder, self.matrix.down.count, self.matrix.across.count
        width = self.columns * across
        places = [
            element_pointer(b, self.acc, I64((i * down + r) * width + j * across + c), F32)
            for r in range(down)
            for c in range(across)
        ]
        sums = _vector(b, [b.load(place) for place in places])
        made = _library(b, "gpu_matrix", sums.type, [left, right, sums])
        for n, place in enumerate(places):
            b.store(b.extract_element(made, I32(n)), place)
