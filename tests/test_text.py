"""The IR as text: it comes back as it was, and what is not IR is refused at its place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alphac.frontend.elaborate import elaborate
from alphac.frontend.parse import parse, read_source
from alphac.ir.builder import Builder
from alphac.ir.core import Block, Column, Data, Evaluation, Function, Module, Port, State, Training, Value
from alphac.ir.ops.define import DEFINITIONS, TypeRuleError
from alphac.ir.passes.differentiate import Differentiate
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.simplify import Simplify
from alphac.ir.span import Span
from alphac.ir.text import IRSyntaxError, parse_module, print_literal, print_module
from alphac.ir.typesys import ALL_DTYPES, BF16, BOOL, F32, F64, I32, I64, U8, Dim, TensorType, shard_dim
from alphac.ir.verify import verify

BATCH = Dim("batch", 8, 4)
DIMS = (BATCH, shard_dim(BATCH), Dim("k", 3), Dim("h", 4), Dim("4 * width", 4), Dim("nan", 3), Dim("time'", 2))


# ---------------------------------------------------------------------- generated modules
@st.composite
def types(draw: st.DrawFn) -> TensorType:
    dims = draw(st.lists(st.sampled_from(DIMS), max_size=3, unique=True))
    grain = [d for d in dims if d.shards or d.name == "shard"][:1]
    rest = [d for d in dims if not d.shards and d.name != "shard"]
    return TensorType(draw(st.sampled_from((F32, F32, F64, BF16, I32, I64, U8, BOOL))), (*grain, *rest))


spans = st.builds(
    lambda file, line, column, more, end: Span(file, line, column, line + more, column + end),
    st.sampled_from(("digits.alpha", "a b.alpha", 'odd"\\\n.alpha', "/x/y-1.alpha")),
    st.integers(1, 10**6),
    st.integers(1, 500),
    st.integers(0, 2),
    st.integers(0, 30),
)
hints = st.sampled_from(("", "h", "m'", "layer.w1", "x.3", "two words", '"', "é", "_"))
sizes = st.integers(-2, 5)
ATTRIBUTES: dict[str, st.SearchStrategy[Any]] = {
    "value": st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1), st.booleans()),
    "dtype": st.sampled_from(tuple(ALL_DTYPES.values())),
    "dims": st.lists(st.sampled_from(DIMS), max_size=4, unique=True).map(tuple),
    "over": st.lists(st.sampled_from([d.name for d in DIMS]), max_size=2, unique=True).map(tuple),
    "reverse": st.booleans(),
}
INTEGERS = ("start", "step", "low", "high", "stride", "dilation", "padding", "seed", "stream", "wrt", "carried")


def attribute(draw: st.DrawFn, op: str, name: str) -> Any:
    if name in INTEGERS:
        return draw(sizes)
    if name in ATTRIBUTES:
        return draw(ATTRIBUTES[name])
    dims_needed = {("iota", "dim"), ("permutation", "dim"), ("scatter_add", "dim"), ("unwindow", "dim")}
    if name == "to" or name.startswith("to_") or (op, name) in dims_needed or (op, name) == ("window", "kernel"):
        return Dim(draw(st.sampled_from(("k", "new", "é"))), draw(st.integers(1, 5)))
    return draw(st.sampled_from([d.name for d in DIMS]))


@st.composite
def functions(draw: st.DrawFn, name: str = "step") -> Function:
    """Straight-line code over the op table: whatever the type rules let pass."""
    block = Block([Value(draw(types()), draw(hints)) for _ in range(draw(st.integers(1, 4)))])
    b = Builder(block)
    values = list(block.arguments)
    straight = sorted(n for n, d in DEFINITIONS.items() if d.shape != "structure")
    for op in draw(st.lists(st.sampled_from(straight), max_size=12)):
        definition = DEFINITIONS[op]
        count = definition.operands if definition.operands is not None else draw(st.integers(1, 3))
        operands = [draw(st.sampled_from(values)) for _ in range(count)]
        if draw(st.booleans()):  # likelier to fit
            operands = [operands[0]] * count if operands else []
        given_attributes = {n: attribute(draw, op, n) for n in definition.attributes}
        with b.at(draw(st.none() | spans)):
            try:
                values.append(b(op, *operands, hint=draw(hints), **given_attributes))
            except TypeRuleError:
                continue
    block.results = tuple(draw(st.lists(st.sampled_from(values), max_size=4)))
    arguments = tuple(Port("input", f"{name} {i}", (("count", i),)) for i in range(len(block.arguments)))
    results = tuple(Port("output", f"r.{i}") for i in range(len(block.results)))
    return Function(name, block, arguments, results)


DECLARED = Module(
    "odd name",
    BATCH,
    seed=3,
    states={
        "layer.w'": State("layer.w'", TensorType(F32, DIMS[2:5]), "param"),
        "true": State("true", TensorType(I32), "state"),
    },
    data={
        "digits": Data(
            "digits",
            'C:\\"x"\té\x07.npz',
            "npz",
            (
                Column("image", "images", TensorType(U8, (Dim("pixels", 64),))),
                Column("label", "", TensorType(I64), window=3, stride=2, offset=1, below=10),
            ),
            held_out=0.1,
            stratified_by="label",
            shuffle_seed=1,
        ),
        "empty": Data("empty", "t.txt", "text", ()),
    },
    training=Training("digits", epochs=40, checkpoint_epochs=1, keep_ragged=True),
    evaluations={"accuracy": Evaluation("accuracy", "digits", "test")},
)


def same(a: Any, b: Any) -> bool:
    """Equal in type and to the last bit."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b) and math.copysign(1, a) == math.copysign(1, b)
    return type(a) is type(b) and a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


def assert_same_function(a: Function, b: Function) -> None:
    assert (a.name, a.arguments, a.results) == (b.name, b.arguments, b.results)
    known = dict(zip(a.block.arguments, b.block.arguments, strict=True))
    assert [(v.type, v.hint) for v in known] == [(v.type, v.hint) for v in known.values()]
    for x, y in zip(a.block.ops, b.block.ops, strict=True):
        assert (x.name, x.span) == (y.name, y.span)
        assert tuple(known[v] for v in x.operands) == y.operands
        assert list(x.attributes) == list(y.attributes)
        assert all(same(x.attributes[k], y.attributes[k]) for k in x.attributes)
        for v, w in zip(x.results, y.results, strict=True):
            assert (v.type, v.hint, v.index) == (w.type, w.hint, w.index) and w.op is y
            known[v] = w
    assert tuple(known[v] for v in a.block.results) == b.block.results


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(functions())
def test_generated_functions_come_back(function: Function) -> None:
    module = Module("generated", BATCH, functions={"step": function})
    verify(module)
    text = print_module(module)
    parsed = parse_module(text)
    assert_same_function(function, parsed.functions["step"])
    assert print_module(parsed) == text
    verify(parsed)


EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*/*.alpha"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[p.stem for p in EXAMPLES])
def test_examples_come_back(path: Path) -> None:
    """After elaboration and after every pass, which also runs the verifier on all there is."""
    module = elaborate(parse(read_source(path), str(path)), overrides={}, directory=path.parent)
    for run_pass in (None, Differentiate(), Expand(), Simplify()):
        module = run_pass.run(module) if run_pass else module
        verify(module, differentiated=run_pass is not None)
        text = print_module(module)
        parsed = parse_module(text)
        assert print_module(parsed) == text
        verify(parsed)


def test_declarations_come_back() -> None:
    text = print_module(DECLARED)
    parsed = parse_module(text)
    assert (parsed.system, parsed.grain, parsed.seed) == (DECLARED.system, DECLARED.grain, DECLARED.seed)
    assert parsed.states == DECLARED.states
    assert parsed.data == DECLARED.data
    assert parsed.training == DECLARED.training
    assert parsed.evaluations == DECLARED.evaluations
    assert print_module(parsed) == text


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.one_of(
            st.floats(),
            st.integers(),
            st.booleans(),
            st.text(),
            st.sampled_from(tuple(ALL_DTYPES.values())),
            st.builds(Dim, st.text(), st.integers(0, 2**40), st.integers(0, 64)),
        ),
        lambda inner: st.lists(inner, max_size=3).map(tuple),
        max_leaves=6,
    )
)
def test_literals_come_back(value: Any) -> None:
    text = f"system t seed 0\nfunction f(\n) {{\n %1 = op() {{ a = {print_literal(value)} }} : f32[]\n return () }}"
    assert same(parse_module(text).functions["f"].block.ops[0].attributes["a"], value)


NESTED = """system t seed 0

function f(
    %x.1: f32[k:3] = input x,
) {
    %2, %h.3 = loop(%x.1, %x.1) {dim = k:3, carried = 1, reverse = false, slices = ("k",)} : f32[k:3], f32[k:3] do \
(%i.4: i64[], %5: f32[k:3], %6: f32[]) {
        yield %5, %6
    }
    return (
        %2 = output a,
        %h.3 = output b,
    )
}
"""


def test_nested_blocks_come_back() -> None:
    module = parse_module(NESTED)
    verify(module)
    assert print_module(module) == NESTED


def test_spans_can_be_left_out() -> None:
    module = parse_module(NESTED)
    module.functions["f"].block.ops[0].span = Span("a.alpha", 1, 2, 3, 4)
    assert "@ a.alpha:1:2-3:4" in print_module(module)
    assert print_module(module, spans=False) == NESTED


def test_comments_and_spaces_do_not_matter() -> None:
    assert print_module(parse_module(NESTED.replace("\n", "  # note\n\n").replace("\\  # note", "\\"))) == NESTED


@pytest.mark.parametrize(
    ("before", "after", "message", "line", "column"),
    [
        ("system t", "sytem t", "expected `system`, not `sytem`", 1, 1),
        ("f32[k:3] = input", "f33[k:3] = input", "`f33` is no element type", 4, 11),
        ("%x.1: f32[k:3]", "%x.1: f32[k:3, k:3]", "a type names each dim once", 4, 15),
        ("loop(%x.1, %x.1)", "loop(%x.1, %y.1)", "%y.1 is not defined here", 6, 27),
        ("%2 = output a", "%5 = output a", "%5 is not defined here", 10, 9),
        ("%i.4: i64[]", "%x.1: i64[]", "%x.1 is defined twice", 6, 117),
        ("%2, %h.3 = loop", "%2 = loop", "`loop` has 1 results and 2 types", 6, 10),
        ("carried = 1, reverse", "carried = 1, carried", "`carried` is given twice", 6, 58),
        ("carried = 1", "carried = ;", "unexpected character ';'", 6, 55),
        ("    )\n}\n", "    )\n", "expected `}`, not the end", 13, 1),
        ("function f", "funktion f", "`funktion` is no declaration", 3, 1),
    ],
)
def test_bad_text_is_refused_at_its_place(before: str, after: str, message: str, line: int, column: int) -> None:
    with pytest.raises(IRSyntaxError) as caught:
        parse_module(NESTED.replace(before, after, 1))
    assert message in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data d {path = "x", format = "npz", color = 1} {\n}', "`data` has no field `color`"),
        ('data d {path = "x"} {\n}', "`data` lacks its field `format`"),
        ("state a: f32[] param\nstate a: f32[] param", "state `a` is declared twice"),
        ("state a: f32[k:1.5] param", "expected an integer"),
    ],
)
def test_bad_declarations_are_refused(text: str, message: str) -> None:
    with pytest.raises(IRSyntaxError, match=message):
        parse_module(f"system t seed 0\n{text}\n")
