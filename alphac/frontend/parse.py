"""From text to syntax tree."""

from __future__ import annotations

import math
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.exceptions import VisitError
from lark.tree import Meta
from lark.visitors import Transformer_NonRecursive, v_args

from alphac.diagnostics import Diagnostics, fail, nearest
from alphac.frontend import tree
from alphac.frontend.layout import MAXIMAL_DEPTH, Layout, span_of
from alphac.ir.span import Span

BOM = "\ufeff"  # some editors begin a file with it
MAXIMAL_SOURCE = 4 << 20  # characters
MAXIMAL_CHAIN = 1000  # operators in a row: `a + b + …` nests as deep as it is long


def read_source(path: str | Path) -> str:
    """The text of a source file. Raises Diagnostics if it cannot be read or is not UTF-8."""
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise fail("E100", f"there is no file `{path}`", None, "check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise fail("E100", f"`{path}` cannot be read: {reason}", None, "check the path and its permissions") from None
    try:
        return _decoded(raw)
    except UnicodeDecodeError as error:
        before = _decoded(raw[: error.start])
        line, column = _place(before)
        span = Span(str(path), line, column, line, column + 1)
        raise fail(
            "E102",
            f"byte {raw[error.start]:#04x} is not UTF-8",
            span,
            "save the file as UTF-8, e.g. with `iconv -t UTF-8`",
        ) from None


def _decoded(raw: bytes) -> str:
    """A file's text: no mark at its beginning, lines that end as they do here. Raises UnicodeDecodeError."""
    return raw.decode("utf-8").removeprefix(BOM).replace("\r\n", "\n").replace("\r", "\n")


def _place(before: str) -> tuple[int, int]:
    """Line and column of what follows a text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def parse(text: str, file: str) -> tree.System:
    """The syntax tree of a file's text. Raises Diagnostics."""
    if len(text) > MAXIMAL_SOURCE:
        raise fail(
            "E100", f"`{file}` has {len(text)} characters, more than {MAXIMAL_SOURCE}", None, "split it with `use`"
        )
    nul = text.find("\0")
    if nul >= 0:
        line, column = _place(text[:nul])
        span = Span(file, line, column, line, column + 1)
        raise fail("E102", "the file holds a zero byte", span, "is this a text file?")
    parser, layout = _parser()
    layout.file = file
    try:
        parsed = parser.parse(text if text.endswith("\n") else text + "\n")
    except UnexpectedInput as error:
        raise _syntax_error(error, text, file, layout.open[-1:]) from None
    _check_depth(parsed, file)
    try:
        declarations = _ToTree(file).transform(parsed)
    except VisitError as error:
        raise error.orig_exc from None
    return tree.System(Span(file, 1, 1, 1, 1), text, tuple(declarations))


@cache
def _parser() -> tuple[Lark, Layout]:
    layout = Layout()
    grammar = Path(__file__).with_name("alphac.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=True, postlex=layout), layout


def _check_depth(parsed: Tree[Token], file: str) -> None:
    """Refuse what is nested deeper than later stages recurse."""
    stack: list[tuple[Tree[Token], int]] = [(parsed, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > 2 * MAXIMAL_DEPTH:
            span = _span(node.meta, file)
            raise fail("E103", f"nested more than {MAXIMAL_DEPTH} deep", span, "give names to parts of the expression")
        stack.extend((child, depth + 1) for child in node.children if isinstance(child, Tree))


def _span(meta: Meta, file: str) -> Span:
    if meta.empty:
        return Span(file, 1, 1, 1, 1)
    return Span(file, meta.line, meta.column, meta.end_line, meta.end_column)


# -------------------------------------------------------------------------------------------------------- syntax errors
_READABLE = {
    "NAME": "a name", "NUMBER": "a number", "STRING": "a text in quotes", "PRIMED": "a primed name",
    "_NL": "a new line", "$END": "the end of the file", "COMPARISON": "a comparison", "LPAR": "`(`", "RPAR": "`)`",
    "LSQB": "`[`", "RSQB": "`]`", "LBRACE": "`{`", "RBRACE": "`}`", "COMMA": "`,`", "COLON": "`:`", "EQUAL": "`=`",
    "DOT": "`.`", "DOT_STAR": "`.*`", "MINUS": "`-`", "SUM_OPERATOR": "`+`", "PRODUCT_OPERATOR": "`*`",
    "POWER": "`**`", "PERCENT": "`%`",
}  # fmt: skip
_OPERATORS = {"COMPARISON", "SUM_OPERATOR", "PRODUCT_OPERATOR", "POWER", "AND", "OR", "LIKE", "PERCENT"}
_EXPRESSION = {"NAME", "NUMBER", "STRING", "PRIMED", "LPAR", "MINUS", "NOT", "IF", "REPEAT", "SCAN"}

# Texts that show a common mistake, and what to do about it.
_COMMON = {
    "`=` makes a binding; to compare, write `==`": [
        "region f(x: f32[a]) -> f32[a] { (x = 1) }",
        "fn f(x) { g((x = 1)) }",
        "let a = b = 1\n",
        "let a = (b = 1)\n",
    ],
    "write `NAME: f32[dims] = value`": ["param w f32[a]", "param a: f32[b] = 0, w f32[a]", "state w f32[a]"],
    "a column names its type: `image: f32[pixels] = images`": ['data d from "f" { x = 1 }'],
    "a region says what it results in: `region f(x: f32[batch]) -> f32[batch] { … }`": ["region f(x: f32[a]) {"],
    "`learn` lists parameters: `learn w, b with adam(1e-3) minimizing { … }`": ["learn with adam", "learn {"],
    'data comes from a file: `data NAME from "FILE" { … }`': ["data d {", "data d from file {"],
    "a dim has a size: `dim batch = 128`": ["dim batch\n", "dim batch, width = 3\n"],
}


def _syntax_error(error: UnexpectedInput, text: str, file: str, open: list[Token]) -> Diagnostics:
    """One sentence that says what stands there and what was expected. `open`: the innermost bracket that is, if any."""
    if isinstance(error, UnexpectedCharacters):
        line, column = error.line, error.column
        character = text[error.pos_in_stream : error.pos_in_stream + 1] if error.pos_in_stream is not None else "?"
        span = Span(file, line, column, line, column + 1)
        if character == '"':
            return fail("E101", "a text in quotes does not end on its line", span, 'add the closing `"`')
        help = {"'": "a text stands in double quotes", "!": "not equal is `!=`, not is `not`", "|": "or is `or`",
                "^": "a power is `**`"}.get(character, "")  # fmt: skip
        alone = character.isprintable() and not unicodedata.combining(character)
        shown = f"`{character}`" if alone else f"the character U+{ord(character):04X}"
        return fail("E101", f"{shown} has no meaning here", span, help or "remove it")
    assert isinstance(error, UnexpectedToken)
    token = error.token
    expected = set(error.accepts or error.expected)
    found = "the end of the file" if token.type == "$END" else "the line ends" if token.type == "_NL" else f"`{token}`"
    span = span_of(token, file)
    if token.type == "$END":
        line = max(1, text.rstrip("\n").count("\n") + 1)
        last = len(text.rstrip("\n").split("\n")[-1])
        span = Span(file, line, max(1, last), line, last + 1)
    help = _advice(error)
    wanted = _expectation(expected)
    message = f"{found}, where {wanted} is expected" if found == "the line ends" else f"expected {wanted}, not {found}"
    if not help:
        help = _spelling(token, expected) or (
            _unfinished(open)
            if token.type == "$END"
            else f"write {wanted}, or remove {found}"
            if found != "the line ends"
            else "finish the statement; inside ( ) and [ ] a line may break anywhere"
        )
    return fail("E101", message, span, help)


def _unfinished(open: list[Token]) -> str:
    """What to do where the file ends too soon."""
    return f"the `{open[0]}` of line {open[0].line} is still open" if open else "finish the last line"


def _advice(error: UnexpectedToken) -> str:
    """What to do about a common mistake: one whose example stops the parser at the same place by the same token."""
    for advice, examples in _COMMON.items():
        for example in examples:
            try:
                _parser()[0].parse(example)
            except UnexpectedToken as known:
                same = known.token.type == error.token.type and known.accepts == error.accepts
                if same and (known.token.type == "EQUAL" or known.state.position == error.state.position):
                    return advice
            except (UnexpectedInput, Diagnostics):
                continue
    return ""


def _expectation(expected: set[str]) -> str:
    """What the parser would take, in few words."""
    rest = set(expected)
    terminals = {t.name: t.pattern.value for t in _parser()[0].terminals if t.pattern.type == "str"}
    names: list[str] = []
    if len(rest & _EXPRESSION) >= 5:
        names.append("an expression")
        rest -= _EXPRESSION
    if len(rest & _OPERATORS) >= 4:
        names.append("an operator")
        rest -= _OPERATORS | {"MINUS", "LPAR", "LSQB", "DOT", "REPEAT", "SCAN", "IF"}
    names += [_READABLE[n] for n in sorted(rest) if n in _READABLE and n not in ("$END", "_NL")]
    words = sorted(f"`{terminals[n]}`" for n in rest if n in terminals and n not in _READABLE)
    names += words if len(words) <= 8 else ["a declaration"]
    names += [_READABLE[n] for n in ("_NL", "$END") if n in rest and len(names) < 3]
    names = names[:5] or ["an operator"]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]


def _spelling(token: Token, expected: set[str]) -> str:
    """Whether a name is nearly the keyword that fits."""
    terminals = {t.name: t.pattern.value for t in _parser()[0].terminals if t.pattern.type == "str"}
    words = [terminals[n] for n in expected if n in terminals and terminals[n].isalpha()]
    if token.type == "NAME" and (word := nearest(str(token), words)):
        return f"did you mean `{word}`?"
    return ""


# ------------------------------------------------------------------------------------------------- the tree from lark's
def _number(token: Token, file: str) -> int | float:
    digits = str(token).replace("_", "")
    if digits.isdigit():
        if len(digits) > 19 or int(digits) >= 1 << 63:
            raise fail(
                "E104", f"`{_shortened(digits)}` does not fit 64 bits", span_of(token, file), "write it as 1e30, say"
            )
        return int(digits)
    value = float(digits) if len(digits) < 1000 else math.inf
    if math.isinf(value):
        message = f"`{_shortened(digits)}` is larger than any number"
        raise fail("E104", message, span_of(token, file), "the largest is about 1.79e308; infinity is `inf`")
    return value


def _shortened(digits: str) -> str:
    return digits if len(digits) <= 24 else f"{digits[:20]}…"


@v_args(meta=True, inline=True)
class _ToTree(Transformer_NonRecursive):  # type: ignore[type-arg]
    """One method per rule of the grammar."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def _at(self, meta: Meta) -> Span:
        return _span(meta, self.file)

    def _token(self, token: Token) -> Span:
        return span_of(token, self.file)

    # declarations
    def start(self, meta: Meta, *declarations: Any) -> list[Any]:
        return list(declarations)

    def system(self, meta: Meta, name: Token) -> tree.SystemName:
        return tree.SystemName(self._at(meta), str(name))

    def use(self, meta: Meta, path: Token) -> tree.Use:
        return tree.Use(self._at(meta), str(path)[1:-1])

    def dims(self, meta: Meta, *entries: tree.DimEntry) -> tree.Dims:
        return tree.Dims(self._at(meta), entries)

    def dim_entry(self, meta: Meta, name: Token, value: tree.Expression) -> tree.DimEntry:
        return tree.DimEntry(self._at(meta), str(name), value)

    def let(self, meta: Meta, name: Token, value: tree.Expression) -> tree.Let:
        return tree.Let(self._at(meta), str(name), value)

    def grain(self, meta: Meta, shards: tree.Expression, dim: Token) -> tree.Grain:
        return tree.Grain(self._at(meta), shards, tree.Name(self._token(dim), str(dim)))

    def seed(self, meta: Meta, value: tree.Expression) -> tree.Seed:
        return tree.Seed(self._at(meta), value)

    def numeric(self, meta: Meta, mode: Token) -> tree.Numeric:
        return tree.Numeric(self._at(meta), str(mode), ())

    def data(self, meta: Meta, name: Token, path: Token, *items: Any) -> tree.Data:
        return tree.Data(
            self._at(meta), str(name), tree.String(self._token(path), str(path)[1:-1]),
            tuple(i for i in items if isinstance(i, tree.Column)),
            tuple(i for i in items if isinstance(i, tree.HoldOut)),
            tuple(i for i in items if isinstance(i, tree.Shuffle)),
        )  # fmt: skip

    def column(self, meta: Meta, name: Token, type: tree.Type, value: tree.Expression) -> tree.Column:
        return tree.Column(self._at(meta), str(name), type, value)

    def stratified(self, meta: Meta, name: Token) -> tree.Name:
        return tree.Name(self._token(name), str(name))

    def hold_out_random(self, meta: Meta, split: Token, percent: Token, *rest: Any) -> tree.HoldOut:
        by = next((r for r in rest if isinstance(r, tree.Name)), None)
        seed = next((int(_number(r, self.file)) for r in rest if isinstance(r, Token)), 0)
        return tree.HoldOut(self._at(meta), str(split), _number(percent, self.file), False, by, seed)

    def hold_out_tail(self, meta: Meta, split: Token, percent: Token) -> tree.HoldOut:
        return tree.HoldOut(self._at(meta), str(split), _number(percent, self.file), True, None, 0)

    def shuffle(self, meta: Meta, seed: Token) -> tree.Shuffle:
        return tree.Shuffle(self._at(meta), int(_number(seed, self.file)))

    def param(self, meta: Meta, entries: tuple[tree.Entry, ...]) -> tree.Declare:
        return tree.Declare(self._at(meta), "param", entries)

    def state(self, meta: Meta, entries: tuple[tree.Entry, ...]) -> tree.Declare:
        return tree.Declare(self._at(meta), "state", entries)

    def entries(self, meta: Meta, *entries: Any) -> tuple[tree.Entry, ...]:
        """`a, b: f32[d] = 1` declares both: a name with neither type nor value takes those of the next that has."""
        found: list[tree.Entry] = []
        type: tree.Type | None = None
        value: tree.Expression | None = None
        for span, name, own_type, own_value in reversed(entries):
            if own_type is not None or own_value is not None:
                type, value = own_type, own_value
            if value is None:
                raise fail("E101", f"`{name}` needs a first value", span, f"write `{name}: f32[] = 0`, for instance")
            found.append(tree.Entry(span, name, type, value))
        return tuple(reversed(found))

    def entry(self, meta: Meta, name: Token, type: tree.Type | None, value: tree.Expression | None) -> Any:
        return self._token(name), str(name), type, value

    # functions
    def fn(self, meta: Meta, name: Token, parameters: Any, result: tree.Type | None, body: Any) -> tree.Fn:
        return tree.Fn(self._token(name), str(name), parameters or (), self._body(body), result)

    def initializer(self, meta: Meta, name: Token, parameters: Any, body: Any) -> tree.Initializer:
        return tree.Initializer(self._token(name), str(name), parameters or (), self._body(body))

    def optimizer(self, meta: Meta, name: Token, parameters: Any, body: tree.Body) -> tree.Optimizer:
        return tree.Optimizer(self._token(name), str(name), parameters or (), body)

    def block(self, meta: Meta, name: Token, parameters: Any, result: tree.Type | None, body: Any) -> Any:
        return tree.BlockDeclaration(self._token(name), str(name), parameters or (), self._body(body), result)

    def region(
        self, meta: Meta, name: Token, parameters: Any, results: Any, numeric: Any, requires: Any, body: Any
    ) -> Any:
        return tree.Region(self._token(name), str(name), parameters or (), body, results, numeric, requires or ())

    def parameters(self, meta: Meta, *parameters: Any) -> tuple[tree.Parameter, ...]:
        return tuple(p for p in parameters if p is not None)

    def parameter(self, meta: Meta, name: Token, type: tree.Type | None, default: tree.Expression | None) -> Any:
        return tree.Parameter(self._at(meta), str(name), type, default)

    def rest_parameter(self, meta: Meta, name: Token) -> tree.Parameter:
        return tree.Parameter(self._at(meta), str(name), None, None, True)

    def one_result(self, meta: Meta, type: tree.Type) -> Any:
        return (("", type),)

    def named_results(self, meta: Meta, *results: Any) -> Any:
        return results

    def result(self, meta: Meta, name: Token, type: tree.Type) -> Any:
        return str(name), type

    def region_numeric(self, meta: Meta, mode: Token, arguments: Any) -> tree.Numeric:
        return tree.Numeric(self._at(meta), str(mode), arguments or ())

    def requires(self, meta: Meta, *needs: tree.Expression) -> tuple[tree.Expression, ...]:
        return needs

    # learning
    def learn(self, meta: Meta, *parts: Any) -> tree.Learn:
        *targets, optimizer, label, body = parts
        return tree.Learn(self._at(meta), tuple(targets), optimizer, str(label) if label else None, body)

    def path(self, meta: Meta, *parts: Any) -> tree.Path:
        *names, star = parts
        return tree.Path(self._at(meta), tuple(str(n) for n in names), star is not None)

    def together(self, meta: Meta, *statements: Any) -> tree.Together:
        return tree.Together(self._at(meta), statements)

    def transition(self, meta: Meta, body: tree.Body) -> tree.Transition:
        return tree.Transition(self._at(meta), body)

    def evaluate(self, meta: Meta, name: Token, split: tree.Path, value: Any) -> tree.Evaluate:
        return tree.Evaluate(self._token(name), str(name), split, self._body(value))

    def train(self, meta: Meta, data: Token, amount: tree.Expression, unit: str, *options: Any) -> tree.Train:
        checkpoints = tuple(o for o in options if isinstance(o, tree.Checkpoint))
        keep = any(o == "ragged" for o in options if isinstance(o, str))
        name = tree.Name(self._token(data), str(data))
        return tree.Train(self._at(meta), name, amount, unit, checkpoints, keep)

    def checkpoint(self, meta: Meta, every: tree.Expression | None, unit: str) -> tree.Checkpoint:
        return tree.Checkpoint(self._at(meta), every, unit)

    def unit(self, meta: Meta, word: Token) -> str:
        return str(word).rstrip("s")

    def keep_ragged(self, meta: Meta) -> str:
        return "ragged"

    def contract(self, meta: Meta, name: Token, *_: Any) -> tree.Contract:
        return tree.Contract(self._at(meta), str(name))

    def contract_item(self, meta: Meta, *_: Any) -> None:
        return None

    # statements
    def _body(self, value: Any) -> tree.Body:
        """A body; `= expression` is one of a single line."""
        if isinstance(value, tree.Body):
            return value
        return tree.Body(value.span, (tree.Evaluated(value.span, value),))

    def body(self, meta: Meta, *statements: Any) -> tree.Body:
        return tree.Body(self._at(meta), statements)

    def bind(self, meta: Meta, names: tuple[tree.Name, ...], value: tree.Expression) -> tree.Bind:
        return tree.Bind(self._at(meta), names, None, value)

    def bind_typed(self, meta: Meta, name: Token, type: tree.Type, value: tree.Expression) -> tree.Bind:
        return tree.Bind(self._at(meta), (tree.Name(self._token(name), str(name)),), type, value)

    def names(self, meta: Meta, *names: Token) -> tuple[tree.Name, ...]:
        return tuple(tree.Name(self._token(n), str(n)) for n in names)

    def prime(self, meta: Meta, name: Token, value: tree.Expression) -> tree.Prime:
        return tree.Prime(self._token(name), str(name)[:-1], value)

    def evaluated(self, meta: Meta, value: tree.Expression) -> tree.Evaluated:
        return tree.Evaluated(self._at(meta), value)

    # expressions
    def repeat(self, meta: Meta, dim: tree.Expression, index: Token | None, body: tree.Body) -> tree.Loop:
        return tree.Loop(self._at(meta), True, dim, str(index) if index else None, body)

    def scan(self, meta: Meta, dim: tree.Expression, index: Token | None, body: tree.Body) -> tree.Loop:
        return tree.Loop(self._at(meta), False, dim, str(index) if index else None, body)

    def if_(self, meta: Meta, condition: tree.Expression, then: tree.Body, otherwise: Any) -> tree.If:
        return tree.If(self._at(meta), condition, then, otherwise)

    def maybe_like(self, meta: Meta, value: tree.Expression, model: tree.Expression | None) -> tree.Expression:
        return value if model is None else tree.Like(self._at(meta), value, model)

    def logical_or(self, meta: Meta, first: tree.Expression, *rest: tree.Expression) -> tree.Expression:
        return self._chain(first, [x for item in rest for x in (Token("OR", "or"), item)])

    def logical_and(self, meta: Meta, first: tree.Expression, *rest: tree.Expression) -> tree.Expression:
        return self._chain(first, [x for item in rest for x in (Token("AND", "and"), item)])

    def left_binary(self, meta: Meta, first: tree.Expression, *rest: Any) -> tree.Expression:
        return self._chain(first, list(rest))

    maybe_binary = maybe_power = left_binary

    def _chain(self, left: tree.Expression, rest: list[Any]) -> tree.Expression:
        if len(rest) > 2 * MAXIMAL_CHAIN:
            message = f"more than {MAXIMAL_CHAIN} operators in a row"
            raise fail("E103", message, rest[2 * MAXIMAL_CHAIN + 1].span, "give names to parts of the expression")
        for operator, right in zip(rest[::2], rest[1::2], strict=True):
            if operator is None:
                continue
            span = Span(self.file, left.span.line, left.span.column, right.span.end_line, right.span.end_column)
            left = tree.Binary(span, str(operator), left, right)
        return left

    def unary(self, meta: Meta, operator: Token, operand: tree.Expression) -> tree.Unary:
        return tree.Unary(self._at(meta), str(operator), operand)

    def call(self, meta: Meta, callee: tree.Expression, arguments: tuple[tree.Argument, ...]) -> tree.Call:
        return tree.Call(self._at(meta), callee, arguments)

    def index(self, meta: Meta, target: tree.Expression, *indices: tree.Expression) -> tree.Index:
        return tree.Index(self._at(meta), target, indices)

    def attribute(self, meta: Meta, target: tree.Expression, name: Token) -> tree.Attribute:
        return tree.Attribute(self._at(meta), target, str(name))

    def number(self, meta: Meta, token: Token) -> tree.Number:
        return tree.Number(self._at(meta), _number(token, self.file))

    def string(self, meta: Meta, token: Token) -> tree.String:
        return tree.String(self._at(meta), str(token)[1:-1])

    def name(self, meta: Meta, token: Token) -> tree.Name:
        return tree.Name(self._at(meta), str(token))

    def primed(self, meta: Meta, token: Token) -> tree.Primed:
        return tree.Primed(self._at(meta), str(token)[:-1])

    def parenthesis(self, meta: Meta, *items: tree.Expression) -> tree.Expression:
        found = tuple(i for i in items if i is not None)
        return found[0] if len(found) == 1 else tree.Tuple(self._at(meta), found)

    def arguments(self, meta: Meta, *arguments: Any) -> tuple[tree.Argument, ...]:
        return tuple(a for a in arguments if a is not None)

    def argument(self, meta: Meta, name: Token | None, value: tree.Expression) -> tree.Argument:
        return tree.Argument(self._at(meta), str(name) if name else None, value)

    def type(self, meta: Meta, dtype: Token, *dims: Any) -> tree.Type:
        return tree.Type(self._at(meta), str(dtype), tuple(d for d in dims if d is not None))


setattr(_ToTree, "if", _ToTree.if_)  # the rule's name is a Python keyword
