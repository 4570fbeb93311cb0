"""Expressions in C, with as few parentheses and casts as their meaning needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types

from alphac.backends.dialect import represented

OTHER, SUM, PRODUCT, UNARY, ATOM = range(5)  # how strongly an expression holds together
_INTEGERS = {8: "char", 16: "short", 32: "int", 64: "long"}


@dataclass(frozen=True)
class Text:
    """An expression. `unsigned`: an integer of a signed type that was computed as unsigned, since that wraps; to assign
    it makes it signed again. `most`: what a signed integer's magnitude is at most, if that is known."""

    text: str
    binds: int = ATOM
    unsigned: bool = False
    most: int | None = None

    def within(self, least: int) -> str:
        """As an operand that must hold together at least so strongly."""
        return self.text if self.binds >= least else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def type_name(kind: Any) -> str:
    """C's name of a type, in registers."""
    if isinstance(kind, types.Boolean):
        return "bool"
    if isinstance(kind, types.Float):
        return "float" if kind.bitwidth == 32 else "double"
    return _INTEGERS[kind.bitwidth] if kind.signed else f"u{_INTEGERS[kind.bitwidth]}"


def element_name(kind: Any) -> str:
    """C's name of an element's type, in memory."""
    return "uchar" if isinstance(kind, types.Boolean) else type_name(kind)


def unsigned_name(kind: Any) -> str:
    """C's name of the unsigned integer as wide as a type."""
    return f"u{_INTEGERS[kind.bitwidth]}"


def is_signed(kind: Any) -> bool:
    return bool(getattr(kind, "signed", False))


def literal(number: float | int, kind: Any) -> Text:
    """A number of a type, rounded or wrapped to it."""
    if isinstance(kind, types.Boolean):
        return Text("true" if number else "false")
    if isinstance(kind, types.Float):
        return _float(float(represented(float(number), kind)), type_name(kind))
    value = int(represented(number, kind))
    wide = kind.bitwidth == 64
    if not kind.signed:
        return Text(f"{value}{'UL' if wide else 'u' if kind.bitwidth == 32 else ''}")
    value -= (value >> (kind.bitwidth - 1)) << kind.bitwidth
    suffix = "L" if not -(1 << 31) < value < 1 << 31 and wide else ""
    if value == -(1 << (kind.bitwidth - 1)):
        return Text(f"(-{-value - 1}{suffix} - 1)")
    return Text(f"{value}{suffix}", UNARY if value < 0 else ATOM, most=abs(value))


def _float(value: float, name: str) -> Text:
    if not np.isfinite(value):
        word = "NAN" if np.isnan(value) else "INFINITY"
        sign = "-" if value < 0 else ""
        return (
            Text(f"{sign}{word}", UNARY if sign else ATOM) if name == "float" else Text(f"({name}){sign}{word}", UNARY)
        )
    text = str(np.float32(value)) if name == "float" else repr(value)
    text += "" if any(c in text for c in ".e") else ".0"
    return Text(f"{text}{'f' * (name == 'float')}", UNARY if text.startswith("-") else ATOM)


def cast(name: str, x: Text) -> Text:
    return Text(f"({name}){x.within(UNARY)}", UNARY)


def plain(x: Text, kind: Any) -> Text:
    """The expression with its own type, where that matters."""
    return cast(type_name(kind), x) if x.unsigned else x


def infix(sign: str, x: Text, y: Text, kind: Any) -> Text:
    """`x sign y`, both of a type. Integers wrap: signed ones are computed as unsigned, if they may overflow."""
    binds = {"*": PRODUCT, "/": PRODUCT, "+": SUM, "-": SUM}.get(sign, OTHER)
    left, right = (binds, binds + 1) if binds else (UNARY, UNARY)
    if isinstance(kind, types.Float | types.Boolean):
        return Text(f"{x.within(left)} {sign} {y.within(right)}", binds)
    if kind.bitwidth < 32:  # C computes these as int
        return cast(type_name(kind), Text(f"{x.within(left)} {sign} {y.within(right)}", binds))
    most = _most(sign, x, y)
    if most is not None and most >> (kind.bitwidth - 1):
        most = None
    if kind.signed and binds and most is None and not (x.unsigned or y.unsigned):
        x, y = (x, cast(unsigned_name(kind), y)) if x.text.isdigit() else (cast(unsigned_name(kind), x), y)
    unsigned = kind.signed and ((bool(binds) and most is None) or x.unsigned or y.unsigned)
    return Text(f"{x.within(left)} {sign} {y.within(right)}", binds, unsigned, most)


def _most(sign: str, x: Text, y: Text) -> int | None:
    if x.most is None or y.most is None or sign not in "+-*":
        return None
    return x.most * y.most if sign == "*" else x.most + y.most


def compared(sign: str, x: Text, y: Text, kind: Any) -> Text:
    x, y = plain(x, kind), plain(y, kind)
    return Text(f"{x.within(SUM)} {sign} {y.within(SUM)}", OTHER)


def chosen(test: Text, x: Text, y: Text, kind: Any) -> Text:
    most = larger(x, y)
    x, y = plain(x, kind), plain(y, kind)
    return Text(f"{test.within(UNARY)} ? {x.within(UNARY)} : {y.within(UNARY)}", OTHER, most=most)


def larger(x: Text, y: Text) -> int | None:
    """What either of two is at most."""
    return None if x.most is None or y.most is None else max(x.most, y.most)
