"""Which values take part in a gradient, from both ends: what depends on a `wrt` value, what a loss depends on."""

from __future__ import annotations

from collections.abc import Sequence

from alphac.ir.core import Block, Op, Value
from alphac.ir.rewrite import Loop


class Activity:
    """`varied`: the floats among the values of a `grad`'s block, nested blocks included, that depend on an argument of
    it. Loops are followed to their fixed point."""

    def __init__(self, block: Block) -> None:
        self.varied: set[Value] = {a for a in block.arguments if a.type.dtype.is_float}
        self.sources: dict[Value, Value] = {}  # argument of a loop's body -> a varied value it gets
        self._forward(block)

    def _forward(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "loop":
                self._forward_loop(Loop(op))
            elif op.name != "stop_gradient" and not self.varied.isdisjoint(op.operands):
                self.varied.update(r for r in op.results if r.type.dtype.is_float)

    def _flow_all(self, values: Sequence[Value], into: Sequence[Value]) -> bool:
        """Make each of `into`, which take `values`, varied if its value is. Whether any became so."""
        grown = [(v, to) for v, to in zip(values, into, strict=True) if v in self.varied and to not in self.varied]
        self.varied.update(to for _, to in grown)
        self.sources.update((to, v) for v, to in grown)
        return bool(grown)

    def _forward_loop(self, loop: Loop) -> None:
        self._flow_all(loop.op.operands, loop.body.arguments[1:])
        self._forward(loop.body)
        while self._flow_all(loop.leaving, loop.entering):
            self._forward(loop.body)
        self._flow_all(loop.entering, loop.last)
        self._flow_all(loop.body.results, loop.op.results)

    def reached(self, block: Block, seeds: set[Value]) -> set[Value]:
        """The varied values on which one of `seeds` depends, captured ones included."""
        reached = seeds & self.varied
        for op in reversed(block.ops):
            if reached.isdisjoint(op.results):
                continue
            if op.name == "loop":
                reached |= self._reached_loop(Loop(op), reached)
            else:
                reached.update(v for v in op.operands if v in self.varied)
        return reached

    def _reached_loop(self, loop: Loop, reached: set[Value]) -> set[Value]:
        active = self.active(loop, reached)
        inside = self.reached(loop.body, self._seeds(loop, active, reached))
        found = {v for v, a in zip(loop.op.operands, loop.body.arguments[1:], strict=True) if a in inside}
        found.update(loop.initial[k] for k in active)
        return (found & self.varied) | inside

    def _seeds(self, loop: Loop, active: list[int], reached: set[Value]) -> set[Value]:
        collected = {v for v, stack in zip(loop.collected, loop.stacked, strict=True) if stack in reached}
        return collected | {loop.leaving[k] for k in active}

    def active(self, loop: Loop, reached: set[Value]) -> list[int]:
        """The carried values that need a cotangent when the loop's results in `reached` have one."""
        active = {k for k, v in enumerate(loop.last) if v in reached and v in self.varied}
        while True:
            inside = self.reached(loop.body, self._seeds(loop, sorted(active), reached))
            grown = active | {k for k, a in enumerate(loop.entering) if a in inside}
            if grown == active:
                return sorted(active)
            active = grown

    def path(self, op: Op) -> tuple[str, ...]:
        """The names of the values by which the gradient's variables reach `op`, the first one first."""
        names: list[str] = []
        value = self._varied_operand(op)
        while value is not None:
            if value.hint and value.hint not in names:
                names.append(value.hint)
            value = self.sources.get(value) or (self._varied_operand(value.op) if value.op else None)
        return tuple(reversed(names))

    def _varied_operand(self, op: Op) -> Value | None:
        return next((v for v in op.operands if v in self.varied), None)
