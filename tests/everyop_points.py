"""Where elementwise ops are judged: hard values of every dtype, and random ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alphac.ir.oracle import to_compute, to_storage
from alphac.ir.typesys import BF16, F32, F64, DType

Array = NDArray[Any]
PRECISION = {F32: 24, F64: 53, BF16: 8}
# Where results are neither 0, nor 1, nor overflow, in f64: most random points of a function come from here.
ORDINARY = {"exp": 750, "expm1": 750, "tanh": 25, "sigmoid": 750, "silu": 760, "gelu": 24, "softplus": 750, "erf": 7}
NEAR_ONE = {"log", "log1p", "pow"}
TRIGONOMETRIC = {"sin", "cos"}


def hard(dtype: DType) -> Array:
    """Values at which something changes, in `dtype.compute`; NaN and infinities among floats."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        limits = np.iinfo(dtype.storage)
        values = {0, 1, 2, 3, 7, 10, 100, limits.max, limits.max - 1, limits.min, limits.min + 1, 1 << dtype.bits // 2}
        if dtype.kind == "int":
            values |= {-1, -2, -3, -7, -10, -(1 << dtype.bits // 2)}
        if dtype.bits == 64:
            values |= {2**53 + 1, -(2**53) - 1, 2**24 + 1, 2**31, -(2**31) - 1}
        return np.array(sorted(values), dtype.storage)
    largest, tiny, least, step = _extremes(dtype)
    positive = [0.0, 1, 1 + step, 1 - step / 2, 0.5, 1.5, 2.5, 1 / 3, math.pi / 2, math.e, least, tiny, tiny - least]
    positive += [largest, largest / 2, math.inf, 2.0 ** PRECISION[dtype], 2.0 ** (PRECISION[dtype] - 1) - 0.5, 1e4]
    return _fitted(np.array([*positive, *(-v for v in positive), math.nan]), dtype)


def _extremes(dtype: DType) -> tuple[float, float, float, float]:
    """The largest value, the smallest normal one, the smallest one, and the distance from 1 to the next."""
    if dtype == BF16:
        return (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7
    info = np.finfo(dtype.storage)
    return float(info.max), float(info.tiny), float(info.smallest_subnormal), float(info.eps)


def _fitted(values: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return to_compute(to_storage(values.astype(dtype.compute), dtype), dtype)


def random_bits(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Any bit pattern: floats of all magnitudes, NaNs too."""
    if dtype.kind == "bool":
        return rng.random(count) < 0.5
    bits = rng.integers(0, 1 << dtype.bits, count, f"uint{dtype.bits}")
    return to_compute(bits, BF16) if dtype == BF16 else bits.view(dtype.storage)


def unary(op: str, dtype: DType, count: int, chunk: int) -> Array:
    """`count` points for an op of one operand; the first chunk has the hard ones."""
    rng = np.random.default_rng([chunk, *op.encode()])
    first = [] if chunk else [hard(dtype)]
    if not dtype.is_float:
        left = count - sum(map(len, first))
        small = rng.integers(0, 2, left).astype(dtype.storage) if dtype.kind == "bool" else _small(dtype, left, rng)
        return _shuffled([*first, np.where(rng.random(left) < 0.5, small, random_bits(dtype, left, rng))], rng)
    if not chunk:
        first.append(_fitted(_special(op), dtype))
    left = count - sum(map(len, first))
    share = left // 4
    wide = ORDINARY.get(op, 60.0) * (0.14 if dtype != F64 and op not in ("tanh", "erf", "gelu") else 1)
    ordinary = [rng.normal(size=share), rng.uniform(-wide, wide, share), np.exp2(rng.uniform(-30, 30, share))]
    if op in NEAR_ONE:
        ordinary[0] = 1 + rng.normal(size=share) * 10.0 ** rng.uniform(-PRECISION[dtype] * 0.3, 0, share)
    if op in TRIGONOMETRIC:
        reach = 120 if dtype != F64 else 1000
        ordinary[2] = np.exp2(rng.uniform(0, reach, share)) * (math.pi / 2)
        ordinary[1] = rng.integers(0, 1 << 20, share) * (math.pi / 2)
    bits = random_bits(dtype, left - 3 * share, rng)
    return _shuffled([*first, *(_fitted(o, dtype) for o in ordinary), bits], rng)


def _special(op: str) -> Array:
    """Where this op's own code changes its way, or the answer is hard to round."""
    quarters = np.arange(1, 9) * (math.pi / 4)
    at = {
        "exp": [88.72283, 88.72284, -87.33654, -103.97208, -104.0, 709.782712893384, -745.1332191019411, 0.34657359],
        "expm1": [1e-8, -1e-8, -17.5, -37.5, 88.72283, 709.782712893384, 0.34657359],
        "log": [1 + 2.0**-20, 1 - 2.0**-20, 2 / 3, 4 / 3, math.sqrt(0.5)],
        "log1p": [-1 + 2.0**-20, -0.5, -1 / 3, 1 / 3, 1e-20],
        "tanh": [0.55, 0.5499999, 9.01, 10.1, 19.06, 20.1],
        "gelu": [-11.9, -12.1, -0.7517915, 23.9, -24.1],
        "sin": [*quarters, 1e22, 6381956970095103.0 * 2.0**797, 2.0**120],
        "cos": [*quarters, 1e22, 6381956970095103.0 * 2.0**797, 2.0**120],
        "round": [0.5 - 2.0**-25, 0.49999997, 4503599627370495.5, 8388607.5, 3.5, 4.5],
        "cast": [*_limits(), 2.0**31 - 64, 0.9, -0.9, 254.9, 255.5, -0.5],
    }
    values = np.array(at.get(op, [0.1, 0.2]), float)
    return np.concatenate([values, -values])


def _limits() -> list[float]:
    """Around the ends of i32, i64 and u8, and what is halfway between neighbours in f32 and in bf16."""
    ends, halves = [2.0**31, 2.0**63, 255.0, 256.0], [1 + 2.0**-24, 1 + 2.0**-8, 1 + 3 * 2.0**-8]
    return [*ends, *(e * (1 - 2.0**-24) for e in ends), *(e - 1 for e in ends), *halves]


def _small(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    low = 0 if dtype.kind == "uint" else -20
    return rng.integers(low, 20, count).astype(dtype.storage)


def _shuffled(parts: list[Array], rng: np.random.Generator) -> Array:
    return rng.permutation(np.concatenate(parts))


def binary(op: str, dtype: DType, count: int, chunk: int) -> tuple[Array, Array]:
    """`count` pairs; the first chunk has pairs of hard values."""
    rng = np.random.default_rng([chunk, 2, *op.encode()])
    if dtype.kind == "bool":
        return rng.random(count) < 0.5, rng.random(count) < 0.5
    x, y = (random_bits(dtype, count, rng) for _ in range(2))
    third = count // 3
    if not dtype.is_float:
        x[:third], y[:third] = _small(dtype, third, rng), _small(dtype, third, rng)
        y[third : 2 * third] = _small(dtype, third, rng)
    else:
        with np.errstate(all="ignore"):
            x[:third] = _fitted(rng.normal(size=third), dtype)
            near = x[:third] * rng.choice([1, 1, -1, 1 + 2.0 ** -PRECISION[dtype], 3, 2.0**-12], third)
            y[:third] = _fitted(near, dtype)
            x[third : 2 * third] = _fitted(np.exp2(rng.uniform(-20, 20, third)), dtype)
            y[third : 2 * third] = _fitted(rng.normal(size=third) * 3, dtype)
    if op == "pow":
        _powers(x, y, dtype, rng)
    if chunk == 0:
        pairs = rng.permutation(np.array(list(itertools.product(hard(dtype), hard(dtype)))))
        pairs = np.concatenate([_crossing(dtype), pairs])[: 2 * count // 3]
        x[-len(pairs) :], y[-len(pairs) :] = pairs.T
    order = rng.permutation(count)
    return x[order], y[order]


def _crossing(dtype: DType) -> Array:
    """Pairs that must not be missed: what has no quotient, what wraps, zeros of both signs, infinities that cancel."""
    if dtype.is_integer:
        least, most = np.iinfo(dtype.storage).min, np.iinfo(dtype.storage).max
        pairs = [(v, 0) for v in (0, 1, least, most)] + [(least, most), (most, most), (most, 1), (least, 1)]
        return np.array(pairs + ([(least, -1), (0, -1), (-7, 2), (7, -2)] if least else []), dtype.storage)
    edges = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0)
    return np.array(list(itertools.product(edges, edges)), dtype.compute)


def _powers(x: Array, y: Array, dtype: DType, rng: np.random.Generator) -> None:
    """Make most powers finite: bases near 1 with large exponents, whole exponents with negative bases."""
    count = len(x) // 3
    base = np.choose(
        rng.integers(0, 2, count), [np.exp2(rng.uniform(-30, 30, count)), 1 + rng.normal(size=count) * 1e-3]
    )
    base = np.abs(_fitted(base, dtype)).astype(float)
    top = {F32: 150, BF16: 150, F64: 1100}[dtype]
    with np.errstate(all="ignore"):
        reach = rng.uniform(-1, 1, count) * top * math.log(2) / np.where(base == 1, 1, np.log(base))
    y[:count] = _fitted(np.where(rng.random(count) < 0.3, rng.integers(-9, 10, count), reach), dtype)
    x[:count] = _fitted(np.where(y[:count] == np.rint(y[:count]), -base, base), dtype)
