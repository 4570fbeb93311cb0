"""What is judged: every op, for every dtype it takes, at inputs where something may go wrong.

A `Case` is a function of one op (or of few), inputs, and what the results are in the reals. Elementwise ops stand here;
the others come from opcases.py in every dtype, and from everyop_shapes.py in the shapes that are hard for kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import everyop_points as points
import everyop_real as reals
import mpmath
import numpy as np
from everyop_real import Real
from gradcheck import Make, draw, function
from numpy.typing import NDArray
from opcases import CASES as TEMPLATES
from opcases import Case as Template

from alphac.ir.core import Function, Module, Value
from alphac.ir.interpret import interpret
from alphac.ir.ops import DEFINITIONS, TypeRuleError
from alphac.ir.passes.expand import Expand
from alphac.ir.typesys import BF16, BOOL, F32, F64, I32, LANGUAGE_DTYPES, Dim, DType, TensorType

Array = NDArray[Any]
Types = tuple[TensorType, ...]
Slack = Callable[..., Sequence[Array]]
POINTS = Dim("batch", 1056, 32)
CHUNKS = 10  # of points in the slow suite: 10,560 of each op and dtype
DTYPES = tuple(LANGUAGE_DTYPES.values())
FLOATS = (F32, F64, BF16)
NUMBERS = tuple(d for d in DTYPES if d != BOOL)


@dataclass(frozen=True, eq=False)
class Case:
    """One function and how to judge its results.

    given(chunk)     inputs in `dtype.compute`; every chunk number gives others, if `many`
    real(*inputs)    the real value of every result: float64, mpmath's numbers or Python's integers as objects, bools
    ulp              the documented bound on the error of float results; None: `slack` bounds it
    slack(*inputs)   a bound on the absolute error of every result; None with `ulp` None: nothing is rounded
    """

    op: str
    note: str
    dtype: DType
    types: Types
    make: Callable[..., Value | Sequence[Value]]
    given: Callable[[int], Sequence[Array]]
    real: Callable[..., Sequence[Real]]
    ulp: float | None = None
    slack: Slack | None = None
    shards: int = 1
    many: bool = False

    def __str__(self) -> str:
        return "-".join(filter(None, (self.op, self.dtype.name, self.note)))

    @cached_property
    def function(self) -> Function:
        """Composite ops are expanded."""
        return expanded(self.written)

    @cached_property
    def bits(self) -> list[Array]:
        """What the first inputs must give."""
        return interpret(self.written, self.given(0), exact=True)

    @cached_property
    def written(self) -> Function:
        return function(self.types, self.make)


def expanded(written: Function) -> Function:
    return Expand().run(Module("test", None, functions={"test": written})).functions["test"]


def op(name: str, **attributes: Any) -> Make:
    return lambda b, *x: b(name, *x, **attributes)


def accepts(types: Types, make: Make) -> bool:
    """Whether the type rules take these types."""
    try:
        function(types, make)
    except TypeRuleError:
        return False
    return True


# ---------------------------------------------------------------------- elementwise
def _points(name: str, count: int, dtype: DType) -> Callable[[int], Sequence[Array]]:
    def given(chunk: int) -> Sequence[Array]:
        if count == 1:
            return [points.unary(name, dtype, POINTS.size, chunk)]
        return points.binary(name, dtype, POINTS.size, chunk)

    return given


def _elementwise(name: str) -> list[Case]:
    count = DEFINITIONS[name].operands
    assert count is not None
    cases: list[Case] = []
    for dtype in DTYPES:
        types = (TensorType(dtype, (POINTS,)),) * count
        if accepts(types, op(name)):
            cases.append(
                Case(
                    name,
                    "",
                    dtype,
                    types,
                    op(name),
                    _points(name, count, dtype),
                    lambda *x, dtype=dtype: [reals.elementwise(name, dtype, *x)],
                    ulp=DEFINITIONS[name].ulp,
                    shards=POINTS.shards,
                    many=True,
                )
            )
    return cases


def _cast(dtype: DType) -> Case:
    """A value as all dtypes, its own too."""
    return Case(
        "cast",
        "",
        dtype,
        (TensorType(dtype, (POINTS,)),),
        lambda b, x: [b("cast", x, dtype=to) for to in DTYPES],
        _points("cast", 1, dtype),
        lambda x: [reals.cast(x, dtype, to) for to in DTYPES],
        ulp=0,
        shards=POINTS.shards,
        many=True,
    )


def _where(dtype: DType) -> Case:
    types = (TensorType(BOOL, (POINTS,)), *(TensorType(dtype, (POINTS,)),) * 2)
    pairs = _points("where", 2, dtype)
    return Case(
        "where",
        "",
        dtype,
        types,
        op("where"),
        lambda chunk: [draw(types[0], seed=chunk), *pairs(chunk)],
        lambda c, x, y: [np.where(c, lifted(x, dtype), lifted(y, dtype))],
        shards=POINTS.shards,
    )


def elementwise() -> list[Case]:
    names = [n for n, d in DEFINITIONS.items() if d.shape == "elementwise" and n not in ("cast", "where")]
    return [*(c for n in names for c in _elementwise(n)), *map(_cast, DTYPES), *map(_where, DTYPES)]


# ---------------------------------------------------------------------- lifting arrays into the reals
def lifted(array: Array, dtype: DType) -> Real:
    """Values that NumPy can compute with, without rounding that matters."""
    if dtype == F64:
        return reals.each(mpmath.mpf, array)
    if dtype.is_float:
        return array.astype(np.float64)
    return array if dtype == BOOL else reals.each(int, array)


def as_real(found: Any, dtype: DType) -> Real:
    """What was computed from lifted values of that dtype, as an array, a single number too."""
    return np.asarray(found, None if dtype == BOOL or dtype in (F32, BF16) else object)


def sums(
    expected: Callable[..., Any], values: Sequence[bool], dtype: DType, roundings: int, unit: float | None = None
) -> Slack:
    """A bound on the error of sums of products: each term meets at most so many roundings on its way into the result.

    `values`: which operands are summed (others are indices); `unit`: of the intermediate roundings, if not that of the
    dtype, or of f32 for bf16, whose results are then rounded once more."""
    steps = roundings * (unit or {F32: 2.0**-24, BF16: 2.0**-24, F64: 2.0**-53}[dtype])
    steps = steps / (1 - steps) + (2.0**-8 if dtype == BF16 else 0)

    def slack(*x: Array) -> Sequence[Array]:
        size = expected(*(np.abs(v.astype(np.float64)) if s else v for v, s in zip(x, values, strict=True)))
        return [steps * 1.01 * np.asarray(size, np.float64)]

    return slack


def path(terms: int, leaf: int, lanes: int = 1) -> int:
    """Roundings between a term and the canonical sum of so many: a product, the chain of its lane, lanes, leaves."""
    leaves = -(-terms // leaf)
    return min(terms, leaf) // lanes + 1 + lanes.bit_length() + leaves.bit_length() + 1


SUMMING = {"reduce_sum", "contract", "contract_fast", "cumsum", "scatter_add", "combine_sum", "conv2d"}


# ---------------------------------------------------------------------- the small cases of opcases.py in every dtype
def _retyped(case: Template, dtype: DType) -> Case | None:
    types = tuple(t.with_dtype(dtype) if t.dtype == F64 else t for t in case.types)
    if not accepts(types, case.make):
        return None
    values = [t.dtype == F64 for t in case.types]

    def given(chunk: int) -> Sequence[Array]:
        low, high = (-2, 2) if dtype.is_float else (-90, 90)
        old = case.arrays()
        return [draw(t, i, low, high) if v else a for i, (t, v, a) in enumerate(zip(types, values, old, strict=True))]

    def real(*x: Array) -> Sequence[Real]:
        with mpmath.workdps(reals.DIGITS):
            found = case.expected(*(lifted(a, dtype) if v else a for a, v in zip(x, values, strict=True)))
            return [as_real(found, dtype)]

    slack = None
    if case.op in SUMMING and dtype.is_float:
        unit = 2.0**-8 if case.op == "combine_sum" and dtype == BF16 else None  # rounds at every node
        slack = sums(case.expected, values, dtype, 50, unit)
    note, shards = case.note.replace(" ", "_"), 3
    return Case(case.op, note, dtype, types, case.make, given, real, slack=slack, shards=shards)


def retyped() -> list[Case]:
    """Every template but elementwise ones and those without operands: the first of an op in every dtype that it takes,
    others in two."""
    cases: list[Case] = []
    seen: set[str] = set()
    for template in TEMPLATES:
        if DEFINITIONS[template.op].shape != "elementwise" and template.types:
            dtypes = (F32, I32) if template.op in seen else DTYPES
            seen.add(template.op)
            cases += [made for dtype in dtypes if (made := _retyped(template, dtype)) is not None]
    return cases


# ---------------------------------------------------------------------- constant, iota
CONSTANTS = (0.1, -1.5, 300, 2**40 + 1, 1e300, float("nan"), float("-inf"))


def constants() -> list[Case]:
    a, grain = Dim("a", 19), Dim("batch", 300, 3)

    def constant(dtype: DType) -> Case:
        values = [v for v in CONSTANTS if dtype.is_float or abs(v) < 2**60]

        def real() -> Sequence[Real]:
            own = bool if dtype == BOOL else mpmath.mpf if dtype.is_float else int
            return [np.full(19, own(v), bool if dtype == BOOL else object) for v in values]

        return Case(
            "constant", "", dtype, (), lambda b: [b.constant(v, dtype, (a,)) for v in values], lambda _: [], real, ulp=0
        )

    def iota(dtype: DType) -> Case:
        def real() -> Sequence[Real]:
            return [reals.each(mpmath.mpf if dtype.is_float else int, np.arange(d.size)) for d in (a, grain)]

        return Case(
            "iota",
            "",
            dtype,
            (),
            lambda b: [b("iota", dim=d, dtype=dtype) for d in (a, grain)],
            lambda _: [],
            real,
            ulp=0,
            shards=3,
        )

    return [*map(constant, DTYPES), *map(iota, NUMBERS)]


def with_notes(cases: Sequence[Case]) -> list[Case]:
    """Cases of one name are numbered."""
    seen: dict[str, int] = {}
    named: list[Case] = []
    for case in cases:
        seen[str(case)] = count = seen.get(str(case), 0) + 1
        named.append(case if count == 1 else replace(case, note=f"{case.note}_{count}".lstrip("_")))
    return named
