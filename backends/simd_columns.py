"""SIMD loops whose vectors hold kept elements, each with sums of its own, as LLVM IR that Numba intrinsics call.

columns_add(place, to, from, stride, n, columns)       one leaf of a reduction: 16 lanes, in registers, per element
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from alphac.backends.tiling import LEAF
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

LANES = 16  # of a reduction, whatever the vector registers' width
HEIGHTS, WIDTHS = (6, 5, 4, 3, 2, 1), (4, 2, 1)  # of `chains`
DOTS = (8, 4, 3, 2, 1)  # columns of `dots`


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


def _columns(kind: str, width: int) -> Callable[..., Any]:
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


# ---------------------------------------------------------------------- contractions
def _dots(columns: int, width: int) -> Callable[..., Any]:
    """dots_C(place, c, c_stride, a, a_stride, rows, terms, b, b_stride, b_across, ahead): for every row of a,
    `a_stride` elements apart, and every one of C columns, a chain of fma over `terms` terms, from +0: term k of column
    j is at b + k * b_stride + j * b_across, row i's sum goes to c + j * c_stride + i. Squares of a are transposed in
    registers. c is written in whole vectors. Addresses and `ahead`, how far ahead a is fetched, in bytes."""

    @intrinsic
    def dots(
        typing: Any, place: Any, c: Any, c_stride: Any, a: Any, a_stride: Any, rows: Any, terms: Any, b: Any,
        b_stride: Any, b_across: Any, ahead: Any,
    ) -> Any:  # fmt: skip
        def body(builder: Any, arguments: Sequence[Any]) -> None:
            _Dots(builder, place.dtype, width, columns, arguments).emit()

        return types.void(place, *[types.int64] * 10), vector_code(f"dots_{columns}_{width}", place.dtype, body)

    return dots


class _Dots:
    """The body of `dots`."""

    def __init__(self, b: Any, dtype: Any, width: int, columns: int, arguments: Sequence[Any]) -> None:
        self.b, self.v, self.columns = b, Vectors(b, dtype, width), columns
        c, self.c_stride, a, self.a_stride, self.rows, self.terms, right, self.b_stride, self.b_across, ahead = (
            arguments
        )
        self.c, self.a, self.right = (b.inttoptr(x, POINTER) for x in (c, a, right))
        self.ahead = ahead

    def emit(self) -> None:
        b, v = self.b, self.v
        last = b.sub(self.rows, I64(1))
        with cgutils.for_range_slice(b, I64(0), self.rows, I64(v.count), intp=I64, inc=True) as (first, _):
            starts = [b.mul(call(b, "smin", [b.add(first, I64(i)), last]), self.a_stride) for i in range(v.count)]
            for j, total in enumerate(self._chain(starts)):
                v.store(total, self.c, b.add(b.mul(I64(j), self.c_stride), first))

    def _chain(self, starts: list[Any]) -> list[Any]:
        """The sums of one vector of rows, which begin at `starts`: by whole squares, then what is left of the terms."""
        b, v = self.b, self.v
        whole = b.and_(self.terms, I64(-v.count))
        entry, loop, tail, rest, done = b.block, *(b.append_basic_block(x) for x in ("squares", "tail", "rest", "done"))
        zero = v.constant(0)
        b.cbranch(b.icmp_signed(">", whole, I64(0)), loop, tail)

        b.position_at_end(loop)
        k = b.phi(I64)
        sums = [b.phi(v.type) for _ in range(self.columns)]
        following = sums
        self._fetch(starts, k)
        for i, x in enumerate(transposed(b, [v.load(self.a, b.add(s, k)) for s in starts])):
            following = self._fma(x, b.add(k, I64(i)), following)
        after = b.add(k, I64(v.count))
        k.add_incoming(I64(0), entry)
        k.add_incoming(after, b.block)
        for phi, new in zip(sums, following, strict=True):
            phi.add_incoming(zero, entry)
            phi.add_incoming(new, b.block)
        turned = b.block
        b.cbranch(b.icmp_signed("<", after, whole), loop, tail)

        b.position_at_end(tail)
        current = [b.phi(v.type) for _ in range(self.columns)]
        for phi, new in zip(current, following, strict=True):
            phi.add_incoming(zero, entry)
            phi.add_incoming(new, turned)
        left = b.sub(self.terms, whole)
        ends = [(b.block, list(current))]
        b.cbranch(b.icmp_signed(">", left, I64(0)), rest, done)

        b.position_at_end(rest)
        mask = v.below(left)
        square = transposed(b, [v.load(self.a, b.add(s, whole), mask) for s in starts])
        for i in range(v.count - 1):
            current = self._fma(square[i], b.add(whole, I64(i)), current)
            ends.append((b.block, list(current)))
            more = b.append_basic_block("more")
            b.cbranch(b.icmp_signed(">", left, I64(i + 1)), more, done)
            b.position_at_end(more)
        b.unreachable()

        b.position_at_end(done)
        return [joined_values(b, [(block, values[j]) for block, values in ends]) for j in range(self.columns)]

    def _fetch(self, starts: list[Any], k: Any) -> None:
        """Ask for what the squares to come will load: the processor's own fetching waits for a pattern."""
        b = self.b
        with b.if_then(b.icmp_signed("!=", self.ahead, I64(0))):
            for s in starts:
                place = element_pointer(b, self.a, b.add(s, k), self.v.element)
                fetch(b, b.gep(b.bitcast(place, POINTER), [self.ahead]))

    def _fma(self, x: Any, k: Any, sums: list[Any]) -> list[Any]:
        b, at = self.b, self.b.mul(k, self.b_stride)
        factors = [self.v.splat(self.right, b.add(at, b.mul(I64(j), self.b_across))) for j in range(self.columns)]
        return [self.v.fma(x, y, s) for y, s in zip(factors, sums, strict=True)]


def _chains(height: int, vectors: int, width: int) -> Callable[..., Any]:
    """chains_HxV(place, c, c_stride, a, a_stride, a_across, b, b_stride, columns, n): row i of c, for each of H, and
    its columns, at most V vectors: the sum over n <= 1,024 terms of a[k * a_stride + i * a_across] times
    b[k * b_stride + column], in leaves of 256: chains of fma from +0, four of them side by side. Addresses in bytes."""

    @intrinsic
    def chains(
        typing: Any, place: Any, c: Any, c_stride: Any, a: Any, a_stride: Any, a_across: Any, b: Any, b_stride: Any,
        columns: Any, n: Any,
    ) -> Any:  # fmt: skip
        def body(builder: Any, arguments: Sequence[Any]) -> None:
            _Chains(builder, place.dtype, width, (height, vectors), arguments).emit()

        name = f"chains_{height}x{vectors}_{width}"
        return types.void(place, *[types.int64] * 9), vector_code(name, place.dtype, body)

    return chains


class _Chains:
    """The body of `chains`."""

    def __init__(self, b: Any, dtype: Any, width: int, shape: tuple[int, int], arguments: Sequence[Any]) -> None:
        self.b, self.v, (self.height, self.vectors) = b, Vectors(b, dtype, width), shape
        c, self.c_stride, a, self.a_stride, self.a_across, right, self.b_stride, columns, self.n = arguments
        self.c, self.a, self.right = (b.inttoptr(x, POINTER) for x in (c, a, right))
        count = self.v.count
        self.masks = [
            self.v.below(call(b, "smax", [b.sub(columns, I64(v * count)), I64(0)])) for v in range(self.vectors)
        ]

    def emit(self) -> None:
        """Four whole leaves side by side, or one after the other as far as there are terms."""
        b = self.b
        full = b.icmp_signed("==", self.n, I64(4 * LEAF))
        with b.if_else(full) as (side_by_side, in_turn):
            with side_by_side:
                self._store(self._tree(self._leaves(list(range(4)), I64(LEAF))))
            with in_turn:
                self._in_turn([])

    def _in_turn(self, known: list[list[Any]]) -> None:
        b, start = self.b, len(known) * LEAF
        terms = call(b, "smin", [b.sub(self.n, I64(start)), I64(LEAF)])
        (leaf,) = self._leaves([len(known)], terms)
        sums = [*known, leaf]
        if len(sums) == 4:
            self._store(self._tree(sums))
            return
        with b.if_else(b.icmp_signed("<=", self.n, I64(start + LEAF))) as (over, more):
            with over:
                self._store(self._tree(sums))
            with more:
                self._in_turn(sums)

    def _leaves(self, leaves: list[int], terms: Any) -> list[list[Any]]:
        """The sums of some leaves of so many terms each."""
        b, v = self.b, self.v
        entry, loop, done = b.block, b.append_basic_block("terms"), b.append_basic_block("done")
        zero = v.constant(0)
        b.branch(loop)
        b.position_at_end(loop)
        k = b.phi(I64)
        sums = [[b.phi(v.type) for _ in range(self.height * self.vectors)] for _ in leaves]
        following: list[list[Any]] = []
        for leaf, chains in zip(leaves, sums, strict=True):
            at = b.add(k, I64(leaf * LEAF))
            row, left = b.mul(at, self.b_stride), b.mul(at, self.a_stride)
            columns = [v.load(self.right, b.add(row, I64(i * v.count)), mask) for i, mask in enumerate(self.masks)]
            factors = [v.splat(self.a, b.add(left, b.mul(I64(i), self.a_across))) for i in range(self.height)]
            pairs = [(x, y) for x in factors for y in columns]
            following.append([v.fma(x, y, s) for (x, y), s in zip(pairs, chains, strict=True)])
        after = b.add(k, I64(1))
        k.add_incoming(I64(0), entry)
        k.add_incoming(after, loop)
        for phis, values in zip(sums, following, strict=True):
            for phi, new in zip(phis, values, strict=True):
                phi.add_incoming(zero, entry)
                phi.add_incoming(new, loop)
        b.cbranch(b.icmp_signed("<", after, terms), loop, done)
        b.position_at_end(done)
        return following

    def _tree(self, sums: list[list[Any]]) -> list[Any]:
        """Up to four leaves, combined as in the tree over them."""
        while len(sums) > 1:
            pairs = [
                [self.v.join("add", x, y) for x, y in zip(left, right, strict=True)]
                for left, right in zip(sums[::2], sums[1::2], strict=False)
            ]
            sums = [*pairs, *(sums[-1:] if len(sums) % 2 else [])]
        return sums[0]

    def _store(self, totals: list[Any]) -> None:
        b, count = self.b, self.v.count
        for i in range(self.height):
            for j, mask in enumerate(self.masks):
                place = b.add(b.mul(I64(i), self.c_stride), I64(j * count))
                self.v.store(totals[i * self.vectors + j], self.c, place, mask)


def joined_values(b: Any, incoming: Sequence[tuple[Any, Any]]) -> Any:
    """The value that the block before gave."""
    phi = b.phi(incoming[0][1].type)
    for block, value in incoming:
        phi.add_incoming(value, block)
    return phi


def transposed(b: Any, rows: list[Any]) -> list[Any]:
    """A square of vectors, transposed: off-diagonal squares are exchanged, at half the size each time."""
    count, half = len(rows), len(rows) // 2
    vector = ir.VectorType(I32, count)
    while half:
        upper = ir.Constant(vector, [i if not i & half else count + i - half for i in range(count)])
        lower = ir.Constant(vector, [i + half if not i & half else count + i for i in range(count)])
        for i in range(count):
            if not i & half:
                x, y = rows[i], rows[i + half]
                rows[i], rows[i + half] = b.shuffle_vector(x, y, upper), b.shuffle_vector(x, y, lower)
        half //= 2
    return rows


def chain_shapes(registers: int) -> list[tuple[int, int]]:
    """The shapes of `chains` for which four leaves' sums fit into registers."""
    return [(h, v) for h in HEIGHTS for v in WIDTHS if 4 * h * v + v + 1 <= registers]


def dot_columns(registers: int) -> list[int]:
    """The numbers of columns of `dots` whose sums fit into registers beside a square."""
    return [c for c in DOTS if 4 * c <= registers]


@cache
def column_loops(lanes: int, registers: int) -> dict[str, Any]:
    """The SIMD loops for a vector width (f32 elements) and a number of registers, by the names that source uses."""
    width = 4 * lanes
    loops = {f"columns_{kind}": _columns(kind, width) for kind in ("add", "minimum", "maximum")}
    loops |= {f"dots_{c}": _dots(c, width) for c in dot_columns(registers)}
    return loops | {f"chains_{h}x{v}": _chains(h, v, width) for h, v in chain_shapes(registers)}
