"""Index ops: each says where its element comes from. They own no storage and are inlined where they are read.

`read` may be evaluated although its value is then not selected, so every index given to it is inside its axis.
Parts of axes are in pieces.py, windows in window.py, gather in gather.py, random numbers in random.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.rules import (
    attribute,
    check_dtype,
    check_same_dim,
    dims_attribute,
    made,
    number_attribute,
    numbers,
    refuse,
    shown,
)
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import I64, SHARD, Dim, DType, TensorType

if TYPE_CHECKING:
    from alphac.ir.builder import Builder

Array = NDArray[Any]
Types = Sequence[TensorType]
Cotangents = Sequence[Value | None]
Index = Mapping[str, Handle]
Read = Callable[[int, Mapping[str, Handle]], Handle]
Result = tuple[TensorType, ...]

NEEDS = frozenset({"index"})


def clamp(k: Scalars, i: Handle, size: int) -> Handle:
    """i moved into [0, size)."""
    return k.minimum(k.maximum(i, 0), size - 1)


def inside(k: Scalars, i: Handle, size: int) -> Handle:
    """Whether i is in [0, size)."""
    return k.and_(k.ge(i, 0), k.lt(i, size))


def along(type_: TensorType, name: str) -> Array:
    """The index along one axis, of a shape that broadcasts against arrays of that type."""
    shape = [d.size if d.name == name else 1 for d in type_.dims]
    return np.arange(type_.dim(name).size).reshape(shape)


def _no_operands(b: Builder, op: Op, dy: Value) -> Cotangents:
    return ()


# ---------------------------------------------------------------------- constant, iota
def _constant_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    number_attribute(attributes, "value")
    return (TensorType(attribute(attributes, "dtype", DType)),)


def _constant_reference(op: Op) -> Array:
    """Floats in float64: whoever asks rounds to the precision it works in."""
    dtype, value = op.result.type.dtype, number_attribute(op.attributes, "value")
    if dtype.is_float:
        return np.asarray(value, np.float64)
    if dtype.is_integer:
        return np.asarray(int(value) & ((1 << dtype.bits) - 1), np.uint64).astype(dtype.storage)
    return np.asarray(bool(value))


def _constant_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    return k.const(number_attribute(op.attributes, "value"), op.result.type.dtype)


define(
    "constant",
    shape="index",
    operands=0,
    attributes=("value", "dtype"),
    result=_constant_result,
    reference=_constant_reference,
    gradient=_no_operands,
    cost=Cost(0),
    needs=NEEDS,
    body=_constant_body,
)


def _iota_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    dtype = attribute(attributes, "dtype", DType)
    dim = attribute(attributes, "dim", Dim)
    check_dtype("iota", numbers, TensorType(dtype))
    return (made(dtype, (dim,)),)


def _iota_reference(op: Op) -> Array:
    return np.arange(op.result.type.size)


def _iota_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    return k.cast(index[op.result.type.names[0]], op.result.type.dtype)


define(
    "iota",
    shape="index",
    operands=0,
    attributes=("dim", "dtype"),
    result=_iota_result,
    reference=_iota_reference,
    gradient=_no_operands,
    cost=Cost(1),
    needs=NEEDS,
    body=_iota_body,
)


# ---------------------------------------------------------------------- broadcast
def _meets_grain(x: TensorType, result: TensorType) -> Dim | None:
    """The grain's axis of the result, if it takes its shard's element of the per-shard x."""
    return result.grain if x.is_partial and not result.is_partial else None


def _broadcast_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    result = made(x.dtype, dims_attribute(attributes))
    grain = _meets_grain(x, result)
    for d in x.dims:
        if d.name == SHARD and grain is not None:
            if d.size != grain.shards:
                refuse(f"`broadcast`: {d.size} shards do not fit the {grain.shards} shards of `{grain.name}`")
        elif not result.has(d.name):
            refuse(f"`broadcast` adds axes and drops none, but `{d.name}` of {shown(x)} is not in {shown(result)}")
        else:
            check_same_dim("broadcast", d, result.dim(d.name))
    return (result,)


def _broadcast_reference(op: Op, x: Array) -> Array:
    source, result = op.operands[0].type, op.result.type
    names = list(source.names)
    grain = _meets_grain(source, result)
    if grain is not None:
        x = np.repeat(x, grain.size // grain.shards, axis=names.index(SHARD))
        names[names.index(SHARD)] = grain.name
    x = np.transpose(x, [names.index(n) for n in result.names if n in names])
    return np.broadcast_to(x.reshape([d.size if d.name in names else 1 for d in result.dims]), result.shape)


def _broadcast_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    return (b.sum_to(dy, op.operands[0].type.dims),)


def _broadcast_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    source, result = op.operands[0].type, op.result.type
    grain = _meets_grain(source, result)
    at = {n: index[n] for n in source.names if n != SHARD or grain is None}
    if grain is not None:
        at[SHARD] = k.floordiv(index[grain.name], grain.size // grain.shards)
    return read(0, at)


define(
    "broadcast",
    shape="index",
    operands=1,
    attributes=("dims",),
    result=_broadcast_result,
    reference=_broadcast_reference,
    gradient=_broadcast_gradient,
    cost=Cost(0),
    needs=NEEDS,
    body=_broadcast_body,
)


# ---------------------------------------------------------------------- rename, reshape
def _rename_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    dims = dims_attribute(attributes)
    if len(dims) != len(x.dims):
        refuse(f"`rename` keeps the number of axes: {shown(x)} has {len(x.dims)}, not {len(dims)}")
    for old, new in zip(x.dims, dims, strict=True):
        if old.size != new.size:
            refuse(f"`rename` keeps sizes: `{old.name}` is {old.size} and `{new.name}` is {new.size}")
        if old != new and (old.shards or new.shards or SHARD in (old.name, new.name)):
            refuse(f"`rename` cannot make `{new.name}` of `{old.name}`: the grain's axis keeps its name")
    return (made(x.dtype, dims),)


def _rename_reference(op: Op, x: Array) -> Array:
    return x


def _rename_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    return read(0, {s.name: index[r.name] for s, r in zip(op.operands[0].type.dims, op.result.type.dims, strict=True)})


def _rename_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    return (b("rename", dy, dims=op.operands[0].type.dims),)


define(
    "rename",
    shape="index",
    operands=1,
    attributes=("dims",),
    result=_rename_result,
    reference=_rename_reference,
    gradient=_rename_gradient,
    cost=Cost(0),
    needs=NEEDS,
    body=_rename_body,
)


def _reshape_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    result = made(x.dtype, dims_attribute(attributes))
    if x.size != result.size:
        refuse(f"`reshape` keeps the number of elements: {shown(x)} has {x.size}, {shown(result)} {result.size}")
    for t, other in ((x, result), (result, x)):
        for at, d in enumerate(t.dims):
            if (d.shards or d.name == SHARD) and (at > 0 or not other.dims or other.dims[0] != d):
                refuse(f"`reshape` keeps `{d.name}`, which is cut among owners, as the first axis, unchanged")
    return (result,)


def _groups(source: tuple[Dim, ...], result: tuple[Dim, ...]) -> list[tuple[list[Dim], list[Dim]]]:
    """Shortest runs of axes with equal numbers of elements: indices are computed within a run, so that axes which stay
    cost nothing."""
    left, right = list(source), list(result)
    groups: list[tuple[list[Dim], list[Dim]]] = []
    while left or right:
        from_, to = left[:1], right[:1]
        del left[:1], right[:1]
        while _count(from_) != _count(to):
            grow, rest = (from_, left) if _count(from_) < _count(to) else (to, right)
            grow.append(rest.pop(0))
        groups.append((from_, to))
    return groups


def _count(dims: Sequence[Dim]) -> int:
    n = 1
    for d in dims:
        n *= d.size
    return n


def _reshape_reference(op: Op, x: Array) -> Array:
    return x.reshape(op.result.type.shape)


def _reshape_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    at: dict[str, Handle] = {}
    for source, result in _groups(op.operands[0].type.dims, op.result.type.dims):
        flat = index[result[0].name] if result else k.const(0, I64)
        for d in result[1:]:
            flat = k.add(k.mul(flat, d.size), index[d.name])
        for d in reversed(source[1:]):
            at[d.name] = k.mod(flat, d.size)
            flat = k.floordiv(flat, d.size)
        if source:
            at[source[0].name] = flat
    return read(0, at)


def _reshape_gradient(b: Builder, op: Op, dy: Value) -> Cotangents:
    return (b("reshape", dy, dims=op.operands[0].type.dims),)


define(
    "reshape",
    shape="index",
    operands=1,
    attributes=("dims",),
    result=_reshape_result,
    reference=_reshape_reference,
    gradient=_reshape_gradient,
    cost=Cost(2),
    needs=NEEDS,
    body=_reshape_body,
)
