"""What tests of ops share: building functions, running them, and gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Op, Port, Value
from alphac.ir.interpret import interpret
from alphac.ir.oracle import to_compute, to_storage
from alphac.ir.passes.differentiate import Differentiate
from alphac.ir.typesys import BF16, SHARD, TensorType
from alphac.ir.verify import verify

Array = NDArray[Any]
Make = Callable[..., Value]
Watch = Callable[[Op, tuple[Array, ...]], None]


def function(types: Sequence[TensorType], make: Callable[..., Value | Sequence[Value]]) -> Function:
    """A function of arguments of these types whose results are what `make(b, *arguments)` builds."""
    block = Block([Value(t, f"x{i}") for i, t in enumerate(types)])
    made = make(Builder(block), *block.arguments)
    block.results = (made,) if isinstance(made, Value) else tuple(made)
    arguments = tuple(Port("input", f"x{i}") for i in range(len(types)))
    return Function("test", block, arguments, tuple(Port("output", f"y{i}") for i in range(len(block.results))))


def run(
    make: Callable[..., Value | Sequence[Value]],
    types: Sequence[TensorType],
    inputs: Sequence[ArrayLike],
    *,
    exact: bool = False,
    precision: Literal["f64"] | None = None,
) -> list[Array]:
    """What `make` builds, run on inputs."""
    return interpret(function(types, make), inputs, exact=exact, precision=precision)


def draw(type_: TensorType, seed: int = 0, low: float = -2, high: float = 2) -> Array:
    """Values of a type: floats all different, in random order, so that none is at a kink or tied."""
    rng = np.random.default_rng(seed)
    if type_.dtype.kind == "bool":
        return rng.random(type_.shape) < 0.5
    if type_.dtype.is_integer:
        lowest = max(low, 0) if type_.dtype.kind == "uint" else low
        return rng.integers(int(lowest), int(high) + 1, type_.shape).astype(type_.dtype.storage)
    steps = (rng.permutation(type_.size) + 0.25 + 0.5 * rng.random(type_.size)) / type_.size
    values = (low + (high - low) * steps).reshape(type_.shape).astype(type_.dtype.compute)
    return to_compute(to_storage(values, BF16), BF16) if type_.dtype == BF16 else values


def total(b: Builder, x: Value) -> Value:
    """The sum over all axes."""
    over = tuple(n for n in x.type.names if n != SHARD)
    if over:
        x = b("reduce_sum", x, over=over)
    return b("combine_sum", x) if x.type.is_partial else x


def derivative(make: Make, types: Sequence[TensorType], order: int = 1) -> Module:
    """A module whose function `test` is differentiated: its results are a number made of what `make` builds, and that
    number's gradient with respect to every float argument. `order` 2: the number is made of the gradient's elements."""
    floats = [i for i, t in enumerate(types) if t.dtype.is_float]
    weigh = _Weights()

    def loss(b: Builder, arguments: Sequence[Value]) -> Value:
        return weigh.total(b, make(b, *arguments))

    def first(b: Builder, arguments: Sequence[Value]) -> tuple[Value, list[Value]]:
        return _gradient(b, arguments, floats, loss)

    def second(b: Builder, arguments: Sequence[Value]) -> tuple[Value, list[Value]]:
        def inner(b: Builder, arguments: Sequence[Value]) -> Value:
            parts = [weigh.total(b, g) for g in first(b, arguments)[1]]
            whole = parts[0]
            for part in parts[1:]:
                whole = b("add", whole, part)
            return whole

        return _gradient(b, arguments, floats, inner)

    def whole(b: Builder, *arguments: Value) -> Sequence[Value]:
        value, gradients = (first if order == 1 else second)(b, arguments)
        return (value, *gradients)

    module = Module("test", None, functions={"test": function(types, whole)})
    verify(module)
    module = Differentiate().run(module)
    verify(module, differentiated=True)
    return module


def check_gradient(
    make: Make, types: Sequence[TensorType], inputs: Sequence[ArrayLike], *, order: int = 1, tolerance: float = 1e-6
) -> None:
    """The derivative, of `order` 1 or 2, of what `make` builds, with respect to all float arguments, against central
    differences, element by element, all in float64."""
    module = derivative(make, types, order)
    floats = [i for i, t in enumerate(types) if t.dtype.is_float]
    arrays = [np.asarray(x, np.float64 if i in floats else None) for i, x in enumerate(inputs)]

    def at(values: Sequence[Array]) -> list[Array]:
        return interpret(module, values, function="test", precision="f64")

    _, *gradients = at(arrays)
    for i, found in zip(floats, gradients, strict=True):
        expected = differences(lambda values: float(at(values)[0]), arrays, i)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=f"argument {i}")


class _Weights:
    """Sums with weights that differ from element to element: a cotangent of ones would hide permutations."""

    def total(self, b: Builder, y: Value) -> Value:
        weight = b.constant(1.25, y.type.dtype, y.type.dims)
        for n, d in enumerate(y.type.dims):
            place = b.broadcast(b("iota", dim=d, dtype=y.type.dtype), y.type.dims)
            weight = b("mul", weight, b.like(0.75 - n / 8, weight))
            weight = b("add", weight, b("mul", place, b.like(0.25 + n / 4, place)))
        return total(b, b("mul", y, weight))


def _gradient(
    b: Builder, arguments: Sequence[Value], floats: Sequence[int], loss: Callable[[Builder, Sequence[Value]], Value]
) -> tuple[Value, list[Value]]:
    """`grad` of the loss with respect to some of the arguments."""
    inner = Block([Value(arguments[i].type, arguments[i].hint) for i in floats])
    seen = list(arguments)
    for i, v in zip(floats, inner.arguments, strict=True):
        seen[i] = v
    inner.results = (loss(Builder(inner), seen),)
    op = b.build("grad", [arguments[i] for i in floats], [inner], wrt=len(floats))
    return op.results[0], list(op.results[1:])


def differences(f: Callable[[Sequence[Array]], float], arrays: Sequence[Array], which: int) -> Array:
    """Central differences of f, which takes all `arrays`, with respect to every element of one of them."""
    step = 1e-5
    result = np.empty(arrays[which].shape)
    for place in np.ndindex(result.shape):
        values: list[float] = []
        for sign in (1, -1):
            moved = list(arrays)
            moved[which] = arrays[which].copy()
            moved[which][place] += sign * step
            values.append(f(moved))
        result[place] = (values[0] - values[1]) / (2 * step)
    return result
