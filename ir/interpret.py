"""Running IR on NumPy arrays: by the ops' references, or bit by bit as every target must.

References judge accuracy (run them in float64: `precision="f64"`); `exact=True` judges bits. Neither is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Op, Value
from alphac.ir.errors import InternalError
from alphac.ir.exact import run_exactly
from alphac.ir.ops.define import definition
from alphac.ir.ops.structure import tiled_axes
from alphac.ir.oracle import to_compute, to_storage
from alphac.ir.typesys import BF16, Dim, TensorType

Array = NDArray[Any]
Watch = Callable[[Op, tuple[Array, ...]], None]


def interpret(
    program: Module | Function,
    inputs: Sequence[ArrayLike],
    *,
    function: str = "step",
    exact: bool = False,
    precision: Literal["f64"] | None = None,
    watch: Watch | None = None,
) -> list[Array]:
    """The results of a function, in order.

    program     a function, or a module, of which `function` is run; without `grad`, so differentiated if need be
    inputs      one array per argument, axes in the order of the type's dims; bf16 as float32
    exact       the canonical bits of every op instead of its NumPy reference
    precision   "f64": references compute all floats in float64
    watch       called after every op with its results

    Raises ValueError if the inputs do not fit the arguments.
    """
    if exact and precision is not None:
        raise ValueError("exact bits have the precision of their types")
    if isinstance(program, Module):
        program = program.functions[function]
    arguments = program.block.arguments
    if len(inputs) != len(arguments):
        raise ValueError(f"`{program.name}` takes {len(arguments)} inputs, not {len(inputs)}")
    run = _Run(exact, precision == "f64", watch)
    for port, value, array in zip(program.arguments, arguments, inputs, strict=True):
        given = np.asarray(array)
        if given.shape != value.type.shape:
            raise ValueError(f"`{program.name}`: {port.kind} {port.name} is {value.type}, not of shape {given.shape}")
        run.values[value] = run.fitted(given, value.type)
    run.ops(program.block)
    return [run.values[v] for v in program.block.results]


class _Run:
    """The values of one run. `wide`: all floats are float64."""

    def __init__(self, exact: bool, wide: bool, watch: Watch | None) -> None:
        self.exact = exact
        self.wide = wide
        self.watch = watch
        self.values: dict[Value, Array] = {}

    def fitted(self, array: ArrayLike, type_: TensorType) -> Array:
        """The array in the precision this run works in."""
        if self.wide and type_.dtype.is_float:
            return np.asarray(array, np.float64)
        if type_.dtype == BF16:
            return to_compute(to_storage(np.asarray(array, np.float32), BF16), BF16)
        return np.asarray(array).astype(type_.dtype.compute)

    def ops(self, block: Block) -> None:
        for op in block.ops:
            results = self.op(op)
            for value, array in zip(op.results, results, strict=True):
                if array.shape != value.type.shape:
                    raise InternalError(f"`{op.name}` made an array of shape {array.shape} for {value.type}")
                self.values[value] = array
            if self.watch is not None:
                self.watch(op, results)

    def op(self, op: Op) -> tuple[Array, ...]:
        if op.name == "loop":
            return self.loop(op)
        if op.name == "tile":
            return self.tile(op)
        if op.name == "grad":
            raise InternalError("`grad` is not run: differentiate first")
        operands = [self.values[v] for v in op.operands]
        if op.name == "require":
            return tuple(operands)
        with np.errstate(all="ignore"):
            if not self.exact:
                return (self.fitted(definition(op).reference(op, *operands), op.result.type),)
            if definition(op).shape == "composite":
                return (self.expanded(op),)
            return (self.fitted(run_exactly(op, operands), op.result.type),)

    def expanded(self, op: Op) -> Array:
        """A composite op by the ops it is written in."""
        parts, body = Block(), definition(op).body
        assert body is not None
        result = body(Builder(parts, op.span), op)
        self.ops(parts)
        return self.values[result]

    def loop(self, op: Op) -> tuple[Array, ...]:
        (block,) = op.blocks
        dim, count, slices = op.attributes["dim"], op.attributes["carried"], op.attributes["slices"]
        assert isinstance(dim, Dim) and isinstance(count, int) and isinstance(slices, tuple)
        carried = [self.values[v] for v in op.operands[:count]]
        stacked = [
            (self.values[v], v.type.names.index(str(n))) for v, n in zip(op.operands[count:], slices, strict=True)
        ]
        collected = [np.empty(v.type.shape, self.values_dtype(v.type)) for v in op.results[count:]]
        for i in reversed(range(dim.size)) if op.attributes["reverse"] else range(dim.size):
            given = [np.asarray(i, np.int64), *carried, *(np.take(x, i, axis=at) for x, at in stacked)]
            self.values.update(zip(block.arguments, given, strict=True))
            self.ops(block)
            made = [self.values[v] for v in block.results]
            carried = made[:count]
            for whole, one in zip(collected, made[count:], strict=True):
                whole[i] = one
        return (*carried, *collected)

    def tile(self, op: Op) -> tuple[Array, ...]:
        (block,) = op.blocks
        axes = [d.name for d in tiled_axes(op)]
        collected = [np.empty(v.type.shape, self.values_dtype(v.type)) for v in op.results]
        for index in np.ndindex(*(d.size for d in tiled_axes(op))):
            at = dict(zip(axes, index, strict=True))
            given = [np.asarray(i, np.int64) for i in index]
            given += [self.values[v][tuple(at.get(n, slice(None)) for n in v.type.names)] for v in op.operands]
            self.values.update(zip(block.arguments, given, strict=True))
            self.ops(block)
            for value, whole, one in zip(op.results, collected, block.results, strict=True):
                whole[tuple(at.get(n, slice(None)) for n in value.type.names)] = self.values[one]
        return tuple(collected)

    def values_dtype(self, type_: TensorType) -> np.dtype[Any]:
        return np.dtype(np.float64) if self.wide and type_.dtype.is_float else type_.dtype.compute
