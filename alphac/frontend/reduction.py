"""Reductions. One that takes the grain's axis goes through the shard tree and counts real examples only."""

from __future__ import annotations

import math

from alphac.diagnostics import fail
from alphac.frontend.scope import Context
from alphac.ir.core import Port, Value
from alphac.ir.span import Span
from alphac.ir.typesys import BOOL, I64, Dim, TensorType

IDENTITY = {"sum": 0.0, "max": -math.inf, "min": math.inf}


def reduce(context: Context, x: Value, over: tuple[str, ...], kind: str, span: Span) -> Value:
    """Sum, max or min over the named axes."""
    if not over:
        return x
    with context.at(span):
        grain = x.type.grain
        if grain is None or grain.name not in over:
            return context.emit(f"reduce_{kind}", x, over=over)
        x = masked(context, x, _identity(x, kind))
        return from_shards(context, context.emit(f"reduce_{kind}", x, over=over), kind)


def mean(context: Context, x: Value, over: tuple[str, ...], span: Span) -> Value:
    """The sum, divided once by the number of real elements."""
    if not over:
        return x
    total = reduce(context, x, over, "sum", span)
    grain = x.type.grain
    with context.at(span):
        others = math.prod(x.type.dim(n).size for n in over if grain is None or n != grain.name)
        if grain is None or grain.name not in over:
            count = context.constant(others, TensorType(total.type.dtype))
        elif context.finish is not None:
            examples = context.finish.argument(Port("count"), TensorType(I64))
            count = _times(context, examples, others, total)
        elif context.masked:
            count = _times(context, _valid(context), others, total)
        else:
            count = context.constant(others * grain.size, TensorType(total.type.dtype))
        return context.emit("div", total, context.broadcast(count, total.type.dims))


def masked(context: Context, x: Value, identity: float) -> Value:
    """x with the identity in place of examples that are only padding of a ragged batch."""
    grain = x.type.grain
    if grain is None or not context.masked:
        return x
    axis = context.emit("iota", dim=grain, dtype=I64)
    real = context.emit("lt", axis, context.broadcast(_valid(context), (grain,)))
    other = context.constant(bool(identity) if x.type.dtype == BOOL else identity, x.type)
    return context.emit("where", context.broadcast(real, x.type.dims), x, other)


def from_shards(context: Context, partial: Value, kind: str) -> Value:
    """Per-shard partials as one value; in an evaluate, as the total over all batches of the split."""
    value = context.emit(f"combine_{kind}", partial)
    if context.finish is None:
        return value
    if len(context.levels) > 1:
        raise fail(
            "E136", "a reduction over the split stands in a loop", context.span, "reduce over `batch` outside of loops"
        )
    return carry_total(context, value, kind)


def carry_total(context: Context, value: Value, kind: str) -> Value:
    """Add this batch's value to an accumulator; what is returned is the final total, in the finishing function."""
    assert context.finish is not None
    label = f"{context.name.partition('.')[2]}.{len(context.totals)}"
    start = ("start", _identity(value, kind))
    port = Port("total", label, (start,))
    before = context.argument(port, value.type)
    joined = context.emit({"sum": "add", "max": "maximum", "min": "minimum"}[kind], before, value)
    context.totals.append((port, joined))
    return context.finish.argument(port, value.type)


def _valid(context: Context) -> Value:
    """How many examples of the batch are real, i64[]."""
    return context.argument(Port("valid"), TensorType(I64))


def _times(context: Context, examples: Value, others: int, like: Value) -> Value:
    """examples * others in like's element type."""
    product = context.emit("mul", examples, _constant_beside(context, examples, others))
    return context.emit("cast", product, dtype=like.type.dtype)


def _constant_beside(context: Context, value: Value, number: int) -> Value:
    return context.constant(number, value.type)


def _identity(x: Value, kind: str) -> float | int:
    if x.type.dtype.is_float:
        return IDENTITY[kind]
    if kind == "sum":
        return 0
    bits = x.type.dtype.bits
    low, high = (0, 2**bits - 1) if x.type.dtype.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if kind == "max" else high


def over_names(x: Value, axes: tuple[Dim, ...], all_axes: bool) -> tuple[str, ...]:
    """The names of the axes to reduce: those given, or all."""
    return x.type.names if all_axes else tuple(d.name for d in axes)
