"""conv2d: two windows and one contraction. Its gradients are each one contraction too (implicit GEMM)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.contract import contract_arrays, contract_type
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import Array, Result, Types
from alphac.ir.ops.rules import attribute, check_local, dims_attribute, local_axis, made, refuse, replaced
from alphac.ir.typesys import Dim, TensorType

if TYPE_CHECKING:
    from alphac.ir.builder import Builder


@dataclass(frozen=True)
class Direction:
    """One spatial direction: the axis of x, the kernel's, and the result's."""

    x: Dim
    kernel: Dim
    to: Dim


def _directions(x: TensorType, kernel: TensorType, attributes: Attributes) -> tuple[Direction, Direction]:
    def direction(name: str) -> Direction:
        return Direction(
            local_axis("conv2d", x, attribute(attributes, name, str)),
            local_axis("conv2d", kernel, attribute(attributes, f"kernel_{name}", str)),
            check_local("conv2d", attribute(attributes, f"to_{name}", Dim)),
        )

    return direction("rows"), direction("columns")


def _windowed(x: TensorType, directions: Sequence[Direction]) -> TensorType:
    dims = x.dims
    for d in directions:
        dims = made(x.dtype, replaced(dims, d.x.name, d.to, d.kernel)).dims
    return TensorType(x.dtype, dims)


def _result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    x, kernel = types
    directions = _directions(x, kernel, attributes)
    stride, padding, dilation = (attribute(attributes, n, int) for n in ("stride", "padding", "dilation"))
    if stride < 1 or dilation < 1 or padding < 0:
        refuse(f"`conv2d` with stride {stride}, dilation {dilation}, padding {padding}")
    for d in directions:
        expected = (d.x.size + 2 * padding - dilation * (d.kernel.size - 1) - 1) // stride + 1
        if d.to.size != expected:
            refuse(
                f"`conv2d` makes {expected} of the {d.x.size} elements of `{d.x.name}`; `{d.to.name}` is {d.to.size}"
            )
    dims = dims_attribute(attributes)
    if x.grain is not None and x.grain not in dims:
        refuse(f"`conv2d` keeps the grain's axis `{x.grain.name}`")
    return (contract_type(_windowed(x, directions), kernel, dims),)


def _expand(b: Builder, op: Op) -> Value:
    """conv2d(x, kernel) → contract(window(window(x)), kernel)"""
    return b("contract", _windows(b, op), op.operands[1], dims=op.attributes["dims"])


def _windows(b: Builder, op: Op) -> Value:
    x, kernel = op.operands
    stride, padding, dilation = (op.attributes[n] for n in ("stride", "padding", "dilation"))
    value = x
    for d in _directions(x.type, kernel.type, op.attributes):
        value = b(
            "window",
            value,
            dim=d.x.name,
            to=d.to,
            kernel=d.kernel,
            stride=stride,
            low=padding,
            dilation=dilation,
            value=0,
        )
    return value


def _gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    x, kernel = op.operands
    stride, padding, dilation = (op.attributes[n] for n in ("stride", "padding", "dilation"))
    directions = _directions(x.type, kernel.type, op.attributes)
    dims = dy.type.dims  # every kernel axis beside its own, so that terms which lie side by side are summed together
    for d in directions:
        dims = replaced(dims, d.to.name, d.to, d.kernel)
    spread = b.broadcast(dy, dims)
    for d in directions:
        spread = b(
            "unwindow",
            spread,
            to=d.to.name,
            kernel=d.kernel.name,
            dim=d.x,
            stride=stride,
            low=padding,
            dilation=dilation,
        )
    dx = b("contract", spread, kernel, dims=x.type.dims)
    return dx, b("contract", _windows(b, op), dy, dims=kernel.type.dims)


def _reference(op: Op, x: Array, kernel: Array) -> Array:
    type_, kernel_type = op.operands[0].type, op.operands[1].type
    stride, padding, dilation = (attribute(op.attributes, n, int) for n in ("stride", "padding", "dilation"))
    names = list(type_.names)
    for d in _directions(type_, kernel_type, op.attributes):
        at = names.index(d.x.name)
        x = np.pad(x, [(padding, padding) if n == d.x.name else (0, 0) for n in names])
        places = np.arange(d.to.size)[:, None] * stride + np.arange(d.kernel.size)[None, :] * dilation
        x = np.take(x, places, axis=at)
        names[at : at + 1] = [d.to.name, d.kernel.name]
    windowed = _windowed(type_, _directions(type_, kernel_type, op.attributes))
    return contract_arrays(windowed, kernel_type, op.result.type, x, kernel)


define(
    "conv2d",
    shape="composite",
    operands=2,
    attributes=(
        "rows",
        "columns",
        "kernel_rows",
        "kernel_columns",
        "to_rows",
        "to_columns",
        "stride",
        "padding",
        "dilation",
        "dims",
    ),
    result=_result,
    reference=_reference,
    gradient=_gradient,
    cost=Cost(2),
    needs={"index", "contract"},
    body=_expand,
)
