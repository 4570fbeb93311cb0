"""Contraction: sums of products over named axes.

    contract{dims}(a, b): axes in `dims` stay, those of both operands as batch axes; all others are summed.

Summed axes are in both operands; they are one axis, row-major in a's order, the grain's axis outermost. Over the
grain's axis the result is per shard. The order is fixed (leaves of 256 terms by fma from +0, a tree above); lowering
and `interpret` know it.

`contract_fast` is a contraction of a region with `numeric fast`: a target may round f32 operands to bf16, and add up as
suits it. One that has nothing faster does what `contract` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import Array, Result, Types
from alphac.ir.ops.reduce import cut_grain
from alphac.ir.ops.rules import check_dtype, check_local, check_same_dim, dims_attribute, made, numbers, refuse, shown
from alphac.ir.typesys import SHARD, Dim, TensorType, shard_dim

if TYPE_CHECKING:
    from alphac.ir.builder import Builder


def contract_type(a: TensorType, b: TensorType, dims: tuple[Dim, ...]) -> TensorType:
    """The type of `contract{dims}(a, b)`."""
    check_dtype("contract", numbers, a, b)
    for d in a.dims:
        if b.has(d.name):
            check_same_dim("contract", d, b.dim(d.name))
    made(a.dtype, {d.name: d for d in (*a.dims, *b.dims)}.values())  # a per-shard value does not meet the grain's axis
    for d in dims:
        source = a if a.has(d.name) else b
        if not source.has(d.name):
            refuse(f"`contract`: axis `{d.name}` is in neither {shown(a)} nor {shown(b)}")
        check_same_dim("contract", d, source.dim(d.name))
    kept = {d.name for d in dims}
    for x, other in ((a, b), (b, a)):
        for d in x.dims:
            if d.name not in kept and not other.has(d.name):
                refuse(
                    f"`contract` sums over `{d.name}`, which {shown(x)} has and {shown(other)} has not; reduce it first"
                )
    summed = [d for d in a.dims if d.name not in kept]
    for d in summed:
        if d.name == SHARD:
            check_local("contract", d)
    grain = next((d for d in summed if d.shards), None)
    return made(a.dtype, dims if grain is None else (shard_dim(grain), *dims))


def _result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    a, b = types
    return (contract_type(a, b, dims_attribute(attributes)),)


def contracted_axes(op: Op) -> list[Dim]:
    """The summed axes, outermost first: in the first operand's order, but the grain's axis before all others."""
    kept = {d.name for d in dims_attribute(op.attributes)}
    return sorted((d for d in op.operands[0].type.dims if d.name not in kept), key=lambda d: d.shards == 0)


def contract_arrays(a: TensorType, b: TensorType, result: TensorType, x: Array, y: Array) -> Array:
    """The contraction by NumPy's einsum."""
    letters: dict[str, int] = {}
    grain = a.grain if a.grain is not None and result.is_partial and not a.is_partial else None
    operands: list[Array] = []
    subscripts: list[list[int]] = []
    for type_, array in ((a, x), (b, y)):
        names = list(type_.names)
        if grain is not None:
            array = cut_grain(array, type_)
            names.remove(grain.name)
            names = [SHARD, grain.name, *names]
        operands.append(array)
        subscripts.append([letters.setdefault(n, len(letters)) for n in names])
    out = [letters[n] for n in result.names]
    return np.einsum(operands[0], subscripts[0], operands[1], subscripts[1], out, optimize=True)


def _reference(op: Op, x: Array, y: Array) -> Array:
    a, b = op.operands
    return contract_arrays(a.type, b.type, op.result.type, x, y)


def _gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    x, y = op.operands
    dy = whole_cotangent(b, op, dy, x.type.grain)
    return _adjoint(b, op.name, dy, y, x.type), _adjoint(b, op.name, dy, x, y.type)


def whole_cotangent(b: Builder, op: Op, dy: Value, grain: Dim | None) -> Value:
    """The cotangent of a contraction without the axis `shard` that summing over the grain's axis left: a contraction
    meets the grain's axis itself."""
    dims = dims_attribute(op.attributes)
    if not dy.type.is_partial or any(d.name == SHARD for d in dims) or grain is None:
        return dy
    maker = dy.op
    if maker is not None and maker.name == "broadcast" and not maker.operands[0].type.is_partial:
        return b.broadcast(maker.operands[0], dims)  # the same for all shards
    return b.broadcast(dy, (grain, *dims))


def _adjoint(b: Builder, name: str, dy: Value, other: Value, to: TensorType) -> Value:
    dims = to.dims
    if not to.is_partial and (dy.type.is_partial or other.type.is_partial):
        dims = (dy.type.dim(SHARD), *dims)  # the other operand is per shard, so the cotangent is
    return b(name, dy, other, dims=dims)


for _name in ("contract", "contract_fast"):
    define(
        _name,
        shape="contract",
        operands=2,
        attributes=("dims",),
        result=_result,
        reference=_reference,
        gradient=_gradient,
        cost=Cost(2),
        needs={"contract"},
        body=None,
    )
