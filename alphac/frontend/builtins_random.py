"""The functions of the language itself that draw: random tensors by counter, rows of the data."""

from __future__ import annotations

import zlib
from typing import Any

from alphac.frontend import columns, tree
from alphac.frontend.arithmetic import apply
from alphac.frontend.calls import USAGE, Call, builtin
from alphac.frontend.expressions import named
from alphac.frontend.values import Axes, ColumnReference, Counter, DataReference, describe, is_known
from alphac.ir.core import Value
from alphac.ir.typesys import F32, I64, Dim, TensorType


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
            raise call.problem(f"`{name}` takes numbers and axes, not {describe(value)}", USAGE[name], span=call.at(i))
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
        raise call.problem(
            "a permutation of the batch", "examples are shuffled by `shuffle seed 1` in the data", "E123"
        )
    step = context.step() if context.name == "step" else context.constant(0, TensorType(I64))
    return context.emit(
        "permutation", step, context.iteration(), dim=dim, seed=context.system.seed, stream=_stream(call)
    )


@builtin("sample(data.split.column, count, seed = 0)")
def _sample(call: Call) -> Value:
    call.check(2, 2, "seed")
    node = call.positional()[0]
    target: Any = None
    if isinstance(node, tree.Name):
        target = named(call.context, node.id, node.span, call.scope)
    elif isinstance(node, tree.Attribute):
        target = _reference(call, node)
    if not isinstance(target, ColumnReference):
        raise call.problem("`sample` draws rows of a data column", USAGE["sample"], span=node.span)
    reference = ColumnReference(target.data, target.column, target.split or "train")
    return columns.sample(call.context, reference, call.dim(1), call.whole("seed", 0), call.span)


def _reference(call: Call, node: tree.Expression) -> Any:
    """A dotted name, without reading what it stands for."""
    if isinstance(node, tree.Name):
        return named(call.context, node.id, node.span, call.scope)
    if isinstance(node, tree.Attribute):
        target = _reference(call, node.target)
        if isinstance(target, DataReference):
            return columns.member(call.context.system, target, node.name, node.span)
    return None
