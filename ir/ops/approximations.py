"""exp and what is made of it: expm1, sigmoid, tanh, silu, gelu, in f32 and f64.

Bodies for `alphac.ir.scalar.Scalars`: straight-line code of correctly rounded operations, selects and bit operations,
so that all targets give the same bits and loops of them vectorize. There is no table and no branch.

exp reduces its argument as Cody and Waite do (Software Manual for the Elementary Functions, 1980): n is the nearest
integer to x / ln 2, r = x - n ln 2 with ln 2 in two parts, e^x = 2^n e^r. e^r on [-ln 2 / 2, ln 2 / 2] is
1 + r + r² q(r) with q fitted for least relative error of the whole (Lawson's algorithm in 70 digits, coefficients
rounded in turn, lowest first). n is read from the low bits of x / ln 2 + 1.5 · 2^(mantissa bits), whose rounding is the
rounding to an integer.
"""

from __future__ import annotations

from dataclasses import dataclass

from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import F32, F64, U32, U64, DType


@dataclass(frozen=True)
class Format:
    """Constants of one floating format: of its layout, of exp in it, and of what is made of exp."""

    unsigned: DType
    mantissa: int  # bits stored
    bias: int
    low: float  # x e^x of anything below rounds to 0
    high: float  # exp of anything above overflows
    ln2_high: float  # few enough bits that n * ln2_high is exact
    ln2_low: float
    q: tuple[float, ...]  # e^r = 1 + r + r² q(r), lowest power first
    tanh: tuple[float, ...]  # tanh x = x + x³ p(x²) for |x| < TANH_SMALL
    tanh_high: float  # tanh of anything above rounds to 1
    slope: tuple[float, float]  # 2 sqrt(2 / pi), high part and low part
    cubic: tuple[float, float]  # 0.044715 times that
    gelu_high: float  # gelu(-x) of anything above rounds to 0

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
        low=-120.0,
        high=89.0,
        ln2_high=0.693145752,
        ln2_low=1.42860677e-6,
        q=(0.49999994, 0.166665211, 0.0416682661, 0.00836867653, 0.0013820692),
        tanh=(-0.333333164, 0.133325547, -0.0538494028, 0.0210607797, -0.00625990937),
        tanh_high=10.0,
        slope=(1.595768928527832, 1.930778950054446e-07),
        cubic=(0.07135481387376785, 2.3988324659995897e-09),
        gelu_high=12.0,
    ),
    F64: Format(
        unsigned=U64,
        mantissa=52,
        bias=1023,
        low=-760.0,
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
        tanh=(
            -0.333333333333333,
            0.13333333333326572,
            -0.05396825396372806,
            0.021869488384833442,
            -0.008863232583510483,
            0.003592091839411935,
            -0.0014555415604481589,
            0.0005884389941698962,
            -0.00023336711461639326,
            8.32950960316583e-05,
            -1.948113229896658e-05,
        ),
        tanh_high=20.0,
        slope=(1.595769121605727, 3.675065195634423e-15),
        cubic=(0.07135481627260025, -6.175149918155315e-19),
        gelu_high=24.0,
    ),
}
LOG2_E = 1.4426950408889634
TANH_SMALL = 0.55


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
    return exp_bounded(k, clamp_above(k, x, FORMATS[k.dtype(x)].high))


def exp_bounded(k: Scalars, x: Handle) -> Handle:
    """e^x for x that is at most `high`."""
    r, _, shifted = split(k, clamp_below(k, x, FORMATS[k.dtype(x)].low))
    first, second = scales(k, shifted)
    return k.mul(k.mul(exp_fraction(k, r), first), second)


def expm1(k: Scalars, x: Handle) -> Handle:
    """e^x - 1 = 2^n (e^r - 1) + (2^n - 1). At half scale, for 2^n may overflow."""
    f = FORMATS[k.dtype(x)]
    bounded = clamp_above(k, clamp_below(k, x, -2.0 * f.mantissa), f.high)
    r, _, shifted = split(k, bounded)
    half = power_of_two(k, shifted, 1)
    value = k.fma(half, expm1_fraction(k, r), k.sub(half, 0.5))
    tiny = k.lt(k.abs(x), 2.0 ** -(f.mantissa + 2))  # and -0
    return k.where(tiny, x, k.add(value, value))


def tanh(k: Scalars, x: Handle) -> Handle:
    """An odd polynomial near 0, elsewhere 1 - 2 / (t + 1) with t = e^2|x| = 2^n (1 + p), where t + 1 rounds once."""
    magnitude = clamp_above(k, k.abs(x), FORMATS[k.dtype(x)].tanh_high)
    r, _, shifted = split(k, k.add(magnitude, magnitude))
    scale = power_of_two(k, shifted)
    above = k.fma(scale, expm1_fraction(k, r), k.add(scale, 1.0))
    large = k.sub(1.0, k.div(k.const(2.0, k.dtype(x)), above))
    return k.copysign(k.where(k.lt(magnitude, TANH_SMALL), tanh_small(k, x), large), x)  # of -0 too


def tanh_small(k: Scalars, x: Handle) -> Handle:
    """tanh x for |x| < TANH_SMALL."""
    square = k.mul(x, x)
    return k.fma(k.mul(square, polynomial(k, square, FORMATS[k.dtype(x)].tanh)), x, x)


def sigmoid(k: Scalars, x: Handle) -> Handle:
    """1 / (1 + e^-x). With e = e^-|x| and q = e / (1 + e), it is 1 - q, or e - e q for negative x: nothing overflows,
    small results keep their bits, and the error of q is damped."""
    e = exp_bounded(k, k.neg(k.abs(x)))
    quotient = k.div(e, k.add(e, 1.0))
    factor = k.where(k.lt(x, 0.0), e, 1.0)
    return k.fma(k.neg(factor), quotient, factor)


def times_sigmoid(k: Scalars, x: Handle, half: Handle, r: Handle, shifted: Handle) -> Handle:
    """x sigmoid(z) for z of x's sign, given z / 2, and r and n + magic of -|z| = n ln 2 + r.

    Near 0 it is x/2 + x/2 tanh(z/2). Elsewhere, as in `sigmoid`, x - x q, or x e - x e q for negative x; x e^r is
    x + x (e^r - 1), rounded once. The scale 2^n comes last, so that no factor loses bits below the normal range."""
    first, second = scales(k, shifted)
    w = expm1_fraction(k, r)
    e = k.mul(k.mul(k.add(w, 1.0), first), second)
    quotient = k.div(e, k.add(e, 1.0))
    end = -2.0 * FORMATS[k.dtype(x)].low
    bounded = clamp_below(k, x, -end)  # the result is -0 there, and -inf * 0 would be NaN
    negative = k.lt(x, 0.0)
    factor = k.where(negative, k.mul(k.fma(bounded, w, bounded), first), bounded)
    large = k.mul(k.fma(k.neg(factor), quotient, factor), k.where(negative, second, 1.0))
    half_x = k.mul(x, 0.5)
    near = k.where(k.lt(k.abs(half), TANH_SMALL), k.fma(half_x, tanh_small(k, half), half_x), large)
    return k.where(k.gt(x, end), x, near)


def silu(k: Scalars, x: Handle) -> Handle:
    """x sigmoid(x)."""
    r, _, shifted = split(k, clamp_below(k, k.neg(k.abs(x)), FORMATS[k.dtype(x)].low))
    return times_sigmoid(k, x, k.mul(x, 0.5), r, shifted)


def gelu(k: Scalars, x: Handle) -> Handle:
    """x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x³), as x sigmoid(2 u): without the cancellation in 1 + tanh.

    An error of 2 u in its last bit would grow 2 u fold in e^2u. So 2 u = a (c1 + c2 a²), a = |x|, is computed with the
    rounding errors of all steps, by fma: 2 u is `z + error`. (c1 has few enough bits that c1 - inner is exact.)
    """
    f = FORMATS[k.dtype(x)]
    (c1, c1_low), (c2, c2_low) = f.slope, f.cubic
    a = clamp_above(k, k.abs(x), f.gelu_high)
    square = k.mul(a, a)
    square_error = k.fma(a, a, k.neg(square))
    cubic = k.const(c2, k.dtype(x))
    inner = k.fma(square, cubic, c1)
    inner_error = k.add(
        k.fma(square, cubic, k.sub(c1, inner)),
        k.fma(square_error, cubic, k.fma(square, k.const(c2_low, k.dtype(x)), c1_low)),
    )
    z = k.mul(a, inner)
    error = k.fma(a, inner_error, k.fma(a, inner, k.neg(z)))
    r, _, shifted = split(k, k.neg(z))
    half_x = k.mul(x, 0.5)
    half = k.fma(half_x, inner, k.mul(half_x, inner_error))
    return times_sigmoid(k, x, half, k.sub(r, error), shifted)
