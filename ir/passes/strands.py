"""Strands: the parts of a function that meet in combined values only, so that each may be owned by other roles.

A *component* is what is connected along the grain's axis: ops that hand on values of examples, or partials of shards,
to each other. Columns, and what is made of them and of what everybody has, are *free*: they connect nothing, each
strand that needs them makes them for itself. What a region that asks for something hands on is not. Between components
pass values that everybody has: states, and what a `combine` put together. Those that the same targets can run are one
strand, whose shards these targets own.

before: %h = contract(%image, %w)             %d = sub(%image, %c)                         batch:128/32 everywhere
after:  the same                              %d of batch:128/32/1, from a column of its own of batch:128/32/1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from alphac.ir.core import Attribute, Block, Function, Op, Port, Value, walk_op
from alphac.ir.ops.define import definition
from alphac.ir.rewrite import ValueMap, captures, clone_op, fresh, remap
from alphac.ir.typesys import SHARD, Dim, TensorType

Need = tuple[str, str]  # who asks, for what


@dataclass(eq=False)
class Component:
    """Ops of a function's block that are connected along the grain's axis."""

    ops: list[Op] = field(default_factory=list[Op])
    free: dict[Op, None] = field(default_factory=dict[Op, None])

    @property
    def needs(self) -> dict[Need, None]:
        """What a target must have that runs it."""
        return dict.fromkeys(need for op in (*self.ops, *self.free) for need in needs_of(op))


def needs_of(op: Op) -> Iterator[Need]:
    """What an op, and those in its blocks, need: by their definitions and element types, and as regions ask for."""
    for each in walk_op(op):
        if each.name == "require":
            region, needs = each.attributes["region"], each.attributes["needs"]
            assert isinstance(needs, tuple)
            yield from ((f"region `{region}`", str(need)) for need in needs)
            continue
        yield from (("", need) for need in sorted(definition(each).needs))
        yield from (("", value.type.dtype.name) for value in (*each.operands, *each.results))


def components(function: Function) -> tuple[list[Component], list[Op]]:
    """The components of a function, and the ops of its block that every role runs."""
    free = _free(function)
    leader: dict[Op, Op] = {}

    def find(op: Op) -> Op:
        while leader[op] is not op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    shared: list[Op] = []
    for op in function.block.ops:
        if op.results and op.results[0] in free:
            continue
        if not _is_cut(op):
            shared.append(op)
            continue
        leader[op] = op
        for value in _read(op):
            if value.type.cut is not None and value not in free and value.op is not None:
                leader[find(value.op)] = find(op)
    found: dict[Op, Component] = {}
    for op in leader:
        found.setdefault(find(op), Component()).ops.append(op)
    for component in found.values():
        todo = list(component.ops)
        while todo:
            made = [v.op for v in _read(todo.pop()) if v in free and v.op is not None]
            fresh = [op for op in made if op not in component.free]
            component.free.update(dict.fromkeys(fresh))
            todo += fresh
    return list(found.values()), shared


def _read(op: Op) -> tuple[Value, ...]:
    """What an op reads, in its blocks too."""
    return (*op.operands, *(v for block in op.blocks for v in captures(block)))


def _free(function: Function) -> set[Value]:
    """Values along the grain's axis that are made of columns and of what everybody has."""
    found = {v for v in function.block.arguments if v.type.cut is not None}
    for op in function.block.ops:
        if op.blocks or len(op.results) != 1 or op.result.type.cut is None:
            continue
        if op.name != "require" and all(v in found for v in op.operands if v.type.cut is not None):
            found.add(op.result)
    return found


def _is_cut(op: Op) -> bool:
    return any(v.type.cut is not None for each in walk_op(op) for v in (*each.operands, *each.results))


def unmarked(function: Function, kept: Callable[[Op], bool]) -> Function:
    """A copy without the `require`s that are not kept."""

    def copied(block: Block, made: ValueMap) -> Block:
        arguments = [fresh(a) for a in block.arguments]
        made.update(zip(block.arguments, arguments, strict=True))
        ops: list[Op] = []
        for op in block.ops:
            if op.name == "require" and not kept(op):
                made[op.result] = made.get(op.operands[0], op.operands[0])
            else:
                ops.append(clone_op(op, made, tuple(copied(b, made) for b in op.blocks)))
        return Block(arguments, ops, remap(block.results, made))

    return replace(function, block=copied(function.block, {}))


def spun(function: Function, strands: Mapping[Op, int]) -> Function:
    """A copy with the cut axes of each op's strand, and without `require`; `strands`: of the ops that have one."""
    return _Spinner(function, strands).run()


class _Spinner:
    def __init__(self, function: Function, strands: Mapping[Op, int]) -> None:
        self.function, self.strands = function, strands
        self.free = _free(function)
        self.block = Block()
        self.map: ValueMap = {}
        self.copies: dict[tuple[Value, int], Value] = {}
        self.ports = dict(zip(function.block.arguments, function.arguments, strict=True))
        self.arguments: dict[Value, list[Value]] = {v: [] for v in function.block.arguments}

    def run(self) -> Function:
        source = self.function.block
        for value in source.arguments:
            if value.type.cut is None:
                self.map[value] = self._argument(value, 0)
        single = not any(self.strands.values())  # nothing has to move
        for op in source.ops:
            if not op.results or op.results[0] not in self.free:
                self._op(op, self.strands.get(op, 0))
            elif single:
                self._copy(op.results[0], 0)
        results = [self._copy(v, 0) if v in self.free else self.map[v] for v in source.results]
        arguments: list[Value] = []
        ports: list[Port] = []
        for value, made in self.arguments.items():
            made = made or [self._argument(value, 0)]
            arguments += made
            ports += [self.ports[value]] * len(made)
        block = Block(arguments, self.block.ops, tuple(results))
        return replace(self.function, block=block, arguments=tuple(ports))

    def _op(self, op: Op, strand: int) -> None:
        for value in _read(op):
            if value in self.free:
                self.map[value] = self._copy(value, strand)
        self._clone(op, strand, self.block)

    def _copy(self, value: Value, strand: int) -> Value:
        """A free value, made for a strand."""
        if (value, strand) not in self.copies:
            if value.op is None:
                self.copies[value, strand] = self._argument(value, strand)
            else:
                self._op(value.op, strand)
                self.copies[value, strand] = self.map[value]
        return self.copies[value, strand]

    def _argument(self, value: Value, strand: int) -> Value:
        made = Value(_type(value.type, strand), value.hint)
        self.arguments[value].append(made)
        return made

    def _clone(self, op: Op, strand: int, into: Block) -> None:
        if op.name == "require":
            self.map[op.result] = self.map[op.operands[0]]
            return
        blocks = tuple(self._block(block, strand) for block in op.blocks)
        attributes = {name: _attribute(value, strand) for name, value in op.attributes.items()}
        made = Op(op.name, tuple(self.map[v] for v in op.operands), attributes, (), blocks, op.span)
        made.results = tuple(Value(_type(r.type, strand), r.hint, made, i) for i, r in enumerate(op.results))
        self.map.update(zip(op.results, made.results, strict=True))
        into.ops.append(made)

    def _block(self, block: Block, strand: int) -> Block:
        made = Block([Value(_type(v.type, strand), v.hint) for v in block.arguments])
        self.map.update(zip(block.arguments, made.arguments, strict=True))
        for op in block.ops:
            self._clone(op, strand, made)
        made.results = tuple(self.map[v] for v in block.results)
        return made


def _dim(dim: Dim, strand: int) -> Dim:
    return replace(dim, strand=strand) if dim.shards or dim.name == SHARD else dim


def _type(type_: TensorType, strand: int) -> TensorType:
    return TensorType(type_.dtype, tuple(_dim(d, strand) for d in type_.dims))


def _attribute(value: Attribute, strand: int) -> Attribute:
    if isinstance(value, Dim):
        return _dim(value, strand)
    return tuple(_attribute(v, strand) for v in value) if isinstance(value, tuple) else value
