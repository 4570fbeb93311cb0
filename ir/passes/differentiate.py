"""Reverse-mode differentiation: every `grad` becomes its forward ops and their adjoints.

before    %loss, %g = grad(%w) {…} do (%v) { %y = mul(%v, %v)  yield %y }
after     %loss = mul(%w, %w)
          %one = constant() {value = 1.0, …}
          %a = mul(%one, %w)  %b = mul(%one, %w)  %g = add(%a, %b)

Inner `grad`s go first, so a gradient of a gradient meets plain ops only. Contributions to a cotangent are added in a
fixed order: uses in reverse program order. Only values that depend on a `wrt` value and on which the loss depends have
cotangents.

A loop gets a twin that runs the other way; see `_Twin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Op, Value
from alphac.ir.errors import InternalError, NotDifferentiableError
from alphac.ir.ops.define import NotDifferentiable, TypeRuleError, definition
from alphac.ir.passes.activity import Activity
from alphac.ir.rewrite import (
    Loop,
    ValueMap,
    captures,
    clone_op,
    defined_in,
    fresh,
    inline,
    live_ops,
    map_functions,
    remap,
)
from alphac.ir.text import print_function, print_op
from alphac.ir.typesys import SHARD, Dim, TensorType


@dataclass(frozen=True)
class Differentiate:
    """Removes every `grad`. Raises NotDifferentiableError."""

    name: ClassVar[str] = "differentiate"

    def run(self, module: Module) -> Module:
        return map_functions(module, _function)


def _function(function: Function) -> Function:
    try:
        return replace(function, block=_without_grads(function.block, {}))
    except InternalError as error:
        raise InternalError(f"function `{function.name}`: {error.message}", print_function(function)) from error


def _without_grads(block: Block, mapping: ValueMap) -> Block:
    """A copy of `block` in which every `grad` is unfolded, innermost first."""
    new = Block([fresh(a) for a in block.arguments])
    mapping.update(zip(block.arguments, new.arguments, strict=True))
    for op in block.ops:
        inner = tuple(_without_grads(b, mapping) for b in op.blocks)
        if op.name != "grad":
            new.ops.append(clone_op(op, mapping, inner))
            continue
        _yield_gradients(inner[0], op)
        results = inline(inner[0], remap(op.operands, mapping), new, {})
        for old, value in zip(op.results, results, strict=True):
            mapping[old] = value
            value.hint = value.hint or old.hint
    new.results = remap(block.results, mapping)
    return new


def _yield_gradients(block: Block, grad: Op) -> None:
    """Make the block of `grad`, a private copy, yield its loss's gradient for each of its arguments as well."""
    wrt, loss = tuple(block.arguments), block.results[0]
    forward = list(block.ops)
    b = Builder(block, grad.span)
    adjoint = _Adjoint(b, Activity(block), block)
    if loss in adjoint.activity.varied:
        adjoint.add(loss, b.constant(1.0, loss.type.dtype))
        adjoint.backward(forward)
    gradients = [adjoint.cotangent(v) or b.like(0.0, v) for v in wrt]
    block.results = (*block.results, *gradients)
    block.ops[:] = live_ops(block)


class _Adjoint:
    """The cotangents of one block's values, built by `b`.

    Values of the block have one cotangent, of their own type: per-shard partials are combined as they come. Values of
    the blocks around it, which a loop's body captures, have up to two: a whole one and a per-shard partial, which the
    loop combines when it is done.
    """

    def __init__(self, b: Builder, activity: Activity, block: Block) -> None:
        self.b = b
        self.activity = activity
        self.local = defined_in(block)
        self.cotangents: dict[tuple[Value, bool], Value] = {}

    def cotangent(self, value: Value) -> Value | None:
        """What was summed for a value of the block; None if nothing was."""
        return self.cotangents.get((value, False))

    def captured(self) -> list[tuple[Value, Value]]:
        """(value of a block around this one, its cotangent) in the order of first contributions."""
        return [(v, g) for (v, _), g in self.cotangents.items() if v not in self.local]

    def add(self, value: Value, cotangent: Value) -> None:
        """One more contribution to a value's cotangent; ignored for values that depend on no `wrt` value."""
        if value not in self.activity.varied:
            return
        partial = cotangent.type.is_partial and not value.type.is_partial
        if partial and value in self.local:
            cotangent, partial = self.b.combine(cotangent), False
        before = self.cotangents.get((value, partial))
        if before is not None:
            cotangent = self.b("add", before, cotangent)
        if value.hint and not cotangent.hint:
            cotangent.hint = f"d_{value.hint}"
        self.cotangents[value, partial] = cotangent

    def backward(self, ops: Sequence[Op]) -> None:
        """Emit the adjoints of `ops`, last first."""
        for op in reversed(ops):
            if any(self.cotangent(r) for r in op.results):
                with self.b.at(op.span):
                    if op.name == "loop":
                        _Twin(self, Loop(op)).emit()
                    else:
                        self.op(op)

    def op(self, op: Op) -> None:
        gradient, dy = definition(op).gradient, self.cotangent(op.result)
        if isinstance(gradient, NotDifferentiable):
            raise NotDifferentiableError(op.name, gradient.reason, op.span, self.activity.path(op))
        try:
            found = gradient(self.b, op, dy)
        except TypeRuleError as error:
            raise InternalError(f"the gradient of `{print_op(op)}` does not fit: {error}") from error
        if len(found) != len(op.operands):
            raise InternalError(f"{len(found)} cotangents for the operands of `{print_op(op)}`")
        for operand, g in zip(op.operands, found, strict=True):
            if g is None:
                continue
            if g.type != operand.type and (g.type.names[:1] != (SHARD,) or g.type.without(SHARD) != operand.type):
                raise InternalError(
                    f"the gradient of `{print_op(op)}` gives {g.type} for its operand of {operand.type}"
                )
            self.add(operand, g)


class _Twin:
    """The adjoint of a loop: a loop over the same dim that runs the other way.

    before    %c, %ys = loop(%c0, %xs) do (%i, %ci, %x) {
                  %h = exp(%ci)  %n = mul(%h, %w)  yield %n, %y }
    after     %c, %ys, %cis, %hs = loop(%c0, %xs) do (%i, %ci, %x) { …  yield %n, %y, %ci, %h }
              %dc0, %dw, %dxs = loop(%dc, %zero, %dys, %hs) {reverse} do (%i, %dn, %sum, %dy, %h) {
                  …  yield %dci, add(%sum, …), %dx }

    The twin carries the cotangents of what the loop carries and sums those of what its body captures; sums of per-shard
    partials stay per shard until the twin is done. Cotangents of slices are collected. Its body reads values of the
    forward body: these the forward loop collects, but for those that index ops make of what there is anyway.
    """

    def __init__(self, outer: _Adjoint, loop: Loop) -> None:
        self.outer = outer
        self.loop = loop
        self.body = Block()
        self.inner = _Adjoint(Builder(self.body, loop.op.span), outer.activity, loop.body)
        self.stacks: list[tuple[Value, str, Value]] = []  # operand, its axis, the argument that is its slice

    def emit(self) -> None:
        """Build the twin and hand what it yields to the adjoint of the block around the loop."""
        loop, outer, inner = self.loop, self.outer, self.inner
        active = outer.activity.active(loop, {r for r in loop.op.results if outer.cotangent(r)})
        arriving = {k: Value(loop.leaving[k].type, "") for k in active}
        for k, cotangent in arriving.items():
            inner.add(loop.leaving[k], cotangent)
        for value, stack in zip(loop.collected, loop.stacked, strict=True):
            cotangents = outer.cotangent(stack)
            if cotangents:
                inner.add(value, self.slice_of(cotangents, loop.dim.name, value.type))
        inner.backward(list(loop.body.ops))

        carried = [(arriving[k], outer.cotangent(loop.last[k]), inner.cotangent(loop.entering[k])) for k in active]
        carried_next = [found or inner.b.like(0.0, at) for at, _, found in carried]
        sums = [(v, fresh(g), g) for v, g in inner.captured()]
        sums_next = [inner.b("add", total, g) for _, total, g in sums]
        slices = [(j, inner.cotangent(x)) for j, x in enumerate(loop.slices)]
        collected = [(j, self.collectable(g)) for j, g in slices if g]
        self.body.results = (*carried_next, *sums_next, *(g for _, g in collected))
        self.body.ops[:] = live_ops(self.body)
        body = _Restore(self).body([*arriving.values(), *(total for _, total, _ in sums)])

        initial = [at_end or outer.b.like(0.0, at) for at, at_end, _ in carried]
        initial += [outer.b.like(0.0, g) for _, _, g in sums]
        results = self.build(initial, body)
        for value in (*(loop.initial[k] for k in active), *(v for v, _, _ in sums)):
            outer.add(value, results.pop(0))
        for (j, g), result in zip(collected, results, strict=True):
            outer.add(loop.stacks[j], self.unstacked(result, j, g))

    def slice_of(self, stack: Value, axis: str, type_: TensorType) -> Value:
        """A new argument of the twin's body: the slice of `stack` along `axis`."""
        argument = Value(type_, stack.hint)
        self.stacks.append((stack, axis, argument))
        return argument

    def build(self, initial: Sequence[Value], body: Block) -> list[Value]:
        loop = self.loop
        if not body.results:
            return []
        operands = [*initial, *(stack for stack, _, _ in self.stacks)]
        axes = tuple(axis for _, axis, _ in self.stacks)
        op = self.outer.b.build(
            "loop", operands, (body,), dim=loop.dim, carried=len(initial), reverse=not loop.reverse, slices=axes
        )
        return list(op.results)

    # ------------------------------------------------------------------ stacks of values that have the loop's own dim
    def collectable(self, value: Value) -> Value:
        """A value of the twin's body, its axes renamed so that none is the loop's."""
        return _renamed(self.inner.b, value, _apart(value.type, self.loop.dim))

    def unstacked(self, stack: Value, j: int, collected: Value) -> Value:
        """The cotangent of operand j from the stack of its slices' cotangents: its axes in their places and names."""
        operand = self.loop.stacks[j]
        axis = operand.type.dim(self.loop.axes[j])
        rest = self.loop.slices[j].type.dims
        return self.outer.b.broadcast(_renamed(self.outer.b, stack, (axis, *rest)), operand.type.dims)


class _Restore:
    """Gives a twin's body the values of the forward body that it reads."""

    def __init__(self, twin: _Twin) -> None:
        self.twin = twin
        self.loop = twin.loop
        self.local = defined_in(twin.loop.body)
        self.index = fresh(twin.loop.index)
        self.values: ValueMap = {self.loop.index: self.index}
        self.before = Builder(Block(), twin.loop.op.span)  # ops that go ahead of the body
        self.sizes: dict[Value, int] = {}
        self.pieces: set[Op] = set()

    def body(self, carried: Iterable[Value]) -> Block:
        """The finished body: arguments, restored values, adjoints."""
        read = [v for v in captures(self.twin.body) if v in self.local]
        self.find_pieces(read)
        for value in read:
            self.restore(value)
        arguments = [self.index, *carried, *(argument for _, _, argument in self.twin.stacks)]
        body = Block(arguments, self.before.block.ops)
        body.results = inline(self.twin.body, (), body, self.values)
        return body

    def restore(self, value: Value) -> Value:
        """The value as the twin's body has it."""
        if value not in self.local:
            return value
        if value not in self.values:
            self.values[value] = self.restored(value)
        return self.values[value]

    def restored(self, value: Value) -> Value:
        if value in self.loop.slices:
            j = self.loop.slices.index(value)
            return self.twin.slice_of(self.loop.stacks[j], self.loop.axes[j], value.type)
        op = value.op
        if op is not None and self.recomputed(op):
            for operand in op.operands:
                self.restore(operand)
            self.before.block.ops.append(clone_op(op, self.values))
            return self.values[value]
        return self.saved(value)

    def saved(self, value: Value) -> Value:
        """Have the forward loop collect the value; renamed for the journey if it has the loop's own dim as an axis."""
        dims = _apart(value.type, self.loop.dim)
        stack = self.loop.collect(_renamed(Builder(self.loop.body, self.before.span), value, dims))
        slice_ = self.twin.slice_of(stack, self.loop.dim.name, TensorType(value.type.dtype, dims))
        slice_.hint = value.hint
        return _renamed(self.before, slice_, value.type.dims)

    def recomputed(self, op: Op) -> bool:
        """Whether the twin makes this op's result again. An index op owns no storage, so it costs what its operands
        cost, and it is saved only where it is smaller than these. A mask made of what there is anyway costs nothing."""
        cost = sum(map(self.bytes, op.operands))
        match definition(op).shape:
            case "index":
                return op in self.pieces or cost <= op.result.type.bytes
            case "elementwise":
                return cost == 0 and not op.result.type.dtype.is_float
            case _:
                return False

    def find_pieces(self, read: Sequence[Value]) -> None:
        """Find the index ops whose results are each smaller than their operand, but all together are not (q, k and v
        of one product), or whose operand is read anyway: there the operand is saved."""
        pieces: dict[Value, dict[Op, None]] = {}

        def visit(value: Value) -> None:
            op = value.op
            if op is None or value not in self.local or definition(op).shape != "index":
                return
            if self.recomputed(op):
                for operand in op.operands:
                    visit(operand)
            else:
                for operand in op.operands:
                    pieces.setdefault(operand, {})[op] = None

        for value in read:
            visit(value)
        for operand, ops in pieces.items():
            if operand in read or self.bytes(operand) <= sum(op.result.type.bytes for op in ops):
                self.pieces.update(ops)
        self.sizes.clear()

    def bytes(self, value: Value) -> int:
        """What each iteration must save for the twin to have the value; of a piece, its share of the whole."""
        if value not in self.local or value in self.loop.slices or value in self.values:
            return 0
        if value not in self.sizes:
            op = value.op
            made = op is not None and op not in self.pieces and self.recomputed(op)
            self.sizes[value] = sum(map(self.bytes, op.operands)) if op and made else value.type.bytes
        return self.sizes[value]


def _apart(type_: TensorType, dim: Dim) -> tuple[Dim, ...]:
    """The dims of a type, the one named like `dim`, if any, under a new name."""
    name = dim.name
    while type_.has(name) or name == dim.name:
        name += "'"
    return tuple(Dim(name, d.size, d.shards) if d.name == dim.name else d for d in type_.dims)


def _renamed(b: Builder, value: Value, dims: tuple[Dim, ...]) -> Value:
    return value if value.type.dims == dims else b("rename", value, dims=dims)
