"""exp and what is made of it: expm1, sigmoid, tanh, silu, gelu, in f32 and f64.

Bodies for `alphac.ir.scalar.Scalars`: straight-line code of correctly rounded operations, selects and bit operations, so
that all targets give the same bits and loops of them vectorize. There is no table and no branch.

exp reduces its argument as Cody and Waite do (Software Manual for the Elementary Functions, 1980): n is the nearest
integer to x / ln 2, r = x - n ln 2 with ln 2 in two parts, e^x = 2^n e^r. e^r on [-ln 2 / 2, ln 2 / 2] is 1 + r + r² q(r)
with q fitted for least relative error of the whole (Lawson's algorithm in 70 digits, coefficients rounded in turn, lowest
first). n is read from the low bits of x / ln 2 + 1.5 · 2^(mantissa bits), whose rounding is the rounding to an integer.
"""

from __future__ import annotations

from dataclasses import dataclass

from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import F32, F64, U32, U64, DType


@dataclass(frozen=True)
class Format:
    """Constants of one floating format: of its layout, and of exp in it."""

    unsigned: DType
    mantissa: int  # bits stored
    bias: int
    low: float  # exp of anything below rounds to 0
    high: float  # exp of anything above overflows
    ln2_high: float  # few enough bits that n * ln2_high is exact
    ln2_low: float
    q: tuple[float, ...]  # e^r = 1 + r + r² q(r), lowest power first
    saturated: float  # tanh beyond rounds to 1

    @property
    def magic(self) -> float:
        """Adding it to a small number rounds that to an integer, found in the low bits of the sum."""
        return 1.5 * 2.0**self.mantissa

    @property
    def magic_bits(self) -> int:
        return (self.bias + self.mantissa << self.mantissa) + (1 << self.mantissa - 1)


FORMATS = {
    F32: Format(
        unsigned=U32,
        mantissa=23,
        bias=127,
        low=-104.0,
        high=89.0,
        ln2_high=0.693145752,
        ln2_low=1.42860677e-6,
        q=(0.49999994, 0.166665211, 0.0416682661, 0.00836867653, 0.0013820692),
        saturated=10.0,
    ),
    F64: Format(
        unsigned=U64,
        mantissa=52,
        bias=1023,
        low=-746.0,
        high=710.0,
        ln2_high=6.93147180369123816490e-01,
        ln2_low=1.90821492927058770002e-10,
        q=(
            0.5000000000000011,
            0.1666666666666645,
            0.041666666666527144,
            0.00833333333347354,
            0.001388888894428901,
            0.00019841269548357668,
            2.4801492497806526e-05,
            2.7557551189259895e-06,
            2.763044412178441e-07,
            2.5010717826579117e-08,
        ),
        saturated=20.0,
    ),
}
LOG2_E = 1.4426950408889634
GELU_SLOPE = 1.5957691216057308  # 2 sqrt(2 / pi)
GELU_CUBIC = 0.07135481282905262  # 0.044715 times that


def polynomial(k: Scalars, x: Handle, coefficients: tuple[float, ...]) -> Handle:
    """Horner's scheme by fma; lowest power first, at least two coefficients."""
    *rest, second, first = coefficients
    value = k.fma(x, k.const(first, k.dtype(x)), second)
    for coefficient in reversed(rest):
        value = k.fma(value, x, coefficient)
    return value


def clamp_below(k: Scalars, x: Handle, low: float) -> Handle:
    """max(x, low), but NaN stays NaN."""
    return k.where(k.lt(x, low), low, x)


def clamp_above(k: Scalars, x: Handle, high: float) -> Handle:
    return k.where(k.gt(x, high), high, x)


def split(k: Scalars, x: Handle) -> tuple[Handle, Handle, Handle]:
    """x = n ln 2 + r with |r| <= ln 2 / 2: (r, n as a float, n + magic). |x| must be below 2^10."""
    f = FORMATS[k.dtype(x)]
    shifted = k.fma(x, LOG2_E, f.magic)
    n = k.sub(shifted, f.magic)
    r = k.fma(n, -f.ln2_low, k.fma(n, -f.ln2_high, x))
    return r, n, shifted


def scales(k: Scalars, shifted: Handle) -> tuple[Handle, Handle]:
    """Two powers of two whose product is 2^n, given n + magic. 2^n itself may be out of range."""
    dtype = k.dtype(shifted)
    f = FORMATS[dtype]
    exponents = k.sub(k.bitcast(shifted, f.unsigned), f.magic_bits - 2 * f.bias)
    first = k.shr(exponents, 1)
    second = k.sub(exponents, first)
    return tuple(k.bitcast(k.shl(e, f.mantissa), dtype) for e in (first, second))  # type: ignore[return-value]


def power_of_two(k: Scalars, shifted: Handle, less: int = 0) -> Handle:
    """2^(n - less), given n + magic, where that is a normal number."""
    dtype = k.dtype(shifted)
    f = FORMATS[dtype]
    exponent = k.sub(k.bitcast(shifted, f.unsigned), f.magic_bits - f.bias + less)
    return k.bitcast(k.shl(exponent, f.mantissa), dtype)


def exp_fraction(k: Scalars, r: Handle) -> Handle:
    """e^r for |r| <= ln 2 / 2."""
    p = polynomial(k, r, FORMATS[k.dtype(r)].q)
    return k.fma(k.fma(p, r, 1.0), r, 1.0)


def expm1_fraction(k: Scalars, r: Handle) -> Handle:
    """e^r - 1 for |r| <= ln 2 / 2."""
    return k.fma(k.mul(r, r), polynomial(k, r, FORMATS[k.dtype(r)].q), r)


def exp(k: Scalars, x: Handle) -> Handle:
    """e^x."""
    f = FORMATS[k.dtype(x)]
    return exp_nonpositive(k, clamp_above(k, x, f.high))


def exp_nonpositive(k: Scalars, x: Handle) -> Handle:
    """e^x for x that is known not to be large (at most `high`)."""
    p, first, second = exp_parts(k, x)
    return k.mul(k.mul(p, first), second)


def exp_parts(k: Scalars, x: Handle) -> tuple[Handle, Handle, Handle]:
    """e^x as three factors, in [0.7, 1.5] the first, powers of two the others; x at most `high`."""
    r, _, shifted = split(k, clamp_below(k, x, FORMATS[k.dtype(x)].low))
    return (exp_fraction(k, r), *scales(k, shifted))


def expm1(k: Scalars, x: Handle) -> Handle:
    """e^x - 1 = 2^n (e^r - 1) + (2^n - 1). At half scale, for 2^n may overflow."""
    f = FORMATS[k.dtype(x)]
    bounded = clamp_above(k, clamp_below(k, x, -2.0 * f.mantissa), f.high)
    r, _, shifted = split(k, bounded)
    half = power_of_two(k, shifted, 1)
    value = k.fma(half, expm1_fraction(k, r), k.sub(half, 0.5))
    tiny = k.lt(k.abs(x), 2.0 ** -(f.mantissa + 2))  # and -0
    return k.where(tiny, x, k.add(value, value))


def sigmoid(k: Scalars, x: Handle) -> Handle:
    """1 / (1 + e^-x), as e / (1 + e) with e = e^-|x| for negative x: nothing overflows, small results keep their bits."""
    e = exp_nonpositive(k, k.neg(k.abs(x)))
    return k.div(k.where(k.lt(x, 0.0), e, 1.0), k.add(e, 1.0))


def tanh(k: Scalars, x: Handle) -> Handle:
    """(t - 1) / (t + 1) with t = e^2|x| = 2^n (1 + p): numerator and denominator each round once from p."""
    magnitude = clamp_above(k, k.abs(x), FORMATS[k.dtype(x)].saturated)
    r, _, shifted = split(k, k.add(magnitude, magnitude))
    p = expm1_fraction(k, r)
    scale = power_of_two(k, shifted)
    ratio = k.div(k.fma(scale, p, k.sub(scale, 1.0)), k.fma(scale, p, k.add(scale, 1.0)))
    return k.copysign(ratio, x)


def times_sigmoid(k: Scalars, x: Handle, z: Handle) -> Handle:
    """x / (1 + e^-z), z of x's sign. The scale of a small e^z comes last, so that no factor loses bits below the normal
    range; x is bounded where the result is 0, for -inf · 0 is no number."""
    low = FORMATS[k.dtype(x)].low
    p, first, second = exp_parts(k, k.neg(k.abs(z)))
    large = k.mul(p, first)
    negative = k.lt(z, 0.0)
    factor = k.mul(k.where(negative, large, 1.0), clamp_below(k, x, 2.0 * low))
    return k.mul(k.div(factor, k.fma(large, second, 1.0)), k.where(negative, second, 1.0))


def silu(k: Scalars, x: Handle) -> Handle:
    """x sigmoid(x)."""
    return times_sigmoid(k, x, x)


def gelu(k: Scalars, x: Handle) -> Handle:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))) as x sigmoid(2 sqrt(2/pi) (x + 0.044715 x³)): without the
    cancellation in 1 + tanh."""
    cubic = k.fma(k.mul(x, x), k.const(GELU_CUBIC, k.dtype(x)), GELU_SLOPE)
    return times_sigmoid(k, x, k.mul(x, cubic))
