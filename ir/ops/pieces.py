"""Index ops that take an axis apart or put one together: slice, pad, concat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import NEEDS, Array, Index, Read, Result, Types, clamp, inside
from alphac.ir.ops.rules import (
    anything,
    attribute,
    check_dtype,
    check_local,
    check_same_dim,
    local_axis,
    made,
    number_attribute,
    refuse,
    replaced,
    shown,
)
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import I64, Dim

if TYPE_CHECKING:
    from alphac.ir.builder import Builder


# ---------------------------------------------------------------------- slice
def _slice_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    name, to = attribute(attributes, "dim", str), check_local("slice", attribute(attributes, "to", Dim))
    start, step = attribute(attributes, "start", int), attribute(attributes, "step", int)
    dim = local_axis("slice", x, name)
    if step == 0:
        refuse("`slice` with step 0")
    for i in (start, start + (to.size - 1) * step):
        if not 0 <= i < dim.size:
            refuse(f"`slice` takes element {i} of `{name}`, which has {dim.size}")
    return (made(x.dtype, replaced(x.dims, name, to)),)


def _slice_reference(op: Op, x: Array) -> Array:
    at = op.operands[0].type.names.index(attribute(op.attributes, "dim", str))
    start, step = attribute(op.attributes, "start", int), attribute(op.attributes, "step", int)
    return np.take(x, start + step * np.arange(attribute(op.attributes, "to", Dim).size), axis=at)


def _slice_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    x = op.operands[0].type
    dim, to = x.dim(attribute(op.attributes, "dim", str)), attribute(op.attributes, "to", Dim)
    start, step = attribute(op.attributes, "start", int), attribute(op.attributes, "step", int)
    if step == 1 or to.size == 1:
        high = dim.size - start - to.size
        return (b("pad", dy, dim=to.name, low=start, high=high, to=dim, value=0),)
    # Element j of x went to place (j - start) / step, if that is whole and inside.
    j = b("sub", b("iota", dim=dim, dtype=I64), b.constant(start, I64, (dim,)))
    place = b("floordiv", j, b.constant(step, I64, (dim,)))
    met = b("eq", b("mul", place, b.constant(step, I64, (dim,))), j)
    for bound, holds in ((0, "ge"), (to.size, "lt")):
        met = b("and", met, b(holds, place, b.constant(bound, I64, (dim,))))
    spread = b.broadcast(b("gather", dy, place, dim=to.name), x.dims)
    return (b("where", b.broadcast(met, x.dims), spread, b.like(0, spread)),)


def _slice_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    name, to = attribute(op.attributes, "dim", str), attribute(op.attributes, "to", Dim)
    at = {n: index[n] for n in op.operands[0].type.names if n != name}
    at[name] = k.add(
        k.mul(index[to.name], attribute(op.attributes, "step", int)), attribute(op.attributes, "start", int)
    )
    return read(0, at)


define(
    "slice",
    shape="index",
    operands=1,
    attributes=("dim", "start", "step", "to"),
    result=_slice_result,
    reference=_slice_reference,
    gradient=_slice_gradient,
    cost=Cost(0),
    needs=NEEDS,
    body=_slice_body,
)


# ---------------------------------------------------------------------- pad
def _pad_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    name, to = attribute(attributes, "dim", str), check_local("pad", attribute(attributes, "to", Dim))
    low, high = attribute(attributes, "low", int), attribute(attributes, "high", int)
    number_attribute(attributes, "value")
    dim = local_axis("pad", x, name)
    if low < 0 or high < 0:
        refuse(f"`pad` adds elements: {low} and {high} must not be negative; use a slice to drop some")
    if to.size != low + dim.size + high:
        refuse(f"`pad`: {low} + {dim.size} + {high} elements are not the {to.size} of `{to.name}`")
    return (made(x.dtype, replaced(x.dims, name, to)),)


def _pad_reference(op: Op, x: Array) -> Array:
    name = attribute(op.attributes, "dim", str)
    amounts = (attribute(op.attributes, "low", int), attribute(op.attributes, "high", int))
    widths = [amounts if n == name else (0, 0) for n in op.operands[0].type.names]
    return np.pad(x, widths, constant_values=number_attribute(op.attributes, "value"))


def _pad_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    to, low = attribute(op.attributes, "to", Dim), attribute(op.attributes, "low", int)
    dim = op.operands[0].type.dim(attribute(op.attributes, "dim", str))
    return (b("slice", dy, dim=to.name, start=low, step=1, to=dim),)


def _pad_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    source = op.operands[0].type
    dim, to = source.dim(attribute(op.attributes, "dim", str)), attribute(op.attributes, "to", Dim)
    i = k.sub(index[to.name], attribute(op.attributes, "low", int))
    at = {n: index[n] for n in source.names if n != dim.name}
    at[dim.name] = clamp(k, i, dim.size)
    return k.where(inside(k, i, dim.size), read(0, at), k.const(number_attribute(op.attributes, "value"), source.dtype))


define(
    "pad",
    shape="index",
    operands=1,
    attributes=("dim", "low", "high", "to", "value"),
    result=_pad_result,
    reference=_pad_reference,
    gradient=_pad_gradient,
    cost=Cost(2),
    needs=NEEDS,
    body=_pad_body,
)


# ---------------------------------------------------------------------- concat
def _concat_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    name, to = attribute(attributes, "dim", str), check_local("concat", attribute(attributes, "to", Dim))
    if not types:
        refuse("`concat` of nothing")
    check_dtype("concat", anything, *types)
    total = 0
    for x in types:
        total += local_axis("concat", x, name).size
        if x.names != types[0].names:
            refuse(f"`concat`: {shown(types[0])} and {shown(x)} do not have the same axes in the same order")
        for d in x.without(name).dims:
            check_same_dim("concat", d, types[0].dim(d.name))
    if total != to.size:
        refuse(f"`concat`: the operands have {total} elements along `{name}`, `{to.name}` has {to.size}")
    return (made(types[0].dtype, replaced(types[0].dims, name, to)),)


def _concat_reference(op: Op, *xs: Array) -> Array:
    return np.concatenate(xs, axis=op.operands[0].type.names.index(attribute(op.attributes, "dim", str)))


def _concat_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    name, to = attribute(op.attributes, "dim", str), attribute(op.attributes, "to", Dim)
    parts: list[Value | None] = []
    start = 0
    for x in op.operands:
        dim = x.type.dim(name)
        parts.append(b("slice", dy, dim=to.name, start=start, step=1, to=dim))
        start += dim.size
    return parts


def _concat_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    name, to = attribute(op.attributes, "dim", str), attribute(op.attributes, "to", Dim)
    chosen: Handle = None
    start = 0
    for i, x in enumerate(op.operands):
        size = x.type.dim(name).size
        at = {n: index[n] for n in x.type.names if n != name}
        at[name] = clamp(k, k.sub(index[to.name], start), size)
        element = read(i, at)
        chosen = element if i == 0 else k.where(k.ge(index[to.name], start), element, chosen)
        start += size
    return chosen


define(
    "concat",
    shape="index",
    operands=None,
    attributes=("dim", "to"),
    result=_concat_result,
    reference=_concat_reference,
    gradient=_concat_gradient,
    cost=Cost(2),
    needs=NEEDS,
    body=_concat_body,
)
