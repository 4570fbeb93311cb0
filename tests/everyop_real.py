"""What elementwise ops are in the reals, and how far a result is from that.

Real values of f32 and bf16 operands are NumPy's and SciPy's in float64, whose errors are far below what is asked; of
f64, mpmath's with 50 digits; of integers and bools, Python's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
from everyop_points import PRECISION
from numpy.typing import NDArray
from scipy import special

from alphac.ir.typesys import BF16, BOOL, F64, DType

Array = NDArray[Any]
Real = Array  # float64, bools, or objects: mpmath's numbers, Python's integers
DIGITS = 50
CUBIC = "0.044715"
OVERFLOW = {24: 128, 53: 1024, 8: 128}
LEAST = {24: -126, 53: -1022, 8: -126}


def _quiet(f: Callable[..., Any]) -> Callable[..., Any]:
    def silent(*x: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*x)

    return silent


def _gelu(x: Array) -> Array:
    u = math.sqrt(2 / math.pi) * (x + float(CUBIC) * x**3)
    return np.where(x < -40, -0.0, x * special.expit(2 * u))


def _rint(x: Any) -> Any:
    return mpmath.nint(x)  # ties to even


def _mp_gelu(x: Any) -> Any:
    u = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf(CUBIC) * x**3)
    return x / (1 + mpmath.exp(-2 * u))


# op: (NumPy on float64, mpmath on one number or several)
FLOAT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (np.add, lambda x, y: mpmath.fadd(x, y, exact=True)),
    "sub": (np.subtract, lambda x, y: mpmath.fsub(x, y, exact=True)),
    "mul": (np.multiply, lambda x, y: mpmath.fmul(x, y, exact=True)),
    "div": (np.divide, lambda x, y: x / y),
    "minimum": (np.minimum, min),
    "maximum": (np.maximum, max),
    "neg": (np.negative, lambda x: -x),
    "sign": (np.sign, mpmath.sign),
    "abs": (np.abs, abs),
    "floor": (np.floor, mpmath.floor),
    "ceil": (np.ceil, mpmath.ceil),
    "round": (np.rint, _rint),
    "relu": (lambda x: np.maximum(x, 0), lambda x: max(x, mpmath.mpf(0))),
    "stop_gradient": (lambda x: x, lambda x: x),
    "exp": (np.exp, mpmath.exp),
    "expm1": (np.expm1, mpmath.expm1),
    "log": (np.log, mpmath.log),
    "log1p": (np.log1p, mpmath.log1p),
    "tanh": (np.tanh, mpmath.tanh),
    "sigmoid": (special.expit, lambda x: 1 / (1 + mpmath.exp(-x))),
    "silu": (lambda x: np.where(x < -1000, -0.0, x * special.expit(x)), lambda x: x / (1 + mpmath.exp(-x))),
    "gelu": (_gelu, _mp_gelu),
    "softplus": (lambda x: np.logaddexp(0, x), lambda x: mpmath.log1p(mpmath.exp(x))),
    "erf": (special.erf, mpmath.erf),
    "sin": (np.sin, mpmath.sin),
    "cos": (np.cos, mpmath.cos),
    "sqrt": (np.sqrt, mpmath.sqrt),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x)),
    "pow": (np.power, mpmath.power),
}
COMPARISON = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
INTEGER: dict[str, Callable[..., Any]] = {  # before they wrap
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y if y else 0,
    "mod": lambda x, y: x % y if y else 0,
    "minimum": min,
    "maximum": max,
    "neg": lambda x: -x,
    "sign": lambda x: (x > 0) - (x < 0),
    "abs": abs,
    "relu": lambda x: max(x, 0),
    "stop_gradient": lambda x: x,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "not": lambda x: ~x,
}
ZERO_SIGNS = {"minimum", "maximum", "relu", "sign"}  # NumPy does not say which zero


def each(f: Callable[..., Any], *arrays: Array) -> Array:
    """f of corresponding elements, as Python's numbers; an array of objects."""
    rows = zip(*(a.ravel().tolist() for a in arrays), strict=True)
    found = np.empty(arrays[0].size, object)
    found[:] = [f(*row) for row in rows]
    return found.reshape(arrays[0].shape)


def elementwise(op: str, dtype: DType, *x: Array) -> Real:
    """The real values of an op at operands of that dtype."""
    if op in COMPARISON:
        return COMPARISON[op](*x)
    if dtype == BOOL:
        return each(lambda *v: bool(INTEGER[op](*v)) if op != "not" else not v[0], *x).astype(bool)
    if not dtype.is_float:
        return each(INTEGER[op], *x)
    wide, exact = FLOAT[op]
    near = _quiet(wide)(*(v.astype(np.float64) for v in x))
    return near if dtype != F64 else _mp(exact, near, *x)


def _mp(exact: Callable[..., Any], near: Array, *x: Array) -> Real:
    """By mpmath where that is defined; elsewhere (infinities, NaN, division by 0) what NumPy says."""

    def value(near: float, *operands: float) -> Any:
        if all(math.isfinite(v) for v in operands) and not math.isnan(near):
            try:
                with mpmath.workdps(DIGITS):
                    return exact(*map(mpmath.mpf, operands))
            except ZeroDivisionError:
                pass
        return mpmath.mpf(near)

    return each(value, near, *x)


def cast(x: Array, source: DType, to: DType) -> Real:
    """The value that a cast must give, of floats before it is rounded."""
    if to == BOOL:
        return x != 0
    if to.is_float:
        return each(mpmath.mpf, x)
    if not source.is_float:
        return each(int, x)
    limits = np.iinfo(to.storage)

    def saturated(v: float) -> int:
        if not math.isfinite(v):
            return 0 if math.isnan(v) else int(limits.max if v > 0 else limits.min)
        return min(max(math.trunc(v), int(limits.min)), int(limits.max))

    return each(saturated, x)


def wrapped(x: Real, dtype: DType) -> Array:
    """Python's integers as integers of that dtype."""
    bits = each(lambda v: int(v) & ((1 << dtype.bits) - 1), x).astype(np.uint64)
    return bits.astype(f"uint{dtype.bits}").view(dtype.storage)


def errors(got: Array, real: Real, dtype: DType) -> Array:
    """Distances of results, in `dtype.compute`, from real values, in units of the last place that the real value has
    in dtype. Overflow counts as the power of two above the largest number. Infinite where one is NaN, or zero with
    another sign, and the other is not."""
    precision = PRECISION[dtype]
    if real.dtype == object:
        return np.array([_error(g, r, precision) for g, r in zip(got.ravel().tolist(), real.ravel(), strict=True)])
    got, real = got.astype(np.float64).ravel(), real.ravel()
    top = 2.0 ** OVERFLOW[precision]
    with np.errstate(all="ignore"):
        bounded, clipped = np.clip(got, -top, top), np.clip(real, -top, top)
        exponent = np.maximum(np.frexp(clipped)[1] - 1, LEAST[precision])
        distance = np.abs(bounded - clipped) / np.ldexp(1.0, exponent - precision + 1)
    distance[np.isnan(got) & np.isnan(real)] = 0
    return np.where(np.isnan(distance), np.inf, distance)


def _error(got: float, real: Any, precision: int) -> float:
    if math.isnan(got) or mpmath.isnan(real):
        return 0.0 if math.isnan(got) and mpmath.isnan(real) else math.inf
    with mpmath.workdps(DIGITS):
        top = mpmath.ldexp(1, OVERFLOW[precision])
        bounded, clipped = (min(max(mpmath.mpf(v), -top), top) for v in (got, real))
        exponent = max(mpmath.frexp(clipped)[1] - 1 if clipped else LEAST[precision], LEAST[precision])
        return float(abs(bounded - clipped) / mpmath.ldexp(1, exponent - precision + 1))


def signs_of_zeros(got: Array, x: Sequence[Array], op: str) -> Array:
    """Where NumPy's result in float64 is a zero of another sign than ours."""
    near = _quiet(FLOAT[op][0])(*(v.astype(np.float64) for v in x))
    return (near == 0) & (got == 0) & (np.signbit(near) != np.signbit(got))


def bound(ulp: float, dtype: DType) -> float:
    """The error allowed to a result that is documented to be within `ulp`, 0 meaning correctly rounded. bf16 rounds an
    f32 result. A hair is left for the error of the real value itself."""
    hair = 1e-9 if dtype == F64 else 1e-5
    if dtype == BF16:
        return 0.5 + (ulp + 0.5) * 2.0**-16 + hair
    return max(ulp, 0.5) + hair
