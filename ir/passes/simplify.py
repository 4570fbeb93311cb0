"""Simplification: fewer ops, the same bits.

before    %a = mul(%x, %one)  %b = exp(%a)  %c = exp(%x)  %d = add(%b, %c)  %e = log(%x)
after     %b = exp(%x)  %d = add(%b, %b)

Sweeps until nothing changes: the rules of `algebra.py` (constant folding among them), what loops need not carry or
collect, common subexpressions, dead code.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Op, Value, walk
from alphac.ir.errors import InternalError
from alphac.ir.passes.algebra import constant, rules_of
from alphac.ir.rewrite import Loop, ValueMap, captures, clone_op, fresh, live_ops, map_functions, remap
from alphac.ir.text import print_function, print_literal

SWEEPS = 1000  # far beyond what any program takes; rules that undo each other are a bug
Known = dict[Hashable, Value]


@dataclass(frozen=True)
class Simplify:
    """See the module. `stop_gradient` goes where no `grad` is left to see it."""

    name: ClassVar[str] = "simplify"

    def run(self, module: Module) -> Module:
        return map_functions(module, _function)


def _function(function: Function) -> Function:
    differentiated = all(op.name != "grad" for op in walk(function.block))
    block = function.block
    for _ in range(SWEEPS):
        sweep = _Sweep(differentiated)
        block = sweep.block(block, {}, {})
        if not (remove_dead(block) or sweep.changed):
            return replace(function, block=block)
    raise InternalError(f"`simplify` does not end on `{function.name}`", print_function(replace(function, block=block)))


class _Sweep:
    """One copy of a function, each op simplified once on the way."""

    def __init__(self, differentiated: bool) -> None:
        self.differentiated = differentiated
        self.changed = False

    def block(self, old: Block, mapping: ValueMap, known: Known, ahead: Block | None = None) -> Block:
        """A simpler copy of `old`. `known`: what the blocks around have computed. `ahead`: a block, with the copy's
        arguments, whose ops go first."""
        new = ahead or Block([fresh(a) for a in old.arguments])
        if ahead is None:
            mapping.update(zip(old.arguments, new.arguments, strict=True))
        known = dict(known)
        b = Builder(new)
        for op in old.ops:
            with b.at(op.span):
                if op.blocks:
                    self.nested(b, op, mapping, known)
                else:
                    self.op(b, op, mapping, known)
        new.results = remap(old.results, mapping)
        return new

    def op(self, b: Builder, old: Op, mapping: ValueMap, known: Known) -> None:
        op = clone_op(old, mapping)
        value = self.simpler(b, op)
        if value is None:
            key = _key(op)
            value = known.get(key)
            if value is None:
                known[key] = op.result
                b.block.ops.append(op)
                return
        if value.type != op.result.type:
            raise InternalError(f"`{op.name}` was simplified from {op.result.type} to {value.type}")
        self.changed = True
        value.hint = value.hint or old.result.hint
        mapping[old.result] = value

    def simpler(self, b: Builder, op: Op) -> Value | None:
        """What stands for the op's result, if anything simpler does."""
        if op.name == "stop_gradient" and self.differentiated:
            return op.operands[0]
        for apply in rules_of(op):
            value = apply(b, op)
            if value is not None:
                return value
        return None

    # ------------------------------------------------------------------ ops with blocks
    def nested(self, b: Builder, op: Op, mapping: ValueMap, known: Known) -> None:
        if op.name != "loop":
            blocks = tuple(self.block(inner, mapping, known) for inner in op.blocks)
            b.block.ops.append(clone_op(op, mapping, blocks))
            return
        loop = Loop(op)
        ahead = Block([fresh(a) for a in loop.body.arguments])
        mapping.update(zip(loop.body.arguments, ahead.arguments, strict=True))
        kept = [k for k in range(loop.carried) if loop.leaving[k] is loop.entering[k]]
        for k in kept:  # carried, but never changed: its first value all along
            mapping[loop.entering[k]] = remap(loop.initial, mapping)[k]
        self.slices(Builder(ahead, op.span), loop, mapping)
        body = self.block(loop.body, mapping, known, ahead)
        b.block.ops.append(clone_op(op, mapping, (body,)))
        for k in kept:
            mapping[loop.last[k]] = remap(loop.initial, mapping)[k]
        self.collected(b, loop, body, mapping)

    def slices(self, b: Builder, loop: Loop, mapping: ValueMap) -> None:
        """slice of broadcast(x) along an axis that x lacks → broadcast(x) without it; one slice twice → the first"""
        first: dict[tuple[Value, str], Value] = {}
        for stack, axis, argument in zip(remap(loop.stacks, mapping), loop.axes, loop.slices, strict=True):
            if stack.op is not None and stack.op.name == "broadcast" and not stack.op.operands[0].type.has(axis):
                mapping[argument] = b.broadcast(stack.op.operands[0], argument.type.dims)
            else:
                mapping[argument] = first.setdefault((stack, axis), mapping[argument])

    def collected(self, b: Builder, loop: Loop, body: Block, mapping: ValueMap) -> None:
        """copies of a value from outside the loop, collected → broadcast of it; the same value again → the first"""
        outside = set(captures(body))
        first: dict[Value, Value] = {}
        for value, stack in zip(body.results[loop.carried :], loop.stacked, strict=True):
            if value in outside:
                mapping[stack] = b.broadcast(value, stack.type.dims)
            else:
                mapping[stack] = first.setdefault(value, mapping[stack])


def _key(op: Op) -> Hashable:
    """Two ops with one key are one value. Literals tell 1 from 1.0 and 0.0 from −0.0."""
    if op.name == "constant":
        return op.name, op.result.type, repr(constant(op.result))
    return op.name, op.operands, tuple((k, print_literal(v)) for k, v in sorted(op.attributes.items()))


# ---------------------------------------------------------------------- dead code
def remove_dead(block: Block) -> bool:
    """Drop, in place, the ops that no result depends on, and what loops carry, collect and slice for nobody. Returns
    whether there were any."""
    found = False
    needed = set(block.results)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if needed.isdisjoint(op.results):
            found = True
            continue
        if op.name == "loop":
            found |= _prune(Loop(op), needed)
        for inner in op.blocks:
            found |= remove_dead(inner)
            needed.update(captures(inner))
        needed.update(op.operands)
        kept.append(op)
    block.ops[:] = reversed(kept)
    return found


def _prune(loop: Loop, needed: set[Value]) -> bool:
    """Drop, in place, what the loop carries, collects and slices without need."""
    collected = [j for j, stack in enumerate(loop.stacked) if stack in needed]
    carried = [k for k, last in enumerate(loop.last) if last in needed]
    while True:
        roots = (*(loop.leaving[k] for k in carried), *(loop.collected[j] for j in collected))
        read = _read(Block(loop.body.arguments, loop.body.ops, roots))
        more = [k for k, a in enumerate(loop.entering) if a in read or k in carried]
        if more == carried:
            break
        carried = more
    slices = [j for j, a in enumerate(loop.slices) if a in read]
    if (len(carried), len(collected), len(slices)) == (loop.carried, len(loop.stacked), len(loop.slices)):
        return False
    results = (*(loop.last[k] for k in carried), *(loop.stacked[j] for j in collected))
    operands = (*(loop.initial[k] for k in carried), *(loop.stacks[j] for j in slices))
    arguments = [loop.index, *(loop.entering[k] for k in carried), *(loop.slices[j] for j in slices)]
    axes = tuple(loop.axes[j] for j in slices)
    loop.op.attributes = {**loop.op.attributes, "carried": len(carried), "slices": axes}
    loop.op.operands, loop.op.results = operands, results
    loop.body.arguments, loop.body.results = arguments, roots
    for i, result in enumerate(results):
        result.index = i
    return True


def _read(block: Block) -> set[Value]:
    """What the live part of a block reads."""
    live = Block([], live_ops(block), block.results)
    return set(captures(live))
