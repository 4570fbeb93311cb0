"""The register tile of a contraction in C: what `tile_functions` of gpu/intrinsics.py are, as loops that compilers
unroll.

acc[i][j] = fma(rows[i], columns[j], acc[i][j])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core import types

from alphac.backends.c.expressions import PRODUCT, SUM, UNARY, Text, element_name, is_signed, unsigned_name
from alphac.backends.dialect import Value
from alphac.backends.gpu.intrinsics import SIDE, WIDE

if TYPE_CHECKING:
    from alphac.backends.c.printer import Printer

VECTORS = (2, 4)  # how many elements side by side both languages load at once


def _each(printer: Printer, count: int, *lines: str, index: str = "i") -> list[str]:
    return [
        "#pragma unroll",
        f"for (int {index} = 0; {index} < {count}; ++{index})",
        *(f"    {line}" for line in lines),
    ]


def _clear(printer: Printer, given: list[Value], result: Any) -> None:
    height, width = printer.tile
    printer.lines(_each(printer, height * width, f"{given[0].code}[i] = 0;"))


def _multiply(printer: Printer, given: list[Value], result: Any) -> None:
    height, width = printer.tile
    acc, a, at, b, bt, da, db, y, x, terms = (v.code for v in given)
    kind = given[0].type.dtype
    name, aligned = element_name(kind), printer.language.aligned
    printer.line(f"for (long k = 0; k < {terms.within(UNARY)}; ++k) {{")
    inner = [f"{name} rows[{height}] {aligned}, columns[{width}] {aligned};"]
    inner += _side(printer, "rows", height, a, f"{at.within(SUM)} + k * {da.within(UNARY)}", y, kind)
    inner += _side(printer, "columns", width, b, f"{bt.within(SUM)} + k * {db.within(UNARY)}", x, kind)
    place = f"{acc}[{width} * i + j]"
    if isinstance(kind, types.Float):
        sum_ = f"fma(rows[i], columns[j], {place})"
    else:
        sum_ = f"{f'({unsigned_name(kind)})' if is_signed(kind) else ''}rows[i] * columns[j] + {place}"
    inner += _each(printer, height, *_each(printer, width, f"{place} = {sum_};", index="j"))
    printer.lines([f"    {line}" for line in inner])
    printer.line("}")


def _side(printer: Printer, name: str, count: int, array: Text, start: str, thread: Text, kind: Any) -> list[str]:
    """A thread's elements of one operand: runs that lie side by side, as `intrinsics.place` says."""
    type_, language = element_name(kind), printer.language
    run = min(count, WIDE // (kind.bitwidth // 8))
    if run == 1:
        return _each(printer, count, f"{name}[i] = {array}[{start} + {thread.within(PRODUCT)} + {SIDE} * i];")
    place = f"{array} + ({start} + {run} * {thread.within(UNARY)})"
    if run in VECTORS and not (language.soft and type_ == "double"):
        to = f"*({language.thread} {type_}{run}*)({name} + i)"
        load = f"{to} = *(const {language.block} {type_}{run}*)({place} + {SIDE} * i);"
        return ["#pragma unroll", f"for (int i = 0; i < {count}; i += {run})", f"    {load}"]
    return _each(printer, count, f"{name}[i] = ({place})[i / {run} * {run * SIDE} + i % {run}];")


def _merge(printer: Printer, given: list[Value], result: Any) -> None:
    height, width = printer.tile
    acc, stack, slot = (v.code for v in given)
    unsigned = f"({unsigned_name(given[0].type.dtype)})" if is_signed(given[0].type.dtype) else ""
    other = f"{stack}[{slot.within(UNARY)} * {height * width} + i]"
    printer.lines(_each(printer, height * width, f"{acc}[i] = {unsigned}{other} + {acc}[i];"))


def _push(printer: Printer, given: list[Value], result: Any) -> None:
    height, width = printer.tile
    acc, stack, slot = (v.code for v in given)
    other = f"{stack}[{slot.within(UNARY)} * {height * width} + i]"
    printer.lines(_each(printer, height * width, f"{other} = {acc}[i];"))


TILE_FORMS = {"tile_clear": _clear, "tile_multiply": _multiply, "tile_merge": _merge, "tile_push": _push}
