"""What GPU kernels' source calls besides scalar operations: where a thread is, barriers, shared and local memory, and
the register tile of a contraction. They call functions that every target defines in its own LLVM IR:

    i64 gpu_local()         the thread's number in its block
    i64 gpu_block()         the block's
    i64 gpu_blocks()        how many there are
    i64 gpu_tile()          which iteration of tiles this is (entry.py)
    void gpu_barrier()
    ptr gpu_shared(i64)     a place in the block's memory


    x = shared(0, f32, 1, 3)              memory of the block, from byte 0 of it on
    part = local(12, f32, 2, 3)           memory of this thread: registers where all indices are constants
    t = aligned(x, 4 * e)                 x[4 * e], whose place is a multiple of 16 bytes
    barrier()
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from alphac.backends.vector import (
    I8,
    I32,
    I64,
    POINTER,
    Allocation,
    Memory,
    bytes_of,
    call,
    element_pointer,
    llvm_type,
    load_element,
)

SIDE = 16  # threads along each side of a contraction's tile
WIDE = 16  # bytes of the widest access


def _number(name: str) -> Callable[..., Any]:
    @intrinsic
    def number(typing: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.call(_library(builder, name, I64, []), [])

        return types.int64(), generate

    return number


def _library(builder: Any, name: str, result: ir.Type, parameters: list[ir.Type]) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, parameters), name)


@intrinsic
def barrier(typing: Any) -> Any:
    """All threads of the block meet; what they stored before, all see after."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.call(_library(builder, "gpu_barrier", ir.VoidType(), []), [])
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def aligned(typing: Any, memory: Any, at: Any) -> Any:
    """The element at an index that is a multiple of as many as the widest access holds: so LLVM loads those beside it,
    if they are wanted too, together with it."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return load_element(builder, args[0], args[1], memory, WIDE)

    return memory.dtype(memory, types.int64), generate


def _shared(builder: Any, memory: Memory, start: int) -> Any:
    """Memory that all threads of the block see, from a byte of it on."""
    return builder.call(_library(builder, "gpu_shared", POINTER, [I64]), [I64(start)])


def _local(builder: Any, memory: Memory, elements: int) -> Any:
    """Memory of this thread alone."""
    array = builder.alloca(ir.ArrayType(I8, bytes_of(llvm_type(memory.dtype)) * elements))
    array.align = WIDE
    return builder.bitcast(array, POINTER)


# ---------------------------------------------------------------------- the register tile of a contraction
def place(i: int, height: int, element: int) -> tuple[int, int]:
    """Of a thread's i-th row (or column) of a tile, `height` in all: the row is `fixed` + `times` thread. Runs of as
    many as the widest access holds lie side by side, so that they are loaded together."""
    run = min(height, WIDE // element)
    return i // run * run * SIDE + i % run, run


def _each(height: int, width: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(height) for j in range(width)]


def _at(builder: Any, pointer: Any, index: Any, type_: ir.Type) -> Any:
    return element_pointer(builder, pointer, index, type_)


def _run(builder: Any, pointer: Any, start: Any, count: int, type_: ir.Type) -> list[Any]:
    """`count` elements side by side, aligned to all of them, in one load."""
    address = _at(builder, pointer, start, type_)
    if count == 1:
        return [builder.load(address)]
    vector = ir.VectorType(type_, count)
    loaded = builder.load(builder.bitcast(address, vector.as_pointer()))
    loaded.align = count * bytes_of(type_)
    return [builder.extract_element(loaded, I32(i)) for i in range(count)]


@cache
def tile_functions(height: int, width: int) -> dict[str, Any]:
    """For `height` by `width` accumulators in each of 16 by 16 threads, kept in local memory `acc` whose every index is
    a constant, so that they become registers:

    tile_clear(acc)
    tile_multiply(acc, a, at, b, bt, da, db, y, x, terms)    acc += a[at + k da …] b[bt + k db …]
    tile_merge(acc, stack, slot)     acc = slot + acc
    tile_push(acc, stack, slot)      slot = acc

    `tile_sides` says how many they are.
    """

    @intrinsic
    def tile_clear(typing: Any, acc: Any) -> Any:
        type_ = llvm_type(acc.dtype)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            for i in range(height * width):
                builder.store(ir.Constant(type_, 0), _at(builder, args[0], I64(i), type_))
            return context.get_dummy_value()

        return types.none(acc), generate

    @intrinsic
    def tile_multiply(
        typing: Any,
        acc: Any,
        a: Any,
        at: Any,
        b: Any,
        bt: Any,
        da: Any,
        db: Any,
        y: Any,
        x: Any,
        terms: Any,
    ) -> Any:
        dtype, type_ = acc.dtype, llvm_type(acc.dtype)
        integers = [types.int64] * 5

        def side(builder: Any, pointer: Any, start: Any, thread: Any, count: int) -> list[Any]:
            run, found = min(count, WIDE // bytes_of(type_)), []
            for i in range(0, count, run):
                fixed, times = place(i, count, bytes_of(type_))
                index = builder.add(start, builder.add(builder.mul(thread, I64(times)), I64(fixed)))
                found += _run(builder, pointer, index, run, type_)
            return found

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            acc_, a_, at_, b_, bt_, da_, db_, y_, x_, terms_ = args
            with cgutils.for_range(builder, terms_) as loop:
                rows = side(builder, a_, builder.add(at_, builder.mul(loop.index, da_)), y_, height)
                columns = side(builder, b_, builder.add(bt_, builder.mul(loop.index, db_)), x_, width)
                for i, j in _each(height, width):
                    place_ = _at(builder, acc_, I64(i * width + j), type_)
                    sum_ = builder.load(place_)
                    if isinstance(dtype, types.Float):
                        sum_ = call(builder, "fma", [rows[i], columns[j], sum_])
                    else:
                        sum_ = builder.add(builder.mul(rows[i], columns[j]), sum_)
                    builder.store(sum_, place_)
            return context.get_dummy_value()

        return types.none(acc, a, types.int64, b, types.int64, *integers), generate

    def moved(merge: bool) -> Any:
        @intrinsic
        def tile_move(typing: Any, acc: Any, stack: Any, slot: Any) -> Any:
            dtype, type_ = acc.dtype, llvm_type(acc.dtype)

            def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
                start = builder.mul(args[2], I64(height * width))
                for i in range(height * width):
                    own = _at(builder, args[0], I64(i), type_)
                    other = _at(builder, args[1], builder.add(start, I64(i)), type_)
                    if not merge:
                        builder.store(builder.load(own), other)
                    elif isinstance(dtype, types.Float):
                        builder.store(builder.fadd(builder.load(other), builder.load(own)), own)
                    else:
                        builder.store(builder.add(builder.load(other), builder.load(own)), own)
                return context.get_dummy_value()

            return types.none(acc, stack, types.int64), generate

        return tile_move

    return {
        "tile_sides": (height, width),
        "tile_clear": tile_clear,
        "tile_multiply": tile_multiply,
        "tile_merge": moved(merge=True),
        "tile_push": moved(merge=False),
    }


FUNCTIONS: dict[str, Any] = {
    "local_number": _number("gpu_local"),
    "block_number": _number("gpu_block"),
    "block_count": _number("gpu_blocks"),
    "barrier": barrier,
    "aligned": aligned,
    "shared": Allocation(_shared),
    "local": Allocation(_local),
}
