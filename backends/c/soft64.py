"""f64 where a device has none: in integers, correctly rounded, subnormal numbers kept. Steps have few numbers in f64,
such as rates and their corrections; what is slow here is right.

A number is taken apart as sign, exponent (as it is stored; of a subnormal number 1) and significand, whose leading bit
is bit 62 where operations round: ten bits below a result's last, the lowest of which stands for all that are lost.
"""

from __future__ import annotations

import re
import struct

_NUMBER = re.compile(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)(?![\w.])")  # of f64: f32's end in f


def softened(text: str) -> str:
    """A text that has `double` and its numbers, without."""
    found = _NUMBER.sub(lambda number: f"double_of(0x{_bits(float(number[0])):016X}UL)", text)
    found = found.replace("as_type<", "bits_as<")  # which takes bits of f64, too
    return TEXT + "\n" + re.sub(r"\bdouble\b", "Double", found)


def _bits(number: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", number))[0]


TEXT = """
template <typename To, typename From> To bits_as(From x) { return as_type<To>(x); }
static int lead(ulong m) { // zeros above the leading bit of a number that is not 0
    int n = 0;
    for (int by = 32; by; by /= 2)
        if (!(m >> (64 - by))) {
            n += by;
            m <<= by;
        }
    return n;
}
static ulong jammed(ulong m, int by) { // shifted right; what is lost is seen in the lowest bit
    return by == 0 ? m : by < 64 ? (m >> by) | (ulong)((m << (64 - by)) != 0) : (ulong)(m != 0);
}
static ulong packed(ulong sign, int e, ulong m) {
    if (e >= 2047)
        return sign | 0x7FF0000000000000UL;
    if (e <= 0) {
        m = jammed(m, 1 - e);
        e = 1;
    }
    m = (m + 0x1FFUL + (m >> 10 & 1UL)) >> 10;
    const ulong bits = ((ulong)(e - 1) << 52) + m;
    return sign | (bits > 0x7FF0000000000000UL ? 0x7FF0000000000000UL : bits);
}
static ulong of_integer(ulong sign, ulong m) {
    if (m == 0UL)
        return 0UL;
    const int n = lead(m);
    return packed(sign, 1086 - n, n ? m << (n - 1) : jammed(m, 1));
}
static ulong of_float(uint bits) {
    const ulong sign = (ulong)(bits >> 31) << 63, m = (ulong)(bits & 0x7FFFFFu);
    const int e = (int)(bits >> 23 & 255u);
    if (e == 255)
        return sign | 0x7FF0000000000000UL | m << 29;
    if (e)
        return sign | (((ulong)(e + 896) << 52) + (m << 29));
    return m ? packed(sign, 937 - lead(m), m << (lead(m) - 1)) : sign;
}
static uint to_float(ulong bits) {
    const uint sign = (uint)(bits >> 63) << 31;
    const int e = (int)(bits >> 52 & 2047UL) - 896;
    ulong m = (bits & 0xFFFFFFFFFFFFFUL) << 10;
    if (e == 1151)
        return m ? 0x7FC00000u : sign | 0x7F800000u;
    m = e > -896 ? m | 1UL << 62 : m;
    m = e > 0 ? m : jammed(m, e < -60 ? 64 : 1 - e);
    m = (m + ((1UL << 38) - 1UL) + (m >> 39 & 1UL)) >> 39;
    if (e >= 255)
        return sign | 0x7F800000u;
    const uint found = ((uint)(e > 0 ? e - 1 : 0) << 23) + (uint)m;
    return sign | (found > 0x7F800000u ? 0x7F800000u : found);
}
static ulong to_integer(ulong bits) { // truncated; of what fits
    const int by = (int)(bits >> 52 & 2047UL) - 1075;
    const ulong m = (bits & 0xFFFFFFFFFFFFFUL) | 1UL << 52;
    const ulong size = by < -52 ? 0UL : by < 0 ? m >> -by : by < 12 ? m << by : 0UL;
    return bits >> 63 ? 0UL - size : size;
}
struct Double {
    ulong bits;
    Double() = default;
    Double(int x) : bits(of_integer(x < 0 ? 1UL << 63 : 0UL, x < 0 ? 0UL - (ulong)(long)x : (ulong)x)) {}
    Double(uint x) : bits(of_integer(0UL, (ulong)x)) {}
    Double(long x) : bits(of_integer(x < 0 ? 1UL << 63 : 0UL, x < 0 ? 0UL - (ulong)x : (ulong)x)) {}
    Double(ulong x) : bits(of_integer(0UL, x)) {}
    Double(float x) : bits(of_float(bits_as<uint>(x))) {}
    explicit operator float() const { return bits_as<float>(to_float(bits)); }
    explicit operator long() const { return (long)to_integer(bits); }
    explicit operator ulong() const { return to_integer(bits); }
    explicit operator int() const { return (int)to_integer(bits); }
    explicit operator uint() const { return (uint)to_integer(bits); }
    explicit operator uchar() const { return (uchar)to_integer(bits); }
};
static Double double_of(ulong bits) {
    Double x;
    x.bits = bits;
    return x;
}
template <> Double bits_as<Double, ulong>(ulong x) { return double_of(x); }
template <> Double bits_as<Double, long>(long x) { return double_of((ulong)x); }
template <> ulong bits_as<ulong, Double>(Double x) { return x.bits; }
template <> long bits_as<long, Double>(Double x) { return (long)x.bits; }
static bool is_nan(ulong x) { return (x << 1) > 0xFFE0000000000000UL; }
static long ordered(ulong x) { return x >> 63 ? -(long)(x & ~(1UL << 63)) : (long)x; }
static bool operator==(Double x, Double y) {
    return !is_nan(x.bits) && !is_nan(y.bits) && ordered(x.bits) == ordered(y.bits);
}
static bool operator!=(Double x, Double y) { return !(x == y); }
static bool operator<(Double x, Double y) {
    return !is_nan(x.bits) && !is_nan(y.bits) && ordered(x.bits) < ordered(y.bits);
}
static bool operator>(Double x, Double y) { return y < x; }
static bool operator<=(Double x, Double y) { return x < y || x == y; }
static bool operator>=(Double x, Double y) { return y < x || x == y; }
static Double operator-(Double x) { return double_of(x.bits ^ 1UL << 63); }
static Double fabs(Double x) { return double_of(x.bits & ~(1UL << 63)); }
static Double copysign(Double x, Double y) {
    return double_of((x.bits & ~(1UL << 63)) | (y.bits & 1UL << 63));
}
struct Parts { // of a finite number
    int e;
    ulong m;
};
static Parts parts(ulong bits, bool whole) { // the leading bit is bit 52; `whole`: of a subnormal number too
    Parts p = {(int)(bits >> 52 & 2047UL), bits & 0xFFFFFFFFFFFFFUL};
    if (p.e)
        p.m |= 1UL << 52;
    else if (whole && p.m) {
        const int by = lead(p.m) - 11;
        p.m <<= by;
        p.e = 1 - by;
    } else
        p.e = 1;
    return p;
}
static bool is_finite(ulong bits) { return (bits >> 52 & 2047UL) != 2047UL; }
static bool is_zero(ulong bits) { return (bits << 1) == 0UL; }
static Double no_number() { return double_of(0x7FF8000000000000UL); }
static Double operator+(Double left, Double right) {
    ulong x = left.bits, y = right.bits;
    if ((x << 1) < (y << 1)) {
        x = right.bits;
        y = left.bits;
    }
    const ulong sign = x & 1UL << 63;
    const bool same = !((x ^ y) >> 63);
    if (!is_finite(x)) // the larger, in which NaNs are, too
        return is_nan(x) || (!is_finite(y) && !same) ? no_number() : double_of(x);
    const Parts p = parts(x, false), q = parts(y, false);
    const ulong a = p.m << 10, b = jammed(q.m << 10, p.e - q.e);
    if (same) {
        const ulong m = a + b;
        return double_of(m >> 63 ? packed(sign, p.e + 1, jammed(m, 1)) : packed(sign, p.e, m));
    }
    const ulong m = a - b;
    return double_of(m ? packed(sign, p.e - lead(m) + 1, m << (lead(m) - 1)) : 0UL);
}
static Double operator-(Double x, Double y) { return x + -y; }
struct Wide {
    ulong high, low;
};
static Wide product(ulong x, ulong y) {
    const ulong mask = 0xFFFFFFFFUL, a = x >> 32, b = x & mask, c = y >> 32, d = y & mask;
    const ulong low = b * d, middle = a * d + (low >> 32), other = b * c + (middle & mask);
    const Wide p = {a * c + (middle >> 32) + (other >> 32), other << 32 | (low & mask)};
    return p;
}
static Wide jammed(Wide x, int by) {
    if (by >= 64) {
        const Wide y = {0UL, jammed(x.high, by - 64) | (ulong)(x.low != 0UL)};
        return y;
    }
    const Wide y = {by ? x.high >> by : x.high, by ? x.high << (64 - by) | jammed(x.low, by) : x.low};
    return y;
}
static Double fma(Double first, Double second, Double third) {
    const ulong x = first.bits, y = second.bits, z = third.bits;
    const ulong sign = (x ^ y) & 1UL << 63, other = z & 1UL << 63;
    if (is_nan(x) || is_nan(y) || is_nan(z))
        return no_number();
    if (!is_finite(x) || !is_finite(y)) {
        const bool none = is_zero(x) || is_zero(y) || (!is_finite(z) && sign != other);
        return none ? no_number() : double_of(sign | 0x7FF0000000000000UL);
    }
    if (!is_finite(z))
        return third;
    if (is_zero(x) || is_zero(y))
        return is_zero(z) && sign != other ? double_of(0UL) : third;
    const Parts p = parts(x, true), q = parts(y, true), r = parts(z, true);
    Wide a = product(p.m << 10, q.m << 11), b = {r.m << 9, 0UL}; // 1 is bit 125
    int e = p.e + q.e - 1023;
    ulong mine = sign;
    if (r.m && e >= r.e)
        b = jammed(b, e - r.e);
    else if (r.m) {
        a = jammed(a, r.e - e);
        e = r.e;
    }
    if (sign == other) {
        a.low += b.low;
        a.high += b.high + (ulong)(a.low < b.low);
    } else {
        if (a.high < b.high || (a.high == b.high && a.low < b.low)) {
            const Wide c = a;
            a = b;
            b = c;
            mine = other;
        }
        a.high -= b.high + (ulong)(a.low < b.low);
        a.low -= b.low;
    }
    if (!(a.high | a.low))
        return double_of(0UL);
    int by = a.high ? lead(a.high) - 1 : lead(a.low) + 63;
    e += 1 - by;
    if (by < 0)
        a = jammed(a, 1);
    else if (by >= 64) {
        a.high = a.low << (by - 64);
        a.low = 0UL;
    } else if (by) {
        a.high = a.high << by | a.low >> (64 - by);
        a.low <<= by;
    }
    return double_of(packed(mine, e, a.high | (ulong)(a.low != 0UL)));
}
static Double operator*(Double x, Double y) { // a sum with a zero of the product's sign changes nothing
    return fma(x, y, double_of((x.bits ^ y.bits) & 1UL << 63));
}
static Double operator/(Double left, Double right) {
    const ulong x = left.bits, y = right.bits, sign = (x ^ y) & 1UL << 63;
    if (is_nan(x) || is_nan(y) || (is_zero(x) && is_zero(y)) || (!is_finite(x) && !is_finite(y)))
        return no_number();
    if (!is_finite(x) || is_zero(y))
        return double_of(sign | 0x7FF0000000000000UL);
    if (is_zero(x) || !is_finite(y))
        return double_of(sign);
    const Parts p = parts(x, true), q = parts(y, true);
    const bool less = p.m < q.m;
    ulong rest = less ? p.m << 1 : p.m, m = 0UL;
    for (int i = 0; i < 63; ++i) {
        m <<= 1;
        if (rest >= q.m) {
            rest -= q.m;
            m |= 1UL;
        }
        rest <<= 1;
    }
    return double_of(packed(sign, p.e - q.e + 1023 - (less ? 1 : 0), m | (ulong)(rest != 0UL)));
}
static Double sqrt(Double of) {
    const ulong x = of.bits;
    if (is_nan(x) || is_zero(x))
        return is_nan(x) ? no_number() : of;
    if (x >> 63)
        return no_number();
    if (!is_finite(x))
        return of;
    const Parts p = parts(x, true);
    const int odd = (p.e + 1) & 1; // of the exponent without its bias
    ulong m = p.m << odd << 10, root = 0UL, rest = 0UL; // two digits before the point: bits 63 and 62
    for (int i = 0; i < 56; ++i) {
        rest = rest << 2 | m >> 62;
        m <<= 2;
        const ulong trial = root << 2 | 1UL;
        root <<= 1;
        if (rest >= trial) {
            rest -= trial;
            root |= 1UL;
        }
    }
    return double_of(packed(0UL, (p.e - 1023 - odd) / 2 + 1023, root << 7 | (ulong)(rest != 0UL)));
}
static Double trunc(Double x) {
    const int e = (int)(x.bits >> 52 & 2047UL);
    if (e >= 1075)
        return x;
    return double_of(e < 1023 ? x.bits & 1UL << 63 : x.bits & ~((1UL << (1075 - e)) - 1UL));
}
static Double floor(Double x) {
    const Double t = trunc(x);
    return x < t ? t - Double(1) : t;
}
static Double ceil(Double x) {
    const Double t = trunc(x);
    return t < x ? t + Double(1) : t;
}
static Double rint(Double x) {
    const Double large = double_of(0x4330000000000000UL);
    return fabs(x) < large ? copysign(fabs(x) + large - large, x) : x;
}
"""
