"""The exact oracle: every operation against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alphac.ir.oracle import Lanes, Oracle, evaluate, to_compute, to_storage
from alphac.ir.typesys import BF16, BOOL, F32, F64, I32, I64, U8, U32, U64, DType

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # no NumPy warning escapes the oracle

O = Oracle()
INF = math.inf
NAN = math.nan
PRECISION = {F32: (24, -149, 128), F64: (53, -1074, 1024), BF16: (8, -133, 128)}  # bits, least exponent, overflow


def lanes(values: Any, dtype: DType) -> Lanes:
    return O.lanes(np.array(values, dtype.compute), dtype)


def nearest(exact: Fraction, dtype: DType, zero: float = 0.0) -> float:
    """The correctly rounded value; `zero` is the one with the sign that an exact zero has."""
    if exact == 0:
        return zero
    bits, least, overflow = PRECISION[dtype]
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = Fraction(2) ** max(exponent - bits + 1, least)
    rounded = round(size / quantum) * quantum  # Fraction rounds half to even
    value = INF if rounded >= Fraction(2) ** overflow else float(rounded)
    return -value if exact < 0 else value


def same(got: float, expected: float) -> bool:
    if math.isnan(got) or math.isnan(expected):
        return math.isnan(got) and math.isnan(expected)
    return got == expected and math.copysign(1, got) == math.copysign(1, expected)


def assert_same(got: Lanes, expected: list[Any]) -> None:
    values = got.array.tolist()
    if got.dtype.is_float:
        wrong = [i for i, (g, e) in enumerate(zip(values, expected, strict=True)) if not same(g, e)]
        assert not wrong, (wrong[0], values[wrong[0]], expected[wrong[0]])
    else:
        assert values == expected


# ---------------------------------------------------------------------- fused multiply-add
def expected_fma(x: float, y: float, z: float, dtype: DType) -> float:
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y + z
    if not math.isfinite(z):
        return z
    if x == 0 or y == 0:
        return x * y + z
    return nearest(Fraction(x) * Fraction(y) + Fraction(z), dtype)


def hard_operands(dtype: DType, count: int, seed: int) -> list[np.ndarray]:
    """Random bits, ordinary values, special ones; and sums that cancel, wholly or to the last bit."""
    rng = np.random.default_rng(seed)
    kind = dtype.storage
    unsigned = np.dtype(f"uint{dtype.bits}")
    info = np.finfo(kind)
    special = np.array([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, info.max, info.tiny, info.smallest_subnormal], kind)

    def draw() -> np.ndarray:
        bits = rng.integers(0, 1 << dtype.bits, count, unsigned, endpoint=False).view(kind)
        plain = rng.normal(size=count).astype(kind)
        few = (rng.integers(1, 1 << 12, count) * 2.0 ** rng.integers(-60, 60, count)).astype(kind)
        return np.choose(rng.integers(0, 4, count), [bits, plain, few, rng.choice(special, count)])

    x, y, z = draw(), draw(), draw()
    with np.errstate(all="ignore"):
        third = count // 3
        product = x[:third] * y[:third]
        z[:third] = -product * rng.choice(np.array([1, 1, 2.0**-30, 2.0**30, 0.5], kind), third)
        z[third : 2 * third] = np.nextafter(-(x * y)[third : 2 * third], kind.type(0))
    return [x, y, z]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("count", [6_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_fma_rounds_once(dtype: DType, count: int) -> None:
    x, y, z = hard_operands(dtype, count, seed=count)
    got = O.fma(*(O.lanes(a, dtype) for a in (x, y, z)))
    expected = [expected_fma(*t, dtype) for t in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)]
    assert_same(got, expected)


f32s = st.floats(width=32)


@settings(max_examples=300, deadline=None)
@given(f32s, f32s, f32s)
@example(1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60)  # rounding to f64 first would drop the last bit
@example(2.0**-75, 2.0**-75, 2.0**-149)
@example(2.0**64, 2.0**64, -(2.0**104))
def test_fma_f32_on_any_floats(x: float, y: float, z: float) -> None:
    assert_same(O.fma(*(lanes([v], F32) for v in (x, y, z))), [expected_fma(x, y, z, F32)])


@settings(max_examples=300, deadline=None)
@given(st.floats(), st.floats(), st.floats())
@example(2.0**-600, 2.0**-600, 2.0**-1074)
@example(1e300, 1e300, -INF)
@example(1 + 2.0**-52, 1 - 2.0**-53, -1.0)
@example(2.0**-537, -(2.0**-537), 2.0**-1022)
def test_fma_f64_on_any_floats(x: float, y: float, z: float) -> None:
    assert_same(O.fma(*(lanes([v], F64) for v in (x, y, z))), [expected_fma(x, y, z, F64)])


def test_fma_takes_no_bf16() -> None:
    one = lanes([1.0], BF16)
    with pytest.raises(TypeError, match="not bf16"):
        O.fma(one, one, one)


# ---------------------------------------------------------------------- bf16
def test_bf16_storage_keeps_all_values() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    back = to_storage(to_compute(bits, BF16), BF16)
    numbers = ~np.isnan(to_compute(bits, BF16))
    assert np.array_equal(back[numbers], bits[numbers])
    assert np.isnan(to_compute(back[~numbers], BF16)).all()


@pytest.mark.parametrize("dtype", [F32, F64, I32, I64, U64], ids=str)
def test_casts_to_bf16_round_once(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    if dtype.is_float:
        halves = to_compute(rng.integers(0, 0x7F80, 3000, np.uint16), BF16).astype(np.float64)
        below = halves + np.abs(halves) * 2.0**-9
        values = np.concatenate([below, np.nextafter(below, INF), below * (1 - 2.0**-40), -below, [0.0, -0.0, 1e300]])
        with np.errstate(all="ignore"):
            values = values.astype(dtype.storage)
    else:
        info = np.iinfo(dtype.storage)
        values = rng.integers(info.min, info.max, 3000, dtype.storage) >> rng.integers(0, dtype.bits, 3000).astype(
            dtype.storage
        )
        ties = (dtype.storage.type(0x181) << np.arange(dtype.bits - 10).astype(dtype.storage)).astype(dtype.storage)
        values = np.concatenate([values, ties, ties + 1, ties - 1]).astype(dtype.storage)
    exact = [Fraction(v) if math.isfinite(v) else None for v in values.tolist()]
    expected = [
        nearest(e, BF16, v if dtype.is_float else 0.0) if e is not None else v
        for e, v in zip(exact, values.tolist(), strict=True)
    ]
    assert_same(O.cast(Lanes(values, dtype), BF16), expected)


def test_bf16_arithmetic_rounds_once() -> None:
    rng = np.random.default_rng(4)
    x, y = (to_compute(rng.integers(0x2000, 0x5F00, 4000, np.uint16), BF16) for _ in range(2))
    a, b = O.lanes(x, BF16), O.lanes(y, BF16)
    pairs = list(zip(map(Fraction, x.tolist()), map(Fraction, y.tolist()), strict=True))
    assert_same(O.add(a, b), [nearest(p + q, BF16) for p, q in pairs])
    assert_same(O.mul(a, b), [nearest(p * q, BF16) for p, q in pairs])
    assert_same(O.div(a, b), [nearest(p / q, BF16) for p, q in pairs])


def test_evaluate_widens_bf16_and_rounds_once() -> None:
    x = to_compute(np.arange(0x3F00, 0x4100, dtype=np.uint16), BF16)
    array, dtype = evaluate(lambda k, v: k.sub(k.mul(v, v), 1.0), [(x, BF16)])
    assert dtype == BF16
    assert_same(Lanes(array, dtype), [nearest(Fraction(v) ** 2 - 1, BF16) for v in x.tolist()])


# ---------------------------------------------------------------------- conversions
@pytest.mark.parametrize("to", [I32, I64, U8, U32, U64], ids=str)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_to_integer_truncates_and_saturates(dtype: DType, to: DType) -> None:
    limits = np.iinfo(to.storage)
    edges = [float(limits.min), float(limits.max), float(limits.max) + 1, float(limits.min) - 1]
    values = np.array([0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 1e30, -1e30, INF, -INF, NAN, *edges], dtype.storage)
    values = np.concatenate(
        [values, np.nextafter(values, dtype.storage.type(0)), np.nextafter(values, dtype.storage.type(INF))]
    )

    def expected(v: float) -> int:
        if math.isnan(v):
            return 0
        return (
            min(max(math.trunc(v), limits.min), limits.max)
            if math.isfinite(v)
            else (limits.max if v > 0 else limits.min)
        )

    assert_same(O.cast(Lanes(values, dtype), to), [expected(v) for v in values.tolist()])


def test_integer_conversions_wrap_and_floats_round() -> None:
    x = Lanes(np.array([-1, 256 + 7, -(2**31), 2**24 + 1], np.int64), I64)
    assert O.cast(x, U8).array.tolist() == [255, 7, 0, 1]
    assert O.cast(x, U32).array.tolist() == [2**32 - 1, 263, 2**31, 2**24 + 1]
    assert O.cast(x, F32).array.tolist() == [-1.0, 263.0, -(2.0**31), 2.0**24]
    assert O.cast(x, BOOL).array.tolist() == [True] * 4
    assert O.cast(Lanes(np.array([0.0, -0.0, NAN, 1e-40], np.float32), F32), BOOL).array.tolist() == [
        False,
        False,
        True,
        True,
    ]
    assert O.cast(Lanes(np.array([True, False]), BOOL), F64).array.tolist() == [1.0, 0.0]


def test_constants_round_once_and_wrap() -> None:
    assert O.const(0.1, F32).array == np.float32(0.1)
    assert O.const(1 + 2.0**-8 + 2.0**-40, BF16).array == 1 + 2.0**-7  # through f32 it would have been a tie
    assert O.const(-1, U64).array == 2**64 - 1
    assert O.const(1 << 40, I32).array == 0
    assert O.const(10**400, F64).array == INF
    assert O.const(2, BOOL).array


# ---------------------------------------------------------------------- the rest
@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
def test_minimum_and_maximum_are_ieee_2019(dtype: DType) -> None:
    cases = [(0.0, -0.0), (-0.0, 0.0), (NAN, 1.0), (1.0, NAN), (INF, -INF), (2.0, 1.0), (-0.0, -0.0), (-3.0, -3.0)]
    x, y = (lanes([c[i] for c in cases], dtype) for i in (0, 1))
    assert_same(O.minimum(x, y), [-0.0, -0.0, NAN, NAN, -INF, 1.0, -0.0, -3.0])
    assert_same(O.maximum(x, y), [0.0, 0.0, NAN, NAN, INF, 2.0, -0.0, -3.0])


def test_signs_are_bits() -> None:
    x = lanes([0.0, -0.0, NAN, -INF, 1e-45], F32)
    assert (O.neg(x).array.view(np.uint32) ^ x.array.view(np.uint32) == 0x80000000).all()
    assert not np.signbit(O.abs(O.neg(O.abs(x))).array).any()
    assert np.signbit(O.copysign(x, -1.0).array).all()


def test_rounding_to_integers() -> None:
    x = lanes([-2.5, -1.5, -0.5, -0.2, 0.5, 1.5, 2.5, 2.7], F64)
    assert_same(O.rint(x), [-2.0, -2.0, -0.0, -0.0, 0.0, 2.0, 2.0, 3.0])
    assert_same(O.floor(x), [-3.0, -2.0, -1.0, -1.0, 0.0, 1.0, 2.0, 2.0])
    assert_same(O.ceil(x), [-2.0, -1.0, -0.0, -0.0, 1.0, 2.0, 3.0, 3.0])
    assert_same(O.trunc(x), [-2.0, -1.0, -0.0, -0.0, 0.0, 1.0, 2.0, 2.0])


def test_square_roots_round_once() -> None:
    values = np.random.default_rng(5).integers(1, 0x7F800000, 2000, np.uint32).view(np.float32)
    expected = [float(np.float32(math.sqrt(v))) for v in values.tolist()]  # f64's 53 bits suffice: 53 >= 2 * 24 + 2
    assert_same(O.sqrt(Lanes(values, F32)), expected)


@pytest.mark.parametrize("dtype", [I32, I64, U8, U32, U64], ids=str)
def test_integers_wrap_and_divide_downwards(dtype: DType) -> None:
    info = np.iinfo(dtype.storage)
    interesting = sorted(
        {0, 1, 2, 3, 7, 100, info.max, info.max - 1, info.min, info.min + 1, *((-1, -2, -7) if info.min else ())}
    )
    pairs = [(a, b) for a in interesting for b in interesting]
    x, y = (Lanes(np.array([p[i] for p in pairs], dtype.storage), dtype) for i in (0, 1))

    def wrap(v: int) -> int:
        return (v - info.min) % (1 << dtype.bits) + info.min

    assert_same(O.add(x, y), [wrap(a + b) for a, b in pairs])
    assert_same(O.sub(x, y), [wrap(a - b) for a, b in pairs])
    assert_same(O.mul(x, y), [wrap(a * b) for a, b in pairs])
    assert_same(O.floordiv(x, y), [wrap(a // b) if b else 0 for a, b in pairs])
    assert_same(O.mod(x, y), [a % b if b else 0 for a, b in pairs])
    assert_same(O.neg(x), [wrap(-a) for a, _ in pairs])
    assert_same(O.abs(x), [wrap(abs(a)) for a, _ in pairs])
    assert_same(O.minimum(x, y), [min(p) for p in pairs])
    assert_same(O.shr(x, 3), [a >> 3 for a, _ in pairs])
    assert_same(O.shl(x, 3), [wrap(a << 3) for a, _ in pairs])
    assert_same(O.not_(x), [wrap(~a) for a, _ in pairs])


def test_comparisons_with_nan_are_false_but_ne() -> None:
    x, y = lanes([NAN, 0.0], F32), lanes([NAN, -0.0], F32)
    results = [op(x, y).array.tolist() for op in (O.eq, O.lt, O.le, O.gt, O.ge, O.ne)]
    assert results == [[False, True], [False, False], [False, True], [False, False], [False, True], [True, False]]


def test_operands_of_two_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="f32"):
        O.add(lanes([1.0], F32), lanes([1.0], F64))
    with pytest.raises(TypeError, match="width"):
        O.bitcast(lanes([1.0], F32), I64)
