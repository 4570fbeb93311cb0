"""What the passes share: copying blocks, counting uses, finding captures.

Passes never change their input. They copy it op by op into new blocks, with a map from the values of the old graph to
those of the new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from alphac.ir.core import Block, Function, Module, Op, Value, walk
from alphac.ir.typesys import Dim, TensorType

ValueMap = dict[Value, Value]


def fresh(value: Value) -> Value:
    """A block argument of the same type and hint."""
    return Value(value.type, value.hint)


def remap(values: Sequence[Value], mapping: ValueMap) -> tuple[Value, ...]:
    """The new graph's values; a value without an entry stands for itself (it is defined outside what is copied)."""
    return tuple(mapping.get(v, v) for v in values)


def clone_op(op: Op, mapping: ValueMap, blocks: tuple[Block, ...] | None = None) -> Op:
    """A copy of `op` on the new graph's operands, entered into `mapping`. `blocks` replaces copies of its blocks."""
    if blocks is None:
        blocks = tuple(clone_block(b, mapping) for b in op.blocks)
    new = Op(op.name, remap(op.operands, mapping), dict(op.attributes), (), blocks, op.span)
    new.results = tuple(Value(r.type, r.hint, new, i) for i, r in enumerate(op.results))
    mapping.update(zip(op.results, new.results, strict=True))
    return new


def clone_block(block: Block, mapping: ValueMap) -> Block:
    """A copy of `block` with arguments of its own; free values go through `mapping`."""
    arguments = [fresh(a) for a in block.arguments]
    mapping.update(zip(block.arguments, arguments, strict=True))
    ops = [clone_op(op, mapping) for op in block.ops]
    return Block(arguments, ops, remap(block.results, mapping))


def inline(block: Block, arguments: Sequence[Value], into: Block, mapping: ValueMap) -> tuple[Value, ...]:
    """Append a copy of the ops of `block`, called with `arguments`, to `into`; returns what the block yields."""
    mapping.update(zip(block.arguments, arguments, strict=True))
    for op in block.ops:
        into.ops.append(clone_op(op, mapping))
    return remap(block.results, mapping)


def map_functions(module: Module, rewrite: Callable[[Function], Function]) -> Module:
    """A copy of the module with every function rewritten."""
    return replace(module, functions={name: rewrite(f) for name, f in module.functions.items()})


def uses(block: Block) -> Counter[Value]:
    """How often each value is read in `block` and the blocks nested in it, as an operand or as a result."""
    count = Counter(block.results)
    for op in walk(block):
        count.update(op.operands)
        for inner in op.blocks:
            count.update(inner.results)
    return count


def captures(block: Block) -> list[Value]:
    """The values that `block` reads but does not define, in the order of their first use."""
    defined: set[Value] = set()
    free: dict[Value, None] = {}

    def read(values: Sequence[Value]) -> None:
        free.update((v, None) for v in values if v not in defined)

    def visit(inner: Block) -> None:
        defined.update(inner.arguments)
        for op in inner.ops:
            read(op.operands)
            for nested in op.blocks:
                visit(nested)
            defined.update(op.results)
        read(inner.results)

    visit(block)
    return list(free)


def defined_in(block: Block) -> set[Value]:
    """The arguments and op results of `block` itself, without those of nested blocks."""
    return {*block.arguments, *(r for op in block.ops for r in op.results)}


def live_ops(block: Block) -> list[Op]:
    """The ops of `block` on which its results depend, in order. Every op is pure: the others may go."""
    needed = set(block.results)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if needed.isdisjoint(op.results):
            continue
        needed.update(op.operands)
        for inner in op.blocks:
            needed.update(captures(inner))
        kept.append(op)
    return kept[::-1]


class Loop:
    """The parts of a `loop` op by name. It reads through to the op: what is appended to the body is seen."""

    def __init__(self, op: Op) -> None:
        dim, carried, slices = op.attributes["dim"], op.attributes["carried"], op.attributes["slices"]
        assert op.name == "loop" and isinstance(dim, Dim) and isinstance(carried, int) and isinstance(slices, tuple)
        self.op = op
        self.dim = dim
        self.carried = carried
        self.axes = tuple(str(name) for name in slices)
        self.reverse = bool(op.attributes["reverse"])
        (self.body,) = op.blocks

    @property
    def initial(self) -> tuple[Value, ...]:
        """Operands: the first carried values."""
        return self.op.operands[: self.carried]

    @property
    def stacks(self) -> tuple[Value, ...]:
        """Operands: what iterations see slices of."""
        return self.op.operands[self.carried :]

    @property
    def index(self) -> Value:
        return self.body.arguments[0]

    @property
    def entering(self) -> list[Value]:
        """Arguments of the body: the carried values as an iteration finds them."""
        return self.body.arguments[1 : 1 + self.carried]

    @property
    def slices(self) -> list[Value]:
        """Arguments of the body: this iteration's slices."""
        return self.body.arguments[1 + self.carried :]

    @property
    def leaving(self) -> tuple[Value, ...]:
        """Results of the body: the carried values as an iteration leaves them."""
        return self.body.results[: self.carried]

    @property
    def collected(self) -> tuple[Value, ...]:
        """Results of the body: what is stacked along the loop's dim."""
        return self.body.results[self.carried :]

    @property
    def last(self) -> tuple[Value, ...]:
        """Results: the last carried values."""
        return self.op.results[: self.carried]

    @property
    def stacked(self) -> tuple[Value, ...]:
        """Results: the stacks of what was collected."""
        return self.op.results[self.carried :]

    def collect(self, value: Value) -> Value:
        """Collect one more value of the body, in place; returns the new result. A value that is collected already is
        not collected again."""
        if value in self.collected:
            return self.stacked[self.collected.index(value)]
        stack_type = TensorType(value.type.dtype, (self.dim, *value.type.dims))
        self.body.results = (*self.body.results, value)
        self.op.results = (*self.op.results, Value(stack_type, value.hint, self.op, len(self.op.results)))
        return self.op.results[-1]
