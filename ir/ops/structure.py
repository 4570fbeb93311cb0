"""Ops with blocks: `grad` is gone after differentiation, `loop` and `tile` become loops of kernels. And `require`,
which is gone after admission."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, NotDifferentiable, define
from alphac.ir.ops.index import Result, Types
from alphac.ir.ops.rules import (
    attribute,
    check_local,
    check_same_dim,
    dims_attribute,
    local_axis,
    made,
    names_attribute,
    refuse,
    shown,
)
from alphac.ir.typesys import I64, SHARD, Dim, TensorType

if TYPE_CHECKING:
    from alphac.ir.builder import Builder


def _by_blocks(op: Op, *arrays: object) -> NoReturn:
    raise TypeError(f"`{op.name}` means what its blocks mean: run it with alphac.ir.interpret")


def _check_arguments(op: str, block: Block, expected: list[TensorType]) -> None:
    found = [v.type for v in block.arguments]
    if len(found) != len(expected):
        refuse(f"the block of `{op}` takes {len(expected)} values, not {len(found)}")
    for i, (f, e) in enumerate(zip(found, expected, strict=True)):
        if f != e:
            refuse(f"the block of `{op}` gets {shown(e)} as its value {i}, but declares {shown(f)}")


# ---------------------------------------------------------------------- grad
def _grad_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    if len(blocks) != 1:
        refuse("`grad` has one block")
    (block,) = blocks
    wrt = attribute(attributes, "wrt", int)
    if wrt != len(types) or wrt == 0:
        refuse(f"`grad` with respect to {wrt} values has {len(types)} operands")
    for x in types:
        if not x.dtype.is_float:
            refuse(f"`grad` is taken with respect to floats, not {shown(x)}")
    _check_arguments("grad", block, list(types))
    if not block.results:
        refuse("the block of `grad` yields no loss")
    loss = block.results[0].type
    if loss.dims or not loss.dtype.is_float:
        refuse(f"`grad` is taken of one number, not of {shown(loss)}; reduce it with `mean` or `sum`")
    return (*(v.type for v in block.results), *types)


define(
    "grad",
    shape="structure",
    operands=None,
    attributes=("wrt",),
    result=_grad_result,
    reference=_by_blocks,
    gradient=NotDifferentiable("a gradient inside a gradient is taken from the inside out"),
    cost=Cost(0),
    needs=frozenset(),
    body=None,
)


# ---------------------------------------------------------------------- loop
def _loop_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    if len(blocks) != 1:
        refuse("`loop` has one block")
    (block,) = blocks
    dim, carried = check_local("loop", attribute(attributes, "dim", Dim)), attribute(attributes, "carried", int)
    attribute(attributes, "reverse", bool)
    slices = names_attribute(attributes, "slices")
    if not 0 <= carried <= len(types) or len(types) != carried + len(slices):
        refuse(f"`loop` with {carried} carried and {len(slices)} stacked values has {len(types)} operands")
    sliced: list[TensorType] = []
    for x, name in zip(types[carried:], slices, strict=True):
        size = local_axis("loop", x, name).size
        if size != dim.size:
            refuse(f"`loop` over `{dim.name}` ({dim.size}) cannot take slices along `{name}` ({size}) of {shown(x)}")
        sliced.append(x.without(name))
    _check_arguments("loop", block, [TensorType(I64), *types[:carried], *sliced])
    if len(block.results) < carried:
        refuse(f"the block of `loop` carries {carried} values but yields {len(block.results)}")
    for i in range(carried):
        if block.results[i].type != types[i]:
            refuse(f"`loop` carries {shown(types[i])}, but its block makes {shown(block.results[i].type)} of it")
    collected = (made(v.type.dtype, (dim, *v.type.dims)) for v in block.results[carried:])
    return (*types[:carried], *collected)


define(
    "loop",
    shape="structure",
    operands=None,
    attributes=("dim", "carried", "reverse", "slices"),
    result=_loop_result,
    reference=_by_blocks,
    gradient=NotDifferentiable("the pass `differentiate` differentiates a loop as a whole"),
    cost=Cost(0),
    needs=frozenset(),
    body=None,
)


# ---------------------------------------------------------------------- tile
def iterations(op: Op) -> int:
    """How often the block of a `loop` or `tile` runs."""
    return math.prod(d.size for d in (tiled_axes(op) if op.name == "tile" else (attribute(op.attributes, "dim", Dim),)))


def tiled_axes(op: Op) -> tuple[Dim, ...]:
    """The axes that a `tile` runs over, outermost first."""
    return dims_attribute(op.attributes)


def _tile_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    if len(blocks) != 1:
        refuse("`tile` has one block")
    (block,) = blocks
    dims = dims_attribute(attributes)
    to = cast("tuple[Any, ...]", attribute(attributes, "to", tuple))
    names = [d.name for d in dims]
    if not dims or SHARD in names or any(d.shards for d in dims[1:]):
        refuse(f"`tile` runs over axes, the grain's first, not over ({', '.join(names)})")
    for x in types:
        for d in dims:
            if x.has(d.name):
                check_same_dim("tile", d, x.dim(d.name))
    _check_arguments("tile", block, [*[TensorType(I64)] * len(dims), *(x.without(*names) for x in types)])
    if len(to) != len(block.results):
        refuse(f"the block of `tile` yields {len(block.results)} values, not {len(to)}")
    results: list[TensorType] = []
    for value, dims_ in zip(block.results, to, strict=True):
        result = made(value.type.dtype, dims_attribute({"dims": dims_}))
        if result.without(*names) != value.type or not all(d in result.dims for d in dims):
            refuse(f"`tile` cannot make {shown(result)} of {shown(value.type)} for every index of ({', '.join(names)})")
        results.append(result)
    return tuple(results)


define(  # made by the pass `tile`: iterations are independent, in any order
    "tile",
    shape="structure",
    operands=None,
    attributes=("dims", "to"),
    result=_tile_result,
    reference=_by_blocks,
    gradient=NotDifferentiable("the pass `tile` runs after `differentiate`"),
    cost=Cost(0),
    needs=frozenset(),
    body=None,
)


# ---------------------------------------------------------------------- require
def _require_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    attribute(attributes, "region", str)
    attribute(attributes, "needs", tuple)
    return (types[0],)


def _passed(op: Op, x: Any) -> Any:
    return x


def _require_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    return (b("require", dy, region=op.attributes["region"], needs=op.attributes["needs"]),)


define(
    "require",
    shape="structure",
    operands=1,
    attributes=("region", "needs"),
    result=_require_result,
    reference=_passed,
    gradient=_require_gradient,
    cost=Cost(0),
    needs=frozenset(),
    body=None,
)
