"""The functions of the language itself that move elements: gathering, joining, cutting, windows, convolution."""

from __future__ import annotations

from typing import Any

from alphac.frontend.arithmetic import as_tensor
from alphac.frontend.calls import Call, builtin
from alphac.frontend.movement import element_at, gather_at, note_index
from alphac.frontend.reduction import from_shards, masked
from alphac.frontend.values import Axes, describe, is_known, number, type_text
from alphac.ir.core import Value
from alphac.ir.typesys import BOOL, Dim


@builtin("take(x, index, dim)")
def _take(call: Call) -> Value:
    call.check(3, 3)
    x = call.tensor(0)
    index, dim = call.value(1), call.axis_of(x, 2)
    if is_known(index):
        return element_at(call.context, x, dim, number(index), call.span)
    return gather_at(call.context, x, as_tensor(call.context, index, call.at(1)), dim, call.span)


@builtin("scatter_add(index, updates, dim)")
def _scatter_add(call: Call) -> Value:
    """The sum of updates at each position of dim: result axes are dim, then those of updates that index lacks."""
    call.check(3, 3)
    context, index, updates, dim = call.context, call.tensor(0), call.tensor(1), call.dim(2)
    note_index(context, index, dim, call.span)
    dims = (dim, *(d for d in updates.type.dims if not index.type.has(d.name)))
    updates = context.broadcast(updates, (*index.type.dims, *dims[1:]))
    if index.type.grain is not None:
        partial = context.emit("scatter_add", index, masked(context, updates, 0), dim=dim, dims=dims)
        return from_shards(context, partial, "sum")
    return context.emit("scatter_add", index, updates, dim=dim, dims=dims)


@builtin("slice(x, dim, to, start = 0, step = 1)")
def _slice(call: Call) -> Value:
    call.check(3, 3, "start", "step")
    x = call.tensor(0)
    dim, to, start, step = call.axis_of(x, 1), call.dim(2), call.whole("start", 0), call.whole("step", 1)
    last = start + (to.size - 1) * step
    if not (0 <= start < dim.size and 0 <= last < dim.size):
        message = f"`slice` takes elements {start} to {last} of `{dim.name}`, which has {dim.size}"
        raise call.problem(message, "change `start`, `step` or the size", "E123")
    return call.context.emit("slice", x, dim=dim.name, start=start, step=step, to=to)


@builtin("pad(x, dim, to, low = 0, value = 0)")
def _pad(call: Call) -> Value:
    call.check(3, 3, "low", "value")
    x = call.tensor(0)
    dim, to, low = call.axis_of(x, 1), call.dim(2), call.whole("low", 0)
    if low < 0 or low + dim.size > to.size:
        raise call.problem(
            f"{dim.size} elements from {low} on do not fit `{to.name}` ({to.size})", "enlarge it", "E118"
        )
    value = call.keyword("value")
    fill = _fill(call, x, 0 if value is None else value)
    return call.context.emit("pad", x, dim=dim.name, low=low, high=to.size - low - dim.size, to=to, value=fill)


def _fill(call: Call, x: Value, value: Any) -> int | float | bool:
    """A known number as one of x's element type."""
    if not is_known(value):
        raise call.problem(f"a fill value is known when compiling, not {describe(value)}", "write a number", "E121")
    known = number(value)
    if x.type.dtype.is_integer and not isinstance(known, int):
        raise call.problem(f"{x.type.dtype} cannot hold {describe(value)}", "write a whole number", "E113")
    return bool(known) if x.type.dtype == BOOL else float(known) if x.type.dtype.is_float else int(known)


@builtin("concat((x, y), dim)")
def _concat(call: Call) -> Value:
    """Joins along the axis that the operands do not share; the result has `dim` there."""
    call.check(2, 2)
    parts = call.value(0)
    to = call.dim(1)
    if not isinstance(parts, tuple) or len(parts) < 2 or isinstance(parts, Axes):
        raise call.problem("`concat` joins several tensors", "write them in brackets: `concat((x, y), dim)`")
    values = [as_tensor(call.context, p, call.at(0)) for p in parts]
    first = values[0].type
    shared = set(first.names).intersection(*(v.type.names for v in values[1:]))
    own = [[d for d in v.type.dims if d.name not in shared or d.size != first.dim(d.name).size] for v in values]
    if all(len(o) == 0 for o in own) and first.has(to.name):
        own = [[v.type.dim(to.name)] for v in values]
    if len({len(o) for o in own}) != 1 or len(own[0]) != 1:
        candidates = [
            n for n in first.names if n in shared and any(v.type.dim(n).size != first.dim(n).size for v in values)
        ]
        if len(candidates) != 1:
            raise call.problem(
                "the operands of `concat` differ in more or fewer than one axis", "rename axes to match", "E111"
            )
        own = [[v.type.dim(candidates[0])] for v in values]
    total = sum(o[0].size for o in own)
    if total != to.size:
        raise call.problem(
            f"the parts have {total} elements together, and `{to.name}` has {to.size}",
            f"`dim {to.name} = {total}`",
            "E111",
        )
    context = call.context
    name = "part"
    renamed: list[Value] = []
    for value, (dim,) in zip(values, own, strict=True):
        dims = tuple(Dim(name, dim.size) if d.name == dim.name else d for d in value.type.dims)
        renamed.append(context.emit("rename", value, dims=dims))
    order = [d.name for d in renamed[0].type.dims]
    aligned = [context.broadcast(v, tuple(v.type.dim(n) for n in order)) for v in renamed]
    return context.emit("concat", *aligned, dim=name, to=to)


@builtin("stack((x, y), dim)")
def _stack(call: Call) -> Value:
    call.check(2, 2)
    parts, to = call.value(0), call.dim(1)
    if not isinstance(parts, tuple) or isinstance(parts, Axes) or len(parts) != to.size:
        raise call.problem(
            f"`stack` makes `{to.name}` ({to.size}) of as many tensors", "write them in brackets: `stack((x, y), dim)`"
        )
    values = [as_tensor(call.context, p, call.at(0)) for p in parts]
    one = Dim("part", 1)
    dims = values[0].type.dims
    for value in values[1:]:
        if set(value.type.dims) != set(dims):
            raise call.problem(
                f"{type_text(values[0].type)} and {type_text(value.type)} cannot be stacked",
                "give them the same axes",
                "E111",
            )
    context = call.context
    if to.size == 1:
        return context.broadcast(
            context.emit("rename", context.broadcast(values[0], (one, *dims)), dims=(to, *dims)), (to, *dims)
        )
    return context.emit("concat", *(context.broadcast(v, (one, *dims)) for v in values), dim=one.name, to=to)


@builtin("window(x, dim, to, kernel, stride = 1, padding = 0, dilation = 1, value = 0)")
def _window(call: Call) -> Value:
    call.check(4, 4, "stride", "padding", "dilation", "value")
    x = call.tensor(0)
    dim, to, kernel = call.axis_of(x, 1), call.dim(2), call.dim(3)
    value = call.keyword("value")
    return call.context.emit(
        "window", x, dim=dim.name, to=to, kernel=kernel, stride=call.whole("stride", 1), low=call.whole("padding", 0),
        dilation=call.whole("dilation", 1), value=_fill(call, x, 0 if value is None else value),
    )  # fmt: skip


@builtin("conv2d(x, kernel, rows, columns, to = (rows, columns), stride = 1, padding = 0, dilation = 1, groups = axis)")
def _conv2d(call: Call) -> Value:
    """The kernel's first two axes slide along rows and columns; axes of both are summed, but for `groups`."""
    call.check(4, 4, "to", "stride", "padding", "dilation", "groups")
    context, x, kernel = call.context, call.tensor(0), call.tensor(1)
    rows, columns = call.axis_of(x, 2), call.axis_of(x, 3)
    if len(kernel.type.dims) < 3:
        message = f"a kernel has two axes to slide and at least one of channels, not {type_text(kernel.type)}"
        raise call.problem(message, "e.g. f32[down, across, channel, feature]", "E111", call.at(1))
    down, across = kernel.type.dims[:2]
    to = call.keyword("to")
    to_rows, to_columns = to if isinstance(to, tuple) and len(to) == 2 else (rows, columns)
    groups = call.keyword("groups")
    kept = {d.name for d in (groups if isinstance(groups, tuple) else () if groups is None else (groups,))}
    moved = {rows.name: to_rows, columns.name: to_columns}
    dims = [
        moved.get(d.name, d) for d in x.type.dims if d.name in moved or not kernel.type.has(d.name) or d.name in kept
    ]
    dims += [d for d in kernel.type.dims[2:] if not x.type.has(d.name)]
    if x.type.dtype != kernel.type.dtype:
        raise call.problem(
            f"`conv2d` joins {x.type.dtype} with {kernel.type.dtype}", f"cast one: `{x.type.dtype}(…)`", "E113"
        )
    return context.emit(
        "conv2d", x, kernel, rows=rows.name, columns=columns.name, kernel_rows=down.name, kernel_columns=across.name,
        to_rows=to_rows, to_columns=to_columns, stride=call.whole("stride", 1), padding=call.whole("padding", 0),
        dilation=call.whole("dilation", 1), dims=tuple(dims),
    )  # fmt: skip
