"""Products of bf16 pairs, added up in f32 (AVX512-BF16): what contractions of `numeric fast` regions use.

    narrow_words(to, from, n)                  f32 side by side, rounded to bf16
    interleave_words(to, from, width, terms)   packed term after term: rounded, two terms of each column together
    pairs_12x2(tile, terms, …)                 `multiply` (microkernel.py) of operands packed so

Addresses in bytes.

An operand that a chunk has is packed in f32 first, as ever, and then rounded: so whatever is inlined just works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from alphac.backends.microkernel import Tile, multiply_by
from alphac.backends.simd import load, module_function, splat, vector_of
from alphac.backends.vector import I32, I64, POINTER

I16 = ir.IntType(16)
F32S, WORDS = 16, 32  # f32 and bf16 in a vector


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_BFLOATS = ir.VectorType(_BFloat(), F32S)
_PAIRS = ir.VectorType(_BFloat(), WORDS)
_FLOATS = ir.VectorType(ir.FloatType(), F32S)


def _store_words(b: Any, value: Any, pointer: Any, index: Any) -> None:
    """Store a vector of bf16 at an index in bf16."""
    place = b.gep(b.bitcast(pointer, I16.as_pointer()), [index], inbounds=True)
    b.store(value, b.bitcast(place, value.type.as_pointer())).align = 2


def _rounded(b: Any, pointer: Any, index: Any) -> Any:
    return b.fptrunc(load(b, pointer, index, ir.FloatType(), F32S), _BFLOATS)


def _loop(name: str, parameters: int, body: Callable[..., None]) -> Callable[..., Any]:
    """An intrinsic that calls a function of addresses and counts, made once in a module."""

    @intrinsic
    def three(typing: Any, to: Any, source: Any, n: Any) -> Any:
        return types.void(to, source, n), generate

    @intrinsic
    def four(typing: Any, to: Any, source: Any, width: Any, n: Any) -> Any:
        return types.void(to, source, width, n), generate

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function, inner = module_function(builder, name, ir.VoidType(), [I64] * parameters)
        if inner is not None:
            to, source = (inner.inttoptr(a, POINTER) for a in function.args[:2])
            body(inner, to, source, *function.args[2:])
            inner.ret_void()
        builder.call(function, list(args))
        return context.get_dummy_value()

    return three if parameters == 3 else four


def _narrow(b: Any, to: Any, source: Any, n: Any) -> None:
    """Whole vectors: up to 15 elements more are read and written."""
    with cgutils.for_range_slice(b, I64(0), n, I64(F32S), intp=I64, inc=True) as (i, _):
        _store_words(b, _rounded(b, source, i), to, i)


def _interleave(b: Any, to: Any, source: Any, width: Any, terms: Any) -> None:
    """Whole vectors, in ascending order: what is written too much is written again, but for the last."""
    order = [i // 2 + i % 2 * F32S for i in range(WORDS)]
    mask = ir.Constant(vector_of(I32, WORDS), order)
    with cgutils.for_range_slice(b, I64(0), terms, I64(2), intp=I64, inc=True) as (k, _):
        first = b.mul(k, width)
        with cgutils.for_range_slice(b, I64(0), width, I64(F32S), intp=I64, inc=True) as (c, _):
            at = b.add(first, c)
            pair = b.shuffle_vector(_rounded(b, source, at), _rounded(b, source, b.add(at, width)), mask)
            _store_words(b, pair, to, b.add(first, b.mul(c, I64(2))))


narrow = _loop("narrow_words", 3, _narrow)
interleave = _loop("interleave_words", 4, _interleave)


class _PairTile(Tile):
    """A register tile whose term is a pair: strides are those of one term, in bf16."""

    def term(self, k: Any, sums: list[list[Any]]) -> list[list[Any]]:
        b = self.b
        function = ir.FunctionType(_FLOATS, [_FLOATS, _PAIRS, _PAIRS])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        dot = cgutils.get_or_insert_function(b.module, function, name)
        self.look_ahead(k)
        first = b.mul(b.shl(k, I64(1)), self.b_along)
        columns = [self._pairs(b.add(first, I64(v * WORDS))) for v in range(self.vectors)]
        along = b.mul(b.shl(k, I64(1)), self.a_along)
        products: list[list[Any]] = []
        for i, row in enumerate(sums):
            word = self._word(b.add(b.mul(I64(i), self.a_across), along))
            pair = b.bitcast(splat(b, word, F32S), _PAIRS)
            products.append([b.call(dot, [s, pair, x]) for x, s in zip(columns, row, strict=True)])
        return products

    def _at_word(self, pointer: Any, index: Any) -> Any:
        return self.b.gep(self.b.bitcast(pointer, I16.as_pointer()), [index], inbounds=True)

    def _pairs(self, index: Any) -> Any:
        value = self.b.load(self.b.bitcast(self._at_word(self.right, index), _PAIRS.as_pointer()))
        value.align = 2
        return value

    def _word(self, index: Any) -> Any:
        value = self.b.load(self.b.bitcast(self._at_word(self.left, index), I32.as_pointer()))
        value.align = 2
        return value


def multiply_pairs(height: int, vectors: int, masked: bool, lines: int, width: int) -> Callable[..., Any]:
    """`multiply` whose `terms` are pairs of terms."""
    return multiply_by(_PairTile, "pairs", height, vectors, masked, lines, width)
