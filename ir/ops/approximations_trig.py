"""sin, cos and erf in f32 and f64. See `approximations` for the manner.

sin and cos subtract the nearest multiple of pi/2: for moderate arguments as Cody and Waite do, with pi/2 in three
parts, by fma; beyond, as Payne and Hanek do (Radian reduction for trigonometric functions, 1983): the product of the
argument's integer significand and a window of 2/pi's bits, kept modulo 4. Selects pick the window from constants.

erf is an odd polynomial near 0, elsewhere 1 - e^-p(|x|) with p fitted to -log erfc (N. Juffa's scheme, our own fits).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from alphac.ir.ops.approximations import FORMATS, clamp_above, exp_bounded, polynomial
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import F32, F64, I32, I64, U64, DType

INF = float("inf")
NAN = float("nan")


@dataclass(frozen=True)
class TrigFormat:
    """Constants of sin, cos and erf in one floating format; polynomials' lowest powers first."""

    signed: DType
    moderate: int  # Payne and Hanek from 2^moderate
    pi_half: tuple[float, float, float]  # each cut off, not rounded
    pi_half_rounded: tuple[float, float]
    words: tuple[int, ...]  # bits of 2/pi; the first has weight 2^1 for an argument of exponent `moderate`
    sin: tuple[float, ...]  # sin r = r + r³ p(r²), |r| <= pi/4
    cos: tuple[float, ...]  # cos r = 1 - r²/2 + r⁴ p(r²)
    erf_small: tuple[float, ...]  # erf x = x + x p(x²), |x| < ERF_SMALL
    erf_large: tuple[float, ...]  # -log erfc t = t + t p(t), ERF_SMALL < t < erf_high
    erf_high: float  # erf of anything above rounds to 1


ERF_SMALL = 0.92
TWO_OVER_PI = 0.6366197723675814
TRIG_FORMATS = {
    F32: TrigFormat(
        signed=I32,
        moderate=15,
        pi_half=(1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15),
        pi_half_rounded=(1.5707963705062866, -4.371138828673793e-08),
        words=(0x0028BE60, 0xDB939105, 0x4A7F09D5, 0xF47D4D37, 0x7036D8A5, 0x664F10E4, 0x107F9458),
        sin=(-0.166666552, 0.00833218824, -0.000195180997),
        cos=(0.0416666456, -0.00138873106, 2.44325529e-05),
        erf_small=(
            0.128379166,
            -0.376126289,
            0.112836257,
            -0.0268557258,
            0.00519236922,
            -0.00080490543,
            7.99215195e-05,
        ),
        erf_large=(0.128514469, 0.635717928, 0.105262384, -0.0228903312, 0.0032150764, -0.000214000334),
        erf_high=3.95,
    ),
    F64: TrigFormat(
        signed=I64,
        moderate=20,
        pi_half=(1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32),
        pi_half_rounded=(1.5707963267948966, 6.123233995736766e-17),
        words=(
            *(0x0000000028BE60DB, 0x9391054A7F09D5F4, 0x7D4D377036D8A566, 0x4F10E4107F9458EA),
            *(0xF7AEF1586DC91B8E, 0x909374B801924BBA, 0x827464873F877AC7, 0x2C4A69CFBA208D7D),
            *(0x4BAED1213A671C09, 0xAD17DF904E64758E, 0x60D4CE7D272117E2, 0xEF7E4A0EC7FE25FF),
            *(0xF7816603FBCBC462, 0xD6829B47DB4D9FB3, 0xC9F2C26DD3D18FD9, 0xA797FA8B5D49EEB1),
            *(0xFAF97C5ECF41CE7D, 0xE294A4BA9AFED7EC, 0x47E357421580CC11),
        ),
        sin=(
            -0.1666666666666663,
            0.008333333333321903,
            -0.00019841269829439344,
            2.7557313574111213e-06,
            -2.505074087185933e-08,
            1.589585178029843e-10,
        ),
        cos=(
            0.041666666666666595,
            -0.0013888888888873331,
            2.4801587288989614e-05,
            -2.7557314212038995e-07,
            2.0875704552211254e-09,
            -1.1358698099917332e-11,
        ),
        erf_small=(
            0.1283791670955126,
            -0.3761263890318407,
            0.11283791670968844,
            -0.02686617064746063,
            0.005223977645656681,
            -0.0008548328033002591,
            0.00012055363525973748,
            -1.4926209006765697e-05,
            1.6467740610062535e-06,
            -1.6382808240566537e-07,
            1.4566425574577624e-08,
            -9.572446835137235e-10,
        ),
        erf_large=(
            0.12837920334635713,
            0.6366193429742977,
            0.10277499675097958,
            -0.019136795877683344,
            -0.00018875303662082294,
            0.0016588660900270717,
            -0.0005373480561075424,
            -3.3158391620576574e-05,
            0.00011743722094900721,
            -6.796372753308772e-05,
            2.5523657420603446e-05,
            -7.171914552158421e-06,
            1.5659920431509059e-06,
            -2.668986191581893e-07,
            3.499718863825215e-08,
            -3.4177410040689152e-09,
            2.343239635968554e-10,
            -1.006458670188459e-11,
            2.0370718245183094e-13,
        ),
        erf_high=5.95,
    ),
}


# ---------------------------------------------------------------------- reduction of large arguments
def _window(k: Scalars, position: Handle, words: Sequence[int], count: int) -> list[Handle]:
    """`count` words of the constant bit string `words`, starting at bit `position`."""
    unsigned = k.dtype(position)
    width = unsigned.bits
    index = k.shr(position, width.bit_length() - 1)
    chosen = [k.const(w, unsigned) for w in words]
    for step in (8, 4, 2, 1):
        needed = count + step  # words that smaller steps can still reach, one more for the shift below
        if len(chosen) > needed:
            moved = k.ne(k.and_(index, step), 0)
            chosen = [k.where(moved, chosen[i + step], chosen[i]) for i in range(min(needed, len(chosen) - step))]
    shift = k.and_(position, width - 1)
    rest = k.sub(width - 1, shift)
    return [k.or_(k.shl(a, shift), k.shr(k.shr(b, 1), rest)) for a, b in pairwise(chosen[: count + 1])]


def _product32(k: Scalars, significand: Handle, window: list[Handle]) -> tuple[Handle, Handle]:
    """The top 64 of the 96 bits of significand * window, modulo 2^96, as 1.0 = 2^64."""
    m = k.cast(significand, U64)
    high, middle, low = (k.cast(w, U64) for w in window)
    total = k.add(k.shl(k.mul(m, high), 32), k.add(k.mul(m, middle), k.shr(k.mul(m, low), 32)))
    return total, k.const(0, U64)


def _product64(k: Scalars, significand: Handle, window: list[Handle]) -> tuple[Handle, Handle]:
    """The top 128 of the 192 bits of significand * window, modulo 2^192, in two words."""
    mask = 0xFFFFFFFF
    halves = [h for w in reversed(window) for h in (k.and_(w, mask), k.shr(w, 32))]  # lowest first

    def scaled(m: Handle, count: int) -> list[Handle]:
        digits: list[Handle] = []
        carry = k.const(0, U64)
        for half in halves[:count]:
            product = k.add(k.mul(m, half), carry)
            digits.append(k.and_(product, mask))
            carry = k.shr(product, 32)
        return digits

    low = scaled(k.and_(significand, mask), 6)
    high = scaled(k.shr(significand, 32), 5)
    digits: list[Handle] = []
    carry = k.const(0, U64)
    for a, b in zip(low[1:], high, strict=True):
        total = k.add(k.add(a, b), carry)
        digits.append(k.and_(total, mask))
        carry = k.shr(total, 32)
    _, d2, d3, d4, d5 = digits
    return k.or_(k.shl(d5, 32), d4), k.or_(k.shl(d3, 32), d2)


def _reduce_large(k: Scalars, magnitude: Handle) -> tuple[Handle, Handle]:
    """magnitude = q pi/2 + r for magnitude >= 2^moderate (elsewhere the results are arbitrary): (r, q modulo 4)."""
    dtype = k.dtype(magnitude)
    f, g = FORMATS[dtype], TRIG_FORMATS[dtype]
    bits = k.bitcast(magnitude, f.unsigned)
    position = k.sub(k.shr(bits, f.mantissa), f.bias + g.moderate)
    significand = k.or_(k.and_(bits, (1 << f.mantissa) - 1), 1 << f.mantissa)
    window = _window(k, position, g.words, 3)
    top, below = (_product32 if dtype == F32 else _product64)(k, significand, window)
    # top: two bits of quadrant, then the fraction. As a signed number it lies in [-1/2, 1/2) of a quadrant.
    fraction = k.or_(k.shl(top, 2), k.shr(below, 62))
    negative = k.shr(fraction, 63)
    quadrant = k.add(k.shr(top, 62), negative)
    flip = k.sub(0, negative)
    high, low = k.xor(fraction, flip), k.xor(k.shl(below, 2), flip)  # magnitude; its last bit is not needed
    # The first bits exactly, the following ones rounded, each from an integer that its float type converts natively.
    kept = f.mantissa + 1
    leading = k.shr(high, 64 - kept)
    if dtype == F32:
        following = k.and_(k.shr(high, 64 - kept - 31), (1 << 31) - 1)
        scale = 2.0 ** -(kept + 31)
    else:
        following = k.or_(k.shl(k.and_(high, (1 << 64 - kept) - 1), kept - 1), k.shr(low, 65 - kept))
        scale = 2.0**-116
    first = k.mul(k.cast(k.cast(leading, g.signed), dtype), 2.0**-kept)
    second = k.mul(k.cast(k.cast(following, g.signed), dtype), scale)
    c, c_low = g.pi_half_rounded
    r = k.fma(first, c, k.fma(second, c, k.mul(first, c_low)))
    return k.where(k.ne(negative, 0), k.neg(r), r), k.cast(quadrant, f.unsigned)


def _reduce(k: Scalars, x: Handle) -> tuple[Handle, Handle]:
    """x = q pi/2 + r with |r| <= pi/4 (a little more when q was at the edge): (r, q in its low two bits)."""
    dtype = k.dtype(x)
    f, g = FORMATS[dtype], TRIG_FORMATS[dtype]
    shifted = k.fma(x, TWO_OVER_PI, f.magic)
    n = k.sub(shifted, f.magic)
    r = x
    for part in g.pi_half:
        r = k.fma(n, -part, r)
    magnitude = k.abs(x)
    large_r, large_q = _reduce_large(k, magnitude)
    below = k.lt(x, 0.0)
    large_r = k.where(below, k.neg(large_r), large_r)
    large_q = k.where(below, k.sub(0, large_q), large_q)
    moderate = k.lt(magnitude, 2.0**g.moderate)
    return k.where(moderate, r, large_r), k.where(moderate, k.bitcast(shifted, f.unsigned), large_q)


# ---------------------------------------------------------------------- sin and cos
def sin_quadrant(k: Scalars, r: Handle, quadrant: Handle) -> Handle:
    """sin(r + quadrant pi/2) for |r| <= pi/4; the quadrant counts modulo 4."""
    dtype = k.dtype(r)
    f, g = FORMATS[dtype], TRIG_FORMATS[dtype]
    square = k.mul(r, r)
    sine = k.fma(k.mul(square, r), polynomial(k, square, g.sin), r)
    cosine = k.fma(
        k.mul(square, square), polynomial(k, square, g.cos), k.fma(square, k.const(-0.5, dtype), k.const(1.0, dtype))
    )
    value = k.where(k.ne(k.and_(quadrant, 1), 0), cosine, sine)
    sign = k.shl(k.shr(quadrant, 1), f.unsigned.bits - 1)
    return k.bitcast(k.xor(k.bitcast(value, f.unsigned), sign), dtype)


def sin(k: Scalars, x: Handle) -> Handle:
    r, quadrant = _reduce(k, x)
    value = k.where(k.eq(x, 0.0), x, sin_quadrant(k, r, quadrant))  # -0 is its own sine
    return k.where(k.lt(k.abs(x), INF), value, NAN)


def cos(k: Scalars, x: Handle) -> Handle:
    r, quadrant = _reduce(k, x)
    return k.where(k.lt(k.abs(x), INF), sin_quadrant(k, r, k.add(quadrant, 1)), NAN)


def cos_turns(k: Scalars, turns: Handle) -> Handle:
    """cos(2 pi turns) for turns in [0, 1): the reduction is exact."""
    f, g = FORMATS[k.dtype(turns)], TRIG_FORMATS[k.dtype(turns)]
    quarters = k.mul(turns, 4.0)
    shifted = k.add(quarters, f.magic)
    r = k.mul(k.sub(quarters, k.sub(shifted, f.magic)), g.pi_half_rounded[0])
    return sin_quadrant(k, r, k.add(k.bitcast(shifted, f.unsigned), 1))


# ---------------------------------------------------------------------- erf
def erf(k: Scalars, x: Handle) -> Handle:
    """2 / sqrt(pi) times the integral of e^-t² from 0 to x."""
    g = TRIG_FORMATS[k.dtype(x)]
    square = k.mul(x, x)
    small = k.fma(polynomial(k, square, g.erf_small), x, x)
    t = clamp_above(k, k.abs(x), g.erf_high)
    complement = exp_bounded(k, k.neg(k.fma(polynomial(k, t, g.erf_large), t, t)))
    return k.where(k.lt(t, ERF_SMALL), small, k.copysign(k.sub(1.0, complement), x))
