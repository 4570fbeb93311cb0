"""Gradients of random programs: loops in loops that carry, cut, collect and capture, per shard and whole.

Each is checked along one random direction against the slope of its own loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Port, Value
from alphac.ir.interpret import interpret
from alphac.ir.passes.differentiate import Differentiate
from alphac.ir.passes.simplify import Simplify
from alphac.ir.typesys import F32, I64, Dim, TensorType
from alphac.ir.verify import verify

BATCH, HID = Dim("batch", 8, 4), Dim("hid", 4)
LAYERS, TIME = Dim("layers", 3), Dim("time", 5)
WHOLE, ROWS = TensorType(F32, (HID,)), TensorType(F32, (BATCH, HID))
ARGUMENTS = (ROWS, ROWS, WHOLE, WHOLE)

Values = Sequence[Value]
Draw = Callable[[st.SearchStrategy[Any]], Any]


def block(types: Sequence[TensorType], body: Callable[..., Values]) -> Block:
    made = Block([Value(t) for t in types])
    made.results = tuple(body(Builder(made), *made.arguments))
    return made


def module(types: Sequence[TensorType], body: Callable[..., Values]) -> Module:
    made = block(types, body)
    inputs = tuple(Port("input", f"x{i}") for i in range(len(types)))
    outputs = tuple(Port("output", f"r{i}") for i in range(len(made.results)))
    return Module("random", BATCH, functions={"step": Function("step", made, inputs, outputs)})


def over(b: Builder, x: Value, *names: str) -> Value:
    """The sum over axes, shards combined."""
    x = b("reduce_sum", x, over=names)
    return b.combine(x) if x.type.is_partial else x


def total(b: Builder, x: Value) -> Value:
    return over(b, x, *x.type.names)


def pick(draw: Draw, values: Values, like: Value | None = None) -> Value:
    return draw(st.sampled_from([v for v in values if like is None or v.type == like.type]))


def grow(draw: Draw, b: Builder, values: list[Value], depth: int) -> None:
    """Append random smooth ops, loops among them, on `values`: all [hid] or [batch, hid]."""
    for _ in range(draw(st.integers(1, 5))):
        x = pick(draw, values)
        kind = draw(st.sampled_from(("sin", "mul", "add", "spread", "mean", "swap", "loop", "loop")))
        if kind == "sin":
            values.append(b("sin", x))
        elif kind in ("mul", "add"):
            values.append(b(kind, x, pick(draw, values, like=x)))
        elif kind == "spread":
            values.append(b("cos", b.broadcast(x, (BATCH, HID))))
        elif kind == "mean" and x.type.has("batch"):
            values.append(b("mul", over(b, x, "batch"), b.constant(0.125, F32, (HID,))))
        elif kind == "swap" and x.type.has("batch"):
            values.append(b.broadcast(b.broadcast(x, (HID, BATCH)), (BATCH, HID)))
        elif kind == "loop" and depth:
            values += grow_loop(draw, b, values, depth)


def grow_loop(draw: Draw, b: Builder, values: list[Value], depth: int) -> list[Value]:
    dim = draw(st.sampled_from((LAYERS, TIME)))
    carried = [pick(draw, values) for _ in range(draw(st.integers(0, 2)))]
    rows = [pick(draw, values) for _ in range(draw(st.integers(0, 2)))]
    ramp = b("sin", b("iota", dim=dim, dtype=F32))
    stacks = [b("mul", b.broadcast(r, (*r.type.dims, dim)), b.broadcast(ramp, (*r.type.dims, dim))) for r in rows]
    seen = pick(draw, values).type

    def body(b: Builder, i: Value, *arguments: Value) -> Values:
        inner = [*values, *arguments]
        grow(draw, b, inner, depth - 1)
        leaving = [b("sin", b("add", pick(draw, inner[::-1], like=c), c)) for c in arguments[: len(carried)]]
        found = [v for v in inner if v.type == seen]
        return (*leaving, draw(st.sampled_from(found)))

    types = [TensorType(I64), *(v.type for v in carried), *(r.type for r in rows)]
    attributes = {"dim": dim, "carried": len(carried), "slices": (dim.name,) * len(rows)}
    results = b.build(
        "loop", [*carried, *stacks], (block(types, body),), "", reverse=draw(st.booleans()), **attributes
    ).results
    return [*results[:-1], b("reduce_sum", results[-1], over=(dim.name,))]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_random_loops_have_the_slope_of_their_loss(data: st.DataObject) -> None:
    """Along a random direction; then simplified, with the same bits."""

    def whole(b: Builder, *given_values: Value) -> Values:
        def loss(b: Builder, *values: Value) -> Values:
            grown = list(values)
            grow(data.draw, b, grown, depth=2)
            return (b("add", total(b, b("sin", grown[-1])), total(b, b("sin", grown[len(grown) // 2]))),)

        inner = block([v.type for v in given_values], loss)
        return b.build("grad", given_values, (inner,), wrt=len(given_values)).results

    made = Differentiate().run(module(ARGUMENTS, whole))
    verify(made, differentiated=True)
    random = np.random.default_rng(11)
    inputs = [random.uniform(-1, 1, v.type.shape) for v in made.functions["step"].block.arguments]
    direction = [random.uniform(-1, 1, x.shape) for x in inputs]
    losses = [
        float(interpret(made, [x + s * d for x, d in zip(inputs, direction, strict=True)], precision="f64")[0])
        for s in (1e-6, -1e-6)
    ]
    gradients = interpret(made, inputs, precision="f64")[1:]
    slope = sum(float(np.sum(g * d)) for g, d in zip(gradients, direction, strict=True))
    size = sum(float(np.sum(np.abs(g * d))) for g, d in zip(gradients, direction, strict=True))
    assert slope == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-5, abs=1e-5 * size + 1e-6)
    simple = Simplify().run(made)
    verify(simple, differentiated=True)
    exact, simplified = (interpret(m, inputs, exact=True) for m in (made, simple))
    assert all(e.tobytes() == s.tobytes() for e, s in zip(exact, simplified, strict=True))
