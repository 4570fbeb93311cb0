"""The algebra that exact mode allows, one small rule each: before → after, the same bits (all NaNs being one).

What is missing here is missing on purpose: `x + 0` is not `x` for −0, `x * 0` is not 0 for NaN, `(a + b) + c` is not
`a + (b + c)`, a sum of equal numbers is not a product, `pow(x, 2)` is not `x * x`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np

from alphac.ir.builder import Builder
from alphac.ir.core import Op, Value
from alphac.ir.ops.define import definition
from alphac.ir.ops.rules import attribute, replaced
from alphac.ir.oracle import Oracle, evaluate
from alphac.ir.typesys import SHARD, Dim, TensorType

Number = float | int | bool
Rule = Callable[[Builder, Op], Value | None]

RULES: dict[str, list[Rule]] = {}  # op -> its rules, tried in order
ANY_ELEMENTWISE: list[Rule] = []  # tried after those


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Enter a rule into the table for `ops`. A rule gets an op of the new graph, not yet appended, and returns what
    stands for its result, built with `b`, or None."""

    def enter(apply: Rule) -> Rule:
        for name in ops:
            RULES.setdefault(name, []).append(apply)
        return apply

    return enter


def rules_of(op: Op) -> list[Rule]:
    """The rules to try for an op."""
    return [*RULES.get(op.name, ()), *(ANY_ELEMENTWISE if definition(op).shape == "elementwise" else ())]


# ---------------------------------------------------------------------- what rules ask
def constant(value: Value) -> Number | None:
    """The number that a value is everywhere, rounded to its dtype; None if it is not a constant."""
    source = splat(value)
    if source is None or source.op is None or source.op.name != "constant":
        return None
    dtype = value.type.dtype
    return Oracle().const(cast(Number, source.op.attributes["value"]), dtype).array.item()


def splat(value: Value) -> Value | None:
    """The scalar of which a value is copies; None if it is not."""
    while value.op is not None and value.op.name == "broadcast":
        value = value.op.operands[0]
    return None if value.type.dims else value


def is_zero(value: Value, sign: float) -> bool:
    """Whether a value is the zero of that sign everywhere; an integer's zero has both."""
    c = constant(value)
    return c is not None and c == 0 and (not value.type.dtype.is_float or math.copysign(1, c) == sign)


def is_number(value: Value, number: float) -> bool:
    c = constant(value)
    return c is not None and value.type.dtype.kind != "bool" and c == number


def is_bool(value: Value, truth: bool) -> bool:
    return value.type.dtype.kind == "bool" and constant(value) is truth


def operand_of(value: Value, name: str) -> Value | None:
    """x if the value is `name(x)`."""
    return value.op.operands[0] if value.op is not None and value.op.name == name else None


def operands_of(value: Value, name: str) -> tuple[Value, ...] | None:
    return value.op.operands if value.op is not None and value.op.name == name else None


def dims_of(op: Op) -> tuple[Dim, ...]:
    return cast(tuple[Dim, ...], op.attributes["dims"])


# ---------------------------------------------------------------------- arithmetic
@rule("add")
def add_nothing(b: Builder, op: Op) -> Value | None:
    """x + −0 → x (floats), x + 0 → x (integers)"""
    x, y = op.operands
    return x if is_zero(y, -1) else y if is_zero(x, -1) else None


@rule("sub")
def subtract_nothing(b: Builder, op: Op) -> Value | None:
    """x − +0 → x"""
    x, y = op.operands
    return x if is_zero(y, 1) else None


@rule("sub")
def subtract_from_nothing(b: Builder, op: Op) -> Value | None:
    """−0 − x → −x (floats), 0 − x → −x (integers)"""
    x, y = op.operands
    return b("neg", y) if is_zero(x, -1) else None


@rule("mul")
def multiply_by_one(b: Builder, op: Op) -> Value | None:
    """x · 1 → x"""
    x, y = op.operands
    return x if is_number(y, 1) else y if is_number(x, 1) else None


@rule("div", "floordiv")
def divide_by_one(b: Builder, op: Op) -> Value | None:
    """x / 1 → x (`floordiv`: integers only)"""
    x, y = op.operands
    exact = op.name == "div" or x.type.dtype.is_integer
    return x if exact and is_number(y, 1) else None


@rule("mul", "div")
def times_minus_one(b: Builder, op: Op) -> Value | None:
    """x · −1 → −x, x / −1 → −x"""
    x, y = op.operands
    if is_number(y, -1):
        return b("neg", x)
    return b("neg", y) if op.name == "mul" and is_number(x, -1) else None


@rule("div")
def divide_by_power_of_two(b: Builder, op: Op) -> Value | None:
    """x / 2ᵏ → x · 2⁻ᵏ where 2⁻ᵏ is a normal number: both round the same real number once"""
    x, y = op.operands
    c = constant(y)
    if not isinstance(c, float) or not math.isfinite(c) or math.frexp(abs(c))[0] != 0.5:
        return None
    exponent = math.frexp(c)[1] - 1
    limit = 1022 if x.type.dtype.bits == 64 else 126
    return b("mul", x, b.like(1 / c, y)) if abs(exponent) <= limit else None


@rule("neg", "not")
def twice(b: Builder, op: Op) -> Value | None:
    """−(−x) → x, not(not x) → x"""
    return operand_of(op.operands[0], op.name)


@rule("add")
def add_negative(b: Builder, op: Op) -> Value | None:
    """x + −y → x − y, −x + y → y − x"""
    x, y = op.operands
    minus_x, minus_y = operand_of(x, "neg"), operand_of(y, "neg")
    if minus_y is not None:
        return b("sub", x, minus_y)
    return b("sub", y, minus_x) if minus_x is not None else None


@rule("sub")
def subtract_negative(b: Builder, op: Op) -> Value | None:
    """x − −y → x + y"""
    x, y = op.operands
    minus_y = operand_of(y, "neg")
    return b("add", x, minus_y) if minus_y is not None else None


@rule("mul", "div")
def two_negatives(b: Builder, op: Op) -> Value | None:
    """−x · −y → x · y, −x / −y → x / y (floats: integer division is another matter)"""
    x, y = (operand_of(v, "neg") for v in op.operands)
    floats = op.result.type.dtype.is_float
    return b(op.name, x, y) if x is not None and y is not None and floats else None


@rule("minimum", "maximum", "and", "or")
def of_itself(b: Builder, op: Op) -> Value | None:
    """min(x, x) → x, and so on"""
    x, y = op.operands
    return x if x is y else None


# ---------------------------------------------------------------------- logic and selection
@rule("and", "or", "xor")
def logic_with_constant(b: Builder, op: Op) -> Value | None:
    """x and true → x, x and false → false, x or false → x, x or true → true, x xor false → x, x xor true → not x"""
    for x, c in (op.operands, op.operands[::-1]):
        for truth in (True, False):
            if not is_bool(c, truth):
                continue
            if op.name == "xor":
                return b("not", x) if truth else x
            return x if truth == (op.name == "and") else c
    return None


@rule("not")
def negated_equality(b: Builder, op: Op) -> Value | None:
    """not(x = y) → x ≠ y and back; not so for < with NaN"""
    (x,) = op.operands
    for name, opposite in (("eq", "ne"), ("ne", "eq")):
        operands = operands_of(x, name)
        if operands is not None:
            return b(opposite, *operands)
    return None


@rule("where")
def decided(b: Builder, op: Op) -> Value | None:
    """where(true, x, y) → x, where(false, x, y) → y, where(c, x, x) → x"""
    condition, x, y = op.operands
    if x is y or is_bool(condition, True):
        return x
    return y if is_bool(condition, False) else None


@rule("where")
def negated_condition(b: Builder, op: Op) -> Value | None:
    """where(not c, x, y) → where(c, y, x)"""
    condition, x, y = op.operands
    positive = operand_of(condition, "not")
    return b("where", positive, y, x) if positive is not None else None


# ---------------------------------------------------------------------- conversion
_EXACT = {  # dtype -> those that hold all its values
    "bf16": {"f32", "f64"},
    "f32": {"f64"},
    "u8": {"i32", "i64", "f32", "f64", "bf16"},
    "i32": {"i64", "f64"},
    "bool": {"u8", "i32", "i64", "f32", "f64", "bf16"},
}


@rule("cast")
def cast_to_same(b: Builder, op: Op) -> Value | None:
    """cast{its own dtype}(x) → x"""
    return op.operands[0] if op.operands[0].type == op.result.type else None


@rule("cast")
def cast_of_cast(b: Builder, op: Op) -> Value | None:
    """cast{C}(cast{B}(x: A)) → cast{C}(x) where B holds all of A and is of its kind, or C is A"""
    x = operand_of(op.operands[0], "cast")
    if x is None:
        return None
    first, middle, last = x.type.dtype, op.operands[0].type.dtype, op.result.type.dtype
    alike = (first.is_float and middle.is_float) or (first.is_integer and middle.is_integer)
    if middle.name not in _EXACT.get(first.name, ()) or not (last == first or alike):
        return None
    return b("cast", x, dtype=last)


# ---------------------------------------------------------------------- axes
@rule("broadcast", "reshape", "rename", "slice", "pad", "concat")
def nothing_moved(b: Builder, op: Op) -> Value | None:
    """broadcast{dims of x}(x) → x, and so for reshape and rename; a slice, pad or concat of everything"""
    x = op.operands[0]
    same = len(op.operands) == 1 and x.type == op.result.type
    whole = op.name != "slice" or (op.attributes["start"] == 0 and op.attributes["step"] == 1)
    within = op.name != "pad" or (op.attributes["low"] == 0 and op.attributes["high"] == 0)
    return x if same and whole and within else None


@rule("broadcast", "reshape", "rename")
def moved_twice(b: Builder, op: Op) -> Value | None:
    """broadcast(broadcast(x)) → broadcast(x), and so for reshape and rename"""
    x = operand_of(op.operands[0], op.name)
    return b(op.name, x, dims=dims_of(op)) if x is not None else None


@rule("reshape", "rename", "slice", "gather")
def moved_splat(b: Builder, op: Op) -> Value | None:
    """reshape(broadcast(s)) → broadcast(s) for a scalar s, and so for rename, slice, gather: copies stay copies"""
    scalar = splat(op.operands[0])
    if scalar is None or scalar is op.operands[0]:
        return None
    return b.broadcast(scalar, op.result.type.dims)


@rule("reduce_sum")
def windows_side_by_side(b: Builder, op: Op) -> Value | None:
    """sum of unwindow(x) over its kernel → reshape(x) + 0 where every place is in one window: all other terms are 0,
    and sums start from +0"""
    spread = op.operands[0].op
    if spread is None or spread.name != "unwindow" or op.attributes["over"] != (spread.attributes["kernel"],):
        return None
    x = spread.operands[0]
    to, kernel = (x.type.dim(attribute(spread.attributes, n, str)) for n in ("to", "kernel"))
    stride, low, dilation = (attribute(spread.attributes, n, int) for n in ("stride", "low", "dilation"))
    dim = attribute(spread.attributes, "dim", Dim)
    if stride != kernel.size or dilation != 1 or low < 0 or any(d.shards or d.name == SHARD for d in x.type.dims[1:]):
        return None
    dims = x.type.without(kernel.name).dims
    value = b.broadcast(x, replaced(dims, to.name, to, kernel))
    merged = stride * to.size
    if low == 0 and merged == dim.size:
        value = b("reshape", value, dims=replaced(dims, to.name, dim))
    else:
        axis = Dim(f"{dim.name}.merged", merged)
        value = b("reshape", value, dims=replaced(dims, to.name, axis))
        high = low + dim.size - merged
        if high > 0:
            longer = Dim(f"{dim.name}.longer", merged + high)
            value = b("pad", value, dim=axis.name, low=0, high=high, to=longer, value=0)
            axis = longer
        value = b("slice", value, dim=axis.name, start=low, step=1, to=dim)
    return b("add", value, b.like(0, value)) if value.type.dtype.is_float else value


# ---------------------------------------------------------------------- any elementwise op
def before_broadcast(b: Builder, op: Op) -> Value | None:
    """f(broadcast(x), broadcast(y)) → broadcast(f(x, y)) where x and y have the same, fewer elements; a constant among
    the operands fits everywhere"""
    sources = [v if constant(v) is not None else operand_of(v, "broadcast") for v in op.operands]
    found = [s for s in sources if s is not None]
    if len(found) < len(sources) or not op.result.type.dims or not found:
        return None
    dims = next((s.type.dims for s, v in zip(found, op.operands, strict=True) if s is not v), ())
    if any(s is not v and s.type.dims != dims for s, v in zip(found, op.operands, strict=True)):
        return None
    if TensorType(op.result.type.dtype, dims).size >= op.result.type.size:
        return None
    small = [_constant_like(b, s, dims) if s is v else s for s, v in zip(found, op.operands, strict=True)]
    return b.broadcast(b(op.name, *small, hint="", **op.attributes), op.result.type.dims)


def _constant_like(b: Builder, value: Value, dims: tuple[Dim, ...]) -> Value:
    scalar = splat(value)
    assert scalar is not None
    return b.broadcast(scalar, dims)


def fold(b: Builder, op: Op) -> Value | None:
    """f(constants) → constant, by the exact oracle; scalars only"""
    if op.result.type.dims:
        return None
    numbers = [constant(v) for v in op.operands]
    if any(n is None for n in numbers):
        return None
    body = definition(op).body
    assert body is not None
    dtypes = [v.type.dtype for v in op.operands]
    operands = [(np.asarray(n, dtype.compute), dtype) for n, dtype in zip(numbers, dtypes, strict=True)]
    array, _ = evaluate(body, operands, **op.attributes)
    return b.constant(array.item(), op.result.type.dtype)


ANY_ELEMENTWISE.extend((fold, before_broadcast))
