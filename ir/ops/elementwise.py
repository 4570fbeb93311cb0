"""Elementwise ops that are exact or round once: arithmetic, comparison, logic, selection, conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.rules import (
    Accepts,
    anything,
    attribute,
    bits,
    check_dtype,
    check_same_dims,
    elementwise,
    floats,
    integers,
    numbers,
    refuse,
    shown,
)
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import BOOL, DType, TensorType

if TYPE_CHECKING:
    from alphac.ir.builder import Builder

Array = NDArray[Any]
Cotangents = Sequence[Value | None]
Gradient = Callable[["Builder", Op, Value], Cotangents]
NEEDS = frozenset({"elementwise"})


def flat(b: Builder, op: Op, dy: Value) -> Cotangents:
    """The gradient of what is piecewise constant, or not a float."""
    return (None,) * len(op.operands)


def zero(b: Builder, x: Value) -> Value:
    return b.like(0, x)


# ---------------------------------------------------------------------- arithmetic
def _product_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    x, y = op.operands
    return b("mul", dy, y), b("mul", dy, x)


def _quotient_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    _, y = op.operands
    dx = b("div", dy, y)
    return dx, b("neg", b("mul", dx, op.result))


def _to_winner(wins: str) -> Gradient:
    """minimum and maximum: the whole cotangent goes to the operand that is the result, on ties to the first."""

    def gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
        x, y = op.operands
        first = b(wins, x, y)
        return b("where", first, dy, zero(b, dy)), b("where", first, zero(b, dy), dy)

    return gradient


def _sign(k: Scalars, x: Handle) -> Handle:
    # Zeros and NaN are their own sign.
    below = x if k.dtype(x).kind == "uint" else k.where(k.lt(x, 0), k.const(-1, k.dtype(x)), x)
    return k.where(k.gt(x, 0), k.const(1, k.dtype(x)), below)


def _guarded(divide: Callable[[Array, Array], Array]) -> Callable[[Op, Array, Array], Array]:
    """Integer division whose result is 0 where the divisor is 0. (int min by -1 wraps.)"""
    return lambda op, x, y: np.where(y == 0, x.dtype.type(0), divide(x, np.where(y == 0, y.dtype.type(1), y)))


def _sum_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    return dy, dy


def _difference_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    return dy, b("neg", dy)


def _define(
    name: str,
    operands: int,
    accepts: Accepts,
    reference: Callable[..., Any],
    gradient: Gradient,
    body: Callable[..., Handle],
    gives: DType | None = None,
    flops: int = 1,
) -> None:
    define(
        name,
        shape="elementwise",
        operands=operands,
        result=elementwise(name, accepts, gives),
        reference=reference,
        gradient=gradient,
        cost=Cost(flops),
        needs=NEEDS,
        body=body,
    )


def _binary(
    name: str,
    accepts: Accepts,
    reference: Callable[[Op, Array, Array], Array],
    gradient: Gradient,
    body: Callable[[Scalars, Handle, Handle], Handle],
    gives: DType | None = None,
) -> None:
    _define(name, 2, accepts, reference, gradient, body, gives)


def _unary(
    name: str,
    accepts: Accepts,
    reference: Callable[[Op, Array], Array],
    gradient: Gradient,
    body: Callable[[Scalars, Handle], Handle],
    flops: int = 1,
) -> None:
    _define(name, 1, accepts, reference, gradient, body, None, flops)


_binary("add", numbers, lambda op, x, y: x + y, _sum_gradient, lambda k, x, y: k.add(x, y))
_binary("sub", numbers, lambda op, x, y: x - y, _difference_gradient, lambda k, x, y: k.sub(x, y))
_binary("mul", numbers, lambda op, x, y: x * y, _product_gradient, lambda k, x, y: k.mul(x, y))
_binary("div", floats, lambda op, x, y: x / y, _quotient_gradient, lambda k, x, y: k.div(x, y))
_binary("floordiv", integers, _guarded(np.floor_divide), flat, lambda k, x, y: k.floordiv(x, y))
_binary("mod", integers, _guarded(np.remainder), flat, lambda k, x, y: k.mod(x, y))
_binary("minimum", numbers, lambda op, x, y: np.minimum(x, y), _to_winner("le"), lambda k, x, y: k.minimum(x, y))
_binary("maximum", numbers, lambda op, x, y: np.maximum(x, y), _to_winner("ge"), lambda k, x, y: k.maximum(x, y))

_unary("neg", numbers, lambda op, x: np.negative(x), lambda b, op, dy: (b("neg", dy),), lambda k, x: k.neg(x))
_unary("sign", numbers, lambda op, x: np.sign(x), flat, _sign, 2)
_unary(
    "abs",
    numbers,
    lambda op, x: np.abs(x),
    lambda b, op, dy: (b("mul", b("sign", op.operands[0]), dy),),  # 0 at 0
    lambda k, x: k.abs(x),
)
_unary("floor", floats, lambda op, x: np.floor(x), flat, lambda k, x: k.floor(x))
_unary("ceil", floats, lambda op, x: np.ceil(x), flat, lambda k, x: k.ceil(x))
_unary("round", floats, lambda op, x: np.rint(x), flat, lambda k, x: k.rint(x))  # ties to even


def _relu_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    y = op.result  # which is positive where the operand is, and others read
    return (b("where", b("gt", y, zero(b, y)), dy, zero(b, dy)),)


_unary(
    "relu",
    numbers,
    lambda op, x: np.maximum(x, x.dtype.type(0)),
    _relu_gradient,
    lambda k, x: k.maximum(x, k.const(0, k.dtype(x))),
)
_unary("stop_gradient", anything, lambda op, x: x, lambda b, op, dy: (None,), lambda k, x: x, 0)

# ---------------------------------------------------------------------- comparison and logic
_binary("eq", anything, lambda op, x, y: x == y, flat, lambda k, x, y: k.eq(x, y), BOOL)
_binary("ne", anything, lambda op, x, y: x != y, flat, lambda k, x, y: k.ne(x, y), BOOL)
_binary("lt", numbers, lambda op, x, y: x < y, flat, lambda k, x, y: k.lt(x, y), BOOL)
_binary("le", numbers, lambda op, x, y: x <= y, flat, lambda k, x, y: k.le(x, y), BOOL)
_binary("gt", numbers, lambda op, x, y: x > y, flat, lambda k, x, y: k.gt(x, y), BOOL)
_binary("ge", numbers, lambda op, x, y: x >= y, flat, lambda k, x, y: k.ge(x, y), BOOL)
_binary("and", bits, lambda op, x, y: x & y, flat, lambda k, x, y: k.and_(x, y))
_binary("or", bits, lambda op, x, y: x | y, flat, lambda k, x, y: k.or_(x, y))
_binary("xor", bits, lambda op, x, y: x ^ y, flat, lambda k, x, y: k.xor(x, y))
_unary("not", bits, lambda op, x: ~x, flat, lambda k, x: k.not_(x))


# ---------------------------------------------------------------------- selection and conversion
def _where_result(
    types: Sequence[TensorType], attributes: Attributes, blocks: Sequence[Block]
) -> tuple[TensorType, ...]:
    condition, x, y = types
    if condition.dtype != BOOL:
        refuse(f"the condition of `where` is a bool, not {shown(condition)}")
    check_dtype("where", anything, x, y)
    check_same_dims("where", condition, x, y)
    return (x,)


def _where_reference(op: Op, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


def _where_body(k: Scalars, condition: Handle, x: Handle, y: Handle) -> Handle:
    return k.where(condition, x, y)


def _where_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    condition = op.operands[0]
    return None, b("where", condition, dy, zero(b, dy)), b("where", condition, zero(b, dy), dy)


define(
    "where",
    shape="elementwise",
    operands=3,
    result=_where_result,
    reference=_where_reference,
    gradient=_where_gradient,
    cost=Cost(1),
    needs=NEEDS,
    body=_where_body,
)


def _cast_result(
    types: Sequence[TensorType], attributes: Attributes, blocks: Sequence[Block]
) -> tuple[TensorType, ...]:
    return (types[0].with_dtype(attribute(attributes, "dtype", DType)),)


def _cast_reference(op: Op, x: Array) -> Array:
    dtype = op.result.type.dtype
    if dtype.is_integer and x.dtype.kind == "f":  # truncates and saturates; NaN gives 0
        limits = np.iinfo(dtype.storage)
        low, above = float(limits.min), float(limits.max) + (0 if dtype.bits > 52 else 1)
        whole = np.trunc(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf)).astype(np.float64)
        inside = np.where((whole >= low) & (whole < above), whole, 0.0).astype(dtype.storage)
        return np.where(whole >= above, limits.max, np.where(whole < low, limits.min, inside)).astype(dtype.storage)
    if dtype.is_float and x.dtype == np.float64:
        return x  # whoever runs references in float64 rounds as it likes
    return x.astype(dtype.compute)


def _cast_body(k: Scalars, x: Handle, dtype: DType) -> Handle:
    return k.cast(x, dtype)


def _cast_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    (x,) = op.operands
    if not (x.type.dtype.is_float and op.result.type.dtype.is_float):
        return (None,)
    return (b("cast", dy, dtype=x.type.dtype),)


define(
    "cast",
    shape="elementwise",
    operands=1,
    attributes=("dtype",),
    result=_cast_result,
    reference=_cast_reference,
    gradient=_cast_gradient,
    cost=Cost(1),
    needs=NEEDS,
    body=_cast_body,
)
