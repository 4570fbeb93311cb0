"""log and what is made of it: log1p, softplus, pow, in f32 and f64. See `approximations` for the manner.

log splits x = 2^n m with m in [2/3, 4/3) by integer arithmetic on its bits; log x = n ln 2 + log1p(m - 1). f32 takes
log1p from a polynomial; f64 from the series of 2 atanh(s), s = f / (2 + f), as fdlibm does (Ng, Sun Microsystems,
1993). pow computes log |x| as an unevaluated sum of two floats (Dekker, 1971), multiplies by y likewise, and hands both
parts to exp, as N. Juffa's powf does. Coefficients are our own fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from alphac.ir.ops.approximations import (
    FORMATS,
    clamp_above,
    clamp_below,
    exp_bounded,
    exp_fraction,
    polynomial,
    scales,
    split,
)
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import F32, F64

INF = float("inf")
NAN = float("nan")


@dataclass(frozen=True)
class LogFormat:
    """Constants of log and pow in one floating format; polynomials' lowest powers first."""

    two_thirds: int  # bits of 2/3, of the square root of 1/2
    sqrt_half: int
    log1p: tuple[float, ...]
    third: tuple[float, float]  # 1/3, high part and low part
    atanh: tuple[float, ...]  # atanh s = s + s³ (1/3 + s² p(s²)), |s| < 0.172


LOG_FORMATS = {
    F32: LogFormat(
        two_thirds=0x3F2AAAAB,
        sqrt_half=0x3F3504F3,
        # log1p f = f + f² p(f), |f| <= 1/3
        log1p=(
            -0.5,
            0.333332121,
            -0.249998316,
            0.200105771,
            -0.166790187,
            0.140035227,
            -0.122039624,
            0.139945582,
            -0.128082082,
        ),
        third=(0.3333333432674408, -9.934107758624577e-09),
        atanh=(0.200000763, 0.142735437, 0.117098816),
    ),
    F64: LogFormat(
        two_thirds=0x3FE5555555555555,
        sqrt_half=0x3FE6A09E667F3BCD,
        # 2 atanh s = 2 s + s³ p(s²), |s| <= 1/5
        log1p=(
            0.666666666666666,
            0.400000000000565,
            0.2857142855589297,
            0.22222224287711903,
            0.1818166645230368,
            0.15391092057962633,
            0.13173945004753002,
            0.1384064971376491,
        ),
        third=(0.3333333333333333, 1.850371707708594e-17),
        atanh=(
            0.2,
            0.1428571428571345,
            0.11111111111355328,
            0.0909090905360653,
            0.07692311029746736,
            0.06666483743578765,
            0.05888502983479919,
            0.05141897872966354,
            0.059959310214137335,
        ),
    ),
}


def exponent(k: Scalars, x: Handle, low: int) -> tuple[Handle, Handle]:
    """For normal x > 0 = 2^n m with m in [low, 2 low), `low` given by its bits: n as a float, and the bits of 2^n less
    those of 1."""
    dtype = k.dtype(x)
    f = FORMATS[dtype]
    biased = k.shr(k.sub(k.bitcast(x, f.unsigned), low - (f.bias << f.mantissa)), f.mantissa)
    n = k.sub(k.bitcast(k.or_(biased, f.magic_bits), dtype), f.magic + f.bias)
    return n, k.shl(k.sub(biased, f.bias), f.mantissa)


def normalized(k: Scalars, x: Handle, low: int) -> tuple[Handle, Handle]:
    """x > 0, subnormal too, as (m, n) with x = 2^n m and m in [low, 2 low)."""
    dtype = k.dtype(x)
    f = FORMATS[dtype]
    subnormal = k.lt(x, 2.0 ** (1 - f.bias))
    scaled = k.where(subnormal, k.mul(x, 2.0**f.mantissa), x)
    n, power = exponent(k, scaled, low)
    m = k.bitcast(k.sub(k.bitcast(scaled, f.unsigned), power), dtype)
    return m, k.add(n, k.where(subnormal, k.const(-f.mantissa, dtype), k.const(0, dtype)))


def log_reduced(k: Scalars, fraction: Handle, n: Handle, more: Handle | float = 0.0) -> Handle:
    """n ln 2 + log1p(fraction) + more, for |fraction| <= 1/3 and a small `more`."""
    f = FORMATS[k.dtype(fraction)]
    coefficients = LOG_FORMATS[k.dtype(fraction)].log1p
    low = k.fma(n, f.ln2_low, more)
    if k.dtype(fraction) == F32:
        tail = k.fma(k.mul(fraction, fraction), polynomial(k, fraction, coefficients), low)
        return k.fma(n, f.ln2_high, k.add(fraction, tail))
    s = k.div(fraction, k.add(fraction, 2.0))
    square = k.mul(s, s)
    half = k.mul(k.mul(fraction, 0.5), fraction)
    # log1p f = f - (f²/2 - s (f²/2 + s² p)): the leading f is exact.
    tail = k.fma(s, k.fma(square, polynomial(k, square, coefficients), half), low)
    return k.fma(n, f.ln2_high, k.add(fraction, k.sub(tail, half)))


def log_positive(k: Scalars, x: Handle) -> Handle:
    """Natural logarithm of 0 < x < inf."""
    m, n = normalized(k, x, LOG_FORMATS[k.dtype(x)].two_thirds)
    return log_reduced(k, k.sub(m, 1.0), n)


def log(k: Scalars, x: Handle) -> Handle:
    """Natural logarithm; -inf at zeros, NaN below."""
    value = log_positive(k, x)
    beyond = k.where(k.eq(x, 0.0), k.const(-INF, k.dtype(x)), k.where(k.gt(x, 0.0), x, NAN))
    return k.where(k.and_(k.gt(x, 0.0), k.lt(x, INF)), value, beyond)


def log1p(k: Scalars, x: Handle) -> Handle:
    """log(1 + x). n comes from the rounded 1 + x, then the fraction 2^-n (1 + x) - 1 = 2^-n x + (2^-n - 1) rounds once
    (N. Juffa)."""
    dtype = k.dtype(x)
    f = FORMATS[dtype]
    n, power = exponent(k, k.add(x, 1.0), LOG_FORMATS[dtype].two_thirds)
    scaled = k.bitcast(k.sub(k.bitcast(x, f.unsigned), power), dtype)
    inverse = k.bitcast(k.sub(k.const((f.bias + 2) << f.mantissa, f.unsigned), power), dtype)  # 4 / 2^n, always normal
    value = log_reduced(k, k.add(scaled, k.fma(inverse, 0.25, k.const(-1.0, dtype))), n)
    beyond = k.where(k.eq(x, -1.0), k.const(-INF, dtype), k.where(k.ge(x, 0.0), x, NAN))  # zeros and inf are their own
    inside = k.and_(k.and_(k.gt(x, -1.0), k.lt(x, INF)), k.ne(x, 0.0))
    return k.where(inside, value, beyond)


def softplus(k: Scalars, x: Handle) -> Handle:
    """log(1 + e^x) as max(x, 0) + log1p(e^-|x|)."""
    dtype = k.dtype(x)
    e = exp_bounded(k, k.neg(k.abs(x)))
    upper = k.gt(e, 1.0 / 3.0)
    fraction = k.where(upper, k.fma(e, 0.5, k.const(-0.5, dtype)), e)
    n = k.where(upper, k.const(1.0, dtype), k.const(0.0, dtype))
    rest = k.sub(k.mul(e, 0.5), k.add(fraction, 0.5))  # the error of the fraction, where it counts times about 1.4
    value = log_reduced(k, fraction, n, k.where(upper, k.mul(rest, 1.4), 0.0))
    return k.add(value, k.where(k.gt(x, 0.0), x, 0.0))


def fast_two_sum(k: Scalars, x: Handle, y: Handle) -> tuple[Handle, Handle]:
    """x + y rounded, and its error; x is 0 or not the smaller one."""
    total = k.add(x, y)
    return total, k.sub(y, k.sub(total, x))


def product_error(k: Scalars, x: Handle, y: Handle, product: Handle) -> Handle:
    """The error of the rounded product."""
    return k.fma(x, y, k.neg(product))


def log_pair(k: Scalars, x: Handle) -> tuple[Handle, Handle]:
    """log x for 0 < x < inf as an unevaluated sum of two floats: n ln 2 + 2 atanh((m - 1) / (m + 1))."""
    dtype = k.dtype(x)
    f, g = FORMATS[dtype], LOG_FORMATS[dtype]
    m, n = normalized(k, x, g.sqrt_half)
    numerator = k.sub(m, 1.0)
    reciprocal = k.div(k.const(1.0, dtype), k.add(m, 1.0))
    q = k.mul(reciprocal, numerator)
    q_low = k.mul(reciprocal, k.fma(q, k.neg(numerator), k.fma(q, k.const(-2.0, dtype), numerator)))
    square = k.mul(q, q)
    square_low = k.fma(q, k.add(q_low, q_low), product_error(k, q, q, square))
    cube = k.mul(square, q)
    cube_low = k.fma(square, q_low, k.fma(square_low, q, product_error(k, square, q, cube)))
    third, third_low = fast_two_sum(k, k.const(g.third[0], dtype), k.mul(square, polynomial(k, square, g.atanh)))
    third_low = k.add(third_low, g.third[1])
    term = k.mul(cube, third)
    term_low = k.fma(cube_low, third, k.fma(cube, third_low, product_error(k, cube, third, term)))
    atanh, atanh_low = fast_two_sum(k, q, term)
    atanh_low = k.add(atanh_low, k.add(q_low, term_low))
    high, low = fast_two_sum(k, k.mul(n, f.ln2_high), k.add(atanh, atanh))
    low = k.add(low, k.fma(n, f.ln2_low, k.add(atanh_low, atanh_low)))
    return fast_two_sum(k, high, low)


def exp_pair(k: Scalars, high: Handle, low: Handle) -> Handle:
    """e^(high + low)."""
    f = FORMATS[k.dtype(high)]
    r, _, shifted = split(k, clamp_above(k, clamp_below(k, high, f.low), f.high))
    first, second = scales(k, shifted)
    return k.mul(k.mul(exp_fraction(k, k.add(r, low)), first), second)


def pow_(k: Scalars, x: Handle, y: Handle) -> Handle:
    """x^y with the special cases of C99 (annex F.9.4.4)."""
    dtype = k.dtype(x)
    log_high, log_low = log_pair(k, k.abs(x))
    high = k.mul(y, log_high)
    low = k.fma(y, log_low, product_error(k, y, log_high, high))
    low = k.where(k.lt(k.abs(high), -FORMATS[dtype].low), low, 0.0)  # beyond, the result is 0 or inf
    return _special_powers(k, x, y, exp_pair(k, high, low))


def _special_powers(k: Scalars, x: Handle, y: Handle, power: Handle) -> Handle:
    """x^y, given |x|^y for finite positive |x| other than 1."""
    dtype = k.dtype(x)
    zero, one, inf = (k.const(c, dtype) for c in (0.0, 1.0, INF))
    magnitude = k.abs(x)
    is_zero = k.eq(magnitude, 0.0)
    edge = k.where(k.xor(is_zero, k.lt(y, 0.0)), zero, inf)
    value = k.where(k.eq(magnitude, 1.0), one, power)
    value = k.where(k.or_(is_zero, k.eq(magnitude, INF)), edge, value)

    whole = k.eq(k.rint(y), y)
    half = k.mul(y, 0.5)
    odd = k.and_(whole, k.ne(k.rint(half), half))
    no_number = k.and_(k.and_(k.lt(x, 0.0), k.lt(magnitude, INF)), k.not_(whole))
    value = k.where(no_number, NAN, value)
    value = k.where(odd, k.copysign(value, x), value)
    value = k.where(k.or_(k.ne(x, x), k.ne(y, y)), NAN, value)
    return k.where(k.or_(k.eq(x, 1.0), k.eq(y, 0.0)), one, value)
