"""SIMD loops of contractions with few results, whose vectors hold rows or columns of them, as LLVM IR that intrinsics
call.

    dots_2(place, c, …)        one leaf with 2 columns: a vector of rows, whose terms lie side by side
    chains_1x2(place, c, …)    up to four leaves over rows: 1 element of the left operand's row by 2 vectors of the
                               right one's
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

from alphac.backends.simd import transposed
from alphac.backends.simd_columns import Vectors, vector_code
from alphac.backends.tiling import LEAF
from alphac.backends.vector import I64, POINTER, call, element_pointer, fetch

HEIGHTS, WIDTHS = (6, 5, 4, 3, 2, 1), (4, 2, 1)  # of `chains`
DOTS = (8, 4, 3, 2, 1)  # columns of `dots`


def dots(columns: int, width: int) -> Callable[..., Any]:
    """dots_C(place, c, c_stride, a, a_stride, rows, terms, b, b_stride, b_across, ahead): for every row of a,
    `a_stride` elements apart, and every one of C columns, a chain of fma over `terms` terms, from +0: term k of column
    j is at b + k * b_stride + j * b_across, row i's sum goes to c + j * c_stride + i. Squares of a are transposed in
    registers. c is written in whole vectors. Addresses and `ahead`, how far ahead a is fetched, in bytes."""

    @intrinsic
    def call_(
        typing: Any, place: Any, c: Any, c_stride: Any, a: Any, a_stride: Any, rows: Any, terms: Any, b: Any,
        b_stride: Any, b_across: Any, ahead: Any,
    ) -> Any:  # fmt: skip
        def body(builder: Any, arguments: Sequence[Any]) -> None:
            _Dots(builder, place.dtype, width, columns, arguments).emit()

        return types.void(place, *[types.int64] * 10), vector_code(f"dots_{columns}_{width}", place.dtype, body)

    return call_


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


def chains(height: int, vectors: int, width: int) -> Callable[..., Any]:
    """chains_HxV(place, c, c_stride, a, a_stride, a_across, b, b_stride, columns, n): row i of c, for each of H, and
    its columns, at most V vectors: the sum over n <= 1,024 terms of a[k * a_stride + i * a_across] times
    b[k * b_stride + column], in leaves of 256: chains of fma from +0, four of them side by side. Addresses in bytes."""

    @intrinsic
    def call_(
        typing: Any, place: Any, c: Any, c_stride: Any, a: Any, a_stride: Any, a_across: Any, b: Any, b_stride: Any,
        columns: Any, n: Any,
    ) -> Any:  # fmt: skip
        def body(builder: Any, arguments: Sequence[Any]) -> None:
            _Chains(builder, place.dtype, width, (height, vectors), arguments).emit()

        name = f"chains_{height}x{vectors}_{width}"
        return types.void(place, *[types.int64] * 9), vector_code(name, place.dtype, body)

    return call_


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


def chain_shapes(registers: int) -> list[tuple[int, int]]:
    """The shapes of `chains` for which four leaves' sums fit into registers."""
    return [(h, v) for h in HEIGHTS for v in WIDTHS if 4 * h * v + v + 1 <= registers]


def dot_columns(registers: int) -> list[int]:
    """The numbers of columns of `dots` whose sums fit into registers beside a square."""
    return [c for c in DOTS if 4 * c <= registers]
