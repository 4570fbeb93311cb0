"""The IR as text, for people and for tests. `parse_module(print_module(m))` is `m` again, to the bit.

    system digits seed 0 grain batch:128/32

    state w1: f32[pixels:64, hidden:128] param
    data digits {path = "digits.npz", format = "npz"} {
        column image {source = "images", type = f32[pixels:64]}
    }
    evaluate accuracy {data = "digits", split = "test"}
    train {data = "digits", epochs = 40}

    function step(
        %w1.1: f32[pixels:64, hidden:128] = state w1,
        %2: f32[batch:128/32, pixels:64] = column digits.image,
    ) {
        %3 = contract(%2, %w1.1) {dims = (batch:128/32, hidden:128)} : f32[batch:128/32, hidden:128] @ d.alpha:7:12-20
        %h.4 = loop(%3) {…} : f32[…] do (%i.5: i64[], %6: f32[…]) {
            yield %6
        }
        return (
            %h.4 = state w1,
        )
    }

A value is `%number` or `%hint.number`. Floats are written shortest-exact, names quoted where they are not plain. A `#`
starts a comment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import zip_longest
from typing import Any

from alphac.ir.core import Attribute, Block, Data, Function, Module, Op, Port, Value
from alphac.ir.span import Span
from alphac.ir.text_parse import FILE, HINT, NAME, WORDS, IRSyntaxError, parse_module
from alphac.ir.typesys import Dim, DType, TensorType

__all__ = ["IRSyntaxError", "parse_module", "print_function", "print_literal", "print_module", "print_op"]

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def print_module(module: Module, *, spans: bool = True) -> str:
    """The whole module. Without `spans` the text says what is computed and not where it was written."""
    grain = f" grain {_dim(module.grain)}" if module.grain else ""
    declarations = [f"system {_name(module.system)} seed {module.seed}{grain}"]
    for state in module.states.values():
        declarations.append(f"state {_name(state.name)}: {_type(state.type)} {_name(state.kind)}")
    for data in module.data.values():
        declarations += _data(data)
    for evaluation in module.evaluations.values():
        declarations.append(f"evaluate {_name(evaluation.name)} {_record(evaluation, skip=('name',))}")
    if module.training:
        declarations.append(f"train {_record(module.training)}")
    head, *declared = declarations
    text = "\n".join([head, "", *declared] if declared else [head]) + "\n"
    return text + "".join(f"\n{print_function(f, spans=spans)}" for f in module.functions.values())


def print_function(function: Function, *, spans: bool = True) -> str:
    """One function. Never fails: what is malformed prints as well as it can, for the verifier's message."""
    return "\n".join(_Printer(spans).function(function)) + "\n"


def print_op(op: Op, function: Function | None = None) -> str:
    """One op without its blocks, for messages; its values numbered as in `function`, if given."""
    printer = _Printer(True)
    if function is not None:
        for _ in printer.function(function):
            pass
    return printer.head(op)


def print_literal(value: Attribute | TensorType) -> str:
    """An attribute's value."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return ("-nan" if math.copysign(1, value) < 0 else "nan") if math.isnan(value) else repr(value)
        case str():
            return '"' + "".join(map(_escape, value)) + '"'
        case DType():
            return value.name
        case Dim():
            return _dim(value)
        case TensorType():
            return _type(value)
        case tuple():
            return f"({', '.join(map(print_literal, value))}{',' if len(value) == 1 else ''})"


def _escape(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    return c if c.isprintable() else f"\\u{{{ord(c):x}}}"


def _name(name: str) -> str:
    """A name: bare if it is plain, else quoted."""
    return name if re.fullmatch(NAME, name, re.ASCII) and name not in WORDS else print_literal(name)


def _dim(dim: Dim) -> str:
    strand = f"/{dim.strand}" if dim.strand else ""
    return f"{_name(dim.name)}:{dim.size}" + (f"/{dim.shards}" if dim.shards or dim.strand else "") + strand


def _type(type_: TensorType) -> str:
    return f"{type_.dtype.name}[{', '.join(map(_dim, type_.dims))}]"


def _attributes(pairs: Sequence[tuple[str, Any]]) -> str:
    return "{" + ", ".join(f"{_name(k)} = {print_literal(v)}" for k, v in pairs) + "}"


def _record(record: Any, skip: tuple[str, ...] = ()) -> str:
    """The fields of a dataclass that are not at their defaults."""
    pairs = [(f.name, getattr(record, f.name), f.default) for f in fields(record) if f.name not in skip]
    return _attributes([(n, v) for n, v, default in pairs if default is MISSING or v != default])


def _data(data: Data) -> Iterator[str]:
    yield f"data {_name(data.name)} {_record(data, skip=('name', 'columns'))} {{"
    for column in data.columns:
        yield f"    column {_name(column.name)} {_record(column, skip=('name',))}"
    yield "}"


def _span(span: Span) -> str:
    file = span.file if re.fullmatch(FILE, span.file, re.ASCII) else print_literal(span.file)
    end = f"{span.end_line}:" if span.end_line != span.line else ""
    return f" @ {file}:{span.line}:{span.column}-{end}{span.end_column}"


class _Printer:
    """Prints one function; numbers values in the order in which they are met."""

    def __init__(self, spans: bool) -> None:
        self.spans = spans
        self.names: dict[Value, str] = {}

    def value(self, value: Value) -> str:
        if value not in self.names:
            number = len(self.names) + 1
            hint = value.hint if re.fullmatch(HINT, value.hint, re.ASCII) else print_literal(value.hint)
            self.names[value] = f"%{hint}.{number}" if value.hint else f"%{number}"
        return self.names[value]

    def values(self, values: Sequence[Value]) -> str:
        return ", ".join(map(self.value, values))

    def typed(self, value: Value) -> str:
        return f"{self.value(value)}: {_type(value.type)}"

    def function(self, function: Function) -> Iterator[str]:
        yield f"function {_name(function.name)}("
        for value, port in zip_longest(function.block.arguments, function.arguments):
            yield f"    {self.typed(value) if value else '?'} = {_port(port)},"
        yield ") {"
        yield from self.ops(function.block)
        yield "    return ("
        for value, port in zip_longest(function.block.results, function.results):
            yield f"        {self.value(value) if value else '?'} = {_port(port)},"
        yield "    )"
        yield "}"

    def ops(self, block: Block) -> Iterator[str]:
        for op in block.ops:
            for line in self.op(op):
                yield f"    {line}"

    def head(self, op: Op) -> str:
        operands = self.values(op.operands)
        attributes = f" {_attributes(list(op.attributes.items()))}" if op.attributes else ""
        types = ", ".join(_type(r.type) for r in op.results)
        span = _span(op.span) if self.spans and op.span else ""
        results = f"{self.values(op.results)} = " if op.results else ""
        return f"{results}{_name(op.name)}({operands}){attributes} : {types or '()'}{span}"

    def op(self, op: Op) -> Iterator[str]:
        head = self.head(op)
        for block in op.blocks:
            yield f"{head} do ({', '.join(map(self.typed, block.arguments))}) {{"
            yield from self.ops(block)
            yield f"    yield {self.values(block.results) or '()'}"
            head = "}"
        yield head


def _port(port: Port | None) -> str:
    if port is None:
        return "?"
    name = f" {_name(port.name)}" if port.name else ""
    attributes = f" {_attributes(port.attributes)}" if port.attributes else ""
    return f"{_name(port.kind)}{name}{attributes}"
