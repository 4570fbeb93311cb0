"""Collectives: per-shard partials into one value, by the shard tree (`alphac.ir.schedule.split`).

The only ops that cross shards. Every node of the tree is rounded to the value's own dtype, bf16 too: nodes are what
roles exchange, and where roles meet must not be visible in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import Array, Result, Types
from alphac.ir.ops.reduce import adding, greater, highest, lesser, lowest, zero_identity
from alphac.ir.ops.rules import check_dtype, numbers, refuse, shown
from alphac.ir.typesys import I64, SHARD

if TYPE_CHECKING:
    from alphac.ir.builder import Builder


def _result(name: str) -> Callable[[Types, Attributes, Sequence[Block]], Result]:
    def result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
        (x,) = types
        check_dtype(name, numbers, x)
        if not x.is_partial:
            refuse(f"`{name}` combines per-shard values; {shown(x)} has no axis `{SHARD}`")
        return (x.without(SHARD),)

    return result


def _sum_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    return (b.broadcast(dy, op.operands[0].type.dims),)


def _extreme_gradient(b: Builder, op: Op, dy: Value) -> Sequence[Value | None]:
    """The cotangent goes to the first shard that holds the extreme."""
    (x,) = op.operands
    dims = x.type.dims
    met = b("or", b("eq", x, b.broadcast(op.result, dims)), b("ne", x, x))
    place = b.broadcast(b("iota", dim=x.type.dim(SHARD), dtype=I64), dims)
    first = b("combine_min", b("where", met, place, b.constant(2**63 - 1, I64, dims)))
    spread = b.broadcast(dy, dims)
    return (b("where", b("eq", place, b.broadcast(first, dims)), spread, b.like(0, spread)),)


def _reference(reduce: Callable[..., Any]) -> Callable[[Op, Array], Array]:
    return lambda op, x: reduce(x, axis=op.operands[0].type.names.index(SHARD))


def _sum(x: Array, axis: int) -> Array:
    return np.sum(x, axis=axis, dtype=x.dtype)


for _name, _reduce, _gradient, _body, _identity in (
    ("combine_sum", _sum, _sum_gradient, adding, zero_identity),
    ("combine_max", np.max, _extreme_gradient, greater, lowest),
    ("combine_min", np.min, _extreme_gradient, lesser, highest),
):
    define(
        _name,
        shape="collective",
        operands=1,
        result=_result(_name),
        reference=_reference(_reduce),
        gradient=_gradient,
        cost=Cost(1),
        needs={"collective"},
        body=_body,
        identity=_identity,
    )
