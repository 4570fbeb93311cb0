"""What each intrinsic of a GPU kernel's source is in C: `FORMS` by its name. A form is given the printer, the operands
and the type of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numba.core import types

from alphac.backends.c.expressions import (
    ATOM,
    OTHER,
    PRODUCT,
    UNARY,
    Text,
    cast,
    chosen,
    compared,
    is_signed,
    larger,
    literal,
    plain,
    type_name,
    unsigned_name,
)
from alphac.backends.c.tiles import TILE_FORMS
from alphac.backends.dialect import Value
from alphac.backends.gpu.frame import MANY

if TYPE_CHECKING:
    from alphac.backends.c.printer import Printer

Form = Callable[["Printer", list[Value], Any], Text | None]


def _call(name: str, given: list[Value]) -> Text:
    return Text(f"{name}({', '.join(str(plain(x.code, x.type)) for x in given)})")


def _builtin(name: str) -> Form:
    """A function that both languages have, of floats, exact or rounded once."""
    return lambda printer, given, result: _call(name, given)


def _helper(name: str) -> Form:
    return lambda printer, given, result: _call(printer.function(name, result), given)


def _extreme(name: str) -> Form:
    def form(printer: Printer, given: list[Value], result: Any) -> Text:
        made = _call(printer.function(name, result), given)
        return Text(made.text, most=larger(given[0].code, given[1].code))

    return form


def _where(name: str) -> Form:
    return lambda printer, given, result: Text(name, most=MANY)


def _negate(printer: Printer, given: list[Value], result: Any) -> Text:
    return Text(f"-{given[0].code.within(ATOM)}", UNARY)


def _select(printer: Printer, given: list[Value], result: Any) -> Text:
    test, x, y = given
    return chosen(test.code, x.code, y.code, result)


def _shl(printer: Printer, given: list[Value], result: Any) -> Text:
    x, bits = (v.code for v in given)
    if is_signed(result) and not x.unsigned:
        x = cast(unsigned_name(result), x)
    shifted = Text(f"{x.within(UNARY)} << {bits.within(UNARY)}", OTHER, is_signed(result))
    return cast(type_name(result), shifted) if result.bitwidth < 32 else shifted


def _shr(printer: Printer, given: list[Value], result: Any) -> Text:
    x, bits = (v.code for v in given)
    return Text(f"{plain(x, result).within(UNARY)} >> {bits.within(UNARY)}", OTHER)


def _div(printer: Printer, given: list[Value], result: Any) -> Text:
    """Of numbers that are not negative: unsigned division is the faster one."""
    x, y = (v.code for v in given)
    x = x if x.unsigned else cast(unsigned_name(result), x)
    return Text(f"{x.within(PRODUCT)} / {y.within(UNARY)}", PRODUCT, unsigned=True, most=given[0].code.most)


def _cast(printer: Printer, given: list[Value], result: Any) -> Text:
    return convert(printer.function, given[0], result)


def convert(function: Callable[..., str], value: Value, to: Any) -> Text:
    """A value as another dtype: floats to integers saturate, NaN is 0; integers wrap; to bool is `!= 0`."""
    x, kind = value.code, value.type
    if kind == to:
        return x
    if isinstance(to, types.Boolean):
        return compared("!=", x, literal(0, kind), kind)
    if isinstance(kind, types.Float) and isinstance(to, types.Integer):
        return Text(f"{function('convert', to, kind)}({x})")
    return cast(type_name(to), plain(x, kind))


def _bitcast(printer: Printer, given: list[Value], result: Any) -> Text:
    return _call(printer.language.as_bits(type_name(result)), given[:1])


def _barrier(printer: Printer, given: list[Value], result: Any) -> None:
    printer.line(printer.language.barrier)


def _popcount(printer: Printer, given: list[Value], result: Any) -> Text:
    return Text(f"popcount((uint){given[0].code.within(UNARY)})")


FORMS: dict[str, Form] = {
    **{name: _builtin(name) for name in ("fma", "sqrt", "fabs", "floor", "ceil", "rint", "trunc", "copysign")},
    **{name: _extreme(name) for name in ("minimum", "maximum")},
    **{name: _helper(name) for name in ("floordiv", "mod", "widen", "narrow", "round_bf16", "merges_after")},
    "negate": _negate,
    "select": _select,
    "shl": _shl,
    "shr": _shr,
    "div": _div,
    "cast": _cast,
    "bitcast": _bitcast,
    "popcount": _popcount,
    "local_number": _where("local_number"),
    "block_number": _where("block_number"),
    "block_count": _where("block_count"),
    "barrier": _barrier,
    **TILE_FORMS,
}
