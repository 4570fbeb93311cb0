"""The SIMD loop of a product whose left operand is windows in memory, as LLVM IR.

    windows_1x64_14x16_2(tile, terms, …)      a register tile of 1 · 14 rows, 64 and 16 elements apart, by 2 vectors

What the rows of a tile are apart is part of the name, so that their addresses are one register and constants; where a
term's elements are, say two tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from alphac.backends.vector import I32, I64, POINTER, bytes_of, call, combine, element_pointer, llvm_type

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
            function = builder.module.globals.get(name)
            if function is None:
                signature = ir.FunctionType(ir.VoidType(), [I64] * 9)
                function = ir.Function(builder.module, signature, name)
                function.linkage = "internal"
                _Body(function, shape, dtype, 4 * lanes // bytes_of(llvm_type(dtype))).emit()
            builder.call(function, list(args[1:]))
            return context.get_dummy_value()

        return types.void(place, *[types.int64] * 9), generate

    return multiply


class _Body:
    """The body of `multiply`."""

    def __init__(self, function: Any, shape: RowTile, dtype: Any, count: int) -> None:
        self.b: Any = ir.IRBuilder(function.append_basic_block("entry"))
        self.function, self.shape, self.dtype = function, shape, dtype
        self.element = llvm_type(dtype)
        self.count = max(1, count)
        self.vector = ir.VectorType(self.element, self.count)
        self.terms, a, a_table, b, b_table, c, self.c_stride, self.slot, self.merges = function.args
        self.a, self.a_table, self.right, self.b_table, self.c = (
            self.b.inttoptr(v, POINTER) for v in (a, a_table, b, b_table, c)
        )

    def emit(self) -> None:
        b = self.b
        entry = b.block
        loop, merge, more, store = (b.append_basic_block(n) for n in ("terms", "merge", "more", "store"))
        zero = ir.Constant(self.vector, [ir.Constant(self.element, 0)] * self.count)
        b.branch(loop)

        b.position_at_end(loop)
        k, sums = b.phi(I64), self._phis()
        products = self._products(k, sums)
        after = b.add(k, I64(1))
        k.add_incoming(I64(0), entry)
        k.add_incoming(after, loop)
        self._incoming(sums, [[zero] * self.shape.vectors] * self.shape.height, entry)
        self._incoming(sums, products, loop)
        b.cbranch(b.icmp_signed("<", after, self.terms), loop, merge)

        b.position_at_end(merge)
        m, place, totals = b.phi(I64), b.phi(I64), self._phis()
        m.add_incoming(I64(0), loop)
        place.add_incoming(I64(0), loop)
        self._incoming(totals, products, loop)
        b.cbranch(b.icmp_signed("<", m, self.merges), more, store)

        b.position_at_end(more)
        below = b.sub(place, self.slot)
        merged = self._each(totals, lambda i, v, x: combine(b, "add", self._load(self._at(below, i, v)), x, self.dtype))
        m.add_incoming(b.add(m, I64(1)), more)
        place.add_incoming(below, more)
        self._incoming(totals, merged, more)
        b.branch(merge)

        b.position_at_end(store)
        self._each(totals, lambda i, v, x: self._store(x, self._at(place, i, v)))
        b.ret_void()

    def _products(self, k: Any, sums: list[list[Any]]) -> list[list[Any]]:
        """All sums after term k."""
        b = self.b
        left = element_pointer(b, self.a, self._entry(self.a_table, k), self.element)
        right = element_pointer(b, self.right, self._entry(self.b_table, k), self.element)
        columns = [self._load(element_pointer(b, right, I64(v * self.count), self.element))
                   for v in range(self.shape.vectors)]  # fmt: skip
        rows: list[Any] = []
        for offset in self.shape.offsets:
            value = b.load(element_pointer(b, left, I64(offset), self.element))
            value.align = bytes_of(self.element)
            rows.append(self._splat(value))
        return self._each(sums, lambda i, v, x: self._fma(rows[i], columns[v], x))

    def _entry(self, table: Any, k: Any) -> Any:
        entry = self.b.load(element_pointer(self.b, table, k, I32))
        entry.align = 4
        return self.b.sext(entry, I64)

    def _load(self, place: Any) -> Any:
        value = self.b.load(self.b.bitcast(place, self.vector.as_pointer()))
        value.align = bytes_of(self.element)
        return value

    def _store(self, value: Any, place: Any) -> None:
        self.b.store(value, self.b.bitcast(place, self.vector.as_pointer())).align = bytes_of(self.element)

    def _splat(self, value: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.b.insert_element(undefined, value, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, self.count), [0] * self.count)
        return self.b.shuffle_vector(first, undefined, zeros)

    def _at(self, place: Any, i: int, v: int) -> Any:
        b = self.b
        index = b.add(b.add(place, b.mul(I64(i), self.c_stride)), I64(v * self.count))
        return element_pointer(b, self.c, index, self.element)

    def _fma(self, x: Any, y: Any, z: Any) -> Any:
        if isinstance(self.dtype, types.Float):
            return call(self.b, "fma", [x, y, z])
        return self.b.add(self.b.mul(x, y), z)

    def _phis(self) -> list[list[Any]]:
        return [[self.b.phi(self.vector) for _ in range(self.shape.vectors)] for _ in range(self.shape.height)]

    @staticmethod
    def _each(rows: list[list[Any]], body: Callable[[int, int, Any], Any]) -> list[list[Any]]:
        return [[body(i, v, x) for v, x in enumerate(row)] for i, row in enumerate(rows)]

    @staticmethod
    def _incoming(phis: list[list[Any]], values: list[list[Any]], block: Any) -> None:
        for row, new in zip(phis, values, strict=True):
            for phi, value in zip(row, new, strict=True):
                phi.add_incoming(value, block)
