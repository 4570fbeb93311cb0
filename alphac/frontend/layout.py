"""Which newlines end a statement."""

from __future__ import annotations

from collections.abc import Iterator

from lark import Token

from alphac.diagnostics import fail
from alphac.ir.span import Span

MAXIMAL_DEPTH = 200
MAXIMAL_NAME = 100
_OPEN = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}
_CLOSE = {close: open for open, close in _OPEN.items()}
# A line that ends in one of these goes on.
_CONTINUED = frozenset({
    "EQUAL", "COMMA", "COLON", "SUM_OPERATOR", "PRODUCT_OPERATOR", "PERCENT", "MINUS", "COMPARISON", "POWER",
    "NOT", "AND", "OR", "LIKE", "DOT", "WITH", "ON", "FROM", "__ANON_0",
})  # fmt: skip


class Layout:
    """Between lexer and parser: drops newlines that end nothing, adds one before each `}`."""

    # What the lexer knows in every state: all but keywords, so that errors are found by the parser, which says what it
    # expects.
    always_accept = (
        "_NL", "NAME", "PRIMED", "NUMBER", "STRING", "LPAR", "RPAR", "LSQB", "RSQB", "LBRACE", "RBRACE", "COMMA",
        "COLON", "EQUAL", "DOT", "MINUS", "PERCENT", "POWER", "SUM_OPERATOR", "PRODUCT_OPERATOR", "COMPARISON",
    )  # fmt: skip

    def __init__(self) -> None:
        self.file = ""
        self.open: list[Token] = []  # brackets and braces that wait for their closing one

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        self.open = brackets = []
        previous = "_NL"  # type of the token last passed on
        for token in stream:
            if len(token) > MAXIMAL_NAME and token.type in ("NAME", "PRIMED"):
                message = f"a name of {len(token)} letters"
                raise fail("E101", message, span_of(token, self.file), f"names have at most {MAXIMAL_NAME}")
            if token.type == "_NL":
                if (
                    (brackets and brackets[-1].type != "LBRACE")
                    or previous in ("_NL", "LBRACE")
                    or previous in _CONTINUED
                ):
                    continue
            elif token.type in _OPEN:
                brackets.append(token)
                if len(brackets) > MAXIMAL_DEPTH:
                    raise fail(
                        "E103",
                        f"nested more than {MAXIMAL_DEPTH} deep",
                        span_of(token, self.file),
                        "give names to parts of the expression",
                    )
            elif token.type in _CLOSE:
                if brackets and brackets[-1].type == _CLOSE[token.type]:
                    brackets.pop()
                if token.type == "RBRACE" and previous not in ("_NL", "LBRACE"):
                    yield Token.new_borrow_pos("_NL", "\n", token)
            yield token
            previous = token.type


def span_of(token: Token, file: str) -> Span:
    """The place of a token."""
    line, column = token.line or 1, token.column or 1
    return Span(file, line, column, token.end_line or line, token.end_column or column + max(1, len(token)))
