"""Gradients: against finite differences of the same program, and as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Port, Value, walk
from alphac.ir.errors import InternalError, NotDifferentiableError
from alphac.ir.interpret import interpret
from alphac.ir.ops.define import DEFINITIONS, Cost, NotDifferentiable, define
from alphac.ir.passes.differentiate import Differentiate
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.simplify import Simplify
from alphac.ir.span import Span
from alphac.ir.text import parse_module, print_module
from alphac.ir.typesys import F32, F64, I32, I64, SHARD, Dim, DType, TensorType
from alphac.ir.verify import verify

BATCH = Dim("batch", 8, 4)
IN, HID, OUT, TIME, LAYERS = Dim("in", 3), Dim("hid", 4), Dim("out", 3), Dim("time", 5), Dim("layers", 3)
BACK = Dim("back", 4)  # hid by another name: the other side of a square matrix

Values = Sequence[Value]
Body = Callable[..., Values]


def tensor(*dims: Dim, dtype: DType = F32) -> TensorType:
    return TensorType(dtype, dims)


def block(types: Sequence[TensorType], body: Body, hints: Sequence[str] = ()) -> Block:
    made = Block([Value(t, h) for t, h in zip(types, hints or [""] * len(types), strict=True)])
    made.results = tuple(body(Builder(made, Span("t.alpha", 1, 1, 1, 2)), *made.arguments))
    return made


def module(arguments: dict[str, TensorType], body: Body) -> Module:
    made = block(list(arguments.values()), body, list(arguments))
    inputs = tuple(Port("input", name) for name in arguments)
    outputs = tuple(Port("output", f"r{i}") for i in range(len(made.results)))
    return Module("test", BATCH, functions={"step": Function("step", made, inputs, outputs)})


def grad(b: Builder, wrt: Values, body: Body) -> list[Value]:
    inner = block([v.type for v in wrt], body, [v.hint for v in wrt])
    return list(b.build("grad", wrt, (inner,), wrt=len(wrt)).results)


def loop(
    b: Builder, dim: Dim, carried: Values, stacks: Values, body: Body, reverse: bool = False, axis: str = ""
) -> list[Value]:
    slices = (axis or dim.name,) * len(stacks)
    types = [tensor(dtype=I64), *(v.type for v in carried), *(v.type.without(axis or dim.name) for v in stacks)]
    inner = block(types, body)
    attributes = {"dim": dim, "carried": len(carried), "reverse": reverse, "slices": slices}
    return list(b.build("loop", [*carried, *stacks], (inner,), "", **attributes).results)


def total(b: Builder, x: Value) -> Value:
    """The sum over all axes and shards."""
    x = b.sum_to(x, ())
    return b.combine(x) if x.type.is_partial else x


def over(b: Builder, x: Value, *names: str) -> Value:
    """The sum over axes, shards combined."""
    x = b("reduce_sum", x, over=names)
    return b.combine(x) if x.type.is_partial else x


def weighed(b: Builder, x: Value) -> Value:
    """A scalar that depends on every element of x differently."""
    terms = x
    for d in x.type.dims:
        ramp = b.broadcast(b("iota", dim=d, dtype=F32), x.type.dims)
        terms = b("mul", terms, b("add", ramp, b.like(1.5, x)))
    return total(b, terms)


def mul(b: Builder, x: Value, y: Value) -> Value:
    return b("mul", x, b.broadcast(y, x.type.dims))


# ---------------------------------------------------------------------- programs: arguments, wrt, loss
def mlp(b: Builder, x: Value, label: Value, w1: Value, b1: Value, w2: Value) -> Values:
    """Softmax cross-entropy, written out."""
    h = b("contract", x, w1, dims=(BATCH, HID))
    h = b("tanh", b("add", h, b.broadcast(b1, h.type.dims)))
    y = b("contract", h, w2, dims=(BATCH, OUT))
    y = b("sub", y, b.broadcast(b("reduce_max", y, over=("out",)), y.type.dims))
    z = b("log", b("reduce_sum", b("exp", y), over=("out",)))
    classes = b.broadcast(b("iota", dim=OUT, dtype=I32), y.type.dims)
    hit = b("eq", classes, b.broadcast(label, y.type.dims))
    picked = b("reduce_sum", b("where", hit, y, b.like(0.0, y)), over=("out",))
    loss = b("mul", total(b, b("sub", z, picked)), b.constant(1 / 8, F32))
    return loss, h


def rnn(b: Builder, x: Value, h0: Value, w: Value, u: Value) -> Values:
    """Weights captured by a scan: their cotangents are per-shard partials, carried."""

    def step(b: Builder, i: Value, h: Value, xt: Value) -> Values:
        recurrent = b("rename", b("contract", h, w, dims=(BATCH, BACK)), dims=(BATCH, HID))
        h = b("tanh", b("add", recurrent, b("contract", xt, u, dims=(BATCH, HID))))
        return h, b("mul", h, h)

    last, squares = loop(b, TIME, [h0], [x], step)
    return (b("add", weighed(b, last), weighed(b, squares)),)


def repeated(b: Builder, x: Value, ws: Value, scale: Value) -> Values:
    """Stacked parameters, cut along an axis that is not the first; a captured one that is used twice."""

    def layer(b: Builder, i: Value, h: Value, w: Value) -> Values:
        h = b("rename", b("contract", mul(b, h, scale), w, dims=(BATCH, BACK)), dims=(BATCH, HID))
        return (b("add", b("sin", h), b.broadcast(scale, h.type.dims)),)

    return (weighed(b, loop(b, LAYERS, [x], [ws], layer)[0]),)


def nested(b: Builder, x: Value, ws: Value, v: Value) -> Values:
    """A loop in a loop; the inner one captures a slice of the outer, its carried value, and a value from outside."""

    def outer(b: Builder, i: Value, h: Value, w: Value) -> Values:
        base = b("sin", h)

        def inner(b: Builder, j: Value, c: Value, xt: Value) -> Values:
            c = b("tanh", b("add", mul(b, c, w), b("mul", base, mul(b, b("cos", xt), v))))
            return c, b("mul", c, base)

        c, seen = loop(b, TIME, [h], [x], inner, reverse=True)
        return (b("add", c, b("mul", over(b, seen, "time"), base)),)

    h0 = b.constant(0.3, F32, (BATCH, HID))
    return (weighed(b, loop(b, LAYERS, [h0], [ws], outer)[0]),)


def same_axis(b: Builder, x: Value, w: Value) -> Values:
    """The body saves values that have the loop's own dim, and takes slices along an axis of another name."""
    other = Dim("when", TIME.size)

    def step(b: Builder, i: Value, c: Value, xt: Value) -> Values:
        spread = b("tanh", mul(b, w, xt))  # [time]
        return (b("add", c, over(b, b("mul", spread, b("exp", spread)), "time")),)

    start = b.constant(0.0, F32)
    stack = b("reduce_sum", b("rename", b.combine(over_shards(b, x)), dims=(other, HID)), over=("hid",))
    return (loop(b, TIME, [start], [stack], step, axis="when")[0],)


def over_shards(b: Builder, x: Value) -> Value:
    return b("reduce_sum", x, over=("batch",))


def slices_with_loop_dim(b: Builder, x: Value, w: Value) -> Values:
    """What is sliced has, besides the axis that is cut, one named like the loop's dim."""
    cut = Dim("cut", TIME.size)
    table = b("mul", b.broadcast(w, (TIME, cut)), b.broadcast(b("rename", w, dims=(cut,)), (TIME, cut)))

    def step(b: Builder, i: Value, c: Value, row: Value) -> Values:
        return (b("add", b("mul", c, b("sin", c)), over(b, b("exp", row), "time")),)

    return (loop(b, TIME, [b.constant(0.1, F32)], [table], step, axis="cut")[0],)


def statistics(b: Builder, x: Value, w: Value, gain: Value) -> Values:
    """batch_norm: a combine whose result goes back into every example."""
    h = b("contract", x, w, dims=(BATCH, HID))
    mean = b("mul", over(b, h, "batch"), b.constant(1 / 8, F32, (HID,)))
    centred = b("sub", h, b.broadcast(mean, h.type.dims))
    variance = b("mul", over(b, b("mul", centred, centred), "batch"), b.constant(1 / 8, F32, (HID,)))
    scale = b("mul", gain, b("rsqrt", b("add", variance, b.constant(0.1, F32, (HID,)))))
    return (weighed(b, b("sin", mul(b, centred, scale))),)


def statistics_in_loop(b: Builder, x: Value, ws: Value) -> Values:
    def layer(b: Builder, i: Value, h: Value, w: Value) -> Values:
        mean = over(b, h, "batch")
        return (b("sin", b("add", mul(b, h, w), b.broadcast(mean, h.type.dims))),)

    return (weighed(b, loop(b, LAYERS, [x], [ws], layer)[0]),)


def embedding(b: Builder, token: Value, table: Value, w: Value) -> Values:
    h = b("gather", table, token, dim="out")
    return (weighed(b, b("tanh", mul(b, h, w))),)


def convolution(b: Builder, x: Value, kernel: Value) -> Values:
    rows, columns = Dim("rows'", 3), Dim("columns'", 3)
    y = b(
        "conv2d",
        x,
        kernel,
        rows="rows",
        columns="columns",
        kernel_rows="r",
        kernel_columns="c",
        to_rows=rows,
        to_columns=columns,
        stride=2,
        padding=1,
        dilation=1,
        dims=(BATCH, rows, columns, HID),
    )
    return (weighed(b, b("sin", y)),)


def inner_gradient(b: Builder, x: Value, w: Value) -> Values:
    """A gradient penalty: the loss holds a gradient of another loss."""

    def energy(b: Builder, v: Value) -> Values:
        return (total(b, b("sin", b("contract", x, v, dims=(BATCH, HID)))),)

    _, g = grad(b, [w], energy)
    return (weighed(b, b("mul", g, b("mul", g, w))),)


def inner_gradient_of_loop(b: Builder, x: Value, h0: Value, w: Value, u: Value) -> Values:
    _, g, _ = grad(b, [w, u], lambda b, w, u: rnn(b, x, h0, w, u))
    return (weighed(b, b("mul", g, g)),)


def descent(b: Builder, x: Value, w: Value, rate: Value) -> Values:
    """Gradient steps in a loop, and the gradient through them."""

    def step(b: Builder, i: Value, w: Value) -> Values:
        def loss(b: Builder, w: Value) -> Values:
            return (total(b, b("sin", b("contract", x, w, dims=(BATCH, HID)))),)

        _, g = grad(b, [w], loss)
        return (b("sub", w, mul(b, g, rate)),)

    return (weighed(b, loop(b, LAYERS, [w], [], step)[0]),)


def partly_used(b: Builder, x: Value, w: Value, unused: Value, n: Value) -> Values:
    """Carried integers, a value behind stop_gradient, and one that nothing depends on."""

    def step(b: Builder, i: Value, count: Value, h: Value, dead: Value) -> Values:
        h = b("mul", h, b.broadcast(b("cast", count, dtype=F32), h.type.dims))
        return b("add", count, b.constant(1, I32)), b("add", h, b("stop_gradient", h)), b("exp", dead)

    carried = [n, b("sin", w), b("stop_gradient", w)]
    _, h, dead = loop(b, LAYERS, carried, [], step)
    held = total(b, b("mul", b("stop_gradient", b("mul", w, w)), dead))
    return (b("add", weighed(b, h), held),)


STACKED = tensor(HID, LAYERS, BACK)
PROGRAMS: dict[str, tuple[Body, dict[str, TensorType], tuple[str, ...]]] = {
    "mlp": (
        mlp,
        {
            "x": tensor(BATCH, IN),
            "label": tensor(BATCH, dtype=I32),
            "w1": tensor(IN, HID),
            "b1": tensor(HID),
            "w2": tensor(HID, OUT),
        },
        ("w1", "b1", "w2"),
    ),
    "rnn": (
        rnn,
        {"x": tensor(BATCH, TIME, IN), "h0": tensor(BATCH, HID), "w": tensor(HID, BACK), "u": tensor(IN, HID)},
        ("h0", "w", "u"),
    ),
    "repeated": (repeated, {"x": tensor(BATCH, HID), "ws": STACKED, "scale": tensor(HID)}, ("x", "ws", "scale")),
    "nested": (
        nested,
        {"x": tensor(BATCH, TIME, HID), "ws": tensor(LAYERS, HID), "v": tensor(HID)},
        ("x", "ws", "v"),
    ),
    "same_axis": (same_axis, {"x": tensor(BATCH, TIME, HID), "w": tensor(TIME)}, ("x", "w")),
    "slices_with_loop_dim": (slices_with_loop_dim, {"x": tensor(BATCH), "w": tensor(TIME)}, ("w",)),
    "statistics": (
        statistics,
        {"x": tensor(BATCH, IN), "w": tensor(IN, HID), "gain": tensor(HID)},
        ("x", "w", "gain"),
    ),
    "statistics_in_loop": (statistics_in_loop, {"x": tensor(BATCH, HID), "ws": tensor(LAYERS, HID)}, ("x", "ws")),
    "embedding": (
        embedding,
        {"token": tensor(BATCH, TIME, dtype=I32), "table": tensor(OUT, HID), "w": tensor(HID)},
        ("table", "w"),
    ),
    "convolution": (
        convolution,
        {
            "x": tensor(BATCH, Dim("rows", 5), Dim("columns", 5), IN),
            "kernel": tensor(Dim("r", 3), Dim("c", 3), IN, HID),
        },
        ("x", "kernel"),
    ),
    "inner_gradient": (inner_gradient, {"x": tensor(BATCH, IN), "w": tensor(IN, HID)}, ("x", "w")),
    "descent": (descent, {"x": tensor(BATCH, IN), "w": tensor(IN, HID), "rate": tensor()}, ("x", "w", "rate")),
    "inner_gradient_of_loop": (
        inner_gradient_of_loop,
        {"x": tensor(BATCH, TIME, IN), "h0": tensor(BATCH, HID), "w": tensor(HID, BACK), "u": tensor(IN, HID)},
        ("h0", "w", "u"),
    ),
}


def gradient_module(name: str) -> Module:
    """`step`: the loss, other results and the gradients of a program."""
    body, arguments, wrt = PROGRAMS[name]

    def whole(b: Builder, *values: Value) -> Values:
        given = dict(zip(arguments, values, strict=True))

        def loss(b: Builder, *inside: Value) -> Values:
            return body(b, *{**given, **dict(zip(wrt, inside, strict=True))}.values())

        return grad(b, [given[n] for n in wrt], loss)

    made = module(arguments, whole)
    verify(made)
    return made


def inputs_of(made: Module) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    arguments = made.functions["step"].block.arguments
    return [
        random.uniform(-1, 1, v.type.shape) if v.type.dtype.is_float else random.integers(0, 3, v.type.shape)
        for v in arguments
    ]


def check_gradients(made: Module, wrt: Sequence[str], per_value: int = 12) -> None:
    """Compare the trailing results of `step`, gradients, with central differences of its first result, the loss."""
    inputs = inputs_of(made)
    names = [p.name for p in made.functions["step"].arguments]
    results = interpret(made, inputs, precision="f64")
    random = np.random.default_rng(3)
    for name, gradient in zip(wrt, results[-len(wrt) :], strict=True):
        at = names.index(name)
        for flat in random.permutation(inputs[at].size)[:per_value]:
            losses: list[float] = []
            for step in (1e-5, -1e-5):
                moved = inputs[at].copy()
                moved.flat[flat] += step
                moved_inputs = [*inputs[:at], moved, *inputs[at + 1 :]]
                losses.append(float(interpret(made, moved_inputs, precision="f64")[0]))
            expected = (losses[0] - losses[1]) / 2e-5
            assert gradient.flat[flat] == pytest.approx(expected, rel=2e-6, abs=2e-6), (name, flat)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient_is_the_finite_difference(name: str) -> None:
    made = gradient_module(name)
    before = print_module(made)
    differentiated = Differentiate().run(made)
    verify(differentiated, differentiated=True)
    assert print_module(made) == before, "a pass changes its input"
    check_gradients(differentiated, PROGRAMS[name][2])


@pytest.mark.parametrize("name", PROGRAMS)
def test_later_passes_keep_the_bits(name: str) -> None:
    differentiated = Differentiate().run(gradient_module(name))
    simple = Simplify().run(Expand().run(differentiated))
    verify(simple, differentiated=True)
    assert print_module(Simplify().run(simple)) == print_module(simple)
    inputs = inputs_of(differentiated)
    wanted, found = (interpret(m, inputs, exact=True) for m in (differentiated, simple))
    for w, f in zip(wanted, found, strict=True):
        assert w.tobytes() == f.tobytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_round_trip(name: str) -> None:
    for made in (gradient_module(name), Differentiate().run(gradient_module(name))):
        text = print_module(made)
        parsed = parse_module(text)
        verify(parsed)
        assert print_module(parsed) == text


def test_what_has_no_gradient_is_zero() -> None:
    arguments = {"x": tensor(BATCH), "w": tensor(HID), "unused": tensor(IN), "n": tensor(dtype=I32)}

    def whole(b: Builder, x: Value, w: Value, unused: Value, n: Value) -> Values:
        return grad(b, [w, unused], lambda b, w, unused: partly_used(b, x, w, unused, n))

    made = Differentiate().run(module(arguments, whole))
    verify(made, differentiated=True)
    inputs = inputs_of(made)
    _, dw, dunused = interpret(made, inputs, precision="f64")
    assert not dunused.any()
    product = np.prod([float(inputs[3]) + i for i in range(LAYERS.size)])
    # d = h · count + stop(h · count): the derivative is count, times (1 + 1) of the values behind, whose slope stays 1.
    assert np.allclose(dw, np.cos(inputs[1]) * (np.arange(HID.size) + 1.5) * product)


def test_partials_stay_per_shard_through_a_scan() -> None:
    made = Differentiate().run(gradient_module("rnn"))
    twin = [op for op in made.functions["step"].block.ops if op.name == "loop"][-1]
    assert twin.attributes["reverse"] is True
    assert {v.type.names for v in twin.results} == {("batch", "hid"), (SHARD, "hid", "back"), (SHARD, "in", "hid")}
    assert not any(op.name.startswith("combine") for op in walk(twin.blocks[0]))


def saved_by(made: Module) -> list[str]:
    """What the first loop collects for its twin, by the ops that make it."""
    forward = next(op for op in made.functions["step"].block.ops if op.name == "loop")
    carried = forward.attributes["carried"]
    assert isinstance(carried, int)
    return [v.op.name if v.op else "argument" for v in forward.blocks[0].results[carried:]]


def test_only_what_the_twin_reads_is_saved() -> None:
    """`repeated` needs h, for its product, and the argument of sin; index ops and products are not stored."""
    made = Differentiate().run(gradient_module("repeated"))
    assert saved_by(made) == ["contract", "mul", "argument"]


def test_pieces_are_saved_as_a_whole_and_masks_not_at_all() -> None:
    """The halves of a product, which are multiplied, under a mask: the product is saved and nothing else."""
    half = Dim("half", 2)

    def layer(b: Builder, i: Value, h: Value, w: Value) -> Values:
        both = b("contract", h, w, dims=(BATCH, BACK))
        p, q = (b("slice", both, dim="back", start=s, step=1, to=half) for s in (0, 2))
        seen = b("lt", b("iota", dim=half, dtype=I32), b.constant(1, I32, (half,)))
        p = b("rename", b("rename", p, dims=(BATCH, Dim("other", 2))), dims=(BATCH, half))
        product = b("where", b.broadcast(seen, (BATCH, half)), b("mul", p, q), b.constant(0.5, F32, (BATCH, half)))
        return (b("concat", product, product, dim="half", to=HID),)

    def loss(b: Builder, x: Value, ws: Value) -> Values:
        return (weighed(b, loop(b, LAYERS, [x], [ws], layer)[0]),)

    arguments = {"x": tensor(BATCH, HID), "ws": STACKED}
    made = Differentiate().run(module(arguments, lambda b, *v: grad(b, v, loss)))
    verify(made, differentiated=True)
    check_gradients(made, ("x", "ws"))
    assert saved_by(made) == ["contract", "argument"]


def test_constants_have_no_adjoints() -> None:
    """The data side of a product gets no cotangent."""
    made = Differentiate().run(gradient_module("mlp"))
    ops = [op.name for op in made.functions["step"].block.ops]
    assert ops.count("contract") == 5  # two forward, w2, h, w1


def test_not_differentiable() -> None:
    def loss(b: Builder, w: Value) -> Values:
        h = b("sin", w, hint="h")
        with b.at(Span("t.alpha", 7, 12, 7, 20)):
            y = b("cumprod_test", h)
        return (total(b, y),)

    define(
        "cumprod_test",
        shape="special",
        operands=1,
        result=lambda types, attributes, blocks: (types[0],),
        reference=lambda op, x: np.cumprod(x),
        gradient=NotDifferentiable("nobody wrote it"),
        cost=Cost(1),
        needs=frozenset(),
        body=None,
    )
    try:
        made = module({"w": tensor(HID)}, lambda b, w: grad(b, [w], loss))
        with pytest.raises(NotDifferentiableError) as caught:
            Differentiate().run(made)
    finally:
        del DEFINITIONS["cumprod_test"]
    error = caught.value
    assert (error.op, error.reason, error.path) == ("cumprod_test", "nobody wrote it", ("w", "h"))
    assert str(error.span) == "t.alpha:7:12"
    assert error.help.startswith("the gradient comes here from `w` through `h`; ")


def test_a_gradient_of_the_wrong_type_is_a_bug() -> None:
    bad = replace(DEFINITIONS["sin"], gradient=lambda b, op, dy: (b("cast", dy, dtype=F64),))
    made = module({"w": tensor(HID)}, lambda b, w: grad(b, [w], lambda b, w: (total(b, b("sin", w)),)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DEFINITIONS, "sin", bad)
        with pytest.raises(InternalError, match="gives f64") as caught:
            Differentiate().run(made)
    assert "function step(" in caught.value.ir


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "golden" / "differentiate").glob("*.txt")), ids=str)
def test_golden(path: Path, golden: Callable[[Path, str], None]) -> None:
    source = path.read_text(encoding="utf-8").partition("\n---\n")[0]
    made = parse_module(source)
    verify(made)
    golden(path, f"{source}\n---\n{print_module(Differentiate().run(made), spans=False)}")
