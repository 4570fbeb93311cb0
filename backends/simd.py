"""The SIMD loops of reductions and contractions, as LLVM IR with vectors of exactly the target's width: functions of
the kernel's module that Numba intrinsics call.

    lanes_add(x, start, n)                     one leaf of a reduction in 16 lanes
    multiply_rows_12x2(tile, terms, …)         one leaf of a contraction, a register tile of 12 rows by 2 vectors
    transpose_2(panel, …)                      columns that lie along the summed axis, packed for `multiply`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from alphac.backends.simd_columns import LANES, column_loops, transposed
from alphac.backends.tiling import VECTORS, shapes
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


def _vector(type_: ir.Type, count: int) -> ir.Type:
    return ir.VectorType(type_, count)


def _splat(builder: Any, value: Any, count: int) -> Any:
    vector = _vector(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, I32(0))
    return builder.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(_vector(I32, count), [0] * count)
    )


def _load(builder: Any, pointer: Any, index: Any, type_: ir.Type, count: int = 1) -> Any:
    """One element or a vector of them, at an element's index."""
    place = element_pointer(builder, pointer, index, type_)
    if count > 1:
        place = builder.bitcast(place, _vector(type_, count).as_pointer())
    value = builder.load(place)
    value.align = bytes_of(type_)
    return value


def _store(builder: Any, value: Any, pointer: Any, index: Any, type_: ir.Type) -> None:
    place = element_pointer(builder, pointer, index, type_)
    builder.store(value, builder.bitcast(place, value.type.as_pointer())).align = bytes_of(type_)


def _function(builder: Any, name: str, result: ir.Type, parameters: list[ir.Type]) -> tuple[Any, Any]:
    """A function of the module, and a builder for its body if it is new."""
    known = builder.module.globals.get(name)
    if known is not None:
        return known, None
    function = ir.Function(builder.module, ir.FunctionType(result, parameters), name)
    function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _lanes(kind: str, width: int) -> Callable[..., Any]:
    """One leaf of a reduction: elements [start, start + n) of memory in 16 strided lanes, each from the identity, then
    lane l with lane l + 8, + 4, + 2, + 1. `width`: bytes of a vector register."""

    @intrinsic
    def lanes(typing: Any, place: Any, start: Any, n: Any) -> Any:
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            element = llvm_type(dtype)
            name = f"lanes_{kind}_{dtype}_{width}"
            function, body = _function(builder, name, element, [POINTER, I64])
            if body is not None:
                _lanes_body(body, function, kind, dtype, min(LANES, width // bytes_of(element)))
            pointer = builder.bitcast(element_pointer(builder, args[0], args[1], element), POINTER)
            return builder.call(function, [pointer, args[2]])

        return dtype(place, types.int64, types.int64), generate

    return lanes


def _lanes_body(b: Any, function: Any, kind: str, dtype: Any, count: int) -> None:
    """`count` lanes to a vector, 16 // count vectors."""
    pointer, n = function.args
    element, vectors = llvm_type(dtype), LANES // count
    vector = _vector(element, count)
    identity = ir.Constant(vector, [ir.Constant(element, identity_of(kind, dtype))] * count)
    entry, loop, tail, last, done = b.block, *(b.append_basic_block(x) for x in ("rows", "tail", "last", "done"))
    whole = b.and_(n, I64(-LANES))
    b.cbranch(b.icmp_unsigned(">", whole, I64(0)), loop, tail)

    b.position_at_end(loop)
    i = b.phi(I64)
    sums = [b.phi(vector) for _ in range(vectors)]
    rows = [_load(b, pointer, b.add(i, I64(v * count)), element, count) for v in range(vectors)]
    following = [combine(b, kind, x, y, dtype) for x, y in zip(sums, rows, strict=True)]
    after = b.add(i, I64(LANES))
    i.add_incoming(I64(0), entry)
    i.add_incoming(after, loop)
    for value, new in zip(sums, following, strict=True):
        value.add_incoming(identity, entry)
        value.add_incoming(new, loop)
    b.cbranch(b.icmp_unsigned("<", after, whole), loop, tail)

    b.position_at_end(tail)
    before = [b.phi(vector) for _ in range(vectors)]
    for value, new in zip(before, following, strict=True):
        value.add_incoming(identity, entry)
        value.add_incoming(new, loop)
    b.cbranch(b.icmp_unsigned("<", whole, n), last, done)

    b.position_at_end(last)
    left = b.sub(n, whole)
    ends = [
        combine(
            b,
            kind,
            x,
            _masked_load(b, pointer, b.add(whole, I64(v * count)), element, count, left, v * count, identity),
            dtype,
        )
        for v, x in enumerate(before)
    ]
    b.branch(done)

    b.position_at_end(done)
    parts: list[Any] = []
    for x, y in zip(before, ends, strict=True):
        value = b.phi(vector)
        value.add_incoming(x, tail)
        value.add_incoming(y, last)
        parts.append(value)
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [combine(b, kind, x, y, dtype) for x, y in zip(parts[:half], parts[half:], strict=True)]
    total = parts[0]
    while count > 1:
        count //= 2
        low, high = (ir.Constant(_vector(I32, count), [s + c for c in range(count)]) for s in (0, count))
        total = combine(b, kind, b.shuffle_vector(total, total, low), b.shuffle_vector(total, total, high), dtype)
    b.ret(b.extract_element(total, I32(0)))


def _masked_load(b: Any, pointer: Any, index: Any, type_: ir.Type, count: int, left: Any, first: int, rest: Any) -> Any:
    """A vector whose lanes, numbered from `first`, are elements where the number is below `left`, else of `rest`."""
    number = ir.IntType(8 * bytes_of(type_))  # of the elements' width, so that the comparison fits into a register
    numbers = ir.Constant(_vector(number, count), [first + c for c in range(count)])
    bound = left if number == I64 else b.trunc(left, number)
    mask = b.icmp_unsigned("<", numbers, _splat(b, bound, count))
    vector = _vector(type_, count)
    place = b.bitcast(element_pointer(b, pointer, index, type_), vector.as_pointer())
    signature = ir.FunctionType(vector, [place.type, I32, mask.type, vector])
    function = cgutils.get_or_insert_function(b.module, signature, f"llvm.masked.load.{suffix_of(vector)}.p0")
    return b.call(function, [place, I32(bytes_of(type_)), mask, rest])


def _multiply(form: str, height: int, vectors: int, width: int) -> Callable[..., Any]:
    """A register tile of a product: `height` rows by `vectors` vectors of `width` bytes.

    multiply(terms, a, stride, rows, b, b_stride, c, c_stride, slot, merges): per element one chain of fma over `terms`
    terms, from +0; then `merges` times the sum of the earlier partial, `slot` elements below, with it; stored as many
    slots below c.

    form rows:      row i of the left operand at a + i * stride, its terms side by side; rows past `rows` repeat the
                    last
    form columns:   term k of it at a + k * stride, its rows side by side (there must be `height` of them)

    Addresses in bytes, strides in elements.
    """

    @intrinsic
    def multiply(
        typing: Any, place: Any, terms: Any, a: Any, a_stride: Any, rows: Any, b: Any, b_stride: Any, c: Any,
        c_stride: Any, slot: Any, merges: Any,
    ) -> Any:  # fmt: skip
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = f"multiply_{form}_{height}x{vectors}_{dtype}_{width}"
            function, body = _function(builder, name, ir.VoidType(), [I64] * 10)
            if body is not None:
                _Tile(body, function, form, height, vectors, dtype, width // bytes_of(llvm_type(dtype))).emit()
            builder.call(function, list(args[1:]))
            return context.get_dummy_value()

        return types.void(place, *[types.int64] * 10), generate

    return multiply


class _Tile:
    """The body of `multiply`."""

    def __init__(self, b: Any, function: Any, form: str, height: int, vectors: int, dtype: Any, count: int) -> None:
        self.b, self.function, self.form = b, function, form
        self.height, self.vectors, self.dtype, self.count = height, vectors, dtype, count
        self.element = llvm_type(dtype)
        self.vector = _vector(self.element, count)
        self.terms, a, self.a_stride, self.rows, b_, self.b_stride, c, self.c_stride, self.slot, self.merges = (
            function.args
        )
        self.a, self.right, self.c = (b.inttoptr(v, POINTER) for v in (a, b_, c))

    def emit(self) -> None:
        b = self.b
        left = self._left()
        entry = b.block
        loop, merge, more, store = (b.append_basic_block(n) for n in ("terms", "merge", "more", "store"))
        zero = ir.Constant(self.vector, [ir.Constant(self.element, 0)] * self.count)
        b.branch(loop)

        b.position_at_end(loop)
        k = b.phi(I64)
        sums = self._phis()
        columns = [
            self._row(self.right, b.add(b.mul(k, self.b_stride), I64(v * self.count))) for v in range(self.vectors)
        ]
        products: list[list[Any]] = []
        for i in range(self.height):
            factor = _splat(b, left(i, k), self.count)
            products.append([self._fma(factor, x, s) for x, s in zip(columns, sums[i], strict=True)])
        after = b.add(k, I64(1))
        k.add_incoming(I64(0), entry)
        k.add_incoming(after, loop)
        self._incoming(sums, [[zero] * self.vectors] * self.height, entry)
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
        merged = [
            [combine(b, "add", self._row(self.c, self._at(below, i, v)), x, self.dtype) for v, x in enumerate(row)]
            for i, row in enumerate(totals)
        ]
        m.add_incoming(b.add(m, I64(1)), more)
        place.add_incoming(below, more)
        self._incoming(totals, merged, more)
        b.branch(merge)

        b.position_at_end(store)
        for i, row in enumerate(totals):
            for v, x in enumerate(row):
                _store(b, x, self.c, self._at(place, i, v), self.element)
        b.ret_void()

    def _left(self) -> Callable[[int, Any], Any]:
        """How to load the left operand's element of row i and term k."""
        b = self.b
        if self.form == "columns":
            return lambda i, k: _load(b, self.a, b.add(b.mul(k, self.a_stride), I64(i)), self.element)
        last = b.sub(self.rows, I64(1))
        starts = [b.mul(call(b, "smin", [I64(i), last]), self.a_stride) if i else I64(0) for i in range(self.height)]
        rows = [element_pointer(b, self.a, s, self.element) for s in starts]
        return lambda i, k: _load(b, rows[i], k, self.element)

    def _row(self, pointer: Any, index: Any) -> Any:
        return _load(self.b, pointer, index, self.element, self.count)

    def _at(self, place: Any, i: int, v: int) -> Any:
        b = self.b
        return b.add(b.add(place, b.mul(I64(i), self.c_stride)), I64(v * self.count))

    def _fma(self, x: Any, y: Any, z: Any) -> Any:
        if isinstance(self.dtype, types.Float):
            return call(self.b, "fma", [x, y, z])
        return self.b.add(self.b.mul(x, y), z)

    def _phis(self) -> list[list[Any]]:
        return [[self.b.phi(self.vector) for _ in range(self.vectors)] for _ in range(self.height)]

    def _incoming(self, phis: list[list[Any]], values: list[list[Any]], block: Any) -> None:
        for row, new in zip(phis, values, strict=True):
            for phi, value in zip(row, new, strict=True):
                phi.add_incoming(value, block)


def _transpose(vectors: int, width: int) -> Callable[..., Any]:
    """transpose(panel, to, from, stride, columns, terms): element k of column c, at from + c * stride + k, goes to
    to + k * (columns of a tile) + c, in square blocks. Columns past `columns` repeat the last. Addresses in bytes, the
    stride in elements."""

    @intrinsic
    def transpose(typing: Any, place: Any, to: Any, source: Any, stride: Any, columns: Any, terms: Any) -> Any:
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = f"transpose_{vectors}_{dtype}_{width}"
            function, body = _function(builder, name, ir.VoidType(), [I64] * 5)
            if body is not None:
                element = llvm_type(dtype)
                _transpose_body(body, function, element, vectors, width // bytes_of(element))
            builder.call(function, list(args[1:]))
            return context.get_dummy_value()

        return types.void(place, *[types.int64] * 5), generate

    return transpose


def _transpose_body(b: Any, function: Any, element: ir.Type, vectors: int, count: int) -> None:
    to, source, stride, columns, terms = function.args
    to, source = b.inttoptr(to, POINTER), b.inttoptr(source, POINTER)
    last = b.sub(columns, I64(1))
    whole = b.and_(terms, I64(-count))
    with cgutils.for_range(b, I64(vectors), intp=I64) as block:
        first = b.mul(block.index, I64(count))
        starts = [b.mul(call(b, "smin", [b.add(first, I64(c)), last]), stride) for c in range(count)]
        with cgutils.for_range_slice(b, I64(0), whole, I64(count), intp=I64, inc=True) as (k, _):
            rows = [_load(b, source, b.add(s, k), element, count) for s in starts]
            for i, row in enumerate(transposed(b, rows)):
                place = b.add(b.mul(b.add(k, I64(i)), I64(vectors * count)), first)
                _store(b, row, to, place, element)
        with cgutils.for_range_slice(b, whole, terms, I64(1), intp=I64, inc=True) as (k, _):
            row = ir.Constant(_vector(element, count), ir.Undefined)
            for c, s in enumerate(starts):
                row = b.insert_element(row, _load(b, source, b.add(s, k), element), I32(c))
            _store(b, row, to, b.add(b.mul(k, I64(vectors * count)), first), element)
    b.ret_void()


@cache
def vector_loops(lanes: int, registers: int) -> dict[str, Any]:
    """The SIMD loops for a vector width (f32 elements) and a number of registers, by the names that source uses."""
    loops = {f"lanes_{kind}": _lanes(kind, 4 * lanes) for kind in ("add", "minimum", "maximum")}
    loops |= column_loops(lanes, registers)
    for vectors in VECTORS:
        loops[f"transpose_{vectors}"] = _transpose(vectors, 4 * lanes)
    for height, vectors in shapes(registers):
        for form in ("rows", "columns"):
            loops[f"multiply_{form}_{height}x{vectors}"] = _multiply(form, height, vectors, 4 * lanes)
    return loops
