"""The inner loop of contractions: one leaf's chains of a register tile, as LLVM IR.

multiply_rows_12x2(tile, terms, …)         12 rows by 2 vectors
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from alphac.backends.simd import load, masked_load, masked_store, module_function, splat, store, vector_of, zeros
from alphac.backends.tiling import LINE
from alphac.backends.vector import I64, POINTER, bytes_of, call, combine, element_pointer, fetch, llvm_type


def multiply(height: int, vectors: int, masked: bool, lines: int, width: int) -> Callable[..., Any]:
    """A register tile of a product: `height` rows by `vectors` vectors of `width` bytes.

    multiply(tile, terms, a, a_across, a_along, b, b_along, c, c_across, slot, merges, to, to_across, columns, ahead,
             ahead_along)

    Per element one chain of fma over `terms` terms, from +0; then `merges` times the sum of the earlier partial, which
    is `slot` elements further below c each time, with it; stored at `to`. Row i's term k is at
    a + i * a_across + k * a_along. If `masked`, of the last vector only so many columns are read and stored that there
    are `columns` in all. With term k, so many lines of memory at ahead + k * ahead_along are fetched into the cache.

    Addresses in bytes, strides in elements.
    """
    return multiply_by(Tile, "multiply", height, vectors, masked, lines, width)


def multiply_by(
    kind: type[Tile], prefix: str, height: int, vectors: int, masked: bool, lines: int, width: int
) -> Callable[..., Any]:
    """`multiply`, its body made by a kind of tile."""

    @intrinsic
    def multiply(
        typing: Any, place: Any, terms: Any, a: Any, a_across: Any, a_along: Any, b: Any, b_along: Any, c: Any,
        c_across: Any, slot: Any, merges: Any, to: Any, to_across: Any, columns: Any,
        ahead: Any, ahead_along: Any,
    ) -> Any:  # fmt: skip
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = f"{prefix}_{height}x{vectors}{'m' * masked}p{lines}_{dtype}_{width}"
            function, body = module_function(builder, name, ir.VoidType(), [I64] * 15)
            if body is not None:
                count = width // bytes_of(llvm_type(dtype))
                kind(body, function, height, vectors, masked, lines, dtype, count).emit()
            builder.call(function, list(args[1:]))
            return context.get_dummy_value()

        return types.void(place, *[types.int64] * 15), generate

    return multiply


class Leaf:
    """The body of a function that sums one leaf of a register tile, `height` rows by `vectors` vectors of `count`
    elements: chains over `terms` terms from +0, merged `merges` times with earlier partials, each `slot` elements below
    the one before, and stored. `term`, `partial` and `finish` say what a term is and where sums lie."""

    terms: Any
    slot: Any
    merges: Any

    def __init__(self, b: Any, height: int, vectors: int, dtype: Any, count: int) -> None:
        self.b, self.height, self.vectors, self.dtype, self.count = b, height, vectors, dtype, count
        self.element = llvm_type(dtype)
        self.vector = vector_of(self.element, count)
        self.zero = zeros(self.element, count)

    def emit(self) -> None:
        """Write the body."""
        b = self.b
        entry = b.block
        names = ("terms", "summed", "merge", "more", "store")
        loop, summed, merge, more, done = (b.append_basic_block(n) for n in names)
        b.branch(loop)

        b.position_at_end(loop)
        k = b.phi(I64)
        sums = self._phis()
        products = self.term(k, sums)
        after = b.add(k, I64(1))
        k.add_incoming(I64(0), entry)
        k.add_incoming(after, loop)
        self._incoming(sums, [[self.zero] * self.vectors] * self.height, entry)
        self._incoming(sums, products, loop)
        b.cbranch(b.icmp_signed("<", after, self.terms), loop, summed)

        b.position_at_end(summed)
        self.judge(products)
        judged = b.block
        b.branch(merge)

        b.position_at_end(merge)
        m, place, totals = b.phi(I64), b.phi(I64), self._phis()
        m.add_incoming(I64(0), judged)
        place.add_incoming(I64(0), judged)
        self._incoming(totals, products, judged)
        b.cbranch(b.icmp_signed("<", m, self.merges), more, done)

        b.position_at_end(more)
        below = b.sub(place, self.slot)
        merged = [
            [combine(b, "add", self.partial(below, i, v), x, self.dtype) for v, x in enumerate(row)]
            for i, row in enumerate(totals)
        ]
        m.add_incoming(b.add(m, I64(1)), more)
        place.add_incoming(below, more)
        self._incoming(totals, merged, more)
        b.branch(merge)

        b.position_at_end(done)
        for i, row in enumerate(totals):
            for v, x in enumerate(row):
                self.finish(place, i, v, x)
        self.leave()

    def judge(self, sums: list[list[Any]]) -> None:
        """What is to be done about the sums of the leaf before they are merged."""

    def leave(self) -> None:
        """Return, when all is stored."""
        self.b.ret_void()

    def term(self, k: Any, sums: list[list[Any]]) -> list[list[Any]]:
        """All chains after term k."""
        raise NotImplementedError

    def partial(self, place: Any, i: int, v: int) -> Any:
        """A vector of the partial sums that begin at a place."""
        raise NotImplementedError

    def finish(self, place: Any, i: int, v: int, value: Any) -> None:
        """Store a vector of sums; `place` is that of the partial they were last merged with."""
        raise NotImplementedError

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        if isinstance(self.dtype, types.Float):
            return call(self.b, "fma", [x, y, z])
        return self.b.add(self.b.mul(x, y), z)

    def index(self, place: Any, i: int, across: Any, v: int) -> Any:
        """Where row i's vector v is, `across` elements from row to row."""
        b = self.b
        return b.add(b.add(place, b.mul(I64(i), across)), I64(v * self.count))

    def _phis(self) -> list[list[Any]]:
        return [[self.b.phi(self.vector) for _ in range(self.vectors)] for _ in range(self.height)]

    def _incoming(self, phis: list[list[Any]], values: list[list[Any]], block: Any) -> None:
        for row, new in zip(phis, values, strict=True):
            for phi, value in zip(row, new, strict=True):
                phi.add_incoming(value, block)


class Tile(Leaf):
    """The body of `multiply`."""

    def __init__(
        self, b: Any, function: Any, height: int, vectors: int, masked: bool, lines: int, dtype: Any, count: int
    ) -> None:
        super().__init__(b, height, vectors, dtype, count)
        self.masked, self.lines = masked, lines
        (
            self.terms, a, self.a_across, self.a_along, b_, self.b_along, c, self.c_across, self.slot, self.merges,
            to, self.to_across, self.columns, ahead, self.ahead_along,
        ) = function.args  # fmt: skip
        self.left, self.right, self.c, self.to, self.ahead = (b.inttoptr(v, POINTER) for v in (a, b_, c, to, ahead))

    def term(self, k: Any, sums: list[list[Any]]) -> list[list[Any]]:
        """All chains after term k."""
        b = self.b
        self.look_ahead(k)
        start = b.mul(k, self.b_along)
        columns = [self._columns(b.add(start, I64(v * self.count)), v) for v in range(self.vectors)]
        along = b.mul(k, self.a_along)
        products: list[list[Any]] = []
        for i, row in enumerate(sums):
            at = b.add(b.mul(I64(i), self.a_across), along)
            factor = splat(b, load(b, self.left, at, self.element), self.count)
            products.append([self.fma(factor, x, s) for x, s in zip(columns, row, strict=True)])
        return products

    def look_ahead(self, k: Any) -> None:
        """Fetch the lines that go with term k."""
        b, line = self.b, LINE // bytes_of(self.element)
        for i in range(self.lines):
            at = b.add(b.mul(k, self.ahead_along), I64(i * line))
            fetch(b, element_pointer(b, self.ahead, at, self.element))

    def _columns(self, index: Any, v: int) -> Any:
        if self._partly(v):
            return masked_load(self.b, self.right, index, self.element, self.count, self._left(v), 0, self.zero)
        return load(self.b, self.right, index, self.element, self.count)

    def partial(self, place: Any, i: int, v: int) -> Any:
        return load(self.b, self.c, self.index(place, i, self.c_across, v), self.element, self.count)

    def finish(self, place: Any, i: int, v: int, value: Any) -> None:
        index = self.index(I64(0), i, self.to_across, v)
        if self._partly(v):
            masked_store(self.b, value, self.to, index, self.element, self._left(v))
        else:
            store(self.b, value, self.to, index, self.element)

    def _partly(self, v: int) -> bool:
        return self.masked and v == self.vectors - 1

    def _left(self, v: int) -> Any:
        return self.b.sub(self.columns, I64(v * self.count))
