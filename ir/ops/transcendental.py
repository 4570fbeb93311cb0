"""Elementwise ops whose results are approximated, or made of a root: declarations. The bodies stand in
`approximations`, the errors that `ulp` bounds in docs/numerics.md.

All take and give f32, f64 or bf16; bf16 widens to f32, runs the f32 body and rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alphac.ir.core import Op, Value
from alphac.ir.ops import approximations, approximations_log, approximations_trig
from alphac.ir.ops.define import Cost, define
from alphac.ir.ops.rules import elementwise, floats
from alphac.ir.scalar import Handle, Scalars

if TYPE_CHECKING:
    from alphac.ir.builder import Builder

Array = NDArray[Any]
Factor = Callable[["Builder", Value, Value], Value]

NEEDS = frozenset({"elementwise"})
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
GELU_SATURATES = 40.0  # beyond, in either precision, gelu's slope is 0 or 1


def _unary(
    name: str,
    reference: Callable[[Array], Array],
    derivative: Factor,
    body: Callable[[Scalars, Handle], Handle],
    flops: int,
    ulp: float,
) -> None:
    """`derivative(b, x, y)` is the slope at x, where the result is y."""

    def array(op: Op, x: Array) -> Array:
        return reference(x)

    def gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
        return (b("mul", dy, derivative(b, op.operands[0], op.result)),)

    define(
        name,
        shape="elementwise",
        operands=1,
        result=elementwise(name, floats),
        reference=array,
        gradient=gradient,
        cost=Cost(flops),
        needs=NEEDS,
        body=body,
        ulp=ulp,
    )


# ---------------------------------------------------------------------- references
def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, e.dtype.type(1)) / (1 + e)


def _silu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(-1000)) * _sigmoid(x)  # -inf * 0 is no number


def _gelu(x: Array) -> Array:
    bounded = np.clip(x, x.dtype.type(-1000), x.dtype.type(1000))
    u = x.dtype.type(SQRT_2_OVER_PI) * (bounded + x.dtype.type(GELU_CUBIC) * bounded**3)
    return np.maximum(x, x.dtype.type(-1000)) * _sigmoid(2 * u)


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.ravel().tolist()], x.dtype).reshape(x.shape)


# ---------------------------------------------------------------------- derivatives
def _one_less(b: Builder, x: Value) -> Value:
    return b("sub", b.like(1, x), x)


def _tanh_slope(b: Builder, x: Value, y: Value) -> Value:
    return _one_less(b, b("mul", y, y))


def _sigmoid_slope(b: Builder, x: Value, y: Value) -> Value:
    return b("mul", y, _one_less(b, y))


def _erf_slope(b: Builder, x: Value, y: Value) -> Value:
    return b("mul", b.like(2 / math.sqrt(math.pi), x), b("exp", b("neg", b("mul", x, x))))


def _rsqrt_slope(b: Builder, x: Value, y: Value) -> Value:
    return b("mul", b("mul", b.like(-0.5, y), y), b("mul", y, y))


def _silu_slope(b: Builder, x: Value, y: Value) -> Value:
    """s (1 + x (1 - s)), s = sigmoid(x)."""
    s = b("sigmoid", x)
    return b("mul", s, b("add", b.like(1, x), b("mul", x, _one_less(b, s))))


def _gelu_slope(b: Builder, x: Value, y: Value) -> Value:
    """s (1 + x (1 - s) z'), s = sigmoid(z), z = 2 u. x is bounded first: x² must not overflow where the slope is
    flat."""
    x = b("minimum", b("maximum", x, b.like(-GELU_SATURATES, x)), b.like(GELU_SATURATES, x))
    square = b("mul", x, x)
    slope, cubic = 2 * SQRT_2_OVER_PI, 2 * SQRT_2_OVER_PI * GELU_CUBIC
    s = b("sigmoid", b("mul", x, b("add", b.like(slope, x), b("mul", b.like(cubic, x), square))))
    inner = b("mul", x, b("add", b.like(slope, x), b("mul", b.like(3 * cubic, x), square)))
    return b("mul", s, b("add", b.like(1, x), b("mul", inner, _one_less(b, s))))


# ---------------------------------------------------------------------- exp and log
_unary("exp", np.exp, lambda b, x, y: y, approximations.exp, 22, 1)
_unary("expm1", np.expm1, lambda b, x, y: b("add", y, b.like(1, x)), approximations.expm1, 22, 2)
_unary("log", np.log, lambda b, x, y: b("div", b.like(1, x), x), approximations_log.log, 30, 1)
_unary(
    "log1p",
    np.log1p,
    lambda b, x, y: b("div", b.like(1, x), b("add", x, b.like(1, x))),
    approximations_log.log1p,
    32,
    2,
)

# ---------------------------------------------------------------------- activations
_unary("tanh", np.tanh, _tanh_slope, approximations.tanh, 32, 2)
_unary("sigmoid", _sigmoid, _sigmoid_slope, approximations.sigmoid, 28, 2)
_unary("silu", _silu, _silu_slope, approximations.silu, 48, 2)
_unary("gelu", _gelu, _gelu_slope, approximations.gelu, 64, 2.5)
_unary(
    "softplus",
    lambda x: np.logaddexp(x.dtype.type(0), x),
    lambda b, x, y: b("sigmoid", x),
    approximations_log.softplus,
    42,
    2,
)
_unary("erf", _erf, _erf_slope, approximations_trig.erf, 42, 1.5)

# ---------------------------------------------------------------------- trigonometry
_unary("sin", np.sin, lambda b, x, y: b("cos", x), approximations_trig.sin, 100, 2)
_unary("cos", np.cos, lambda b, x, y: b("neg", b("sin", x)), approximations_trig.cos, 100, 2)

# ---------------------------------------------------------------------- roots and powers
_unary("sqrt", np.sqrt, lambda b, x, y: b("div", b.like(0.5, y), y), lambda k, x: k.sqrt(x), 1, 0)
_unary(
    "rsqrt",
    lambda x: 1 / np.sqrt(x),
    _rsqrt_slope,
    lambda k, x: k.div(k.const(1.0, k.dtype(x)), k.sqrt(x)),
    2,
    1.5,
)


def _pow_reference(op: Op, x: Array, y: Array) -> Array:
    return np.power(x, y)


def _pow_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    """y x^(y-1), which is 0 for y = 0 even at x = 0; and x^y log x, which is 0 at x = 0 for y >= 0."""
    x, y = op.operands
    zero = b.like(0, x)
    slope = b("mul", y, b("pow", x, b("sub", y, b.like(1, y))))
    dx = b("where", b("eq", y, zero), zero, b("mul", dy, slope))
    flat = b("and", b("eq", x, zero), b("ge", y, zero))
    growth = b("where", flat, zero, b("mul", op.result, b("log", x)))
    return dx, b("mul", dy, growth)


define(
    "pow",
    shape="elementwise",
    operands=2,
    result=elementwise("pow", floats),
    reference=_pow_reference,
    gradient=_pow_gradient,
    cost=Cost(90),
    needs=NEEDS,
    body=approximations_log.pow_,
    ulp=1.5,
)
