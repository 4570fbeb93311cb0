"""The SIMD loops of reductions and contractions, as LLVM IR with vectors of exactly the target's width: functions of
the kernel's module that Numba intrinsics call.

    lanes_add(x, start, n)       one leaf of a reduction in 16 lanes
    copy_12(rows, …)             12 neighbours of every term of a contraction, packed side by side
    transpose_2(panel, …)        the columns of two vectors that lie along the terms, packed side by side
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from alphac.backends.simd_columns import LANES
from alphac.backends.tiling import LINE
from alphac.backends.vector import (
    I32,
    I64,
    POINTER,
    bytes_of,
    call,
    combine,
    element_pointer,
    fetch,
    identity_of,
    llvm_type,
    suffix_of,
)


def vector_of(type_: ir.Type, count: int) -> ir.Type:
    return ir.VectorType(type_, count)


def zeros(type_: ir.Type, count: int) -> ir.Constant:
    return ir.Constant(vector_of(type_, count), [ir.Constant(type_, 0)] * count)


def splat(builder: Any, value: Any, count: int) -> Any:
    vector = vector_of(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, I32(0))
    return builder.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(vector_of(I32, count), [0] * count)
    )


def load(builder: Any, pointer: Any, index: Any, type_: ir.Type, count: int = 1) -> Any:
    """One element or a vector of them, at an element's index."""
    place = element_pointer(builder, pointer, index, type_)
    if count > 1:
        place = builder.bitcast(place, vector_of(type_, count).as_pointer())
    value = builder.load(place)
    value.align = bytes_of(type_)
    return value


def store(builder: Any, value: Any, pointer: Any, index: Any, type_: ir.Type) -> None:
    place = element_pointer(builder, pointer, index, type_)
    builder.store(value, builder.bitcast(place, value.type.as_pointer())).align = bytes_of(type_)


def module_function(builder: Any, name: str, result: ir.Type, parameters: list[ir.Type]) -> tuple[Any, Any]:
    """A function of the module, and a builder for its body if it is new."""
    known = builder.module.globals.get(name)
    if known is not None:
        return known, None
    function = ir.Function(builder.module, ir.FunctionType(result, parameters), name)
    function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def lanes(kind: str, width: int) -> Callable[..., Any]:
    """One leaf of a reduction: elements [start, start + n) of memory in 16 strided lanes, each from the identity, then
    lane l with lane l + 8, + 4, + 2, + 1. `width`: bytes of a vector register."""

    @intrinsic
    def lanes_(typing: Any, place: Any, start: Any, n: Any) -> Any:
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            element = llvm_type(dtype)
            name = f"lanes_{kind}_{dtype}_{width}"
            function, body = module_function(builder, name, element, [POINTER, I64])
            if body is not None:
                _lanes_body(body, function, kind, dtype, min(LANES, width // bytes_of(element)))
            pointer = builder.bitcast(element_pointer(builder, args[0], args[1], element), POINTER)
            return builder.call(function, [pointer, args[2]])

        return dtype(place, types.int64, types.int64), generate

    return lanes_


def _lanes_body(b: Any, function: Any, kind: str, dtype: Any, count: int) -> None:
    """`count` lanes to a vector, 16 // count vectors."""
    pointer, n = function.args
    element, vectors = llvm_type(dtype), LANES // count
    vector = vector_of(element, count)
    identity = ir.Constant(vector, [ir.Constant(element, identity_of(kind, dtype))] * count)
    entry, loop, tail, last, done = b.block, *(b.append_basic_block(x) for x in ("rows", "tail", "last", "done"))
    whole = b.and_(n, I64(-LANES))
    b.cbranch(b.icmp_unsigned(">", whole, I64(0)), loop, tail)

    b.position_at_end(loop)
    i = b.phi(I64)
    sums = [b.phi(vector) for _ in range(vectors)]
    rows = [load(b, pointer, b.add(i, I64(v * count)), element, count) for v in range(vectors)]
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
            masked_load(b, pointer, b.add(whole, I64(v * count)), element, count, left, v * count, identity),
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
        low, high = (ir.Constant(vector_of(I32, count), [s + c for c in range(count)]) for s in (0, count))
        total = combine(b, kind, b.shuffle_vector(total, total, low), b.shuffle_vector(total, total, high), dtype)
    b.ret(b.extract_element(total, I32(0)))


def masked_load(b: Any, pointer: Any, index: Any, type_: ir.Type, count: int, left: Any, first: int, rest: Any) -> Any:
    """A vector whose lanes, numbered from `first`, are elements where the number is below `left`, else of `rest`."""
    mask, vector = _below(b, type_, count, left, first), vector_of(type_, count)
    place = b.bitcast(element_pointer(b, pointer, index, type_), vector.as_pointer())
    signature = ir.FunctionType(vector, [place.type, I32, mask.type, vector])
    function = cgutils.get_or_insert_function(b.module, signature, f"llvm.masked.load.{suffix_of(vector)}.p0")
    return b.call(function, [place, I32(bytes_of(type_)), mask, rest])


def masked_store(b: Any, value: Any, pointer: Any, index: Any, type_: ir.Type, left: Any) -> None:
    """Store the first `left` lanes of a vector."""
    mask = _below(b, type_, value.type.count, left, 0)
    place = b.bitcast(element_pointer(b, pointer, index, type_), value.type.as_pointer())
    signature = ir.FunctionType(ir.VoidType(), [value.type, place.type, I32, mask.type])
    function = cgutils.get_or_insert_function(b.module, signature, f"llvm.masked.store.{suffix_of(value.type)}.p0")
    b.call(function, [value, place, I32(bytes_of(type_)), mask])


def fetch_lines(lines: int) -> Callable[..., Any]:
    """fetch_N(at): fetch so many lines from an address on."""

    @intrinsic
    def fetch_n(typing: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            for line in range(lines):
                fetch(builder, builder.inttoptr(builder.add(args[0], I64(line * LINE)), POINTER))
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return fetch_n


def _below(b: Any, type_: ir.Type, count: int, left: Any, first: int) -> Any:
    """Of lanes numbered from `first`, those whose number is below `left`."""
    number = ir.IntType(8 * bytes_of(type_))  # of the elements' width, so that the comparison fits into a register
    numbers = ir.Constant(vector_of(number, count), [first + c for c in range(count)])
    bound = left if number == I64 else b.trunc(left, number)
    return b.icmp_unsigned("<", numbers, splat(b, bound, count))


def copy(size: int, width: int) -> Callable[..., Any]:
    """copy(panel, to, from, stride, count, terms): `count` neighbours of every term, at from + k * stride, go to
    to + k * size. What the panel holds behind them is undefined; what lies behind in memory is fetched into the cache.
    Addresses in bytes, the stride in elements."""

    @intrinsic
    def copy(typing: Any, place: Any, to: Any, source: Any, stride: Any, count: Any, terms: Any) -> Any:
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = f"copy_{size}_{dtype}_{width}"
            function, body = module_function(builder, name, ir.VoidType(), [I64] * 5)
            if body is not None:
                element = llvm_type(dtype)
                _copy_body(body, function, element, size, width // bytes_of(element))
            builder.call(function, list(args[1:]))
            return context.get_dummy_value()

        return types.void(place, *[types.int64] * 5), generate

    return copy


def _copy_body(b: Any, function: Any, element: ir.Type, size: int, lanes: int) -> None:
    to, source, stride, count, terms = function.args
    to, source = b.inttoptr(to, POINTER), b.inttoptr(source, POINTER)
    rest = ir.Constant(vector_of(element, lanes), ir.Undefined)
    with b.if_else(b.icmp_signed("==", count, I64(size))) as (whole, part):
        with whole, cgutils.for_range(b, terms, intp=I64) as term:
            at, place = b.mul(term.index, stride), b.mul(term.index, I64(size))
            for c in range(0, size, lanes):
                value = load(b, source, b.add(at, I64(c)), element, min(lanes, size - c))
                store(b, value, to, b.add(place, I64(c)), element)
            fetch(b, element_pointer(b, source, b.add(at, I64(size + LINE // bytes_of(element))), element))
        with part, cgutils.for_range(b, terms, intp=I64) as term:
            at, place = b.mul(term.index, stride), b.mul(term.index, I64(size))
            for c in range(0, size, lanes):
                left = call(b, "smax", [b.sub(count, I64(c)), I64(0)])
                value = masked_load(b, source, b.add(at, I64(c)), element, lanes, left, 0, rest)
                masked_store(b, value, to, b.add(place, I64(c)), element, left)
    b.ret_void()


def transpose(vectors: int, width: int) -> Callable[..., Any]:
    """transpose(panel, to, from, stride, columns, terms): element k of column c, at from + c * stride + k, goes to
    to + k * (columns of a tile) + c, in square blocks. Columns past `columns` repeat the last. Addresses in bytes, the
    stride in elements."""

    @intrinsic
    def transpose(typing: Any, place: Any, to: Any, source: Any, stride: Any, columns: Any, terms: Any) -> Any:
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = f"transpose_{vectors}_{dtype}_{width}"
            function, body = module_function(builder, name, ir.VoidType(), [I64] * 5)
            if body is not None:
                # Inlined, what shuffles need would be kept in registers around the loop that multiplies.
                function.attributes.add("noinline")
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
    # The last square may overlap the one before; terms that do not fill one go one by one.
    few = b.icmp_signed("<", terms, I64(count))
    squares = b.select(few, I64(0), b.udiv(b.add(terms, I64(count - 1)), I64(count)))
    singly = b.select(few, terms, I64(0))
    with cgutils.for_range(b, I64(vectors), intp=I64) as block:
        first = b.mul(block.index, I64(count))
        starts = [b.mul(call(b, "smin", [b.add(first, I64(c)), last]), stride) for c in range(count)]

        with cgutils.for_range(b, squares, intp=I64) as i:
            k = call(b, "smin", [b.mul(i.index, I64(count)), b.sub(terms, I64(count))])
            rows = [load(b, source, b.add(s, k), element, count) for s in starts]
            for j, row in enumerate(transposed(b, rows)):
                place = b.add(b.mul(b.add(k, I64(j)), I64(vectors * count)), first)
                store(b, row, to, place, element)
        with cgutils.for_range(b, singly, intp=I64) as k:
            row = ir.Constant(vector_of(element, count), ir.Undefined)
            for c, s in enumerate(starts):
                row = b.insert_element(row, load(b, source, b.add(s, k.index), element), I32(c))
            store(b, row, to, b.add(b.mul(k.index, I64(vectors * count)), first), element)
    b.ret_void()


def transposed(b: Any, rows: list[Any]) -> list[Any]:
    """A square of vectors, transposed: off-diagonal squares are exchanged, at half the size each time."""
    count, half = len(rows), len(rows) // 2
    while half:
        upper = ir.Constant(vector_of(I32, count), [i if not i & half else count + i - half for i in range(count)])
        lower = ir.Constant(vector_of(I32, count), [i + half if not i & half else count + i for i in range(count)])
        for i in range(count):
            if not i & half:
                x, y = rows[i], rows[i + half]
                rows[i], rows[i + half] = b.shuffle_vector(x, y, upper), b.shuffle_vector(x, y, lower)
        half //= 2
    return rows
