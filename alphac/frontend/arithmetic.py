"""Operators and elementwise functions: element types meet, axes align by name."""

from __future__ import annotations

import math
from typing import Any

from alphac.diagnostics import Diagnostics, Label, fail
from alphac.frontend.scope import Context
from alphac.frontend.values import Axes, Counter, describe, dims_text, is_known, number, type_text
from alphac.ir.core import Value
from alphac.ir.ops import DEFINITIONS, TypeRuleError
from alphac.ir.span import Span
from alphac.ir.typesys import BOOL, F64, I32, I64, Dim, DType, TensorType

OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow",
    "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "and": "and", "or": "or",
}  # fmt: skip
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
LOGIC = frozenset({"and", "or", "xor", "not"})
FUNCTIONS = tuple(
    d.name
    for d in DEFINITIONS.values()
    if d.shape == "elementwise" and d.operands == 1 and not d.attributes and d.name not in ("neg", "not")
)


def _takes_integers(name: str) -> bool:
    """Whether an elementwise op is defined on whole numbers."""
    try:
        DEFINITIONS[name].result([TensorType(I32)], {}, ())
    except TypeRuleError:
        return False
    return True


# Real functions: whole numbers become floats first.
_REAL = frozenset({"div", *(n for n in FUNCTIONS if n not in ("floor", "ceil", "round") and not _takes_integers(n))})


def apply(context: Context, name: str, values: list[Any], spans: list[Span], span: Span) -> Any:
    """Elementwise op `name` on values of any kind."""
    with context.at(span):
        for value, at in zip(values, spans, strict=True):
            if not isinstance(value, (Value, Counter)) and not is_known(value):
                raise fail("E117", f"{_text(name)} takes numbers and tensors, not {describe(value)}", at, _hint(value))
        if not any(isinstance(v, (Value, Counter)) for v in values):
            return _known(context, name, [number(v) for v in values], span)
        dtype = common_dtype(context, name, values, spans, span)
        if dtype is None:
            return _counters(context, name, values)
        if name in _REAL and not dtype.is_float:
            raise _floats_only(name, dtype, values, span)
        if name in LOGIC and dtype != BOOL:
            raise fail("E113", f"`{name}` joins bools, not {dtype}", span, "compare first: `x > 0`")
        if dtype == BOOL and name not in LOGIC | {"eq", "ne", "stop_gradient"}:
            raise fail("E113", f"{_text(name)} takes numbers, not bool", span, "cast it: `f32(x)`, or use `where`")
        if name == "pow" and is_known(values[1]) and number(values[1]) == 2:
            name, values, spans = "mul", [values[0], values[0]], [spans[0], spans[0]]
        tensors = [tensor(context, v, dtype) for v in values]
        return emit_aligned(context, name, tensors)


def where(context: Context, values: list[Any], spans: list[Span], span: Span) -> Any:
    """`where(condition, x, y)`."""
    with context.at(span):
        condition, *branches = values
        if isinstance(condition, bool):
            return branches[0] if condition else branches[1]
        if isinstance(condition, Counter):
            condition = condition.value
        if not isinstance(condition, Value) or condition.type.dtype != BOOL:
            raise fail("E113", f"a condition is a bool, not {describe(condition)}", spans[0], "compare: `x > 0`")
        for value, at in zip(branches, spans[1:], strict=True):
            if not isinstance(value, (Value, Counter)) and not is_known(value):
                raise fail("E117", f"`where` chooses between tensors, not {describe(value)}", at, _hint(value))
        if not any(isinstance(v, (Value, Counter)) for v in branches):
            whole = all(isinstance(number(v), int) and not isinstance(v, bool) for v in branches)
            dtype = BOOL if all(isinstance(v, bool) for v in branches) else I64 if whole else F64
            found = [condition, *(tensor(context, v, dtype) for v in branches)]
            result = emit_aligned(context, "where", found)
            return Counter(result) if dtype != BOOL and not result.type.dims else result
        dtype = common_dtype(context, "where", branches, spans[1:], span)
        if dtype is None:
            dtype = I64 if all(_is_whole(v) for v in branches) else F64
            result = emit_aligned(context, "where", [condition, *(tensor(context, v, dtype) for v in branches)])
            return Counter(result) if not result.type.dims else result
        return emit_aligned(context, "where", [condition, *(tensor(context, v, dtype) for v in branches)])


def emit_aligned(context: Context, name: str, tensors: list[Value]) -> Value:
    """Broadcast by name to the axes of all operands, in order of first appearance (a condition last), and apply."""
    dims: dict[str, Dim] = {}
    for value in tensors if name != "where" else [*tensors[1:], tensors[0]]:
        for dim in value.type.dims:
            dims.setdefault(dim.name, dim)
            if dims[dim.name].size != dim.size:
                raise fail(
                    "E111", f"axis `{dim.name}` is {dims[dim.name].size} here and {dim.size} there", context.span,
                    "rename one of the axes",
                )  # fmt: skip
    found = tuple(dims.values())
    return context.emit(name, *(context.broadcast(v, found) for v in tensors))


def common_dtype(context: Context, name: str, values: list[Any], spans: list[Span], span: Span) -> DType | None:
    """The element type in which values meet; None when they are counters, which compute in 64 bits."""
    tensors = [(v.type.dtype, s, v) for v, s in zip(values, spans, strict=True) if isinstance(v, Value)]
    if not tensors:
        return None
    dtype, first, _ = tensors[0]
    scalars = all(not v.type.dims for _, _, v in tensors)
    for other, at, value in tensors[1:]:
        if other != dtype:
            raise _meet(name, (dtype, first, tensors[0][2]), (other, at, value), span)
    for value, at in zip(values, spans, strict=True):
        if isinstance(value, Value):
            continue
        if isinstance(value, bool) or (isinstance(value, Counter) and value.value.type.dtype == BOOL):
            if dtype != BOOL:
                raise fail("E113", f"{_text(name)} joins {dtype} with a bool", at, "a bool is a condition: use `where`")
        elif dtype == BOOL:
            raise fail("E113", f"{_text(name)} joins a bool with a number", at, "cast the bool: `f32(x)`")
        elif dtype.is_integer and not _is_whole(value):
            if scalars:
                return None  # an integer scalar is a counter
            if name in _REAL:
                raise _floats_only(name, dtype, values, span)
            help = f"cast the tensor: `f32({_source(values)})`"
            raise fail("E113", f"{_text(name)} joins {dtype} with {describe(value)}", at, help)
    if dtype.is_integer and name in _REAL | {"pow"} and scalars:
        return None
    if dtype.is_integer:
        for value, at in zip(values, spans, strict=True):
            if is_known(value):
                _check_fits(int(number(value)), dtype, at)
    return dtype


def _floats_only(name: str, dtype: DType, values: list[Any], span: Span) -> Diagnostics:
    help = f"cast it: `f32({_source(values)})`" + ("; `//` divides whole numbers" if name == "div" else "")
    return fail("E113", f"{_text(name)} takes floats, not {dtype}", span, help)


def _check_fits(value: int, dtype: DType, span: Span) -> None:
    low, high = (
        (0, (1 << dtype.bits) - 1) if dtype.kind == "uint" else (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)
    )
    if not low <= value <= high:
        raise fail("E104", f"{value} does not fit {dtype} ({low} to {high})", span, "cast the tensor to a wider type")


def _is_whole(value: Any) -> bool:
    if isinstance(value, Counter):
        return value.value.type.dtype == I64
    return isinstance(number(value), int)


def _meet(name: str, a: tuple[DType, Span, Value], b: tuple[DType, Span, Value], span: Span) -> Diagnostics:
    labels = (Label(a[1], type_text(a[2].type)), Label(b[1], type_text(b[2].type)))
    wide = a[0] if a[0].is_float and not b[0].is_float else b[0] if b[0].is_float and not a[0].is_float else None
    wide = wide or (a[0] if a[0].bits >= b[0].bits else b[0])
    return fail("E113", f"{_text(name)} joins {a[0]} with {b[0]}", a[1], f"cast one of them: `{wide}(…)`", labels)


def tensor(context: Context, value: Any, dtype: DType) -> Value:
    """A number, counter or tensor as a tensor of dtype; a tensor has it already."""
    if isinstance(value, Value):
        return context.cast(value, dtype)
    if isinstance(value, Counter):
        return context.cast(value.value, dtype)
    known = number(value)
    if dtype == BOOL:
        known = bool(known)
    elif dtype.is_integer:
        known = int(known)
    else:
        known = float(known)
    return context.constant(known, TensorType(dtype))


def as_tensor(context: Context, value: Any, span: Span) -> Value:
    """Any value with elements as a tensor: a number becomes f32, a whole one i32, a counter f32."""
    from alphac.ir.typesys import F32, I32

    if isinstance(value, Value):
        return value
    if isinstance(value, Counter):
        dtype = value.value.type.dtype
        return tensor(context, value, BOOL if dtype == BOOL else F32 if dtype == F64 else I32)
    if is_known(value):
        known = number(value)
        return tensor(context, known, BOOL if isinstance(known, bool) else I32 if isinstance(known, int) else F32)
    raise fail("E117", f"a tensor is expected, not {describe(value)}", span, _hint(value))


def coerce(context: Context, value: Any, type: TensorType, what: str, span: Span) -> Value:
    """A value as the declared type: numbers are rounded to it, axes it lacks are added, present ones put in order."""
    with context.at(span):
        if isinstance(value, Counter) or is_known(value):
            known = number(value) if is_known(value) else None
            if isinstance(known, float) and type.dtype.is_integer:
                raise fail("E114", f"{what} is {type_text(type)}, not {describe(value)}", span, "write a whole number")
            if isinstance(known, bool) != (type.dtype == BOOL) and known is not None:
                raise fail(
                    "E114", f"{what} is {type_text(type)}, not {describe(value)}", span, "write a value of that type"
                )
            if isinstance(known, int) and type.dtype.is_integer:
                _check_fits(known, type.dtype, span)
            return context.broadcast(tensor(context, value, type.dtype), type.dims)
        if not isinstance(value, Value):
            raise fail("E114", f"{what} is {type_text(type)}, not {describe(value)}", span, _hint(value))
        if value.type.dtype != type.dtype:
            help = f"cast it: `{type.dtype}(…)`"
            raise fail("E114", f"{what} is {type_text(type)}, not {type_text(value.type)}", span, help)
        extra = [d for d in value.type.dims if not type.has(d.name) or type.dim(d.name).size != d.size]
        if extra:
            help = f"reduce or rename {dims_text(tuple(extra))}"
            raise fail("E114", f"{what} is {type_text(type)}, not {type_text(value.type)}", span, help)
        return context.broadcast(value, type.dims)


# ------------------------------------------------------------------------------------------------- numbers and counters
def _known(context: Context, name: str, values: list[Any], span: Span) -> Any:
    """Arithmetic that the compiler does itself: exact, or correctly rounded, in Python's integers and doubles."""
    if name in LOGIC:
        if not all(isinstance(v, bool) for v in values):
            raise fail("E113", f"`{name}` joins bools", span, "compare first: `x > 0`")
        return {"and": all, "or": any, "not": lambda v: not v[0], "xor": lambda v: v[0] != v[1]}[name](values)
    try:
        result = _compute(name, values)
    except (OverflowError, ZeroDivisionError, ValueError):
        raise fail("E104", f"{_text(name)} of {_operands(values)} has no value", span, "change the numbers") from None
    if result is None:
        dtype = TensorType(F64)
        return Counter(context.emit(name, *(context.constant(float(v), dtype) for v in values)))
    if isinstance(result, int) and not isinstance(result, bool) and abs(result) >= 1 << 63:
        raise fail("E104", f"{_text(name)} makes a number that does not fit 64 bits", span, "write a float: `1e30`")
    return result


def _operands(values: list[Any]) -> str:
    return " and ".join(f"{v:.6g}" if isinstance(v, float) else str(v)[:24] for v in values)


def _compute(name: str, v: list[Any]) -> int | float | bool | None:
    """None: not exact in Python; computed by an op."""
    a = v[0]
    b = v[1] if len(v) > 1 else 0
    match name:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return _divide(a, b)
        case "floordiv":
            return a // b
        case "mod":
            return a % b
        case "eq":
            return a == b
        case "ne":
            return a != b
        case "lt":
            return a < b
        case "le":
            return a <= b
        case "gt":
            return a > b
        case "ge":
            return a >= b
        case "neg":
            return -a
        case "abs":
            return abs(a)
        case "sign":
            return (a > 0) - (a < 0)
        case "minimum":
            return min(a, b)
        case "maximum":
            return max(a, b)
        case "relu":
            return max(a, 0)
        case "floor":
            return math.floor(a)
        case "ceil":
            return math.ceil(a)
        case "round":
            return round(a)
        case "stop_gradient":
            return a
        case "sqrt":
            return math.sqrt(a)
        case "pow" if isinstance(a, int) and isinstance(b, int) and 0 <= b <= 64:
            return a**b
    return None  # fmt: skip


def _divide(a: int | float, b: int | float) -> int | float:
    """A quotient of whole numbers that is whole stays one: `rows / 2` may be a size."""
    if isinstance(a, int) and isinstance(b, int) and b and a % b == 0:
        return a // b
    if b == 0 and isinstance(b, float) and a:
        return math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _counters(context: Context, name: str, values: list[Any]) -> Any:
    """Scalars in 64 bits."""
    whole = all(_is_whole(v) or (isinstance(v, Value) and v.type.dtype.is_integer) for v in values)
    logic = name in LOGIC
    dtype = BOOL if logic else I64 if whole and name not in _REAL | {"pow"} else F64
    result = context.emit(name, *(tensor(context, v, dtype) for v in values))
    return result if result.type.dtype == BOOL else Counter(result)


# ------------------------------------------------------------------------------------------------------------- messages
def _text(name: str) -> str:
    symbol = next((s for s, n in OPERATORS.items() if n == name), name)
    return f"`{'-' if symbol == 'neg' else symbol}`"


def _source(values: list[Any]) -> str:
    hint = next((v.hint for v in values if isinstance(v, Value) and not v.type.dtype.is_float and v.hint), "")
    return hint or "x"


def _hint(value: Any) -> str:
    from alphac.frontend.values import Builtin, Callee, ColumnReference

    if isinstance(value, (Callee, Builtin)):
        name = value.declaration.name if isinstance(value, Callee) else value.name
        return f"call it: `{name}(…)`"
    if isinstance(value, Axes):
        return "axes are not numbers; a dim is its size"
    if isinstance(value, ColumnReference):
        return "a whole split is read by `sample(…)`"
    return "look at what the expression stands for"
