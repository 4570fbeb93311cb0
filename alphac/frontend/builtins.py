"""The functions of the language itself: those that cannot be written in it. The rest is the prelude."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from alphac.diagnostics import Diagnostics, fail, nearest
from alphac.frontend import tree
from alphac.frontend.arithmetic import UNARY, apply, as_tensor, where
from alphac.frontend.contraction import contract, einsum
from alphac.frontend.expressions import evaluate, named
from alphac.frontend.movement import gather_at, note_index
from alphac.frontend.reduction import mean, reduce
from alphac.frontend.scope import Context, Scope
from alphac.frontend.values import Axes, ColumnReference, Counter, describe, is_known, number, type_text
from alphac.ir.core import Value
from alphac.ir.span import Span
from alphac.ir.typesys import BOOL, F32, I32, I64, Dim, TensorType

CONSTANTS: dict[str, Any] = {"true": True, "false": False, "inf": math.inf, "pi": math.pi}


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a builtin: its arguments, evaluated when they are asked for."""

    context: Context
    node: tree.Call
    scope: Scope
    name: str

    @property
    def span(self) -> Span:
        return self.node.span

    def problem(self, message: str, help: str, code: str = "E116", span: Span | None = None) -> Diagnostics:
        return fail(code, message, span or self.span, help)

    def check(self, least: int, most: int | None, *keywords: str) -> None:
        """Refuse a wrong number of positional arguments, or an unknown keyword."""
        count = len(self._positional())
        if count < least or (most is not None and count > most):
            wanted = f"{least}" if least == most else f"{least} to {most}" if most is not None else f"at least {least}"
            raise self.problem(f"`{self.name}` takes {wanted} arguments, not {count}", _USAGE.get(self.name, "see docs/language.md"))
        for argument in self.node.arguments:
            if argument.name is not None and argument.name not in keywords:
                near = nearest(argument.name, keywords)
                help = f"did you mean `{near}`?" if near else _USAGE.get(self.name, "see docs/language.md")
                raise self.problem(f"`{self.name}` has no parameter `{argument.name}`", help, span=argument.span)

    def _positional(self) -> list[tree.Expression]:
        return [a.value for a in self.node.arguments if a.name is None]

    def at(self, index: int) -> Span:
        return self._positional()[index].span

    def value(self, index: int) -> Any:
        return evaluate(self.context, self._positional()[index], self.scope)

    def values(self, start: int = 0) -> list[Any]:
        return [self.value(i) for i in range(start, len(self._positional()))]

    def tensor(self, index: int) -> Value:
        return as_tensor(self.context, self.value(index), self.at(index))

    def keyword(self, name: str) -> Any:
        """The value of a keyword argument, or None."""
        for argument in self.node.arguments:
            if argument.name == name:
                return evaluate(self.context, argument.value, self.scope)
        return None

    def dim(self, index: int) -> Dim:
        dims = self.dims(index)
        if len(dims) != 1:
            raise self.problem(f"`{self.name}` takes one axis here", "name a dim", span=self.at(index))
        return dims[0]

    def dims(self, start: int) -> tuple[Dim, ...]:
        """The axes from an argument on."""
        found: list[Dim] = []
        for node in self._positional()[start:]:
            found += self.context.system.dims(node, self.scope, self.context)
        return tuple(found)

    def axis_of(self, x: Value, index: int) -> Dim:
        """A named axis that x has."""
        return self.own(x, (self.dim(index),), self.at(index))[0]

    def axes_of(self, x: Value, start: int) -> tuple[Dim, ...]:
        return self.own(x, self.dims(start), self.span)

    def own(self, x: Value, dims: tuple[Dim, ...], span: Span) -> tuple[Dim, ...]:
        for dim in dims:
            if not x.type.has(dim.name):
                near = nearest(dim.name, x.type.names)
                help = f"did you mean `{near}`?" if near else f"its axes are {', '.join(f'`{n}`' for n in x.type.names) or 'none'}"
                raise fail("E123", f"{type_text(x.type)} has no axis `{dim.name}`", span, help)
        return tuple(x.type.dim(d.name) for d in dims)

    def whole(self, name: str, default: int) -> int:
        """A keyword that is a whole number known to the compiler."""
        value = self.keyword(name)
        if value is None:
            return default
        known = number(value) if is_known(value) else None
        if not isinstance(known, int) or isinstance(known, bool):
            raise self.problem(f"`{name}` is a whole number known when compiling, not {describe(value)}", "write a number", "E121")
        return known


BUILTINS: dict[str, Callable[[Call], Any]] = {}
_USAGE: dict[str, str] = {}


def builtin(usage: str) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Register a function of the language under the name with which its usage begins."""

    def register(function: Callable[[Call], Any]) -> Callable[[Call], Any]:
        name = usage.partition("(")[0]
        BUILTINS[name] = function
        _USAGE[name] = f"it is `{usage}`"
        return function

    return register


# ---------------------------------------------------------------------------------------------------------- elementwise
def _elementwise(name: str, count: int) -> None:
    @builtin(f"{name}({', '.join('xyz'[:count])})")
    def _(call: Call) -> Any:
        call.check(count, count)
        return apply(call.context, name, call.values(), [call.at(i) for i in range(count)], call.span)


for _name in UNARY:
    if _name not in ("neg", "not"):
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
        every = len(call.node.arguments) == 1
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
        raise call.problem("`einsum` begins with its axes in quotes", 'write `einsum("bk, bc -> kc", x, y)`', span=call.at(0))
    count = len(call.node.arguments)
    operands = [call.tensor(i) for i in range(1, count)]
    return einsum(call.context, text, operands, [call.at(i) for i in range(1, count)], call.span)


# ----------------------------------------------------------------------------------------------------------------- axes
def builtin_axes(dims: tuple[Dim, ...]) -> Axes:
    """Axes as a value."""
    return Axes(dims)


@builtin("axes(x)")
def _axes(call: Call) -> Axes:
    call.check(1, 1)
    return Axes(call.tensor(0).type.dims)


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
        raise call.problem(f"`{old.name}` is {old.size} and `{new.name}` is {new.size}", "a new name keeps the size", "E111")
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


# ------------------------------------------------------------------------------------------------------------- movement
@builtin("take(x, index, dim)")
def _take(call: Call) -> Value:
    call.check(3, 3)
    x = call.tensor(0)
    index, dim = call.value(1), call.axis_of(x, 2)
    if is_known(index):
        from alphac.frontend.movement import element_at

        return element_at(call.context, x, dim, int(number(index)), call.span)
    return gather_at(call.context, x, as_tensor(call.context, index, call.at(1)), dim, call.span)


@builtin("scatter_add(index, updates, dim)")
def _scatter_add(call: Call) -> Value:
    """The sum of updates at each position of dim: result axes are dim, then those of updates that index lacks."""
    from alphac.frontend.reduction import from_shards, masked

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
        raise call.problem(f"{dim.size} elements from {low} on do not fit `{to.name}` ({to.size})", "enlarge it", "E118")
    value = call.keyword("value")
    fill = _fill(call, x, 0 if value is None else value)
    return call.context.emit("pad", x, dim=dim.name, low=low, high=to.size - low - dim.size, to=to, value=fill)


def _fill(call: Call, x: Value, value: Any) -> int | float | bool:
    """A known number as one of x's element type."""
    if not is_known(value):
        raise call.problem(f"a fill value is known when compiling, not {describe(value)}", "write a number", "E121")
    known = number(value)
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
        candidates = [n for n in first.names if n in shared and any(v.type.dim(n).size != first.dim(n).size for v in values)]
        if len(candidates) != 1:
            raise call.problem("the operands of `concat` differ in more or fewer than one axis", "rename axes to match", "E111")
        own = [[v.type.dim(candidates[0])] for v in values]
    total = sum(o[0].size for o in own)
    if total != to.size:
        raise call.problem(f"the parts have {total} elements together, and `{to.name}` has {to.size}", f"`dim {to.name} = {total}`", "E111")
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
        raise call.problem(f"`stack` makes `{to.name}` ({to.size}) of as many tensors", "write them in brackets: `stack((x, y), dim)`")
    values = [as_tensor(call.context, p, call.at(0)) for p in parts]
    one = Dim("part", 1)
    dims = values[0].type.dims
    for value in values[1:]:
        if set(value.type.dims) != set(dims):
            raise call.problem(f"{type_text(values[0].type)} and {type_text(value.type)} cannot be stacked", "give them the same axes", "E111")
    context = call.context
    if to.size == 1:
        return context.broadcast(context.emit("rename", context.broadcast(values[0], (one, *dims)), dims=(to, *dims)), (to, *dims))
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
    """The kernel's first two axes slide along rows and columns; the axes that both have are summed, but for `groups`."""
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
    dims = [moved.get(d.name, d) for d in x.type.dims if d.name in moved or not kernel.type.has(d.name) or d.name in kept]
    dims += [d for d in kernel.type.dims[2:] if not x.type.has(d.name)]
    if x.type.dtype != kernel.type.dtype:
        raise call.problem(f"`conv2d` joins {x.type.dtype} with {kernel.type.dtype}", f"cast one: `{x.type.dtype}(…)`", "E113")
    return context.emit(
        "conv2d", x, kernel, rows=rows.name, columns=columns.name, kernel_rows=down.name, kernel_columns=across.name,
        to_rows=to_rows, to_columns=to_columns, stride=call.whole("stride", 1), padding=call.whole("padding", 0),
        dilation=call.whole("dilation", 1), dims=tuple(dims),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- random
def _stream(call: Call) -> int:
    """The random stream of a place in the text."""
    path = call.scope.path
    site = call.context.system.site(call.node)
    return zlib.crc32(f"{path}.{site}".encode())


def _random(call: Call, name: str) -> tuple[Value, list[Any]]:
    """A random tensor: axes among the arguments are its shape (in an initializer the declared one); also the others."""
    call.check(0, None)
    context = call.context
    dims: list[Dim] = []
    numbers: list[Any] = []
    for i, value in enumerate(call.values()):
        if isinstance(value, Dim):
            dims.append(value)
        elif isinstance(value, Axes):
            dims += value
        elif isinstance(value, (Value, Counter)) or is_known(value):
            numbers.append(value)
        else:
            raise call.problem(f"`{name}` takes numbers and axes, not {describe(value)}", _USAGE[name], span=call.at(i))
    shape = tuple(dims)
    dtype = F32
    if context.initial is not None:
        dtype = context.initial.dtype if context.initial.dtype.is_float else F32
        shape = shape or context.initial.dims
    elif not shape:
        raise call.problem(f"`{name}` of what shape?", f"name its axes: `{name}(batch, width)`", "E118")
    step = context.step() if context.name == "step" else context.constant(0, TensorType(I64))
    result = context.emit(
        name, step, context.iteration(), dims=shape, dtype=dtype, seed=context.system.seed, stream=_stream(call)
    )  # fmt: skip
    return result, numbers


def _arithmetic(call: Call, name: str, *values: Any) -> Any:
    return apply(call.context, name, list(values), [call.span] * len(values), call.span)


@builtin("normal(std = 1, dim, …)")
def _normal(call: Call) -> Any:
    x, numbers = _random(call, "normal")
    if len(numbers) > 1:
        raise call.problem("`normal` takes one number, its deviation", "add the mean: `mean + normal(std)`")
    return _arithmetic(call, "mul", x, numbers[0]) if numbers else x


@builtin("uniform(low = 0, high = 1, dim, …)")
def _uniform(call: Call) -> Any:
    x, numbers = _random(call, "uniform")
    if len(numbers) not in (0, 2):
        raise call.problem("`uniform` takes two numbers, its bounds", "write `uniform(low, high)`")
    if not numbers:
        return x
    low, high = numbers
    return _arithmetic(call, "add", _arithmetic(call, "mul", x, _arithmetic(call, "sub", high, low)), low)


@builtin("permutation(dim)")
def _permutation(call: Call) -> Value:
    call.check(1, 1)
    context, dim = call.context, call.dim(0)
    if dim.shards:
        raise call.problem("a permutation of the batch", "examples are shuffled by `shuffle seed 1` in the data", "E123")
    step = context.step() if context.name == "step" else context.constant(0, TensorType(I64))
    return context.emit(
        "permutation", step, context.iteration(), dim=dim, seed=context.system.seed, stream=_stream(call)
    )


@builtin("sample(data.split.column, count, seed = 0)")
def _sample(call: Call) -> Value:
    from alphac.frontend.columns import member, sample

    call.check(2, 2, "seed")
    node = call._positional()[0]
    target: Any = None
    if isinstance(node, tree.Name):
        target = named(call.context, node.id, node.span, call.scope)
    elif isinstance(node, tree.Attribute):
        target = _reference(call, node, member)
    if not isinstance(target, ColumnReference):
        raise call.problem("`sample` draws rows of a data column", _USAGE["sample"], span=node.span)
    reference = ColumnReference(target.data, target.column, target.split or "train")
    return sample(call.context, reference, call.dim(1), call.whole("seed", 0), call.span)


def _reference(call: Call, node: tree.Expression, member: Callable[..., Any]) -> Any:
    """A dotted name, without reading what it stands for."""
    if isinstance(node, tree.Name):
        return named(call.context, node.id, node.span, call.scope)
    if isinstance(node, tree.Attribute):
        from alphac.frontend.values import DataReference

        target = _reference(call, node.target, member)
        if isinstance(target, DataReference):
            return member(call.context.system, target, node.name, node.span)
    return None


@builtin("total(x)")
def _total(call: Call) -> Any:
    from alphac.frontend.learning import total

    call.check(1, 1)
    return total(call)


