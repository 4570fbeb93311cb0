"""gather: elements of a table at an index. Its adjoint is scatter_add (special.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import NEEDS, Array, Index, Read, Result, Types, along, clamp
from alphac.ir.ops.rules import attribute, check_same_dim, integers, local_axis, made, refuse, shown
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import I64, SHARD, Dim, TensorType

if TYPE_CHECKING:
    from alphac.ir.builder import Builder


def shared_axis(table: TensorType, index: TensorType, name: str) -> Dim | None:
    """The axis of `index` that the axis `name` of the table is aligned with: the same one, or the grain's for a table
    of per-shard entries."""
    if index.has(name):
        return index.dim(name)
    return index.grain if name == SHARD else None


def _gather_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    table, index = types
    dim = local_axis("gather", table, attribute(attributes, "dim", str))
    if not integers(index.dtype):
        refuse(f"`gather` takes an integer index, not {shown(index)}")
    others: list[Dim] = []
    for d in table.dims:
        if d.name == dim.name:
            continue
        shared = shared_axis(table, index, d.name)
        if shared is None:
            others.append(d)
        elif shared.name == d.name:
            check_same_dim("gather", d, shared)
        elif d.size != shared.shards:
            refuse(f"`gather`: {d.size} shards do not fit the {shared.shards} shards of `{shared.name}`")
    return (made(table.dtype, (*index.dims, *others)),)


def _gather_reference(op: Op, table: Array, index: Array) -> Array:
    name, result = attribute(op.attributes, "dim", str), op.result.type
    source, index_type = op.operands[0].type, op.operands[1].type
    at: list[Array] = []
    for d in source.dims:
        shared = shared_axis(source, index_type, d.name)
        if d.name == name:
            chosen = np.clip(index.astype(np.int64), 0, d.size - 1)
            at.append(chosen.reshape((*index_type.shape, *(1,) * (len(result.dims) - len(index_type.dims)))))
        elif shared is not None and shared.name != d.name:
            at.append(along(result, shared.name) // (shared.size // shared.shards))
        else:
            at.append(along(result, d.name))
    return table[tuple(at)]


def _gather_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    table, index = op.operands
    dim, dims = table.type.dim(attribute(op.attributes, "dim", str)), table.type.dims
    if index.type.is_partial and not table.type.is_partial:
        dims = (index.type.dim(SHARD), *dims)  # one cotangent per shard
    elif table.type.is_partial and index.type.grain is not None:
        dims = table.type.without(SHARD).dims  # scatter_add adds the leading `shard` itself
    d_table = b("scatter_add", index, dy, dim=dim, dims=dims)
    if table.type.is_partial:
        d_table = b.broadcast(d_table, table.type.dims)
    return d_table, None


def _gather_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    name = attribute(op.attributes, "dim", str)
    source, index_type = op.operands[0].type, op.operands[1].type
    chosen = k.cast(read(1, {n: index[n] for n in index_type.names}), I64)
    at: dict[str, Handle] = {}
    for d in source.dims:
        shared = shared_axis(source, index_type, d.name)
        if d.name == name:
            at[name] = clamp(k, chosen, d.size)
        elif shared is not None and shared.name != d.name:
            at[d.name] = k.floordiv(index[shared.name], shared.size // shared.shards)
        else:
            at[d.name] = index[d.name]
    return read(0, at)


define(
    "gather",
    shape="index",
    operands=2,
    attributes=("dim",),
    result=_gather_result,
    reference=_gather_reference,
    gradient=_gather_gradient,
    cost=Cost(2),
    needs=NEEDS | {"gather"},
    body=_gather_body,
)
