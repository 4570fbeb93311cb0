"""Reductions over named axes. Over the grain's axis the result is per shard: it has a leading axis `shard`.

The order of a sum is fixed (leaves of 1,024 elements, 16 lanes, a tree); lowering and `interpret` know it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import Array, Result, Types
from alphac.ir.ops.rules import axis, check_dtype, check_local, made, names_attribute, numbers, refuse
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import I32, I64, SHARD, Dim, DType, TensorType, shard_dim

if TYPE_CHECKING:
    from alphac.ir.builder import Builder

LANES = 16  # in which a leaf is reduced
FEW = 4


def _result(name: str) -> Callable[[Types, Attributes, Sequence[Block]], Result]:
    def result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
        (x,) = types
        check_dtype(name, numbers, x)
        over = names_attribute(attributes, "over")
        if not over or len(set(over)) != len(over):
            refuse(f"`{name}` takes one axis or more, each once, not ({', '.join(over)})")
        for n in over:
            if axis(name, x, n).name == SHARD:
                check_local(name, x.dim(n))
        kept = x.without(*over).dims
        if x.grain is not None and x.grain.name in over:
            kept = (shard_dim(x.grain), *kept)
        return (made(x.dtype, kept),)

    return result


def reduced_axes(op: Op) -> list[Dim]:
    """The axes a reduction runs over, outermost first: as in the operand, but the grain's axis before all others."""
    over = names_attribute(op.attributes, "over")
    dims = [d for d in op.operands[0].type.dims if d.name in over]
    return sorted(dims, key=lambda d: d.shards == 0)


def is_short(op: Op) -> bool:
    """Whether an op is a reduction of so few elements that it is arithmetic with several operands: no lane gets two,
    and vectors may lie along an axis that is kept; or they are hardly any."""
    if op.name not in ("reduce_sum", "reduce_max", "reduce_min"):
        return False
    axes, dims = reduced_axes(op), op.operands[0].type.dims
    count = math.prod(d.size for d in axes)
    return axes[0].shards == 0 and count <= (LANES if dims[-1] not in axes else FEW)


def cut_grain(x: Array, type_: TensorType) -> Array:
    """The array with the grain's axis as two, (shards, rows), at the front."""
    grain = type_.grain
    assert grain is not None
    front = np.moveaxis(x, type_.names.index(grain.name), 0)
    return front.reshape((grain.shards, grain.size // grain.shards, *front.shape[1:]))


def _reference(reduce: Callable[..., Any]) -> Callable[[Op, Array], Array]:
    def reference(op: Op, x: Array) -> Array:
        type_, over = op.operands[0].type, names_attribute(op.attributes, "over")
        names = list(type_.names)
        if type_.grain is not None and type_.grain.name in over:
            x = cut_grain(x, type_)
            names.remove(type_.grain.name)
            names = [SHARD, type_.grain.name, *names]
        return reduce(x, axis=tuple(names.index(n) for n in over))

    return reference


def _sum_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    return (b.broadcast(dy, op.operands[0].type.dims),)


def _extreme_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    """The cotangent goes to the first extreme element in row-major order of the reduced axes; a NaN is extreme."""
    (x,) = op.operands
    dims = x.type.dims
    met = b("or", b("eq", x, b.broadcast(op.result, dims)), b("ne", x, x))
    axes = reduced_axes(op)
    integer = I32 if math.prod(d.size for d in axes) < 2**31 else I64
    place = b.constant(0, integer, dims)
    for d in axes:
        along = b.broadcast(b("iota", dim=d, dtype=integer), dims)
        place = b("add", b("mul", place, b.constant(d.size, integer, dims)), along)
    nowhere = b.constant(2 ** (integer.bits - 1) - 1, integer, dims)
    first = b("reduce_min", b("where", met, place, nowhere), over=names_attribute(op.attributes, "over"))
    winner = b("eq", place, b.broadcast(first, dims))
    spread = b.broadcast(dy, dims)
    return (b("where", winner, spread, b.like(0, spread)),)


def adding(k: Scalars, x: Handle, y: Handle) -> Handle:
    return k.add(x, y)


def greater(k: Scalars, x: Handle, y: Handle) -> Handle:
    return k.maximum(x, y)


def lesser(k: Scalars, x: Handle, y: Handle) -> Handle:
    return k.minimum(x, y)


def zero_identity(k: Scalars, dtype: DType) -> Handle:
    return k.const(0, dtype)


def lowest(k: Scalars, dtype: DType) -> Handle:
    """The identity of maximum."""
    if dtype.is_float:
        return k.const(float("-inf"), dtype)
    return k.const(-(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0, dtype)


def highest(k: Scalars, dtype: DType) -> Handle:
    """The identity of minimum."""
    if dtype.is_float:
        return k.const(float("inf"), dtype)
    return k.const((1 << (dtype.bits - (dtype.kind == "int"))) - 1, dtype)


def _sum(x: Array, axis: tuple[int, ...]) -> Array:
    return np.sum(x, axis=axis, dtype=x.dtype)


for _name, _reduce, _gradient, _body, _identity in (
    ("reduce_sum", _sum, _sum_gradient, adding, zero_identity),
    ("reduce_max", np.max, _extreme_gradient, greater, lowest),
    ("reduce_min", np.min, _extreme_gradient, lesser, highest),
):
    define(
        _name,
        shape="reduce",
        operands=1,
        attributes=("over",),
        result=_result(_name),
        reference=_reference(_reduce),
        gradient=_gradient,
        cost=Cost(1),
        needs={"reduce"},
        body=_body,
        identity=_identity,
    )
