"""The grammar: layout, keywords in context, positions, and input that is absurd."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphac.diagnostics import CODES, Diagnostic, Diagnostics, Label, nearest, render
from alphac.frontend import tree
from alphac.frontend.parse import parse, read_source
from alphac.frontend.tree_text import tree_text
from alphac.ir.span import Span

ROOT = Path(__file__).parents[1]


def only(text: str) -> tree.Node:
    (declaration,) = parse(text, "s.alpha").declarations
    return declaration


def expression(text: str) -> tree.Expression:
    node = only(f"let x = {text}\n")
    assert isinstance(node, tree.Let)
    return node.value


def shown(node: tree.Expression) -> str:
    """An expression with all its brackets."""
    match node:
        case tree.Number():
            return str(node.value)
        case tree.Name():
            return node.id
        case tree.Primed():
            return f"{node.id}'"
        case tree.Unary():
            return f"({node.operator} {shown(node.operand)})"
        case tree.Binary():
            return f"({shown(node.left)} {node.operator} {shown(node.right)})"
        case tree.Like():
            return f"({shown(node.value)} like {shown(node.model)})"
        case tree.Call():
            return f"{shown(node.callee)}({', '.join(shown(a.value) for a in node.arguments)})"
        case tree.Index():
            return f"{shown(node.target)}[{', '.join(map(shown, node.indices))}]"
        case tree.Attribute():
            return f"{shown(node.target)}.{node.name}"
        case _:
            raise AssertionError(node)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2 * 3", "(1 + (2 * 3))"),
        ("a - b - c", "((a - b) - c)"),
        ("-a ** 2", "(- (a ** 2))"),
        ("2 ** -a ** b", "(2 ** (- (a ** b)))"),
        ("x @ w * 2 + b", "(((x @ w) * 2) + b)"),
        ("a % b // c / d", "(((a % b) // c) / d)"),
        ("not a < b and c or d", "(((not (a < b)) and c) or d)"),
        ("0 like p", "(0 like p)"),
        ("-x[i](y).z", "(- x[i](y).z)"),
        ("m' / (1 - t')", "(m' / (1 - t'))"),
        ("1_000 + 2.5e-3 + .5", "((1000 + 0.0025) + 0.5)"),
        ("axes(x) - d & e", "((axes(x) - d) & e)"),
    ],
)
def test_precedence(text: str, wanted: str) -> None:
    assert shown(expression(text)) == wanted


def test_newlines_end_statements_outside_brackets() -> None:
    node = only("fn f(x,\n     y) {\n\n    a = (x\n         + y)   # a comment\n    b = a +\n        1; b\n}\n")
    assert isinstance(node, tree.Fn)
    assert [type(s).__name__ for s in node.body.statements] == ["Bind", "Bind", "Evaluated"]


def test_a_body_may_stand_on_one_line() -> None:
    node = only("region f(x: f32[a]) -> f32[a] { y = x; y }\n")
    assert isinstance(node, tree.Region) and len(node.body.statements) == 2


def test_declarations_may_share_a_line() -> None:
    first, second = parse("param a: f32[] = 0   param b, c: f32[n] = glorot\n", "s.alpha").declarations
    assert isinstance(first, tree.Declare) and isinstance(second, tree.Declare)
    assert [e.name for e in second.entries] == ["b", "c"]
    assert second.entries[0].type is second.entries[1].type is not None


def test_words_are_keywords_only_where_they_are_expected() -> None:
    names = "seed train test hold shuffle epochs steps batch last window text checkpoint every grain data"
    for name in names.split():
        node = only(f"let {name} = {name} + 1\n")
        assert isinstance(node, tree.Let) and node.name == name


def test_names_may_be_greek() -> None:
    assert shown(expression("β1 ** t + größe")) == "((β1 ** t) + größe)"


def test_spans_are_exact() -> None:
    text = "let x = 1\nlet y = relu(image @ w)\n"
    node = parse(text, "s.alpha").declarations[1]
    assert isinstance(node, tree.Let)
    call = node.value
    assert isinstance(call, tree.Call)
    assert call.span == Span("s.alpha", 2, 9, 2, 24)
    join = call.arguments[0].value
    assert isinstance(join, tree.Binary) and join.right.span == Span("s.alpha", 2, 22, 2, 23)


def test_crlf_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "s.alpha"
    path.write_bytes(b"\xef\xbb\xbfsystem s\r\nlet x = 1\r\n")
    assert len(parse(read_source(path), "s.alpha").declarations) == 2


def test_the_last_line_need_not_end() -> None:
    assert isinstance(only("let x = 1"), tree.Let)
    assert parse("", "s.alpha").declarations == ()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("let x = " + "(" * 100_000, "E103"),
        ("let x = " + "-" * 10_000 + "1\n", "E103"),
        ("let x = " + "not " * 5_000 + "a\n", "E103"),
        ("let x = a" + "[0]" * 5_000 + "\n", "E103"),
        ("let x = " + "2 ** " * 5_000 + "1\n", "E103"),
        ("let x = 1" + " + 1" * 5_000 + "\n", "E103"),
        ("fn f(x) " + "{ repeat 2 " * 5_000, "E103"),
        ("fn f() { " + "if a { b } else " * 1_000 + "{ c }\n}\n", "E103"),
        ("let x = " + "9" * 100_000 + "\n", "E104"),
        ("let x = 1" + "e" * 100_000 + "\n", "E101"),
        ('let x = "' + "a" * 100_000 + "\n", "E101"),
        ("}" * 1000, "E101"),
        ("\x00", "E102"),
    ],
    ids=range(13),
)
def test_absurd_input_gets_a_diagnostic(text: str, code: str) -> None:
    with pytest.raises(Diagnostics) as caught:
        parse(text, "s.alpha")
    assert caught.value.diagnostics[0].code == code
    assert len(render(caught.value.diagnostics[0], text)) < 2000


WORDS = re.findall(r"[^\W\d]\w*'?|\d+|[^\w\s]|\n", (ROOT / "examples/hybrid/hybrid.alpha").read_text(encoding="utf-8"))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_any_words_parse_or_get_a_diagnostic(words: list[str]) -> None:
    try:
        tree_text(parse(" ".join(words), "s.alpha"))
    except Diagnostics as error:
        for diagnostic in error.diagnostics:
            assert diagnostic.help and render(diagnostic, " ".join(words))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_text_parses_or_gets_a_diagnostic(text: str) -> None:
    try:
        parse(text, "s.alpha")
    except Diagnostics as error:
        assert all(render(d, text) for d in error.diagnostics)


# ---------------------------------------------------------------------------------------------------------- diagnostics
def test_two_labels_as_in_the_tradition() -> None:
    text = "    h = relu(image @ w2 + b1)"
    labels = (
        Label(Span("a", 1, 14, 1, 19), "f32[batch, pixels]"),
        Label(Span("a", 1, 22, 1, 24), "f32[hidden, classes]"),
    )
    message = "`@` joins `pixels` (64) with `hidden` (128)"
    diagnostic = Diagnostic("E112", message, labels[0].span, "did you mean `w1`, an f32[pixels, hidden]?", labels)
    assert render(diagnostic, text) == (
        "a:1:14: error[E112]: `@` joins `pixels` (64) with `hidden` (128)\n"
        "    h = relu(image @ w2 + b1)\n"
        "             ^^^^^   ^^ f32[hidden, classes]\n"
        "             f32[batch, pixels]\n"
        "help: did you mean `w1`, an f32[pixels, hidden]?"
    )


def test_carets_stand_under_wide_characters() -> None:
    rendered = render(Diagnostic("E110", "m", Span("a", 1, 4, 1, 5), "h"), "漢字 x")
    assert rendered.split("\n")[2] == "     ^"


def test_nearest() -> None:
    assert nearest("sofmax", ["softmax", "max", "sort"]) == "softmax"
    assert nearest("w1", ["w2", "b1"]) in ("w2", "b1")
    assert nearest("completely", ["different"]) is None


def test_codes_are_in_order() -> None:
    assert list(CODES) == sorted(CODES) and len(CODES) >= 30


# ------------------------------------------------------------------------------------------------------------- document
def test_the_document_has_the_grammar_and_all_codes() -> None:
    text = (ROOT / "docs/language.md").read_text(encoding="utf-8")
    assert (ROOT / "alphac/frontend/alphac.lark").read_text(encoding="utf-8") in text
    for code, meaning in CODES.items():
        assert f"| {code} | {meaning} |" in text


def test_the_document_names_every_function() -> None:
    import alphac.frontend.elaborate  # noqa: F401  (fills the table)
    from alphac.frontend.calls import BUILTINS

    text = (ROOT / "docs/language.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    prelude = {
        node.name
        for path in (ROOT / "alphac/frontend/prelude").glob("*.alpha")
        for node in parse(read_source(path), path.name).declarations
        if isinstance(node, tree.Callable)
    }
    assert (set(BUILTINS) | prelude) - {"orthonormal"} <= words
