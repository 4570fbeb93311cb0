"""Simplification: every rule does what it says, none changes a bit, and what is not allowed is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Port, Value
from alphac.ir.interpret import interpret
from alphac.ir.ops.define import TypeRuleError
from alphac.ir.passes.algebra import ANY_ELEMENTWISE, RULES, constant
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.simplify import Simplify
from alphac.ir.text import parse_module, print_module
from alphac.ir.typesys import BF16, BOOL, F32, F64, I32, I64, U8, Dim, DType, TensorType
from alphac.ir.verify import verify

K, ONE, OTHER, A, B = Dim("k", 400), Dim("one", 1), Dim("other", 400), Dim("a", 20), Dim("b", 20)
TINY = 2.0**-149
SPECIAL = (0.0, 1.0, 1.5, -3.0, 0.1, 7.0, TINY, 1e-42, 2.0**-126, 3.4e38, 65504.0, float("inf"), float("nan"))
Body = Callable[..., Value]
PAIR = Dim("pair", 2)


def unwound(b: Builder, x: Value, to: Dim, size: int, low: int = 0) -> Value:
    """The adjoint of windows of two that lie side by side."""
    dim, kernel = Dim("long", size), PAIR.name
    spread = b("unwindow", x, to=to.name, kernel=kernel, dim=dim, stride=2, low=low, dilation=1)
    return b("reduce_sum", spread, over=(kernel,))


def module(types: Sequence[TensorType], body: Body) -> Module:
    block = Block([Value(t, "xyzuvw"[i]) for i, t in enumerate(types)])
    block.results = (body(Builder(block), *block.arguments),)
    ports = tuple(Port("input", f"x{i}") for i in range(len(types)))
    return Module("t", None, functions={"step": Function("step", block, ports, (Port("output", "r"),))})


def simplified(before: Module) -> Module:
    """`before` after the pass, verified; `before` itself must not change, and a second run must find nothing."""
    verify(before)
    text = print_module(before)
    after = Simplify().run(before)
    verify(after)
    assert print_module(before) == text
    again = print_module(Simplify().run(after))
    assert again == print_module(after)
    return after


def expression(value: Value) -> str:
    """A value as an expression; copies of a constant as the number."""
    number = constant(value)
    if number is not None:
        return repr(number)
    if value.op is None:
        return value.hint
    shown = [expression(v) for v in value.op.operands]
    if "dtype" in value.op.attributes:
        shown.append(str(value.op.attributes["dtype"]))
    return f"{value.op.name}({', '.join(shown)})"


def arrays(types: Sequence[TensorType]) -> list[np.ndarray]:
    """Special values of both signs, every pair of them for the first two arguments."""
    floats = np.array([s * v for v in SPECIAL for s in (1, -1)])[:20]
    ints = np.array([0, 1, 2, 3, 7, 255, 256, -1, -2, -128, 2**31 - 1, -(2**31), 100, 5, 6, 8, 9, 10, 11, 12])
    made: list[np.ndarray] = []
    for i, t in enumerate(types):
        source = floats if t.dtype.is_float else ints % 2 if t.dtype == BOOL else ints
        pairs = np.repeat(source, 20) if i % 2 == 0 else np.tile(source, 20)
        made.append(np.resize(np.roll(pairs, i // 2), t.shape))
    return made


def assert_same_bits(before: Module, after: Module) -> None:
    inputs = arrays([v.type for v in before.functions["step"].block.arguments])
    wanted, found = (interpret(m, inputs, exact=True)[0] for m in (before, after))
    assert wanted.dtype == found.dtype
    if wanted.dtype.kind == "f":  # all NaNs are one
        wanted, found = (np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x) for x in (wanted, found))
    assert wanted.tobytes() == found.tobytes()


def f(dtype: DType = F32, *dims: Dim) -> TensorType:
    return TensorType(dtype, dims or (K,))


def scalar(dtype: DType = F32) -> TensorType:
    return TensorType(dtype)


X, N, P = f(F32), f(I32), f(BOOL)

# rule -> (arguments, before, after)
CASES: list[tuple[str, Sequence[TensorType], Body, str]] = [
    ("add_nothing", [X], lambda b, x: b("add", x, b.like(-0.0, x)), "x"),
    ("add_nothing", [X], lambda b, x: b("add", b.like(-0.0, x), x), "x"),
    ("add_nothing", [N], lambda b, x: b("add", x, b.like(0, x)), "x"),
    ("subtract_nothing", [X], lambda b, x: b("sub", x, b.like(0.0, x)), "x"),
    ("subtract_nothing", [X], lambda b, x: b("sub", x, b.like(0, x)), "x"),
    ("subtract_from_nothing", [X], lambda b, x: b("sub", b.like(-0.0, x), x), "neg(x)"),
    ("subtract_from_nothing", [N], lambda b, x: b("sub", b.like(0, x), x), "neg(x)"),
    ("multiply_by_one", [X], lambda b, x: b("mul", x, b.like(1.0, x)), "x"),
    ("multiply_by_one", [N], lambda b, x: b("mul", b.like(1, x), x), "x"),
    ("divide_by_one", [X], lambda b, x: b("div", x, b.like(1, x)), "x"),
    ("divide_by_one", [N], lambda b, x: b("floordiv", x, b.like(1, x)), "x"),
    ("times_minus_one", [X], lambda b, x: b("mul", b.like(-1.0, x), x), "neg(x)"),
    ("times_minus_one", [X], lambda b, x: b("div", x, b.like(-1.0, x)), "neg(x)"),
    ("divide_by_power_of_two", [X], lambda b, x: b("div", x, b.like(-8.0, x)), "mul(x, -0.125)"),
    ("divide_by_power_of_two", [X], lambda b, x: b("div", x, b.like(2.0**-126, x)), f"mul(x, {2.0**126!r})"),
    ("divide_by_power_of_two", [f(BF16)], lambda b, x: b("div", x, b.like(2.0**126, x)), f"mul(x, {2.0**-126!r})"),
    ("divide_by_power_of_two", [f(F64)], lambda b, x: b("div", x, b.like(2.0**1000, x)), f"mul(x, {2.0**-1000!r})"),
    ("twice", [X], lambda b, x: b("neg", b("neg", x)), "x"),
    ("twice", [P], lambda b, x: b("not", b("not", x)), "x"),
    ("add_negative", [X, X], lambda b, x, y: b("add", x, b("neg", y)), "sub(x, y)"),
    ("add_negative", [X, X], lambda b, x, y: b("add", b("neg", x), y), "sub(y, x)"),
    ("subtract_negative", [X, X], lambda b, x, y: b("sub", x, b("neg", y)), "add(x, y)"),
    ("two_negatives", [X, X], lambda b, x, y: b("mul", b("neg", x), b("neg", y)), "mul(x, y)"),
    ("two_negatives", [X, X], lambda b, x, y: b("div", b("neg", x), b("neg", y)), "div(x, y)"),
    ("of_itself", [X], lambda b, x: b("minimum", x, x), "x"),
    ("of_itself", [P], lambda b, x: b("and", x, x), "x"),
    ("logic_with_constant", [P], lambda b, x: b("and", x, b.like(True, x)), "x"),
    ("logic_with_constant", [P], lambda b, x: b("and", b.like(False, x), x), "False"),
    ("logic_with_constant", [P], lambda b, x: b("or", x, b.like(False, x)), "x"),
    ("logic_with_constant", [P], lambda b, x: b("or", x, b.like(True, x)), "True"),
    ("logic_with_constant", [P], lambda b, x: b("xor", x, b.like(True, x)), "not(x)"),
    ("logic_with_constant", [P], lambda b, x: b("xor", x, b.like(False, x)), "x"),
    ("negated_equality", [X, X], lambda b, x, y: b("not", b("eq", x, y)), "ne(x, y)"),
    ("negated_equality", [X, X], lambda b, x, y: b("not", b("ne", x, y)), "eq(x, y)"),
    ("decided", [X, X], lambda b, x, y: b("where", b.constant(True, BOOL, (K,)), x, y), "x"),
    ("decided", [X, X], lambda b, x, y: b("where", b.constant(False, BOOL, (K,)), x, y), "y"),
    ("decided", [P, X], lambda b, c, x: b("where", c, x, x), "y"),
    ("negated_condition", [P, X, X], lambda b, c, x, y: b("where", b("not", c), x, y), "where(x, z, y)"),
    ("cast_to_same", [X], lambda b, x: b("cast", x, dtype=F32), "x"),
    ("cast_of_cast", [f(BF16)], lambda b, x: b("cast", b("cast", x, dtype=F32), dtype=BF16), "x"),
    ("cast_of_cast", [f(U8)], lambda b, x: b("cast", b("cast", x, dtype=I32), dtype=F32), "cast(x, f32)"),
    ("cast_of_cast", [X], lambda b, x: b("cast", b("cast", x, dtype=F64), dtype=I32), "cast(x, i32)"),
    ("cast_of_cast", [N], lambda b, x: b("cast", b("cast", x, dtype=F64), dtype=I32), "x"),
    ("cast_of_cast", [P], lambda b, x: b("cast", b("cast", x, dtype=F32), dtype=BOOL), "x"),
    ("nothing_moved", [X], lambda b, x: b("broadcast", x, dims=(K,)), "x"),
    ("nothing_moved", [X], lambda b, x: b("slice", x, dim="k", start=0, step=1, to=K), "x"),
    ("nothing_moved", [X], lambda b, x: b("pad", x, dim="k", low=0, high=0, to=K, value=0.0), "x"),
    ("nothing_moved", [X], lambda b, x: b("concat", x, dim="k", to=K), "x"),
    ("moved_twice", [X], lambda b, x: b.broadcast(b.broadcast(x, (K, ONE)), (A, ONE, K)), "broadcast(x)"),
    (
        "moved_twice",
        [X],
        lambda b, x: b("reshape", b("reshape", x, dims=(A, B)), dims=(B, ONE, A)),
        "reshape(x)",
    ),
    ("moved_twice", [X], lambda b, x: b("rename", b("rename", x, dims=(OTHER,)), dims=(K,)), "x"),
    ("moved_splat", [scalar()], lambda b, x: b("reshape", b.broadcast(x, (K,)), dims=(A, B)), "broadcast(x)"),
    ("moved_splat", [scalar(), N], lambda b, x, i: b("gather", b.broadcast(x, (A,)), i, dim="a"), "broadcast(x)"),
    ("windows_side_by_side", [f(F32, A, PAIR, B)], lambda b, x: unwound(b, x, A, 40), "add(reshape(x), 0.0)"),
    ("windows_side_by_side", [f(BF16, A, B, PAIR)], lambda b, x: unwound(b, x, B, 40), "add(reshape(x), 0.0)"),
    ("windows_side_by_side", [f(I32, A, B, PAIR)], lambda b, x: unwound(b, x, A, 40), "reshape(broadcast(x))"),
    (
        "windows_side_by_side",
        [f(F32, A, PAIR)],
        lambda b, x: unwound(b, x, A, 41, 1),
        "add(slice(pad(reshape(x))), 0.0)",
    ),
    ("windows_side_by_side", [f(F64, A, PAIR)], lambda b, x: unwound(b, x, A, 38, 1), "add(slice(reshape(x)), 0.0)"),
    ("fold", [], lambda b: b("add", b.constant(0.1, F32), b.constant(0.2, F32)), repr(0.30000001192092896)),
    ("fold", [], lambda b: b("cast", b.constant(1e10, F32), dtype=I32), str(2**31 - 1)),
    ("fold", [], lambda b: b("cast", b.constant(0.1, BF16), dtype=F32), "0.10009765625"),
    ("fold", [], lambda b: b("mul", b.constant(200, U8, (K,)), b.constant(2, U8, (K,))), "144"),
    ("fold", [], lambda b: b("div", b.constant(0.0, F64), b.constant(0.0, F64)), "nan"),
    ("fold", [], lambda b: b("lt", b.constant(1, I64), b.constant(2, I64)), "True"),
    (
        "before_broadcast",
        [scalar(), scalar()],
        lambda b, x, y: b("mul", b.broadcast(x, (K,)), b.broadcast(y, (K,))),
        "broadcast(mul(x, y))",
    ),
    (
        "before_broadcast",
        [f(F32, A)],
        lambda b, x: b("sub", b.constant(2.0, F32, (A, B)), b.broadcast(x, (A, B))),
        "broadcast(sub(2.0, x))",
    ),
]


@pytest.mark.parametrize(("name", "types", "body", "after"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_rule(name: str, types: Sequence[TensorType], body: Body, after: str) -> None:
    before = module(types, body)
    found = simplified(before)
    assert expression(found.functions["step"].block.results[0]) == after
    assert_same_bits(before, found)


def test_every_rule_has_a_case() -> None:
    rules = {rule.__name__ for rules in (*RULES.values(), ANY_ELEMENTWISE) for rule in rules}
    assert rules == {name for name, *_ in CASES}
    assert all(rule.__doc__ and "→" in rule.__doc__ for rules in RULES.values() for rule in rules)


KEPT: list[tuple[Sequence[TensorType], Body, str]] = [
    ([X], lambda b, x: b("add", x, b.like(0.0, x)), "add(x, 0.0)"),
    ([X], lambda b, x: b("sub", x, b.like(-0.0, x)), "sub(x, -0.0)"),
    ([X], lambda b, x: b("sub", b.like(0.0, x), x), "sub(0.0, x)"),
    ([X], lambda b, x: b("mul", x, b.like(0.0, x)), "mul(x, 0.0)"),
    ([X], lambda b, x: b("div", x, b.like(3.0, x)), "div(x, 3.0)"),
    ([X], lambda b, x: b("div", x, b.like(2.0**-140, x)), f"div(x, {2.0**-140!r})"),
    ([X], lambda b, x: b("div", x, b.like(0.0, x)), "div(x, 0.0)"),
    ([X], lambda b, x: b("sub", x, x), "sub(x, x)"),
    ([X], lambda b, x: b("eq", x, x), "eq(x, x)"),
    ([X, X], lambda b, x, y: b("not", b("lt", x, y)), "not(lt(x, y))"),
    ([X, X], lambda b, x, y: b("neg", b("sub", x, y)), "neg(sub(x, y))"),
    ([N, N], lambda b, x, y: b("floordiv", b("neg", x), b("neg", y)), "floordiv(neg(x), neg(y))"),
    ([f(F64)], lambda b, x: b("cast", b("cast", x, dtype=F32), dtype=F64), "cast(cast(x, f32), f64)"),
    ([f(I32)], lambda b, x: b("cast", b("cast", x, dtype=F64), dtype=U8), "cast(cast(x, f64), u8)"),
    ([f(I64)], lambda b, x: b("cast", b("cast", x, dtype=F64), dtype=I64), "cast(cast(x, f64), i64)"),
    ([X], lambda b, x: b("slice", x, dim="k", start=399, step=-1, to=K), "slice(x)"),
    ([scalar()], lambda b, x: b("reduce_sum", b.broadcast(x, (K,)), over=("k",)), "reduce_sum(broadcast(x))"),
    ([X, X, X], lambda b, x, y, z: b("add", b("add", x, y), z), "add(add(x, y), z)"),
]


@pytest.mark.parametrize(("types", "body", "after"), KEPT, ids=[c[2] for c in KEPT])
def test_what_would_change_bits_is_kept(types: Sequence[TensorType], body: Body, after: str) -> None:
    found = simplified(module(types, body))
    assert expression(found.functions["step"].block.results[0]) == after


def test_common_subexpressions_tell_zeros_and_types_apart() -> None:
    def body(b: Builder, x: Value) -> Value:
        zeros = [b.like(0.0, x), b.like(-0.0, x), b.like(0, x)]
        return b("add", b("mul", x, zeros[0]), b("add", b("mul", x, zeros[1]), b("mul", x, zeros[2])))

    found = simplified(module([X], body))
    names = [op.name for op in found.functions["step"].block.ops]
    assert {n: names.count(n) for n in names} == {"constant": 2, "broadcast": 2, "mul": 2, "add": 2}
    assert_same_bits(module([X], body), found)


def test_stop_gradient_stays_while_a_grad_can_see_it() -> None:
    def body(b: Builder, x: Value) -> Value:
        inner = Block([Value(x.type)])
        ib = Builder(inner)
        inner.results = (ib("reduce_sum", ib("stop_gradient", inner.arguments[0]), over=("k",)),)
        return b.build("grad", [x], (inner,), wrt=1).results[1]

    found = simplified(module([X], body))
    assert "stop_gradient" in print_module(found)
    alone = simplified(module([X], lambda b, x: b("stop_gradient", x)))
    assert expression(alone.functions["step"].block.results[0]) == "x"


UNARY, BINARY = ("neg", "abs", "relu", "sqrt", "sign", "floor"), ("add", "sub", "mul", "div", "minimum", "maximum")
COMPARE, LOGIC = ("eq", "ne", "lt", "le"), ("and", "or", "xor")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Sequence[TensorType], Body]:
    """Elementwise code full of constants."""
    dtype = draw(st.sampled_from((F32, F32, F64, BF16, I32)))
    choices = st.tuples(
        st.sampled_from((*UNARY, *BINARY, *BINARY, *COMPARE, *LOGIC, "where", "not", "cast", "constant", "constant")),
        st.tuples(*[st.integers(0, 99)] * 3),
        st.sampled_from((0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.1, 2.0**-126, 2.0**127, float("inf"), float("nan"))),
        st.sampled_from((F32, F64, BF16, I32, BOOL)),
    )
    steps = draw(st.lists(choices, min_size=3, max_size=25))

    def body(b: Builder, x: Value, y: Value, p: Value) -> Value:
        values = [x, y, p]
        for name, picks, number, to in steps:
            operands = [values[i % len(values)] for i in picks]
            try:
                if name == "constant":
                    whole = int(min(9, max(-9, number)))  # NaN, which is neither, gives −9
                    values.append(b.constant(number if dtype.is_float else whole, dtype, (K,)))
                elif name == "cast":
                    values.append(b("cast", operands[0], dtype=to))
                elif name == "where":
                    values.append(b("where", *operands))
                else:
                    values.append(b(name, *operands[: 1 if name in (*UNARY, "not") else 2]))
            except TypeRuleError:
                continue
        return values[-1]

    return (f(dtype), f(dtype), P), body


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_random_programs_keep_their_bits(program: tuple[Sequence[TensorType], Body]) -> None:
    before = module(*program)
    assert_same_bits(before, simplified(before))


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "golden" / "simplify").glob("*.txt")), ids=str)
def test_golden(path: Path, golden: Callable[[Path, str], None]) -> None:
    source = path.read_text(encoding="utf-8").partition("\n---\n")[0]
    before = parse_module(source)
    golden(path, f"{source}\n---\n{print_module(simplified(before), spans=False)}")


def test_composite_ops_are_expanded() -> None:
    """And a composite op in a loop's body, whose value is carried on, too."""
    batch, rows, columns, c = Dim("batch", 4, 2), Dim("rows", 5), Dim("columns", 4), Dim("c", 2)
    r, s, to_rows, to_columns, out = Dim("r", 3), Dim("s", 2), Dim("rows'", 3), Dim("columns'", 3), Dim("out", 3)

    def convolve(b: Builder, x: Value, kernel: Value) -> Value:
        return b(
            "conv2d",
            x,
            kernel,
            rows="rows",
            columns="columns",
            kernel_rows="r",
            kernel_columns="s",
            to_rows=to_rows,
            to_columns=to_columns,
            stride=1,
            padding=0,
            dilation=1,
            dims=(batch, out, to_rows, to_columns),
        )

    def body(b: Builder, x: Value, kernel: Value) -> Value:
        inner = Block([Value(TensorType(I64)), Value(convolve(b, x, kernel).type)])
        ib = Builder(inner)
        inner.results = (ib("add", inner.arguments[1], convolve(ib, x, kernel)),)
        first = convolve(b, x, kernel)
        return b.build("loop", [first], (inner,), dim=Dim("t", 2), carried=1, reverse=False, slices=()).result

    before = module([TensorType(F32, (batch, rows, columns, c)), TensorType(F32, (r, s, c, out))], body)
    after = Expand().run(before)
    verify(after)
    text = print_module(after)
    assert "conv2d" not in text and text.count("contract(") == 3
    assert_same_bits(before, after)
    assert_same_bits(before, simplified(after))
