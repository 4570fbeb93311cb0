"""exp, log and their kin: errors against the real values, special values, gradients; random bits and permutations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
from gradcheck import check_gradient
from numpy.typing import NDArray

import alphac.ir.ops.elementwise
import alphac.ir.ops.transcendental  # noqa: F401  (defines the ops)
from alphac.ir.ops.approximations_trig import cos_turns
from alphac.ir.ops.define import DEFINITIONS, TypeRuleError
from alphac.ir.ops.philox import feistel, feistel_rounds, normal_from_bits, philox, uniform_from_bits
from alphac.ir.oracle import Oracle, evaluate
from alphac.ir.typesys import BF16, F32, F64, I32, I64, U32, Dim, DType, TensorType

Array = NDArray[Any]
Real = Any  # an mpmath.mpf
INF = math.inf
NAN = math.nan

# The interval in which results are neither 0, 1, nor overflow: beyond, SPECIAL says what comes.
DOMAINS: dict[str, dict[DType, tuple[float, float]]] = {
    "exp": {F32: (-104.5, 89.5), F64: (-750, 711)},
    "expm1": {F32: (-104.5, 89.5), F64: (-750, 711)},
    "tanh": {F32: (-20, 20), F64: (-40, 40)},
    "sigmoid": {F32: (-110, 110), F64: (-750, 750)},
    "silu": {F32: (-115, 115), F64: (-756, 756)},
    "gelu": {F32: (-11, 11), F64: (-22, 22)},
    "softplus": {F32: (-110, 110), F64: (-750, 750)},
    "erf": {F32: (-5, 5), F64: (-7, 7)},
    "log": {F32: (0, INF), F64: (0, INF)},
    "log1p": {F32: (-1, INF), F64: (-1, INF)},
    "sin": {F32: (-INF, INF), F64: (-INF, INF)},
    "cos": {F32: (-INF, INF), F64: (-INF, INF)},
    "rsqrt": {F32: (0, INF), F64: (0, INF)},
}


def _gelu(x: Real) -> Real:
    u = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)
    return x / (1 + mpmath.exp(-2 * u))


REAL: dict[str, Callable[[Real], Real]] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu": _gelu,
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "erf": mpmath.erf,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
}


def run(op: str, dtype: DType, *operands: Array) -> Array:
    """The op's body, exactly."""
    body = DEFINITIONS[op].body
    assert body is not None
    result, kind = evaluate(body, [(x, dtype) for x in operands])
    assert kind == dtype
    return result


def points(op: str, dtype: DType, count: int) -> Array:
    """Random ones of all magnitudes and of ordinary ones, and hard ones: around the multiples of ln 2 / 2 and pi / 2 at
    which reductions change, around 1, -1, the edges of the domain, subnormals."""
    rng = np.random.default_rng([count, *op.encode()])
    kind = dtype.storage
    low, high = DOMAINS[op][dtype]
    share = count // 5
    random_bits = rng.integers(0, 1 << dtype.bits, 4 * share, f"uint{dtype.bits}").view(kind)
    ordinary = np.concatenate([rng.normal(size=share), rng.normal(size=share) * 30, rng.uniform(-1.2, 1.2, share)])
    edges = [e for e in (low, high) if math.isfinite(e)] or [1.0]
    hard = np.concatenate(
        [
            rng.integers(-300, 300, share) * (math.log(2) / 2),
            rng.integers(0, 1 << 20, share) * (math.pi / 2),
            np.exp2(rng.integers(0, 800 if dtype == F64 else 100, share)) * (math.pi / 2),
            1 + rng.normal(size=share) * 10.0 ** rng.integers(-16, 0, share),
            -1 + np.exp2(rng.uniform(-60, 0, share)),
            rng.choice(edges, share) * (1 + rng.normal(size=share) * 1e-3),
            [
                0.347,
                0.55,
                0.92,
                1 / 3,
                math.sqrt(0.5),
                16367173.0 * 2.0**72,
                6381956970095103.0 * 2.0**797,
                2.0**15,
                2.0**20,
            ],
        ]
    )
    with np.errstate(all="ignore"):
        hard = hard.astype(kind)
        hard = np.concatenate([hard, np.nextafter(hard, kind.type(0)), np.nextafter(hard, kind.type(INF)), -hard])
        x = np.concatenate([random_bits, ordinary.astype(kind), hard])
    x = x[np.isfinite(x) & (x > low) & (x < high) & (x != 0)]
    return rng.permutation(x)[:count]


def ulps(got: Array, exact: Sequence[Real], dtype: DType) -> list[float]:
    """Distances from the real values, in units of the last place that these have in dtype."""
    info = np.finfo(dtype.storage)
    overflow = mpmath.mpf(float(info.max)) * (1 + mpmath.mpf(float(info.eps)) / 4)  # beyond, rounding gives inf
    errors: list[float] = []
    for value, real in zip(got.tolist(), exact, strict=True):
        if abs(real) >= overflow or not math.isfinite(value):
            errors.append(
                0.0 if abs(real) > float(info.max) * (1 - 1e-7) and value == math.copysign(INF, real) else INF
            )
            continue
        exponent = mpmath.frexp(real)[1] - 1 if real else info.minexp
        unit = mpmath.ldexp(1, max(exponent, int(info.minexp)) - info.nmant)
        errors.append(float(abs(mpmath.mpf(value) - real) / unit))
    return errors


@pytest.mark.parametrize("op", DOMAINS)
@pytest.mark.parametrize("count", [700, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_error_against_the_real_value(op: str, dtype: DType, count: int) -> None:
    x = points(op, dtype, count)
    got = run(op, dtype, x)
    errors: list[float] = []
    for value, result in zip(x.tolist(), got.tolist(), strict=True):
        # Of large arguments of sin and cos, all digits before the point count too.
        with mpmath.workdps(50 + (max(0, math.frexp(value)[1]) // 3 if op in ("sin", "cos") else 0)):
            errors += ulps(np.array([result]), [REAL[op](mpmath.mpf(value))], dtype)
    worst = int(np.argmax(errors))
    assert errors[worst] <= DEFINITIONS[op].ulp, (x[worst], got[worst])


@pytest.mark.parametrize("op", DOMAINS)
def test_f32_on_many_points(op: str) -> None:
    x = points(op, F32, 10_000)
    got = run(op, F32, x)
    with np.errstate(all="ignore"):
        exact = DEFINITIONS[op].reference(None, x.astype(np.float64))
        units = np.spacing(np.maximum(np.abs(exact), 2.0**-126).astype(np.float32) * np.float32(1 - 2.0**-25)).astype(
            float
        )
        errors = np.abs(got - exact) / np.where(np.isfinite(units), units, 2.0**104)
    errors[np.isinf(got) & (np.abs(exact) > 3.40282e38)] = 0
    worst = int(np.argmax(errors))
    assert errors[worst] <= DEFINITIONS[op].ulp + 1e-3, (x[worst], got[worst], exact[worst])


@pytest.mark.parametrize("op", [*DOMAINS, "sqrt"])
def test_bf16_is_f32_rounded_once(op: str) -> None:
    bits = np.arange(0, 1 << 16, 7, dtype=np.uint32)
    x = (bits << np.uint32(16)).view(np.float32)
    got = run(op, BF16, x)
    oracle = Oracle()
    expected = oracle.cast(oracle.lanes(run(op, F32, x), F32), BF16).array
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("count", [700, pytest.param(10_000, marks=pytest.mark.slow)])
def test_error_of_pow(dtype: DType, count: int) -> None:
    rng = np.random.default_rng(count)
    kind, info = dtype.storage, np.finfo(dtype.storage)
    near_one = 1 + rng.normal(size=count) * 10.0 ** rng.uniform(-6, -0.5, count)
    x = np.choose(
        rng.integers(0, 3, count),
        [np.exp2(rng.uniform(-30, 30, count)), np.abs(near_one), np.abs(rng.normal(size=count))],
    )
    x = x.astype(kind)
    x[x == 1] = 1.5
    reach = rng.uniform(-1, 1, count) * (info.maxexp + 24) * math.log(2) / np.log(x.astype(float))
    y = np.choose(rng.integers(0, 3, count), [reach, rng.normal(size=count) * 3, rng.integers(-9, 10, count)]).astype(
        kind
    )
    with mpmath.workdps(50):
        exact = [mpmath.power(mpmath.mpf(a), mpmath.mpf(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        errors = ulps(run("pow", dtype, x, y), exact, dtype)
    worst = int(np.argmax(errors))
    assert errors[worst] <= DEFINITIONS["pow"].ulp, (x[worst], y[worst])


# ---------------------------------------------------------------------- special values
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(INF, INF), (-INF, 0.0), (0.0, 1.0), (-0.0, 1.0), (1e30, INF), (-1e30, 0.0)],
    "expm1": [(INF, INF), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (1e30, INF), (-1e30, -1.0), (1e-40, 1e-40)],
    "log": [(INF, INF), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (-INF, NAN), (-1e-40, NAN)],
    "log1p": [(INF, INF), (0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-1.5, NAN), (-INF, NAN), (-1e-40, -1e-40)],
    "tanh": [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (1e30, 1.0), (-1e-40, -1e-40)],
    "sigmoid": [(INF, 1.0), (-INF, 0.0), (0.0, 0.5), (-0.0, 0.5), (1e30, 1.0), (-1e30, 0.0)],
    "silu": [(INF, INF), (-INF, -0.0), (0.0, 0.0), (-0.0, -0.0), (1e30, 1e30), (-1e30, -0.0)],
    "gelu": [(INF, INF), (-INF, -0.0), (0.0, 0.0), (-0.0, -0.0), (1e30, 1e30), (-1e30, -0.0)],
    "softplus": [(INF, INF), (-INF, 0.0), (1e30, 1e30), (-1e30, 0.0)],
    "erf": [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (-1e30, -1.0)],
    "sin": [(INF, NAN), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0), (-1e-40, -1e-40)],
    "cos": [(INF, NAN), (-INF, NAN), (0.0, 1.0), (-0.0, 1.0)],
    "sqrt": [(INF, INF), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0), (-1.0, NAN), (4.0, 2.0)],
    "rsqrt": [(INF, 0.0), (-INF, NAN), (0.0, INF), (-0.0, -INF), (-1.0, NAN), (4.0, 0.5)],
}
# C99, annex F.9.4.4
POWERS: list[tuple[float, float, float]] = [
    *((x, y, 1.0) for y in (0.0, -0.0) for x in (NAN, INF, -INF, 0.0, -0.0, -2.5)),
    *((1.0, y, 1.0) for y in (NAN, INF, -INF, 3.5)),
    *((-1.0, y, 1.0) for y in (INF, -INF, 2.0, 1e30)),
    (-1.0, 3.0, -1.0),
    *((0.0, y, 0.0) for y in (1.0, 2.0, 0.5, INF)),
    *((0.0, y, INF) for y in (-1.0, -2.0, -0.5, -INF)),
    *((-0.0, y, e) for y, e in ((1.0, -0.0), (3.0, -0.0), (2.0, 0.0), (0.5, 0.0), (INF, 0.0))),
    *((-0.0, y, e) for y, e in ((-1.0, -INF), (-3.0, -INF), (-2.0, INF), (-0.5, INF), (-INF, INF))),
    *((x, INF, e) for x, e in ((0.5, 0.0), (-0.5, 0.0), (1.5, INF), (-1.5, INF), (INF, INF), (-INF, INF))),
    *((x, -INF, e) for x, e in ((0.5, INF), (-0.5, INF), (1.5, 0.0), (-1.5, 0.0), (INF, 0.0), (-INF, 0.0))),
    *((INF, y, e) for y, e in ((2.0, INF), (0.5, INF), (-2.0, 0.0), (-0.5, 0.0))),
    *((-INF, y, e) for y, e in ((3.0, -INF), (2.0, INF), (0.5, INF), (-3.0, -0.0), (-2.0, 0.0), (-0.5, 0.0))),
    *((x, y, NAN) for x, y in ((NAN, 1.0), (2.0, NAN), (-1.0, NAN), (0.0, NAN), (-8.0, 1 / 3), (-1.5, 0.5))),
    *((x, y, e) for x, y, e in ((-2.0, 3.0, -8.0), (-2.0, 2.0, 4.0), (-2.0, -1.0, -0.5), (4.0, 0.5, 2.0))),
    *((x, y, e) for x, y, e in ((2.0, 5000.0, INF), (-2.0, 5001.0, -INF), (2.0, -5000.0, 0.0), (-2.0, -5001.0, -0.0))),
]


def assert_bits(got: Array, expected: Array) -> None:
    assert np.array_equal(got, expected, equal_nan=True), (got, expected)
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers])), (got, expected)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("op", SPECIAL)
def test_special_values(op: str, dtype: DType) -> None:
    x, y = (np.array(column, dtype.storage) for column in zip(*SPECIAL[op], (NAN, NAN), strict=True))
    assert_bits(run(op, dtype, x), y)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_special_powers(dtype: DType) -> None:
    x, y, z = (np.array(column, dtype.storage) for column in zip(*POWERS, strict=True))
    assert_bits(run("pow", dtype, x, y), z)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("op", ["exp", "expm1", "tanh", "sigmoid", "log", "log1p", "softplus", "erf"])
def test_monotonic_to_the_last_bits(op: str, dtype: DType) -> None:
    """A later result is nowhere smaller by more than the error bounds of both allow."""
    x = np.sort(points(op, dtype, 3000))
    y = run(op, dtype, x)
    slack = 2 * DEFINITIONS[op].ulp * np.spacing(np.abs(y[:-1]))
    finite = np.isfinite(y[1:])
    assert (y[1:] - y[:-1] >= -slack)[finite].all()


def test_powers_of_small_integers_are_near() -> None:
    x = np.arange(1, 40, dtype=np.float64)
    for n in range(-8, 9):
        got, exact = run("pow", F64, x, np.full_like(x, n)), [mpmath.mpf(int(v)) ** n for v in x]
        assert max(ulps(got, exact, F64)) <= 1


# ---------------------------------------------------------------------- types and gradients
D = Dim("d", 5)


@pytest.mark.parametrize("op", [*SPECIAL, "pow"])
def test_type_rule(op: str) -> None:
    definition = DEFINITIONS[op]
    assert definition.operands is not None
    for dtype in (F32, F64, BF16):
        t = TensorType(dtype, (D,))
        assert definition.result([t] * definition.operands, {}, ()) == (t,)
    with pytest.raises(TypeRuleError, match=f"`{op}` takes floats, not i32"):
        definition.result([TensorType(I32, (D,))] * definition.operands, {}, ())


@pytest.mark.parametrize("op", SPECIAL)
def test_gradient_and_its_gradient(op: str) -> None:
    positive = op in ("log", "sqrt", "rsqrt", "log1p")
    x = np.array([0.3, 0.9, 1.7, 2.2, 0.05]) if positive else np.array([-2.1, -0.6, 0.2, 0.9, 2.3])
    check_gradient(lambda b, v: b(op, v), [TensorType(F64, (D,))], [x], order=2)


def test_gradient_of_pow() -> None:
    x, y = np.array([0.3, 0.9, 1.7, 2.2, 3.0]), np.array([2.0, -1.5, 0.4, 3.0, -0.7])
    check_gradient(lambda b, v, w: b("pow", v, w), [TensorType(F64, (D,))] * 2, [x, y], order=2)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_slope_of_gelu_is_flat_where_its_terms_overflow(dtype: DType) -> None:
    from gradcheck import function

    from alphac.ir.interpret import interpret
    from alphac.ir.ops.transcendental import _gelu_slope

    x = np.array([1e30, -1e30, 0.0, 50, -50], dtype.storage)
    slope = function([TensorType(dtype, (D,))], lambda b, v: _gelu_slope(b, v, v))
    assert np.array_equal(interpret(slope, [x], exact=True)[0], np.array([1, 0, 0.5, 1, 0], dtype.storage))


# ---------------------------------------------------------------------- random bits
O = Oracle()


def words(*values: int | Array) -> list[Any]:
    return [O.lanes(np.asarray(v, np.uint32), U32) for v in values]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123's kat_vectors
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: str) -> None:
    got = philox(O, *words(*key, *counter))
    assert " ".join(f"{int(w.array):08x}" for w in got) == expected


def random_words(count: int) -> list[Any]:
    zero = np.zeros(count, np.uint32)
    return list(philox(O, *words(zero, zero + 1, np.arange(count), zero, zero, zero)))


@pytest.mark.parametrize(("dtype", "bits"), [(F32, 24), (F64, 53), (BF16, 8)], ids=str)
def test_uniform(dtype: DType, bits: int) -> None:
    u = uniform_from_bits(O, random_words(20_000), dtype).array.astype(np.float64)
    assert np.array_equal(np.trunc(u * 2.0**bits), u * 2.0**bits)
    assert 0 <= u.min() < u.max() < 1
    assert abs(u.mean() - (0.5 - 0.5 ** (bits + 1))) < 0.01
    assert abs(u.var() - 1 / 12) < 0.003
    ends = [uniform_from_bits(O, words(v, v), dtype).array.item() for v in (0, 0xFFFFFFFF)]
    assert ends == [0, 1 - 2.0**-bits]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_normal(dtype: DType) -> None:
    z = normal_from_bits(O, random_words(50_000), dtype)
    assert z.dtype == dtype
    z = np.sort(z.array.astype(np.float64))
    assert abs(z.mean()) < 0.02
    assert abs(z.std() - 1) < 0.02
    cumulative = 0.5 * (1 + DEFINITIONS["erf"].reference(None, z / math.sqrt(2)))
    assert np.abs(cumulative - (np.arange(len(z)) + 0.5) / len(z)).max() < 1.63 / math.sqrt(len(z))  # Kolmogorov, 1 %
    ends = normal_from_bits(O, words(*(np.array([0, 0xFFFFFFFF]),) * 2, *(np.array([0, 0]),) * 2), dtype).array
    assert np.isfinite(ends).all()
    assert ends[0] > (6.7 if dtype == F32 else 9.4)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_cosine_of_turns(dtype: DType) -> None:
    turns = np.concatenate([np.arange(0, 1, 1 / 64), np.random.default_rng(0).random(400)]).astype(dtype.storage)
    got = cos_turns(O, O.lanes(turns, dtype)).array
    with mpmath.workdps(50):
        exact = [mpmath.cospi(2 * mpmath.mpf(t)) for t in turns.tolist()]
    assert max(ulps(got, exact, dtype)) <= 2


# ---------------------------------------------------------------------- permutation
def permutation(size: int, key: tuple[int, int]) -> list[int]:
    index = O.lanes(np.arange(size), I64)
    return feistel(O, index, size, *words(*key)).array.tolist()


def test_permutation_known_answers() -> None:
    assert permutation(10, (0, 0)) == [7, 5, 1, 0, 8, 3, 4, 9, 2, 6]
    assert permutation(7, (1, 2)) == [1, 2, 5, 3, 6, 0, 4]
    assert permutation(16, (0xFFFFFFFF, 0x12345678)) == [10, 7, 8, 13, 9, 1, 4, 2, 14, 15, 12, 3, 6, 0, 11, 5]


@pytest.mark.parametrize("sizes", [range(1, 70), (1437, 1797, 4096, 10_007)], ids=["small", "large"])
def test_permutation_permutes_every_size(sizes: Sequence[int]) -> None:
    for size, key in itertools.product(sizes, ((0, 0), (7, 0xDEADBEEF))):
        assert sorted(permutation(size, key)) == list(range(size))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_are_equally_frequent(size: int) -> None:
    every = math.factorial(size)
    keys = words(np.arange(200 * every), np.full(200 * every, 3))
    columns = [feistel(O, O.lanes(np.full(200 * every, i), I64), size, *keys).array for i in range(size)]
    _, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    assert len(counts) == every
    chi_square = float(((counts - 200) ** 2 / 200).sum())
    assert abs(chi_square - (every - 1)) < 4 * math.sqrt(2 * (every - 1))


def test_permutation_moves_positions_evenly() -> None:
    size, keys = 37, 4000
    key = words(np.arange(keys)[:, None], np.zeros((keys, 1)))
    where = feistel(O, O.lanes(np.arange(size)[None, :].repeat(keys, 0), I64), size, *key).array
    counts = np.stack([np.bincount(where[:, i], minlength=size) for i in range(size)])
    expected = keys / size
    degrees = (size - 1) ** 2
    assert abs(float(((counts - expected) ** 2 / expected).sum()) - degrees) < 4 * math.sqrt(2 * degrees)


def test_rounds_grow_with_the_logarithm() -> None:
    assert [feistel_rounds(n) for n in (1, 2, 3, 1437, 1 << 20)] == [12, 12, 16, 52, 88]
