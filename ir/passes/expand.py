"""Composite ops become the ops they are written in.

before    %y = conv2d(%x, %k) {…}
after     %p = window(%x) {…}  …  %y = contract(%r, %k) {…}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Module, Op, Value
from alphac.ir.errors import InternalError
from alphac.ir.ops.define import definition
from alphac.ir.rewrite import ValueMap, clone_op, fresh, map_functions, remap
from alphac.ir.text import print_op


@dataclass(frozen=True)
class Expand:
    """Removes every op of shape `composite`. After `differentiate`, whose rules may know better than the parts'."""

    name: ClassVar[str] = "expand"

    def run(self, module: Module) -> Module:
        return map_functions(module, lambda f: replace(f, block=_block(f.block, {})))


def _block(block: Block, mapping: ValueMap) -> Block:
    new = Block([fresh(a) for a in block.arguments])
    mapping.update(zip(block.arguments, new.arguments, strict=True))
    for op in block.ops:
        inner = tuple(_block(b, mapping) for b in op.blocks)
        copy = clone_op(op, mapping, inner)
        mapping.update(zip(op.results, _append(copy, new), strict=True))
    new.results = remap(block.results, mapping)
    return new


def _append(op: Op, block: Block) -> tuple[Value, ...]:
    """Append `op`, unfolded if it is composite; returns what stands for its results."""
    if definition(op).shape != "composite":
        block.ops.append(op)
        return op.results
    parts = Block()
    body = definition(op).body
    assert body is not None
    result = body(Builder(parts, op.span), op)
    mapping: ValueMap = {}
    for part in parts.ops:  # which may be composite too
        part.operands = remap(part.operands, mapping)
        mapping.update(zip(part.results, _append(part, block), strict=True))
    (result,) = remap((result,), mapping)
    if result.type != op.result.type:
        raise InternalError(f"the body of `{print_op(op)}` gives {result.type}")
    result.hint = result.hint or op.result.hint
    return (result,)
