"""Moving elements: indexing, gathering, joining, cutting."""

from __future__ import annotations

from alphac.diagnostics import fail
from alphac.frontend.scope import Context
from alphac.frontend.values import type_text
from alphac.ir.core import Value
from alphac.ir.span import Span
from alphac.ir.typesys import Dim


def drop_axis(context: Context, x: Value, name: str) -> Value:
    """x without an axis of size 1."""
    rest = tuple(d for d in x.type.dims if d.name != name)
    grain = tuple(d for d in rest if d.shards)
    others = tuple(d for d in rest if not d.shards)
    ordered = context.broadcast(x, (*grain, x.type.dim(name), *others))
    return context.broadcast(context.emit("reshape", ordered, dims=(*grain, *others)), rest)


def element_at(context: Context, x: Value, dim: Dim, position: int | float, span: Span) -> Value:
    """x at one position along an axis, which it loses. Negative positions count from the end."""
    if not isinstance(position, int):
        raise fail("E123", f"a position is a whole number, not {position:g}", span, "round it")
    if not -dim.size <= position < dim.size:
        raise fail(
            "E123", f"`{dim.name}` has {dim.size} elements; there is no {position}", span, "positions count from 0"
        )
    if dim.shards:
        raise fail("E123", f"`{dim.name}` is the batch: no example is special", span, "choose along another axis")
    with context.at(span):
        at = Dim("element", 1)
        cut = context.emit("slice", x, dim=dim.name, start=position % dim.size, step=1, to=at)
        return drop_axis(context, cut, at.name)


def gather_at(context: Context, table: Value, index: Value, dim: Dim, span: Span) -> Value:
    """table at dim = index. Axes that both have are aligned."""
    if not index.type.dtype.is_integer:
        help = "cast it: `i32(x)`" if index.type.dtype.is_float else "for a bool use `where`"
        raise fail("E113", f"an index is a whole number, not {type_text(index.type)}", span, help)
    if dim.shards:
        raise fail("E123", f"`{dim.name}` is the batch: no example is special", span, "choose along another axis")
    note_index(context, index, dim, span)
    with context.at(span):
        return context.emit("gather", table, index, dim=dim.name)


def note_index(context: Context, index: Value, dim: Dim, span: Span) -> None:
    """A data column that is used as an index must stay below the axis's size: checked in the data when compiling."""
    from alphac.frontend.columns import require_below

    require_below(context, index, dim, span)
