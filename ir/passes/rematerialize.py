"""Rematerialization: what a loop only saves for a later loop over the same axis is computed there anew if that takes
little from what is saved anyway.

before    %h, %e, %s, %p = loop(…) {dim = layer} do { …  %p = div(%e, broadcast(%s))  yield …, %e, %s, %p }
          … loop(…, %e, %s, %p) {dim = layer} do (…, %e, %s, %p) { … %p … }
after     %h, %e, %s = loop(…) {dim = layer} do { …  yield …, %e, %s }
          … loop(…, %e, %s) {dim = layer} do (…, %e, %s) { %p = div(%e, broadcast(%s))  … %p … }

The same ops on the same values give the same bits.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from alphac.ir.core import Block, Module, Op, Value, walk
from alphac.ir.ops.define import definition
from alphac.ir.rewrite import Loop, ValueMap, clone_block, clone_op, live_ops, map_functions, remap, uses


@dataclass(frozen=True)
class Rematerialize:
    """`bytes`: the least size of a stack that is worth it. `flops`: what computing an element anew may take, where a
    trip through memory costs about as much as ten."""

    name: ClassVar[str] = "rematerialize"
    bytes: int = 1 << 20
    flops: float = 10

    def run(self, module: Module) -> Module:
        return map_functions(module, lambda f: replace(f, block=self._block(clone_block(f.block, {}))))

    def _block(self, block: Block) -> Block:
        """Rewrite a block of our own in place."""
        for op in block.ops:
            for inner in op.blocks:
                self._block(inner)
        loops = [Loop(op) for op in block.ops if op.name == "loop"]
        for loop in loops:
            later = [other for other in loops if other is not loop and other.dim == loop.dim]
            _Saved(self, block, loop, later).run()
        return block


class _Saved:
    """What one loop collects for those after it."""

    def __init__(self, options: Rematerialize, block: Block, loop: Loop, later: Sequence[Loop]) -> None:
        self.options, self.loop = options, loop
        self.later = [_Taker(loop, other) for other in later]
        self.own = {v: i for i, op in enumerate(loop.body.ops) for v in op.results}
        self.uses = uses(block)
        self.dropped: dict[Value, None] = {}

    def run(self) -> None:
        """Drop what can be, what is made first before what may be made of it."""
        for value in sorted(set(self.loop.collected) & self.own.keys(), key=lambda v: self.own[v]):
            stack = self.loop.collect(value)
            sliced = sum(t.count(stack) for t in self.later)
            large = stack.type.bytes >= self.options.bytes
            once = self.loop.collected.count(value) == 1 and 0 < sliced == self.uses[stack]
            if large and once and self._cheap(value):
                self.dropped[value] = None
        for taker in self.later:
            taken = [v for v in self.dropped if taker.count(self.loop.collect(v))]
            if taken:
                taker.compute(taken, self.dropped)
        self._forget()

    def _cheap(self, value: Value) -> bool:
        """Whether a value can be made of what later loops have anyway, and in few flops."""
        ops: set[Op] = set()

        def visit(v: Value) -> bool:
            if v in self.loop.collected and v not in self.dropped and v is not value:
                return True
            if v not in self.own or v.op is None:
                return v not in self.loop.entering
            if v.op in ops:
                return True
            ops.add(v.op)
            plain = definition(v.op).shape in ("elementwise", "index") and v.op.name not in ("uniform", "normal")
            return plain and all(map(visit, v.op.operands))

        able = visit(value)
        flops = sum(definition(op).cost.flops for op in ops if definition(op).shape == "elementwise")
        return able and flops <= self.options.flops

    def _forget(self) -> None:
        """The loop no longer collects what was dropped."""
        op, body, carried = self.loop.op, self.loop.body, self.loop.carried
        kept = [i for i, v in enumerate(body.results) if i < carried or v not in self.dropped]
        body.results = tuple(body.results[i] for i in kept)
        op.results = tuple(op.results[i] for i in kept)
        for i, result in enumerate(op.results):
            result.index = i
        body.ops = live_ops(body)


class _Taker:
    """A loop that takes slices of what another one, `source`, collects."""

    def __init__(self, source: Loop, loop: Loop) -> None:
        self.source, self.loop = source, loop
        self.made: ValueMap = {source.index: loop.index}
        self.ops = Block()

    def count(self, stack: Value) -> int:
        """How often it takes slices of a stack along the axis of the loops."""
        pairs = zip(self.loop.stacks, self.loop.axes, strict=True)
        return sum(v is stack and axis == self.loop.dim.name for v, axis in pairs)

    def compute(self, values: Sequence[Value], dropped: Container[Value]) -> None:
        """Make values of the source's body anew, instead of taking slices of their stacks."""
        computed = {self.source.collect(v): self._make(v, dropped) for v in values}
        body, op = self.loop.body, self.loop.op
        slices = list(zip(self.loop.stacks, self.loop.axes, self.loop.slices, strict=True))
        kept = [s for s in slices if s[0] not in computed]
        replaced = {argument: computed[stack] for stack, _, argument in slices if stack in computed}
        op.operands = (*self.loop.initial, *(stack for stack, _, _ in kept))
        op.attributes = {**op.attributes, "slices": tuple(axis for _, axis, _ in kept)}
        body.arguments = [self.loop.index, *self.loop.entering, *(argument for _, _, argument in kept)]
        for inner in walk(body):
            inner.operands = remap(inner.operands, replaced)
            for block in inner.blocks:
                block.results = remap(block.results, replaced)
        body.results = remap(body.results, replaced)
        body.ops = [*self.ops.ops, *body.ops]
        self.loop = Loop(op)

    def _make(self, value: Value, dropped: Container[Value]) -> Value:
        if value in self.made:
            return self.made[value]
        source = self.source
        if value in source.collected and value not in dropped:
            self.made[value] = self._slice(source.collect(value), self.loop.dim.name)
        elif value in source.slices:
            at = source.slices.index(value)
            self.made[value] = self._slice(source.stacks[at], source.axes[at])
        elif value.op in source.body.ops:
            assert value.op is not None
            for operand in value.op.operands:
                self._make(operand, dropped)
            self.ops.ops.append(clone_op(value.op, self.made))
        else:
            self.made[value] = value  # of the block around both loops
        return self.made[value]

    def _slice(self, stack: Value, axis: str) -> Value:
        """The body's slice of a stack, which the loop may not take yet."""
        for known, along, argument in zip(self.loop.stacks, self.loop.axes, self.loop.slices, strict=True):
            if known is stack and along == axis:
                return argument
        op, argument = self.loop.op, Value(stack.type.without(axis), stack.hint)
        op.operands = (*op.operands, stack)
        op.attributes = {**op.attributes, "slices": (*self.loop.axes, axis)}
        self.loop.body.arguments.append(argument)
        self.loop = Loop(op)
        return argument
