"""Ops with a loop of their own in every target: argmax, argmin, cumsum, scatter_add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import Array, Result, Types, along
from alphac.ir.ops.rules import (
    attribute,
    check_dtype,
    check_local,
    check_same_dim,
    dims_attribute,
    integers,
    local_axis,
    made,
    numbers,
    refuse,
    shown,
)
from alphac.ir.typesys import I32, SHARD, Dim, TensorType, shard_dim

if TYPE_CHECKING:
    from alphac.ir.builder import Builder


# ---------------------------------------------------------------------- argmax, argmin
def _arg_result(name: str) -> Callable[[Types, Attributes, Sequence[Block]], Result]:
    def result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
        (x,) = types
        check_dtype(name, numbers, x)
        dim = local_axis(name, x, attribute(attributes, "dim", str))
        if dim.size >= 2**31:
            refuse(f"`{name}` counts in i32; `{dim.name}` is too long")
        return (x.without(dim.name).with_dtype(I32),)

    return result


def _arg_reference(find: Callable[..., Any]) -> Callable[[Op, Array], Array]:
    def reference(op: Op, x: Array) -> Array:
        return find(x, axis=op.operands[0].type.names.index(attribute(op.attributes, "dim", str))).astype(np.int32)

    return reference


def _arg_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    return (None,)


for _name, _find in (("argmax", np.argmax), ("argmin", np.argmin)):
    define(  # the first of equals (zeros are equal); a NaN wins
        _name,
        shape="special",
        operands=1,
        attributes=("dim",),
        result=_arg_result(_name),
        reference=_arg_reference(_find),
        gradient=_arg_gradient,
        cost=Cost(2),
        needs={"reduce"},
        body=None,
    )


# ---------------------------------------------------------------------- cumsum
def _cumsum_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    check_dtype("cumsum", numbers, x)
    local_axis("cumsum", x, attribute(attributes, "dim", str))
    attribute(attributes, "reverse", bool)
    return (x,)


def _cumsum_reference(op: Op, x: Array) -> Array:
    at = op.operands[0].type.names.index(attribute(op.attributes, "dim", str))
    if attribute(op.attributes, "reverse", bool):
        return np.flip(np.cumsum(np.flip(x, at), axis=at, dtype=x.dtype), at)
    return np.cumsum(x, axis=at, dtype=x.dtype)


def _cumsum_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    return (b("cumsum", dy, dim=op.attributes["dim"], reverse=not op.attributes["reverse"]),)


define(  # one chain from +0, ascending, or descending if `reverse`; bf16 sums in f32 and rounds every element once
    "cumsum",
    shape="special",
    operands=1,
    attributes=("dim", "reverse"),
    result=_cumsum_result,
    reference=_cumsum_reference,
    gradient=_cumsum_gradient,
    cost=Cost(1),
    needs={"scan"},
    body=None,
)


# ---------------------------------------------------------------------- scatter_add
def scattered_axes(op: Op) -> list[Dim]:
    """The summed axes of the index, outermost first: as in the index, but the grain's axis before all others."""
    summed = _summed(op.operands[0].type, attribute(op.attributes, "dim", Dim), dims_attribute(op.attributes))
    return sorted(summed, key=lambda d: d.shards == 0)


def _summed(index: TensorType, dim: Dim, dims: tuple[Dim, ...]) -> list[Dim]:
    kept = {d.name for d in dims if d.name != dim.name}
    return [d for d in index.dims if d.name not in kept]


def _scatter_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    index, updates = types
    dim, dims = check_local("scatter_add", attribute(attributes, "dim", Dim)), dims_attribute(attributes)
    if not integers(index.dtype):
        refuse(f"`scatter_add` takes an integer index, not {shown(index)}")
    check_dtype("scatter_add", numbers, updates)
    if dim not in dims:
        refuse(f"`scatter_add`: `{dim.name}` is not an axis of the result")
    kept = {d.name: d for d in dims if d.name != dim.name}
    for d in (*index.dims, *kept.values()):
        if not updates.has(d.name):
            refuse(f"`scatter_add`: {shown(updates)} lacks axis `{d.name}`")
        check_same_dim("scatter_add", d, updates.dim(d.name))
    for d in updates.dims:
        if d.name not in kept and not index.has(d.name):
            refuse(f"`scatter_add`: axis `{d.name}` of {shown(updates)} is neither in the index nor in the result")
    summed = _summed(index, dim, dims)
    for d in summed:
        if d.name == SHARD:
            check_local("scatter_add", d)
    grain = next((d for d in summed if d.shards), None)
    return (made(updates.dtype, dims if grain is None else (shard_dim(grain), *dims)),)


def scatter_index(op: Op, index: Array) -> list[Array]:
    """Where in the result each update goes: one array per axis of the result, broadcasting against the updates."""
    index_type, updates, result = op.operands[0].type, op.operands[1].type, op.result.type
    dim = attribute(op.attributes, "dim", Dim)
    chosen = np.clip(index.astype(np.int64), 0, dim.size - 1)
    chosen = np.transpose(chosen, [index_type.names.index(n) for n in updates.names if index_type.has(n)])
    chosen = chosen.reshape([d.size if index_type.has(d.name) else 1 for d in updates.dims])
    at: list[Array] = []
    for d in result.dims:
        if d.name == dim.name:
            at.append(chosen)
        elif d.name == SHARD and not updates.is_partial:
            grain = updates.grain
            assert grain is not None
            at.append(along(updates, grain.name) // (grain.size // grain.shards))
        else:
            at.append(along(updates, d.name))
    return at


def _scatter_reference(op: Op, index: Array, updates: Array) -> Array:
    result = np.zeros(op.result.type.shape, updates.dtype)
    np.add.at(result, tuple(scatter_index(op, index)), updates)
    return result


def _scatter_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    index, updates = op.operands
    gathered = b("gather", dy, index, dim=attribute(op.attributes, "dim", Dim).name)
    return None, b.broadcast(gathered, updates.type.dims)


define(
    "scatter_add",
    shape="special",
    operands=2,
    attributes=("dim", "dims"),
    result=_scatter_result,
    reference=_scatter_reference,
    gradient=_scatter_gradient,
    cost=Cost(1),
    needs={"scatter"},
    body=None,
)
