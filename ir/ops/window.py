"""Index ops for sliding windows: convolution and pooling are made of them.

window      x[i]     → y[o, κ] = x[o·stride + κ·dilation − low]
unwindow    x[o, κ]  → y[i, κ] = x[(i + low − κ·dilation) / stride, κ]     its sum over κ is window's adjoint
window_at   x[i, κ]  → y[o, κ] = x[o·stride + κ·dilation − low, κ]         unwindow's adjoint
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import NEEDS, Array, Index, Read, Result, Types, clamp, inside
from alphac.ir.ops.rules import attribute, check_local, local_axis, made, number_attribute, refuse, replaced
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import Dim, TensorType

if TYPE_CHECKING:
    from alphac.ir.builder import Builder


def _geometry(attributes: Attributes) -> tuple[int, int, int]:
    """stride, low, dilation."""
    stride, low, dilation = (attribute(attributes, n, int) for n in ("stride", "low", "dilation"))
    if stride < 1 or dilation < 1:
        refuse(f"a window has stride and dilation of at least 1, not {stride} and {dilation}")
    return stride, low, dilation


def _at(k: Scalars, index: Index, attributes: Attributes, to: str, kernel: str) -> Handle:
    """o·stride + κ·dilation − low."""
    stride, low, dilation = _geometry(attributes)
    return k.sub(k.add(k.mul(index[to], stride), k.mul(index[kernel], dilation)), low)


def _places(op: Op, to: int, kernel: int) -> Array:
    stride, low, dilation = _geometry(op.attributes)
    return np.arange(to)[:, None] * stride + np.arange(kernel)[None, :] * dilation - low


def _spread(mask: Array, type_: TensorType, first: str, second: str) -> Array:
    """A mask over two axes, of a shape that broadcasts against arrays of that type."""
    if type_.names.index(first) > type_.names.index(second):
        mask = mask.T
    return mask.reshape([d.size if d.name in (first, second) else 1 for d in type_.dims])


# ---------------------------------------------------------------------- window
def is_inside(op: Op) -> bool:
    """Whether all elements of a `window` are its operand's: then it only says where they lie."""
    dim = op.operands[0].type.dim(attribute(op.attributes, "dim", str))
    to, kernel = attribute(op.attributes, "to", Dim), attribute(op.attributes, "kernel", Dim)
    stride, low, dilation = _geometry(op.attributes)
    return low <= 0 and (to.size - 1) * stride + (kernel.size - 1) * dilation - low < dim.size


def _window_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    name = attribute(attributes, "dim", str)
    to, kernel = attribute(attributes, "to", Dim), attribute(attributes, "kernel", Dim)
    for d in (local_axis("window", x, name), to, kernel):
        check_local("window", d)
    _geometry(attributes)
    number_attribute(attributes, "value")
    return (made(x.dtype, replaced(x.dims, name, to, kernel)),)


def _window_reference(op: Op, x: Array) -> Array:
    source = op.operands[0].type
    dim = source.dim(attribute(op.attributes, "dim", str))
    to, kernel = attribute(op.attributes, "to", Dim), attribute(op.attributes, "kernel", Dim)
    places = _places(op, to.size, kernel.size)
    taken = np.take(x, np.clip(places, 0, dim.size - 1), axis=source.names.index(dim.name))
    met = _spread((places >= 0) & (places < dim.size), op.result.type, to.name, kernel.name)
    return np.where(met, taken, np.asarray(number_attribute(op.attributes, "value")).astype(x.dtype))


def _window_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    dim = op.operands[0].type.dim(attribute(op.attributes, "dim", str))
    to, kernel = attribute(op.attributes, "to", Dim), attribute(op.attributes, "kernel", Dim)
    stride, low, dilation = _geometry(op.attributes)
    spread = b("unwindow", dy, to=to.name, kernel=kernel.name, dim=dim, stride=stride, low=low, dilation=dilation)
    return (b("reduce_sum", spread, over=(kernel.name,)),)


def _window_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    source = op.operands[0].type
    dim = source.dim(attribute(op.attributes, "dim", str))
    to, kernel = attribute(op.attributes, "to", Dim), attribute(op.attributes, "kernel", Dim)
    i = _at(k, index, op.attributes, to.name, kernel.name)
    at = {n: index[n] for n in source.names if n != dim.name}
    at[dim.name] = clamp(k, i, dim.size)
    return k.where(inside(k, i, dim.size), read(0, at), k.const(number_attribute(op.attributes, "value"), source.dtype))


define(
    "window",
    shape="index",
    operands=1,
    attributes=("dim", "to", "kernel", "stride", "low", "dilation", "value"),
    result=_window_result,
    reference=_window_reference,
    gradient=_window_gradient,
    cost=Cost(4),
    needs=NEEDS,
    body=_window_body,
)


# ---------------------------------------------------------------------- unwindow
def _unwindow_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    to, kernel = attribute(attributes, "to", str), attribute(attributes, "kernel", str)
    if to == kernel:
        refuse("`unwindow`: the axes `to` and `kernel` are two")
    local_axis("unwindow", x, to)
    local_axis("unwindow", x, kernel)
    _geometry(attributes)
    return (made(x.dtype, replaced(x.dims, to, check_local("unwindow", attribute(attributes, "dim", Dim)))),)


def _unwindow_reference(op: Op, x: Array) -> Array:
    source, result = op.operands[0].type, op.result.type
    to, kernel = attribute(op.attributes, "to", str), attribute(op.attributes, "kernel", str)
    dim = attribute(op.attributes, "dim", Dim)
    stride, low, dilation = _geometry(op.attributes)
    columns = np.arange(source.dim(kernel).size)[None, :]
    scaled = np.arange(dim.size)[:, None] + low - columns * dilation
    place = scaled // stride
    met = (scaled % stride == 0) & (place >= 0) & (place < source.dim(to).size)
    axes = (source.names.index(to), source.names.index(kernel))
    front = np.moveaxis(x, axes, (0, 1))
    taken = np.moveaxis(front[np.clip(place, 0, source.dim(to).size - 1), columns], (0, 1), axes)
    return np.where(_spread(met, result, dim.name, kernel), taken, x.dtype.type(0))


def _unwindow_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    to, kernel = attribute(op.attributes, "to", str), attribute(op.attributes, "kernel", str)
    dim, (stride, low, dilation) = attribute(op.attributes, "dim", Dim), _geometry(op.attributes)
    axis = op.operands[0].type.dim(to)
    return (b("window_at", dy, dim=dim.name, to=axis, kernel=kernel, stride=stride, low=low, dilation=dilation),)


def _unwindow_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    source = op.operands[0].type
    to, kernel = source.dim(attribute(op.attributes, "to", str)), attribute(op.attributes, "kernel", str)
    dim = attribute(op.attributes, "dim", Dim)
    stride, low, dilation = _geometry(op.attributes)
    scaled = k.sub(k.add(index[dim.name], low), k.mul(index[kernel], dilation))
    place = scaled if stride == 1 else k.floordiv(scaled, stride)
    met = inside(k, place, to.size)
    if stride > 1:
        met = k.and_(met, k.eq(k.mul(place, stride), scaled))
    at = {n: index[n] for n in source.names if n != to.name}
    at[to.name] = clamp(k, place, to.size)
    return k.where(met, read(0, at), k.const(0, source.dtype))


define(
    "unwindow",
    shape="index",
    operands=1,
    attributes=("to", "kernel", "dim", "stride", "low", "dilation"),
    result=_unwindow_result,
    reference=_unwindow_reference,
    gradient=_unwindow_gradient,
    cost=Cost(5),
    needs=NEEDS,
    body=_unwindow_body,
)


# ---------------------------------------------------------------------- window_at
def _window_at_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    (x,) = types
    name, kernel = attribute(attributes, "dim", str), attribute(attributes, "kernel", str)
    if name == kernel:
        refuse("`window_at`: the axes `dim` and `kernel` are two")
    local_axis("window_at", x, name)
    local_axis("window_at", x, kernel)
    _geometry(attributes)
    return (made(x.dtype, replaced(x.dims, name, check_local("window_at", attribute(attributes, "to", Dim)))),)


def _window_at_reference(op: Op, x: Array) -> Array:
    source, result = op.operands[0].type, op.result.type
    name, kernel = attribute(op.attributes, "dim", str), attribute(op.attributes, "kernel", str)
    to = attribute(op.attributes, "to", Dim)
    size, kernels = source.dim(name).size, source.dim(kernel).size
    places = _places(op, to.size, kernels)
    axes = (source.names.index(name), source.names.index(kernel))
    front = np.moveaxis(x, axes, (0, 1))
    taken = np.moveaxis(front[np.clip(places, 0, size - 1), np.arange(kernels)[None, :]], (0, 1), axes)
    return np.where(_spread((places >= 0) & (places < size), result, to.name, kernel), taken, x.dtype.type(0))


def _window_at_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    name, kernel = attribute(op.attributes, "dim", str), attribute(op.attributes, "kernel", str)
    to, (stride, low, dilation) = attribute(op.attributes, "to", Dim), _geometry(op.attributes)
    dim = op.operands[0].type.dim(name)
    return (b("unwindow", dy, to=to.name, kernel=kernel, dim=dim, stride=stride, low=low, dilation=dilation),)


def _window_at_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    source = op.operands[0].type
    dim, kernel = source.dim(attribute(op.attributes, "dim", str)), attribute(op.attributes, "kernel", str)
    i = _at(k, index, op.attributes, attribute(op.attributes, "to", Dim).name, kernel)
    at = {n: index[n] for n in source.names if n != dim.name}
    at[dim.name] = clamp(k, i, dim.size)
    return k.where(inside(k, i, dim.size), read(0, at), k.const(0, source.dtype))


define(
    "window_at",
    shape="index",
    operands=1,
    attributes=("dim", "to", "kernel", "stride", "low", "dilation"),
    result=_window_at_result,
    reference=_window_at_reference,
    gradient=_window_at_gradient,
    cost=Cost(5),
    needs=NEEDS,
    body=_window_at_body,
)
