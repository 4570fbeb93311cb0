"""Ops with blocks: `grad` is gone after differentiation, `loop` becomes a loop of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from alphac.ir.core import Block, Op
from alphac.ir.ops.define import Attributes, Cost, NotDifferentiable, define
from alphac.ir.ops.index import Result, Types
from alphac.ir.ops.rules import attribute, check_local, local_axis, made, names_attribute, refuse, shown
from alphac.ir.typesys import I64, Dim, TensorType


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
