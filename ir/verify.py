"""The verifier: runs between all passes and trusts none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from alphac.ir.core import Block, Function, Module, Op, Port, Value
from alphac.ir.errors import InternalError
from alphac.ir.ops.define import DEFINITIONS, TypeRuleError
from alphac.ir.text import print_function, print_op
from alphac.ir.typesys import TensorType


def verify(module: Module, *, differentiated: bool = False) -> None:
    """Check the module. Raises InternalError, with the IR attached and the failing op named, when

    - a value is used where it is not defined or not visible, or is defined twice;
    - an op is unknown, has other operands or attributes than its definition, or a type that its rule does not give;
    - a loop or grad block does not fit its op, or a `grad` is left although the module is `differentiated`;
    - ports do not match arguments and results, or name a state that is not declared with that type;
    - a name does not agree with its table, or a span is no range of a file.
    """
    for name, state in module.states.items():
        _named("state", name, state.name)
    for name, data in module.data.items():
        _named("data", name, data.name)
    for name, evaluation in module.evaluations.items():
        _named("evaluation", name, evaluation.name)
    for name, function in module.functions.items():
        _named("function", name, function.name)
        _Verifier(module, function, differentiated).function_()


def _named(what: str, key: str, name: str) -> None:
    if key != name:
        raise InternalError(f"{what} `{name}` is filed under `{key}`")


class _Verifier:
    """Checks one function."""

    def __init__(self, module: Module, function: Function, differentiated: bool) -> None:
        self.module = module
        self.function = function
        self.differentiated = differentiated
        self.defined: set[Value] = set()  # anywhere so far, visible or not
        self.seen: set[int] = set()  # ops and blocks

    def fail(self, message: str, op: Op | None = None) -> NoReturn:
        at = f"{op.span}: " if op and op.span else ""
        where = f" in `{print_op(op, self.function)}`" if op else ""
        raise InternalError(f"{at}function `{self.function.name}`: {message}{where}", print_function(self.function))

    def function_(self) -> None:
        f = self.function
        self.ports(f.arguments, f.block.arguments, "arguments")
        self.ports(f.results, f.block.results, "results")
        self.block(f.block, set(), None)

    def ports(self, ports: Sequence[Port], values: Sequence[Value], what: str) -> None:
        if len(ports) != len(values):
            self.fail(f"{len(values)} {what} but {len(ports)} ports")
        bound: set[tuple[Port, int]] = set()
        for port, value in zip(ports, values, strict=True):
            if port.kind == "state":
                state = self.module.states.get(port.name)
                if state is None:
                    self.fail(f"state `{port.name}` among the {what} is not declared")
                if state.type != value.type:
                    self.fail(f"state `{port.name}` is {state.type}, not {value.type}, the type of its {what[:-1]}")
            strand = value.type.cut.strand if value.type.cut is not None else 0
            if (port, strand) in bound and (what == "arguments" or port.kind == "state"):
                self.fail(f"{port.kind} `{port.name}` is bound twice among the {what}")
            bound.add((port, strand))

    # ------------------------------------------------------------------ blocks and ops
    def block(self, block: Block, visible: set[Value], owner: Op | None) -> None:
        """`visible`: what the blocks around define before this one; not changed."""
        if id(block) in self.seen:
            self.fail("a block stands in two places", owner)
        self.seen.add(id(block))
        visible = set(visible)
        for argument in block.arguments:
            if argument.op is not None:
                self.fail("a block's argument is also an op's result", owner)
            self.define(argument, visible, owner)
        for op in block.ops:
            self.op(op, visible)
        for value in block.results:
            self.visible(value, visible, "yields", owner)

    def define(self, value: Value, visible: set[Value], op: Op | None) -> None:
        if value in self.defined:
            self.fail("a value is defined twice", op)
        self.defined.add(value)
        visible.add(value)

    def visible(self, value: Value, visible: set[Value], verb: str, op: Op | None) -> None:
        if value not in visible:
            hint = f" `{value.hint}`" if value.hint else ""
            known = "out of its scope" if value in self.defined else "before its definition"
            self.fail(f"{verb} a value{hint} of type {value.type} {known}", op)

    def op(self, op: Op, visible: set[Value]) -> None:
        if id(op) in self.seen:
            self.fail("an op stands in two places", op)
        self.seen.add(id(op))
        for operand in op.operands:
            self.visible(operand, visible, "reads", op)
        definition = DEFINITIONS.get(op.name)
        if definition is None:
            self.fail(f"there is no op `{op.name}`", op)
        if definition.operands is not None and definition.operands != len(op.operands):
            self.fail(f"`{op.name}` takes {definition.operands} operands, not {len(op.operands)}", op)
        if set(op.attributes) != set(definition.attributes):
            self.fail(f"`{op.name}` has attributes {sorted(definition.attributes)}, not {sorted(op.attributes)}", op)
        if op.name == "grad" and self.differentiated:
            self.fail("a `grad` is left after `differentiate`", op)
        if op.blocks and definition.shape != "structure":
            self.fail(f"`{op.name}` takes no block", op)
        for inner in op.blocks:
            self.block(inner, visible, op)
        self.types(op, [t.type for t in op.operands])
        for i, result in enumerate(op.results):
            if result.op is not op or result.index != i:
                self.fail(f"result {i} does not point back to its op", op)
            self.define(result, visible, op)
        self.span(op)

    def types(self, op: Op, operands: list[TensorType]) -> None:
        try:
            types = DEFINITIONS[op.name].result(operands, op.attributes, op.blocks)
        except TypeRuleError as error:
            self.fail(f"operands do not fit: {error}", op)
        recorded = tuple(r.type for r in op.results)
        if tuple(types) != recorded:
            self.fail(f"has types {list(recorded)}, where its rule gives {list(types)}", op)

    def span(self, op: Op) -> None:
        s = op.span
        if s and (min(s.line, s.column) < 1 or (s.end_line, s.end_column) < (s.line, s.column)):
            self.fail(f"span {s} to {s.end_line}:{s.end_column} is no range", op)
