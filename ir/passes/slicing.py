"""Ops on slices: along which axes an op works index by index, and the op at one index of them.

    %y = contract(%q, %k) {dims = (batch:16/8, heads:4, time:128, key:128)}      along batch and heads:
    %y = contract(%q, %k) {dims = (time:128, key:128)}                           on slices of q and k

Since the order of sums is that of the summed axes alone, a slice of the result has the bits of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from alphac.ir.builder import Builder
from alphac.ir.core import Attribute, Op, Value
from alphac.ir.ops.define import definition
from alphac.ir.typesys import Dim, TensorType

KEPT = "dims"  # the attribute that lists axes of the result


def passes(op: Op, axis: str) -> bool:
    """Whether every slice of the results along `axis` (or they as a whole, if they lack it) depends on the slices of
    the operands at the same index only."""
    types = [v.type for v in (*op.operands, *op.results)]
    if op.blocks or definition(op).shape == "collective" or any(t.is_partial for t in types):
        return False
    if not any(t.has(axis) for t in types) or op.name == "iota":
        return True
    if axis in _named(op) or op.name in ("uniform", "normal") or not op.result.type.has(axis):
        return False
    if op.name in ("rename", "reshape") and op.operands[0].type.has(axis):
        return _behind(op.operands[0].type, axis) == _behind(op.result.type, axis)
    return op.name not in ("rename", "reshape")


def _behind(type_: TensorType, axis: str) -> tuple[Dim, int]:
    """An axis and how many elements its unit stride spans."""
    at, stride = type_.names.index(axis), 1
    for d in type_.dims[at + 1 :]:
        stride *= d.size
    return type_.dims[at], stride


def _named(op: Op) -> set[str]:
    """The axes that an op treats in its own way: those its attributes name, but for those it keeps."""

    def names(value: Attribute) -> Iterator[str]:
        if isinstance(value, str | Dim):
            yield value if isinstance(value, str) else value.name
        elif isinstance(value, tuple):
            for item in value:
                yield from names(item)

    return {n for name, value in op.attributes.items() if name != KEPT for n in names(value)}


def build_sliced(b: Builder, op: Op, operands: Sequence[Value], indices: Mapping[str, Value]) -> Value:
    """Append `op` at one index, which `indices` holds by axis; every axis passes through it."""
    with b.at(op.span):
        if op.name == "iota" and op.result.type.names[0] in indices:
            return b("cast", indices[op.result.type.names[0]], dtype=op.result.type.dtype)
        attributes = dict(op.attributes)
        dims = attributes.get(KEPT)
        if isinstance(dims, tuple):
            kept = attributes[KEPT] = tuple(d for d in dims if not (isinstance(d, Dim) and d.name in indices))
            if op.name in ("broadcast", "rename", "reshape") and operands[0].type.dims == kept:
                return operands[0]
        return b.build(op.name, operands, (), op.result.hint, **attributes).result
