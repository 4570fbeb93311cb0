"""SIMD loops whose vectors hold kept elements, each with sums of its own, as LLVM IR that Numba intrinsics call.

columns_add(place, to, from, stride, n, columns)       one leaf of a reduction: 16 lanes, in registers, per element
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from alphac.backends.vector import (
    I32,
    I64,
    POINTER,
    bytes_of,
    call,
    combine,
    element_pointer,
    identity_of,
    llvm_type,
    suffix_of,
)

LANES = 16  # of a reduction, whatever the vector registers' width


class Vectors:
    """Vectors of `width` bytes of one dtype, as a builder makes them. A mask says which elements are loaded or
    stored; the others are 0 or left alone."""

    def __init__(self, builder: Any, dtype: Any, width: int) -> None:
        self.b, self.dtype = builder, dtype
        self.element = llvm_type(dtype)
        self.count = width // bytes_of(self.element)
        self.type = ir.VectorType(self.element, self.count)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.type, [ir.Constant(self.element, value)] * self.count)

    def below(self, left: Any) -> Any:
        """The mask of the first `left` elements."""
        number = ir.IntType(8 * bytes_of(self.element))  # of the elements' width: the comparison fits into a register
        numbers = ir.Constant(ir.VectorType(number, self.count), list(range(self.count)))
        left = call(self.b, "smin", [left, I64(self.count)])
        return self.b.icmp_unsigned("<", numbers, self._spread(left if number == I64 else self.b.trunc(left, number)))

    def _spread(self, value: Any) -> Any:
        vector = ir.Constant(ir.VectorType(value.type, self.count), ir.Undefined)
        zeros = ir.Constant(ir.VectorType(I32, self.count), [0] * self.count)
        return self.b.shuffle_vector(self.b.insert_element(vector, value, I32(0)), vector, zeros)

    def load(self, pointer: Any, index: Any, mask: Any = None) -> Any:
        place = self._place(pointer, index)
        if mask is None:
            value = self.b.load(place)
            value.align = bytes_of(self.element)
            return value
        signature = ir.FunctionType(self.type, [place.type, I32, mask.type, self.type])
        function = self._masked("load", signature)
        return self.b.call(function, [place, I32(bytes_of(self.element)), mask, self.constant(0)])

    def store(self, value: Any, pointer: Any, index: Any, mask: Any = None) -> None:
        place = self._place(pointer, index)
        if mask is None:
            self.b.store(value, place).align = bytes_of(self.element)
            return
        signature = ir.FunctionType(ir.VoidType(), [self.type, place.type, I32, mask.type])
        self.b.call(self._masked("store", signature), [value, place, I32(bytes_of(self.element)), mask])

    def splat(self, pointer: Any, index: Any) -> Any:
        """One element of memory in all places."""
        value = self.b.load(element_pointer(self.b, pointer, index, self.element))
        value.align = bytes_of(self.element)
        return self._spread(value)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        if isinstance(self.dtype, types.Float):
            return call(self.b, "fma", [x, y, z])
        return self.b.add(self.b.mul(x, y), z)

    def join(self, kind: str, x: Any, y: Any) -> Any:
        return combine(self.b, kind, x, y, self.dtype)

    def _place(self, pointer: Any, index: Any) -> Any:
        return self.b.bitcast(element_pointer(self.b, pointer, index, self.element), self.type.as_pointer())

    def _masked(self, name: str, signature: ir.FunctionType) -> Any:
        return cgutils.get_or_insert_function(self.b.module, signature, f"llvm.masked.{name}.{suffix_of(self.type)}.p0")


def vector_code(name: str, dtype: Any, body: Callable[[Any, Sequence[Any]], None]) -> Callable[..., Any]:
    """What an intrinsic NAME(place, i64 …) generates: a call of the kernel's one function of that name for the dtype
    of `place`. `body(builder, arguments)` writes it."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        symbol, integers = f"{name}_{dtype}", list(args[1:])
        function = builder.module.globals.get(symbol)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [I64] * len(integers)), symbol)
            function.linkage = "internal"
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            body(inner, function.args)
            inner.ret_void()
        builder.call(function, integers)
        return context.get_dummy_value()

    return generate


def each_vector(vectors: Vectors, columns: Any, body: Callable[[Any, Any], None]) -> None:
    """Run `body(first column, mask)` for every vector of so many columns; all are whole (mask None) but the last."""
    b = vectors.b
    whole = b.and_(columns, I64(-vectors.count))
    with cgutils.for_range_slice(b, I64(0), whole, I64(vectors.count), intp=I64, inc=True) as (column, _):
        body(column, None)
    with b.if_then(b.icmp_signed("<", whole, columns)):
        body(whole, vectors.below(b.sub(columns, whole)))


def columns(kind: str, width: int) -> Callable[..., Any]:
    """columns_KIND(place, to, from, stride, n, columns): for `columns` elements side by side, one leaf of a reduction
    of n rows, `stride` elements apart. Lanes are in registers: row r goes to lane r % 16. Addresses in bytes."""

    @intrinsic
    def columns(typing: Any, place: Any, to: Any, source: Any, stride: Any, n: Any, columns: Any) -> Any:
        def body(b: Any, arguments: Sequence[Any]) -> None:
            to, source, stride, n, columns = arguments
            memory, rows = b.inttoptr(to, POINTER), b.inttoptr(source, POINTER)
            vectors = Vectors(b, place.dtype, width)

            def one(column: Any, mask: Any) -> None:
                def row(r: Any) -> Any:
                    return vectors.load(rows, b.add(b.mul(r, stride), column), mask)

                vectors.store(_leaf(vectors, kind, n, row), memory, column, mask)

            each_vector(vectors, columns, one)

        return types.void(place, *[types.int64] * 5), vector_code(f"columns_{kind}_{width}", place.dtype, body)

    return columns


def _leaf(vectors: Vectors, kind: str, n: Any, row: Callable[[Any], Any]) -> Any:
    """The sum of n rows: 16 lanes, each from the identity, folded in halves."""
    b = vectors.b
    identity = vectors.constant(identity_of(kind, vectors.dtype))
    whole = b.and_(n, I64(-LANES))
    entry, loop, tail, done = b.block, *(b.append_basic_block(x) for x in ("rows", "tail", "done"))
    b.cbranch(b.icmp_signed(">", whole, I64(0)), loop, tail)

    b.position_at_end(loop)
    first = b.phi(I64)
    lanes = [b.phi(vectors.type) for _ in range(LANES)]
    sums = [vectors.join(kind, x, row(b.add(first, I64(l)))) for l, x in enumerate(lanes)]
    after = b.add(first, I64(LANES))
    first.add_incoming(I64(0), entry)
    first.add_incoming(after, loop)
    b.cbranch(b.icmp_signed("<", after, whole), loop, tail)

    b.position_at_end(tail)
    before = [b.phi(vectors.type) for _ in range(LANES)]
    for lane, start, new in zip(lanes, before, sums, strict=True):
        for phi, block in ((lane, entry), (start, entry), (lane, loop), (start, loop)):
            phi.add_incoming(identity if block is entry else new, block)
    left = b.sub(n, whole)
    ends: list[tuple[Any, list[Any]]] = []  # where the rows may end, and the lanes there
    current = list(before)
    for l in range(LANES - 1):
        ends.append((b.block, list(current)))
        more = b.append_basic_block("more")
        b.cbranch(b.icmp_signed(">", left, I64(l)), more, done)
        b.position_at_end(more)
        current[l] = vectors.join(kind, current[l], row(b.add(whole, I64(l))))
    ends.append((b.block, current))
    b.branch(done)

    b.position_at_end(done)
    totals = [b.phi(vectors.type) for _ in range(LANES)]
    for l, phi in enumerate(totals):
        for block, values in ends:
            phi.add_incoming(values[l], block)
    while len(totals) > 1:
        half = len(totals) // 2
        totals = [vectors.join(kind, x, y) for x, y in zip(totals[:half], totals[half:], strict=True)]
    return totals[0]
