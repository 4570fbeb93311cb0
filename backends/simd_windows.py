"""The SIMD loop of a product whose left operand is windows in memory, as LLVM IR.

    windows_1x64_14x16_2(tile, terms, …)      a register tile of 1 · 14 rows, 64 and 16 elements apart, by 2 vectors
    inside_1x64_14x16_2(tile, terms, …)       the same without the terms outside the image, if that has the same bits
    all_finite(tile, start, count)            whether so many elements are finite

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
from alphac.backends.vector import I32, I64, POINTER, bytes_of, call, element_pointer, llvm_type

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
    def sums(self) -> int:
        return self.height * self.vectors

    @property
    def name(self) -> str:
        """What the function for it is called in a kernel's source."""
        return f"windows_{self.outer}x{self.outer_stride}_{self.inner}x{self.inner_stride}_{self.vectors}"

    @property
    def inside(self) -> str:
        """What the function for it is called that leaves terms out."""
        return self.name.replace("windows", "inside")

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


@cache
def multiply_inside(shape: RowTile, lanes: int) -> Any:
    """`multiply` without the terms that multiply the zeros around an image, with a last argument: whether all that they
    would be multiplied with is known to be finite. Gives 1, and stores nothing, if the bits might not be the same.

    A term ±0 changes a chain only where its sum is -0, which then may become +0; and such sums do not differ any more
    behind the next term that is not zero. So if no sum is -0 at the end, nothing is lost."""

    @intrinsic
    def multiply(
        typing: Any, place: Any, terms: Any, a: Any, a_table: Any, b: Any, b_table: Any, c: Any, c_stride: Any,
        slot: Any, merges: Any, finite: Any,
    ) -> Any:  # fmt: skip
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            function, body = module_function(builder, f"{shape.inside}_{dtype}", I64, [I64] * 10)
            if body is not None:
                count = max(1, 4 * lanes // bytes_of(llvm_type(dtype)))
                _Inside(body, function, shape, dtype, count, function.args[9]).emit()
            return builder.call(function, list(args[1:]))

        return types.int64(place, *[types.int64] * 10), generate

    return multiply


@cache
def all_finite(lanes: int) -> Any:
    """all_finite(place, start, count): 1 if the `count` elements, a vector of them or more, at an address are finite,
    else 0."""

    @intrinsic
    def finite(typing: Any, place: Any, start: Any, count: Any) -> Any:
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            function, body = module_function(builder, f"all_finite_{dtype}", I64, [I64] * 2)
            if body is not None:
                _finite_body(body, function, llvm_type(dtype), max(1, 4 * lanes // bytes_of(llvm_type(dtype))))
            return builder.call(function, list(args[1:]))

        return types.int64(place, types.int64, types.int64), generate

    return finite


def _finite_body(b: Any, function: Any, element: Any, count: int) -> None:
    start, elements = function.args
    pointer, last = b.inttoptr(start, POINTER), b.sub(elements, I64(count))
    bits = 8 * bytes_of(element)
    exponent = (0xFF << 23) if bits == 32 else (0x7FF << 52)
    number = ir.IntType(bits)
    mask = splat(b, number(exponent), count)
    turns = b.udiv(b.add(elements, I64(count - 1)), I64(count))
    entry, loop, done = b.block, b.append_basic_block("elements"), b.append_basic_block("done")
    b.branch(loop)
    b.position_at_end(loop)
    turn, most = b.phi(I64), b.phi(ir.VectorType(number, count))
    at = call(b, "smin", [b.mul(turn, I64(count)), last])  # the last vector may overlap the one before
    found = b.and_(b.bitcast(load(b, pointer, at, element, count), mask.type), mask)
    following, after = call(b, "umax", [most, found]), b.add(turn, I64(1))
    turn.add_incoming(I64(0), entry)
    turn.add_incoming(after, loop)
    most.add_incoming(ir.Constant(mask.type, [0] * count), entry)
    most.add_incoming(following, loop)
    b.cbranch(b.icmp_unsigned("<", after, turns), loop, done)
    b.position_at_end(done)
    b.ret(b.zext(b.not_(_any(b, b.icmp_unsigned("==", following, mask))), I64))


def _any(b: Any, mask: Any) -> Any:
    """Whether any lane of a mask is set."""
    whole = ir.IntType(mask.type.count)
    return b.icmp_unsigned("!=", b.bitcast(mask, whole), whole(0))


class _Windows(Leaf):
    """The body of `multiply`."""

    def __init__(self, b: Any, function: Any, shape: RowTile, dtype: Any, count: int) -> None:
        super().__init__(b, shape.height, shape.vectors, dtype, count)
        self.shape = shape
        self.terms, a, a_table, right, b_table, c, self.c_stride, self.slot, self.merges = function.args[:9]
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


class _Inside(_Windows):
    """The body of `multiply_inside`."""

    def __init__(self, b: Any, function: Any, shape: RowTile, dtype: Any, count: int, finite: Any) -> None:
        super().__init__(b, function, shape, dtype, count)
        self.refused = b.append_basic_block("refused")
        begin = b.append_basic_block("begin")
        some = b.icmp_signed(">", self.terms, I64(0))
        b.cbranch(b.and_(some, b.icmp_signed("!=", finite, I64(0))), begin, self.refused)
        b.position_at_end(self.refused)
        b.ret(I64(1))
        b.position_at_end(begin)

    def judge(self, sums: list[list[Any]]) -> None:
        """-0 is the least of all floats, taken for integers."""
        b, bits = self.b, 8 * bytes_of(self.element)
        number = ir.VectorType(ir.IntType(bits), self.count)
        least, *more = (b.bitcast(x, number) for row in sums for x in row)
        for x in more:
            least = call(b, "smin", [least, x])
        negative = splat(b, ir.IntType(bits)(-(1 << (bits - 1))), self.count)
        kept = b.append_basic_block("kept")
        b.cbranch(_any(b, b.icmp_unsigned("==", least, negative)), self.refused, kept)
        b.position_at_end(kept)

    def leave(self) -> None:
        self.b.ret(I64(0))
