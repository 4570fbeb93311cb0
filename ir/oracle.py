"""The exact oracle: an op's body on NumPy arrays, every operation exact or correctly rounded.

It judges bits. Only those NumPy operations are used that IEEE-754 defines exactly (`+ - * / sqrt`, comparisons, integer
arithmetic, conversions); `fma`, which NumPy lacks, is made from them. So its results are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alphac.ir.typesys import BF16, BOOL, F32, F64, DType

Array = NDArray[Any]

_quiet = np.errstate(all="ignore")


@dataclass(frozen=True, eq=False, slots=True)
class Lanes:
    """A handle of the oracle: many scalars of one dtype. bf16 is held as float32 that bf16 can represent."""

    array: Array
    dtype: DType


Operand = Lanes | float | int | bool


def to_compute(array: Array, dtype: DType) -> Array:
    """An array in `dtype.storage` as one in `dtype.compute`: exact. Only bf16 changes (uint16 bits → float32)."""
    if dtype == BF16:
        return (np.asarray(array, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(array, dtype.storage)


def to_storage(array: Array, dtype: DType) -> Array:
    """An array in `dtype.compute` as one in `dtype.storage`. float32 is rounded to bf16, to nearest even."""
    if dtype == BF16:
        bits = _round_bf16(np.asarray(array, np.float32)).view(np.uint32)
        return (bits >> np.uint32(16)).astype(np.uint16)
    return np.asarray(array, dtype.storage)


def evaluate(
    body: Callable[..., Any], operands: Sequence[tuple[Array, DType]], **attributes: Any
) -> tuple[Array, DType]:
    """Run an elementwise body as every target does: bf16 operands widen to f32 and an f32 result is then rounded to
    bf16, once. Arrays, the result too, are in `dtype.compute`."""
    oracle = Oracle()
    narrow = any(dtype == BF16 for _, dtype in operands)
    handles = [Lanes(np.asarray(a, d.compute), F32 if d == BF16 else d) for a, d in operands]
    result = body(oracle, *handles, **attributes)
    if narrow and result.dtype == F32:
        result = oracle.cast(result, BF16)
    return result.array, result.dtype


class Oracle:
    """`alphac.ir.scalar.Scalars` on NumPy arrays of any (broadcastable) shape."""

    def lanes(self, array: Any, dtype: DType) -> Lanes:
        """A handle of values given in `dtype.compute`; a float32 array entering as bf16 is rounded."""
        values = np.asarray(array, dtype.compute)
        return Lanes(_round_bf16(values) if dtype == BF16 else values, dtype)

    def dtype(self, x: Lanes) -> DType:
        return x.dtype

    def const(self, value: float | int | bool, dtype: DType) -> Lanes:
        if dtype == BOOL:
            return Lanes(np.asarray(bool(value)), dtype)
        if dtype.is_integer:
            wrapped = int(value) & ((1 << dtype.bits) - 1)
            unsigned = np.asarray(wrapped, f"uint{dtype.bits}")
            return Lanes(unsigned.view(dtype.storage), dtype)
        return self.cast(Lanes(np.asarray(_nearest_f64(value)), F64), dtype)

    # ------------------------------------------------------------------ arithmetic
    def add(self, x: Operand, y: Operand) -> Lanes:
        return self._arithmetic(np.add, x, y)

    def sub(self, x: Operand, y: Operand) -> Lanes:
        return self._arithmetic(np.subtract, x, y)

    def mul(self, x: Operand, y: Operand) -> Lanes:
        return self._arithmetic(np.multiply, x, y)

    def div(self, x: Operand, y: Operand) -> Lanes:
        return self._arithmetic(np.divide, x, y)

    @_quiet
    def floordiv(self, x: Operand, y: Operand) -> Lanes:
        a, b = self._same(x, y)
        divisor, negated = _safe_divisor(a, b)
        quotient = np.where(negated, np.zeros_like(a.array) - a.array, a.array // divisor)
        return Lanes(np.where(b.array == 0, np.zeros_like(quotient), quotient), a.dtype)

    @_quiet
    def mod(self, x: Operand, y: Operand) -> Lanes:
        a, b = self._same(x, y)
        divisor, negated = _safe_divisor(a, b)
        remainder = a.array % divisor
        return Lanes(np.where(negated | (b.array == 0), np.zeros_like(remainder), remainder), a.dtype)

    @_quiet
    def neg(self, x: Lanes) -> Lanes:
        if not x.dtype.is_float:
            return Lanes(np.asarray(np.zeros_like(x.array) - x.array), x.dtype)
        bits = _bits(x.array)
        return Lanes((bits ^ _sign_bit(bits)).view(x.array.dtype), x.dtype)

    @_quiet
    def abs(self, x: Lanes) -> Lanes:
        if x.dtype.kind == "uint":
            return x
        if not x.dtype.is_float:
            return Lanes(np.where(x.array < 0, np.zeros_like(x.array) - x.array, x.array), x.dtype)
        bits = _bits(x.array)
        return Lanes((bits & ~_sign_bit(bits)).view(x.array.dtype), x.dtype)

    @_quiet
    def sqrt(self, x: Lanes) -> Lanes:
        return self._rounded(np.sqrt(x.array), x.dtype)

    @_quiet
    def fma(self, x: Operand, y: Operand, z: Operand) -> Lanes:
        a, b, c = self._same(x, y, z)
        if a.dtype not in (F32, F64):
            raise TypeError(f"fma takes f32 or f64, not {a.dtype}")
        return Lanes((_fma32 if a.dtype == F32 else _fma64)(a.array, b.array, c.array), a.dtype)

    def minimum(self, x: Operand, y: Operand) -> Lanes:
        return self._extreme(x, y, np.less, np.bitwise_or)

    def maximum(self, x: Operand, y: Operand) -> Lanes:
        return self._extreme(x, y, np.greater, np.bitwise_and)

    @_quiet
    def floor(self, x: Lanes) -> Lanes:
        return Lanes(np.asarray(np.floor(x.array)), x.dtype)

    @_quiet
    def ceil(self, x: Lanes) -> Lanes:
        return Lanes(np.asarray(np.ceil(x.array)), x.dtype)

    @_quiet
    def rint(self, x: Lanes) -> Lanes:
        return Lanes(np.asarray(np.rint(x.array)), x.dtype)

    @_quiet
    def trunc(self, x: Lanes) -> Lanes:
        return Lanes(np.asarray(np.trunc(x.array)), x.dtype)

    def copysign(self, magnitude: Operand, sign: Operand) -> Lanes:
        a, b = self._same(magnitude, sign)
        mask = _sign_bit(_bits(a.array))
        return Lanes(np.asarray((_bits(a.array) & ~mask) | (_bits(b.array) & mask)).view(a.array.dtype), a.dtype)

    # ------------------------------------------------------------------ comparisons, logic, shifts
    def eq(self, x: Operand, y: Operand) -> Lanes:
        return self._compare(np.equal, x, y)

    def ne(self, x: Operand, y: Operand) -> Lanes:
        return self._compare(np.not_equal, x, y)

    def lt(self, x: Operand, y: Operand) -> Lanes:
        return self._compare(np.less, x, y)

    def le(self, x: Operand, y: Operand) -> Lanes:
        return self._compare(np.less_equal, x, y)

    def gt(self, x: Operand, y: Operand) -> Lanes:
        return self._compare(np.greater, x, y)

    def ge(self, x: Operand, y: Operand) -> Lanes:
        return self._compare(np.greater_equal, x, y)

    def and_(self, x: Operand, y: Operand) -> Lanes:
        a, b = self._same(x, y)
        return Lanes(np.asarray(a.array & b.array), a.dtype)

    def or_(self, x: Operand, y: Operand) -> Lanes:
        a, b = self._same(x, y)
        return Lanes(np.asarray(a.array | b.array), a.dtype)

    def xor(self, x: Operand, y: Operand) -> Lanes:
        a, b = self._same(x, y)
        return Lanes(np.asarray(a.array ^ b.array), a.dtype)

    def not_(self, x: Lanes) -> Lanes:
        return Lanes(np.asarray(~x.array), x.dtype)

    def shl(self, x: Operand, bits: Operand) -> Lanes:
        a, b = self._same(x, bits)
        return Lanes(np.asarray(a.array << b.array), a.dtype)

    def shr(self, x: Operand, bits: Operand) -> Lanes:
        a, b = self._same(x, bits)
        return Lanes(np.asarray(a.array >> b.array), a.dtype)

    # ------------------------------------------------------------------ selects and conversions
    def where(self, condition: Lanes, x: Operand, y: Operand) -> Lanes:
        a, b = self._same(x, y)
        return Lanes(np.where(condition.array, a.array, b.array), a.dtype)

    @_quiet
    def cast(self, x: Lanes, dtype: DType) -> Lanes:
        if dtype == x.dtype:
            return x
        if dtype == BOOL:
            return Lanes(np.asarray(x.array != 0), dtype)
        if dtype.is_integer and x.dtype.is_float:
            return Lanes(_saturate(x.array, dtype), dtype)
        if dtype == BF16:
            return Lanes(_round_bf16(_odd_f32(x.array)), dtype)
        return Lanes(np.asarray(x.array.astype(dtype.compute)), dtype)

    def bitcast(self, x: Lanes, dtype: DType) -> Lanes:
        if x.dtype.bits != dtype.bits:
            raise TypeError(f"bitcast from {x.dtype} to {dtype}, of another width")
        return Lanes(np.asarray(x.array).view(dtype.storage), dtype)

    # ------------------------------------------------------------------ shared
    def _same(self, *operands: Operand) -> tuple[Lanes, ...]:
        """All operands as handles; Python numbers take the others' dtype. Raises TypeError if dtypes differ."""
        dtypes = {o.dtype for o in operands if isinstance(o, Lanes)}
        if len(dtypes) != 1:
            raise TypeError(f"operands of one dtype expected, not {sorted(map(str, dtypes))}")
        (dtype,) = dtypes
        return tuple(o if isinstance(o, Lanes) else self.const(o, dtype) for o in operands)

    def _rounded(self, values: Any, dtype: DType) -> Lanes:
        # bf16: the operation was rounded to f32; 24 >= 2 * 8 + 2 bits make the second rounding harmless.
        return Lanes(_round_bf16(np.asarray(values)) if dtype == BF16 else np.asarray(values), dtype)

    @_quiet
    def _arithmetic(self, ufunc: Callable[..., Any], x: Operand, y: Operand) -> Lanes:
        a, b = self._same(x, y)
        return self._rounded(ufunc(a.array, b.array), a.dtype)

    @_quiet
    def _compare(self, ufunc: Callable[..., Any], x: Operand, y: Operand) -> Lanes:
        a, b = self._same(x, y)
        return Lanes(np.asarray(ufunc(a.array, b.array)), BOOL)

    @_quiet
    def _extreme(self, x: Operand, y: Operand, better: Callable[..., Any], of_equals: Callable[..., Any]) -> Lanes:
        a, b = self._same(x, y)
        chosen = np.where(better(a.array, b.array), a.array, b.array)
        if not a.dtype.is_float:
            return Lanes(chosen, a.dtype)
        # Equal operands differ in the sign of zero at most: OR of the bits is the lesser, AND the greater.
        equal = np.asarray(of_equals(_bits(a.array), _bits(b.array))).view(a.array.dtype)
        chosen = np.where(a.array == b.array, equal, chosen)
        return Lanes(np.where(np.isnan(a.array) | np.isnan(b.array), a.array.dtype.type(np.nan), chosen), a.dtype)


# ---------------------------------------------------------------------- bits
def _bits(x: Array) -> Array:
    return np.asarray(x).view(np.uint32 if x.dtype == np.float32 else np.uint64)


def _sign_bit(bits: Array) -> Any:
    return bits.dtype.type(1 << (bits.dtype.itemsize * 8 - 1))


def _safe_divisor(a: Lanes, b: Lanes) -> tuple[Array, Array]:
    """b with 0 and -1 replaced by 1, and where it was -1: there the quotient is -a, which wraps."""
    negated = b.array == -1 if b.dtype.kind == "int" else np.zeros_like(b.array, bool)
    return np.where((b.array == 0) | negated, np.ones_like(b.array), b.array), negated


def _nearest_f64(value: float | int | bool) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


# ---------------------------------------------------------------------- rounding
def _round_bf16(x: Array) -> Array:
    """float32 to the nearest bf16, ties to even, as float32. A NaN stays a NaN."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(np.isnan(x), np.float32(np.nan), (rounded & np.uint32(0xFFFF0000)).view(np.float32))


def _odd_f32(x: Array) -> Array:
    """Any number to float32 by rounding to odd: inexact results get an odd last bit, so that a second rounding to
    fewer bits gives what one rounding would have given."""
    if x.dtype.itemsize < 4 or x.dtype == np.float32:
        return x.astype(np.float32)
    if x.dtype.kind in "iu":  # to float64 first, to odd as well: fold the low bits of a large one into the next
        dropped = x & 0x7FF if x.dtype.itemsize == 8 else np.zeros_like(x)
        sticky = (x ^ dropped) | ((dropped != 0).astype(x.dtype) << 11)
        x = np.where(np.abs(x.astype(np.float64)) < 2.0**53, x, sticky).astype(np.float64)
    nearest = x.astype(np.float32)
    return _to_odd(nearest, x - nearest.astype(np.float64))


def _to_odd(nearest: Array, error: Array) -> Array:
    """`nearest + error`, where `nearest` is the sum rounded, rounded to odd instead."""
    bits = np.asarray(_bits(nearest))
    away = np.signbit(error) == np.signbit(nearest)
    step = (away.astype(bits.dtype) << 1) - 1  # 1 or, wrapping, -1
    inexact = (error != 0) & ((bits & bits.dtype.type(1)) == 0) & np.isfinite(error) & np.isfinite(nearest)
    return np.where(inexact, bits + step, bits).view(nearest.dtype)


def _saturate(x: Array, dtype: DType) -> Array:
    """Float to integer: truncated, saturated, NaN to 0."""
    limits = np.iinfo(dtype.storage)
    low, above = float(limits.min), float(limits.max + 1)  # both exact
    whole = np.trunc(x).astype(np.float64)
    inside = (whole >= low) & (whole < above)
    result = np.where(inside, whole, 0.0).astype(dtype.storage)
    result = np.where(whole >= above, dtype.storage.type(limits.max), result)
    return np.where(whole < low, dtype.storage.type(limits.min), result)


# ---------------------------------------------------------------------- fused multiply-add
def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y rounded, and its error, exactly (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """x * y rounded, and its error, exactly (Dekker, Veltkamp), for magnitudes in [1/2, 1)."""
    product = x * y
    split = 134217729.0  # 2**27 + 1
    xh = x * split - (x * split - x)
    yh = y * split - (y * split - y)
    xl, yl = x - xh, y - yh
    return product, xl * yl - (((product - xh * yh) - xl * yh) - xh * yl)


def _fma32(x: Array, y: Array, z: Array) -> Array:
    """The product of two float32 is exact in float64; the sum is rounded to odd there and then once to float32."""
    product = x.astype(np.float64) * y.astype(np.float64)
    total, error = _two_sum(product, z.astype(np.float64))
    return np.asarray(_to_odd(np.asarray(total), np.asarray(error)).astype(np.float32))


def _fma64(x: Array, y: Array, z: Array) -> Array:
    """Boldo and Melquiond, Emulation of a FMA and correctly rounded sums (2008), on operands scaled by powers of two;
    results at the edge of the exponent range in rational arithmetic."""
    x, y, z = (np.array(a) for a in np.broadcast_arrays(x, y, z))
    xf, xe = np.frexp(x)
    yf, ye = np.frexp(y)
    exponent = xe.astype(np.int64) + ye
    zf, ze = np.frexp(z)
    distance = ze.astype(np.int64) - exponent
    # A z far below the product only decides ties: any value below the last bit of the product does as well.
    scaled = np.ldexp(zf, np.clip(distance, -300, 300).astype(np.int32))
    high, low = _two_product(xf, yf)
    middle, rest = _two_sum(scaled, low)
    top, tail = _two_sum(high, middle)
    sticky, error = _two_sum(rest, tail)
    unscaled = top + _to_odd(sticky, error)
    result = np.ldexp(unscaled, np.clip(exponent, -3000, 3000).astype(np.int32))
    result = np.where((distance > 200) & (z != 0), z, result)

    plain = (x == 0) | (y == 0) | ~np.isfinite(x) | ~np.isfinite(y)
    result = np.where(z == 0, x * y, result)
    result = np.where(plain, x * y + z, np.where(~np.isfinite(z), z, result))
    edge = (np.abs(result) < 2.0**-1020) & ~plain & (z != 0) & (unscaled != 0) & (distance <= 200)
    result[edge] = [
        float(Fraction(a) * Fraction(b) + Fraction(c))
        for a, b, c in zip(x[edge].tolist(), y[edge].tolist(), z[edge].tolist(), strict=True)
    ]
    return result
