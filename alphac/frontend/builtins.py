"""The functions of the language itself: elementwise, reductions, axes. The prelude has those that it can express."""

from __future__ import annotations

import math
from typing import Any

from alphac.frontend.arithmetic import FUNCTIONS, apply, where
from alphac.frontend.calls import Call, builtin
from alphac.frontend.contraction import contract, einsum
from alphac.frontend.movement import note_index
from alphac.frontend.reduction import mean, reduce
from alphac.frontend.values import EVERY, Axes, ElementType, describe, is_known, number, type_text
from alphac.ir.core import Value
from alphac.ir.typesys import BOOL, F32, I32, Dim


# ---------------------------------------------------------------------------------------------------------- elementwise
def _elementwise(name: str, count: int) -> None:
    @builtin(f"{name}({', '.join('xyz'[:count])})")
    def _(call: Call) -> Any:
        call.check(count, count)
        return apply(call.context, name, call.values(), [call.at(i) for i in range(count)], call.span)


for _name in FUNCTIONS:
    _elementwise(_name, 1)
for _name in ("minimum", "maximum", "pow"):
    _elementwise(_name, 2)


@builtin("where(condition, x, y)")
def _where(call: Call) -> Any:
    call.check(3, 3)
    return where(call.context, call.values(), [call.at(i) for i in range(3)], call.span)


# ----------------------------------------------------------------------------------------------------------- reductions
def _reduction(kind: str) -> None:
    @builtin(f"{kind}(x, dim, …)")
    def _(call: Call) -> Any:
        call.check(1, None)
        x = call.tensor(0)
        count = len(call.node.arguments)
        every = count == 1 or (count == 2 and call.value(1) is EVERY)
        over = x.type.names if every else tuple(d.name for d in call.axes_of(x, 1))
        if x.type.dtype == BOOL:
            if kind != "mean":
                raise call.problem(f"`{kind}` of bools", "cast them: `sum(f32(x))` counts", "E113")
            x = call.context.cast(x, F32)
        if kind != "mean":
            return reduce(call.context, x, over, kind, call.span)
        if not x.type.dtype.is_float:
            raise call.problem(f"`mean` divides, and {x.type.dtype} is whole", "cast it: `mean(f32(x))`", "E113")
        return mean(call.context, x, over, call.span)


for _name in ("sum", "max", "min", "mean"):
    _reduction(_name)


def _position(kind: str) -> None:
    @builtin(f"{kind}(x, dim)")
    def _(call: Call) -> Value:
        call.check(2, 2)
        x = call.tensor(0)
        dim = call.axis_of(x, 1)
        if dim.shards:
            raise call.problem(f"`{kind}` along the batch", "no example is special: choose along another axis", "E123")
        return call.context.emit(kind, x, dim=dim.name)


for _name in ("argmax", "argmin"):
    _position(_name)


@builtin("cumsum(x, dim, reverse = false)")
def _cumsum(call: Call) -> Value:
    call.check(2, 2, "reverse")
    x = call.tensor(0)
    return call.context.emit("cumsum", x, dim=call.axis_of(x, 1).name, reverse=bool(call.keyword("reverse")))


@builtin("dot(x, y, dim, …)")
def _dot(call: Call) -> Value:
    call.check(3, None)
    x, y = call.tensor(0), call.tensor(1)
    over = {d.name for d in call.dims(2)}
    for value in (x, y):
        call.own(value, call.dims(2), call.span)
    return contract(call.context, x, y, over, call.span)


@builtin('einsum("bk, bc -> kc", x, y)')
def _einsum(call: Call) -> Value:
    call.check(2, None)
    text = call.value(0)
    if not isinstance(text, str):
        raise call.problem(
            "`einsum` begins with its axes in quotes", 'write `einsum("bk, bc -> kc", x, y)`', span=call.at(0)
        )
    count = len(call.node.arguments)
    operands = [call.tensor(i) for i in range(1, count)]
    return einsum(call.context, text, operands, [call.at(i) for i in range(1, count)], call.span)


# ----------------------------------------------------------------------------------------------------------------- axes
@builtin("axes(x)")
def _axes(call: Call) -> Axes:
    call.check(1, 1)
    return Axes(call.tensor(0).type.dims)


@builtin("element_type(x)")
def _element_type(call: Call) -> ElementType:
    call.check(1, 1)
    return ElementType(call.tensor(0).type.dtype)


@builtin("axis(x, position)")
def _axis(call: Call) -> Dim:
    call.check(2, 2)
    dims, position = call.tensor(0).type.dims, call.value(1)
    known = number(position) if is_known(position) else None
    if not isinstance(known, int) or not -len(dims) <= known < len(dims):
        raise call.problem(f"there is no axis {describe(position)} among {len(dims)}", "positions count from 0", "E123")
    return dims[known]


@builtin("rename(x, axis, new)")
def _rename(call: Call) -> Value:
    call.check(3, 3)
    x, old, new = call.tensor(0), call.dim(1), call.dim(2)
    (old,) = call.own(x, (old,), call.at(1))
    if old.size != new.size:
        raise call.problem(
            f"`{old.name}` is {old.size} and `{new.name}` is {new.size}", "a new name keeps the size", "E111"
        )
    if old.shards or new.shards:
        raise call.problem("the grain's axis keeps its name", "rename another axis", "E123")
    return call.context.emit("rename", x, dims=tuple(new if d.name == old.name else d for d in x.type.dims))


@builtin("transpose(x, dim, …)")
def _transpose(call: Call) -> Value:
    call.check(2, None)
    x = call.tensor(0)
    dims = call.axes_of(x, 1)
    if len(dims) != len(x.type.dims):
        raise call.problem(f"`transpose` names {len(dims)} of {len(x.type.dims)} axes", "name every axis once", "E123")
    return call.context.broadcast(x, dims)


@builtin("broadcast(x, dim, …)")
def _broadcast(call: Call) -> Value:
    call.check(2, None)
    x = call.tensor(0)
    return call.context.broadcast(x, (*(d for d in call.dims(1) if not x.type.has(d.name)), *x.type.dims))


@builtin("reshape(x, dim, …)")
def _reshape(call: Call) -> Value:
    call.check(2, None)
    x, dims = call.tensor(0), call.dims(1)
    if math.prod(d.size for d in dims) != x.type.size:
        message = f"{type_text(x.type)} has {x.type.size} elements, and the new shape {math.prod(d.size for d in dims)}"
        raise call.problem(message, "a reshape keeps every element", "E111")
    return call.context.emit("reshape", x, dims=dims)


@builtin("iota(dim)")
def _iota(call: Call) -> Value:
    call.check(1, 1)
    return call.context.emit("iota", dim=call.dim(0), dtype=I32)


@builtin("one_hot(index, dim)")
def _one_hot(call: Call) -> Value:
    call.check(2, 2)
    index, dim = call.tensor(0), call.dim(1)
    if not index.type.dtype.is_integer:
        raise call.problem(f"an index is a whole number, not {type_text(index.type)}", "cast it: `i32(x)`", "E113")
    note_index(call.context, index, dim, call.span)
    axis = call.context.emit("iota", dim=dim, dtype=index.type.dtype)
    same = apply(call.context, "eq", [index, axis], [call.span, call.span], call.span)
    return call.context.cast(same, F32)


@builtin("total(x)")
def _total(call: Call) -> Any:
    from alphac.frontend.learning import total

    call.check(1, 1)
    return total(call)
