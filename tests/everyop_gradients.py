"""Gradients that are judged: of every differentiable op, in f32, f64 and bf16; and in f64 gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from everyop_cases import FLOATS, accepts, op
from everyop_shapes import convolutions, loops
from gradcheck import Make, derivative
from numpy.typing import NDArray
from opcases import CASES as TEMPLATES

from alphac.ir.builder import Builder
from alphac.ir.core import Function, Value, walk
from alphac.ir.ops import DEFINITIONS
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.simplify import Simplify
from alphac.ir.typesys import F64, SHARD, Dim, DType, TensorType

Array = NDArray[Any]
Types = tuple[TensorType, ...]
POSITIVE = ("log", "log1p", "sqrt", "rsqrt")
FEW = Dim("few", 5)


@dataclass(frozen=True, eq=False)
class Gradient:
    """What `make` builds is differentiated once or twice (gradcheck.py says how a number is made of it)."""

    op: str
    note: str
    dtype: DType
    order: int
    types: Types
    make: Make
    inputs: Sequence[Array]

    def __str__(self) -> str:
        note = self.note.replace(" ", "_")
        return "-".join(filter(None, ("twice" if self.order == 2 else "once", self.op, self.dtype.name, note)))

    @cached_property
    def written(self) -> Function:
        return derivative(self.make, self.types, self.order).functions["test"]

    @cached_property
    def function(self) -> Function:
        """As the compiler runs it: expanded and simplified."""
        module = derivative(self.make, self.types, self.order)
        return Simplify().run(Expand().run(module)).functions["test"]

    @property
    def shards(self) -> int:
        values = [*self.written.block.arguments, *(v for op in walk(self.written.block) for v in op.results)]
        dims = (d for v in values for d in v.type.dims)
        return next((d.shards or d.size for d in dims if d.shards or d.name == SHARD), 1)


def _of(
    name: str, note: str, order: int, types: Types, make: Make, inputs: Sequence[Array], first: bool
) -> list[Gradient]:
    """In f64 to that order; in f32 and bf16 too if it is the first of the op."""
    found: list[Gradient] = []
    for dtype in FLOATS if first else (F64,):
        retyped = tuple(t.with_dtype(dtype) if t.dtype == F64 else t for t in types)
        if accepts(retyped, make):
            found.append(Gradient(name, note, dtype, 1, retyped, make, inputs))
            if dtype == F64 and order == 2:
                found.append(Gradient(name, note, dtype, 2, retyped, make, inputs))
    return found


def _unary(name: str) -> list[Gradient]:
    x = np.array([0.3, 0.9, 1.7, 2.2, 0.05] if name in POSITIVE else [-2.1, -0.6, 0.2, 0.9, 2.3])
    return _of(name, "", 2, (TensorType(F64, (FEW,)),), op(name), [x], True)


def gradients() -> list[Gradient]:
    found: list[Gradient] = []
    seen: set[str] = set()
    for case in TEMPLATES:
        if case.order:
            found += _of(case.op, case.note, case.order, case.types, case.make, case.arrays(), case.op not in seen)
            seen.add(case.op)
    smooth = [d for d in DEFINITIONS.values() if d.reference.__module__.endswith(".transcendental")]
    for name in (d.name for d in smooth if d.operands == 1):
        found += _unary(name)
    x, y = np.array([0.3, 0.9, 1.7, 2.2, 3.0]), np.array([2.0, -1.5, 0.4, 3.0, -0.7])
    found += _of("pow", "", 2, (TensorType(F64, (FEW,)),) * 2, op("pow"), [x, y], True)
    for case in convolutions():
        if case.dtype == F64:
            found += _of("conv2d", case.note, 2, case.types, _one(case.make), case.given(0), True)
    for case in loops():
        if case.dtype == F64:
            found += _of("loop", case.note, 2, case.types, _one(case.make), case.given(0), case.note == "up")
    return found


def _one(make: Callable[..., Value | Sequence[Value]]) -> Make:
    """One value of those that are made: of a loop that carries one and collects two, a sum to which all contribute."""

    def one(b: Builder, *x: Value) -> Value:
        made = make(b, *x)
        if isinstance(made, Value):
            return made
        last, counted, before = made
        both = b("add", counted, b("mul", before, before))
        return b("add", both, b.broadcast(last, both.type.dims))

    return one


GRADIENTS = gradients()
