"""Parses what `text.py` prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, NoReturn, TypeVar

from alphac.ir.core import Block, Column, Data, Evaluation, Function, Module, Op, Port, State, Training, Value
from alphac.ir.span import Span
from alphac.ir.typesys import ALL_DTYPES, Dim, DType, TensorType

T = TypeVar("T")

NAME = r"[A-Za-z_][\w.']*"
HINT = r"[A-Za-z_][\w']*(?:\.[A-Za-z_][\w']*)*"
FILE = r"[\w./+~-]+"
WORDS = frozenset({"inf", "nan", "true", "false"})  # literals: a name spelled so is quoted
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(
    rf"""(?P<space>[ \t\n]+|\#[^\n]*)
    |(?P<value>%(?:(?:{HINT}|{_STRING})\.)?\d+(?![\w.]))
    |(?P<span>@[ ](?:{FILE}|{_STRING}):\d+:\d+-(?:\d+:)?\d+)
    |(?P<string>{_STRING})
    |(?P<number>-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf\b|nan\b))
    |(?P<name>{NAME})
    |(?P<mark>[(){{}}\[\],:=/])""",
    re.VERBOSE | re.ASCII,
)
_SPAN = re.compile(rf"@ (?P<file>{FILE}|{_STRING}):(\d+):(\d+)-(?:(\d+):)?(\d+)", re.ASCII)
_ESCAPE = re.compile(r"\\(u\{([0-9a-f]+)\}|.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


class IRSyntaxError(Exception):
    """Text that is not IR. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"{line}:{column}: {message}")
        self.message = message
        self.line = line
        self.column = column


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    offset: int


def parse_module(text: str) -> Module:
    """The module that `text` says. Raises IRSyntaxError. It is not verified."""
    return _Parser(text).module()


class _Parser:
    """Recursive descent, one method per form."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self.scan())
        self.position = 0
        self.values: dict[str, Value] = {}

    # ------------------------------------------------------------------ tokens
    def scan(self) -> list[_Token]:
        tokens: list[_Token] = []
        offset = 0
        while offset < len(self.text):
            match = _TOKEN.match(self.text, offset)
            if match is None:
                self.fail(f"unexpected character {self.text[offset]!r}", offset)
            if match.lastgroup != "space":
                tokens.append(_Token(match.lastgroup or "", match.group(), offset))
            offset = match.end()
        return [*tokens, _Token("end", "", offset)]

    def fail(self, message: str, offset: int) -> NoReturn:
        before = self.text[:offset]
        raise IRSyntaxError(message, before.count("\n") + 1, offset - before.rfind("\n"))

    def expected(self, what: str) -> NoReturn:
        token = self.token
        self.fail(f"expected {what}, not {f'`{token.text}`' if token.text else 'the end'}", token.offset)

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    def take(self, kind: str, what: str) -> str:
        if self.token.kind != kind:
            self.expected(what)
        self.position += 1
        return self.tokens[self.position - 1].text

    def accept(self, text: str) -> bool:
        if self.token.text != text or self.token.kind not in ("mark", "name"):
            return False
        self.position += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.expected(f"`{text}`")

    def sequence(self, item: Callable[[], T], close: str) -> list[T]:
        """Items parted by commas (one may trail), up to and with `close`."""
        items: list[T] = []
        while not self.accept(close):
            items.append(item())
            if not self.accept(","):
                self.expect(close)
                break
        return items

    # ------------------------------------------------------------------ literals
    def string(self) -> str:
        return _unquote(self.take("string", "a string"))

    def name(self, what: str = "a name") -> str:
        return self.string() if self.token.kind == "string" else self.take("name", what)

    def integer(self) -> int:
        offset = self.token.offset
        number = _number(self.take("number", "an integer"))
        if not isinstance(number, int):
            self.fail("expected an integer", offset)
        return number

    def dim(self) -> Dim:
        name = self.name("a dim")
        self.expect(":")
        size = self.integer()
        shards = self.integer() if self.accept("/") else 0
        return Dim(name, size, shards, self.integer() if self.accept("/") else 0)

    def dtype(self) -> DType:
        offset = self.token.offset
        name = self.take("name", "an element type")
        if name not in ALL_DTYPES:
            self.fail(f"`{name}` is no element type; one of {', '.join(ALL_DTYPES)}", offset)
        return ALL_DTYPES[name]

    def type(self) -> TensorType:
        dtype = self.dtype()
        self.expect("[")
        offset = self.token.offset
        dims = self.sequence(self.dim, "]")
        try:
            return TensorType(dtype, tuple(dims))
        except ValueError as error:
            self.fail(str(error), offset)

    def literal(self) -> Any:
        token = self.token
        after = self.tokens[self.position + 1].text if token.kind != "end" else ""
        if token.text in ("true", "false"):
            self.position += 1
            return token.text == "true"
        if token.kind == "number":
            self.position += 1
            return _number(token.text)
        if token.kind in ("name", "string") and after == ":":
            return self.dim()
        if token.kind == "string":
            return self.string()
        if token.kind == "name":
            return self.type() if after == "[" else self.dtype()
        if self.accept("("):
            return tuple(self.sequence(self.literal, ")"))
        return self.expected("a literal")

    def attributes(self) -> dict[str, Any]:
        """`{name = literal, …}`."""
        self.expect("{")
        found: dict[str, Any] = {}

        def pair() -> None:
            offset = self.token.offset
            key = self.name()
            if key in found:
                self.fail(f"`{key}` is given twice", offset)
            self.expect("=")
            found[key] = self.literal()

        self.sequence(pair, "}")
        return found

    def record(self, kind: type[T], **given: Any) -> T:
        """A dataclass from its fields; the ones left out have their defaults."""
        offset = self.token.offset
        found = {**self.attributes(), **given}
        known = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
        for key in found:
            if key not in known:
                self.fail(f"`{kind.__name__.lower()}` has no field `{key}`", offset)
        for key, default in known.items():
            if key not in found and default is MISSING:
                self.fail(f"`{kind.__name__.lower()}` lacks its field `{key}`", offset)
        return kind(**found)

    # ------------------------------------------------------------------ declarations
    def module(self) -> Module:
        self.expect("system")
        module = Module(self.name("the system's name"), None)
        self.expect("seed")
        module.seed = self.integer()
        if self.accept("grain"):
            module.grain = self.dim()
        while self.token.kind != "end":
            self.declaration(module)
        return module

    def declaration(self, module: Module) -> None:
        offset = self.token.offset
        word = self.take("name", "a declaration")
        if word == "train":
            module.training = self.record(Training)
            return
        name = self.name()
        match word:
            case "state":
                table, made = module.states, self.state(name)
            case "data":
                table, made = module.data, self.data(name)
            case "evaluate":
                table, made = module.evaluations, self.record(Evaluation, name=name)
            case "function":
                table, made = module.functions, self.function(name)
            case _:
                self.fail(f"`{word}` is no declaration; one of state, data, evaluate, train, function", offset)
        if name in table:
            self.fail(f"{word} `{name}` is declared twice", offset)
        table[name] = made  # type: ignore[assignment]

    def state(self, name: str) -> State:
        self.expect(":")
        return State(name, self.type(), self.name("the state's kind"))

    def data(self, name: str) -> Data:
        data = self.record(Data, name=name, columns=())
        return replace(data, columns=self.columns())

    def columns(self) -> tuple[Column, ...]:
        self.expect("{")
        columns: list[Column] = []
        while not self.accept("}"):
            self.expect("column")
            columns.append(self.record(Column, name=self.name()))
        return tuple(columns)

    # ------------------------------------------------------------------ functions
    def function(self, name: str) -> Function:
        self.values = {}
        self.expect("(")
        arguments = self.sequence(self.argument, ")")
        block = Block([value for value, _ in arguments])
        self.expect("{")
        self.ops(block, "return")
        self.expect("(")
        results = self.sequence(self.bound, ")")
        self.expect("}")
        block.results = tuple(value for value, _ in results)
        return Function(name, block, tuple(p for _, p in arguments), tuple(p for _, p in results))

    def argument(self) -> tuple[Value, Port]:
        value = self.typed()
        self.expect("=")
        return value, self.port()

    def bound(self) -> tuple[Value, Port]:
        value = self.use()
        self.expect("=")
        return value, self.port()

    def port(self) -> Port:
        kind = self.name("a port's kind")
        name = self.name() if self.token.kind in ("name", "string") else ""
        return Port(kind, name, tuple(self.attributes().items()) if self.token.text == "{" else ())

    def define(self, name: str, offset: int, value: Value) -> Value:
        if name in self.values:
            self.fail(f"{name} is defined twice", offset)
        self.values[name] = value
        return value

    def typed(self) -> Value:
        """`%x.1: type`: a block's argument."""
        offset = self.token.offset
        name = self.take("value", "a value")
        self.expect(":")
        return self.define(name, offset, Value(self.type(), _hint(name)))

    def use(self) -> Value:
        offset = self.token.offset
        name = self.take("value", "a value")
        if name not in self.values:
            self.fail(f"{name} is not defined here", offset)
        return self.values[name]

    def ops(self, block: Block, end: str) -> None:
        while not self.accept(end):
            block.ops.append(self.op())

    def op(self) -> Op:
        names: list[tuple[str, int]] = []
        while self.token.kind == "value":
            names.append((self.token.text, self.token.offset))
            self.position += 1
            if not self.accept(","):
                self.expect("=")
                break
        offset = self.token.offset
        op = Op(self.name("an op"), (), {}, ())
        self.expect("(")
        op.operands = tuple(self.sequence(self.use, ")"))
        op.attributes = self.attributes() if self.token.text == "{" else {}
        self.expect(":")
        types = self.types()
        if len(types) != len(names):
            self.fail(f"`{op.name}` has {len(names)} results and {len(types)} types", offset)
        op.span = self.span() if self.token.kind == "span" else None
        blocks: list[Block] = []
        while self.accept("do"):
            blocks.append(self.nested())
        op.blocks = tuple(blocks)
        typed = enumerate(zip(names, types, strict=True))
        op.results = tuple(self.define(n, at, Value(t, _hint(n), op, i)) for i, ((n, at), t) in typed)
        return op

    def types(self) -> list[TensorType]:
        if self.accept("("):
            self.expect(")")
            return []
        types = [self.type()]
        while self.accept(","):
            types.append(self.type())
        return types

    def nested(self) -> Block:
        """`(arguments) { ops yield results }`; what it defines is not visible after it."""
        outside = dict(self.values)
        self.expect("(")
        block = Block(self.sequence(self.typed, ")"))
        self.expect("{")
        self.ops(block, "yield")
        if self.accept("("):
            self.expect(")")
            self.expect("}")
        else:
            block.results = tuple(self.sequence(self.use, "}"))
        self.values = outside
        return block

    def span(self) -> Span:
        match = _SPAN.fullmatch(self.take("span", "a span"))
        assert match is not None
        file, line, column, end_line, end_column = match.groups()
        if file.startswith('"'):
            file = _unquote(file)
        return Span(file, int(line), int(column), int(end_line or line), int(end_column))


def _unquote(quoted: str) -> str:
    def plain(match: re.Match[str]) -> str:
        return chr(int(match[2], 16)) if match[2] else _ESCAPED.get(match[1], match[1])

    return _ESCAPE.sub(plain, quoted[1:-1])


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _hint(name: str) -> str:
    """`h` of `%h.3`, "" of `%3`."""
    hint = name[1:].rpartition(".")[0]
    return _unquote(hint) if hint.startswith('"') else hint
