"""The SIMD loop of a product whose left operand is windows in memory, as LLVM IR.

    windows_1x64_14x16_2(tile, terms, …)      a register tile of 1 · 14 rows, 64 and 16 elements apart, by 2 vectors

What the rows of a tile are apart is part of the name, so that their addresses are one register and constants; where a
term's elements are, say two tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from alphac.backends.microkernel import Leaf
from alphac.backends.simd import load, module_function, splat, store
from alphac.backends.vector import I32, I64, POINTER, bytes_of, element_pointer, llvm_type

NAME = re.compile(r"windows_(\d+)x(\d+)_(\d+)x(\d+)_(\d+)")


@dataclass(frozen=True)
class RowTile:
    """A register tile: `outer` groups of `inner` rows, so many elements apart in memory, by `vectors` vectors."""

    outer: int
    outer_stride: int
    inner: int
    inner_stride: int
    vectors: int

    @property
    def height(self) -> int:
        return self.outer * self.inner

    @property
    def name(self) -> str:
        """What the function for it is called in a kernel's source."""
        return f"windows_{self.outer}x{self.outer_stride}_{self.inner}x{self.inner_stride}_{self.vectors}"

    @property
    def offsets(self) -> list[int]:
        """Where the rows are, from the first on."""
        inner = range(self.inner)
        return [o * self.outer_stride + i * self.inner_stride for o in range(self.outer) for i in inner]


@cache
def multiply_windows(shape: RowTile, lanes: int) -> Any:
    """multiply(terms, a, a_table, b, b_table, c, c_stride, slot, merges) for one register tile: per element one chain
    of fma over `terms` terms, from +0, term k's elements being a_table[k] behind a and the row's offset, and b_table[k]
    behind b and the column; then `merges` times the sum of the earlier partial, `slot` elements below, with it; stored
    as many slots below c. a, b, c and the tables are addresses in bytes; `lanes`: f32 elements in a vector."""

    @intrinsic
    def multiply(
        typing: Any, place: Any, terms: Any, a: Any, a_table: Any, b: Any, b_table: Any, c: Any, c_stride: Any,
        slot: Any, merges: Any,
    ) -> Any:  # fmt: skip
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = f"{shape.name}_{dtype}"
            function, body = module_function(builder, name, ir.VoidType(), [I64] * 9)
            if body is not None:
                _Windows(body, function, shape, dtype, max(1, 4 * lanes // bytes_of(llvm_type(dtype)))).emit()
            builder.call(function, list(args[1:]))
            return context.get_dummy_value()

        return types.void(place, *[types.int64] * 9), generate

    return multiply


class _Windows(Leaf):
    """The body of `multiply`."""

    def __init__(self, b: Any, function: Any, shape: RowTile, dtype: Any, count: int) -> None:
        super().__init__(b, shape.height, shape.vectors, dtype, count)
        self.shape = shape
        self.terms, a, a_table, right, b_table, c, self.c_stride, self.slot, self.merges = function.args
        self.a, self.a_table, self.right, self.b_table, self.c = (
            b.inttoptr(v, POINTER) for v in (a, a_table, right, b_table, c)
        )

    def term(self, k: Any, sums: list[list[Any]]) -> list[list[Any]]:
        b = self.b
        left = element_pointer(b, self.a, self._entry(self.a_table, k), self.element)
        right = element_pointer(b, self.right, self._entry(self.b_table, k), self.element)
        columns = [load(b, right, I64(v * self.count), self.element, self.count) for v in range(self.vectors)]
        rows = [splat(b, load(b, left, I64(offset), self.element), self.count) for offset in self.shape.offsets]
        return [
            [self.fma(row, x, s) for x, s in zip(columns, chains, strict=True)]
            for row, chains in zip(rows, sums, strict=True)
        ]

    def partial(self, place: Any, i: int, v: int) -> Any:
        return load(self.b, self.c, self.index(place, i, self.c_stride, v), self.element, self.count)

    def finish(self, place: Any, i: int, v: int, value: Any) -> None:
        store(self.b, value, self.c, self.index(place, i, self.c_stride, v), self.element)

    def _entry(self, table: Any, k: Any) -> Any:
        return self.b.sext(load(self.b, table, k, I32), I64)
