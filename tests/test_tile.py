"""Tiles: groups of kernels that run index by index of their outer axes, with what is between them in a thread's own
memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scheduling import Draft, Machine, check
from test_kernels import RUNNABLE, drawn, same_bits

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Op, Value
from alphac.ir.interpret import interpret
from alphac.ir.passes.plan_memory import lifetimes, plan_memory
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import Repeat, Tiles
from alphac.ir.schedule_text import print_program
from alphac.ir.text import parse_module, print_module
from alphac.ir.typesys import F32, I64, Dim, TensorType

BATCH, HEADS, TIME, KEY, HEAD = Dim("batch", 8, 4), Dim("heads", 3), Dim("time", 40), Dim("key", 40), Dim("head", 20)
Body = Callable[[Builder, list[Value], list[Value]], list[Value]]


def build_tile(b: Builder, dims: tuple[Dim, ...], operands: list[Value], to: list[tuple[Dim, ...]], body: Body) -> Op:
    """A tile whose body is `body(builder, indices, slices)`."""
    inner = Block()
    indices = [Value(TensorType(I64), f"at_{d.name}") for d in dims]
    slices = [Value(v.type.without(*(d.name for d in dims)), f"s{i}") for i, v in enumerate(operands)]
    inner.arguments = [*indices, *slices]
    inner.results = tuple(body(Builder(inner), indices, slices))
    return b.build("tile", operands, [inner], dims=dims, to=tuple(to))


def softmax(b: Builder, x: Value, over: str) -> Value:
    dims = x.type.dims
    e = b("exp", b("sub", x, b.broadcast(b("reduce_max", x, over=(over,)), dims)), hint="e")
    return b("div", e, b.broadcast(b("reduce_sum", e, over=(over,)), dims))


def attention(b: Builder, q: Value, k: Value, v: Value) -> tuple[Value, Value]:
    """Probabilities and result; operands without the axes of a tile, or with all."""
    outer = tuple(d for d in q.type.dims if d.name in ("batch", "heads"))
    p = softmax(b, b("contract", q, k, dims=(*outer, TIME, KEY)), "key")
    return p, b("contract", p, v, dims=(*outer, TIME, HEAD))


def by_hand(tiled: bool = True) -> Function:
    """Attention over the grain's axis and another, in a loop of two layers; an operand without the grain's axis; a
    result that is an operand's slice; one whose axes are permuted; the index."""
    d = Draft()
    q = d.argument("column", "q", TensorType(F32, (HEADS, BATCH, TIME, HEAD)))
    k = d.argument("column", "k", TensorType(F32, (BATCH, HEADS, KEY, HEAD)))
    v = d.argument("column", "v", TensorType(F32, (HEADS, KEY, HEAD)))
    scale = d.state("scale", Dim("layer", 2), HEADS)

    def layer(b: Builder, index: Value, carried: list[Value], slices: list[Value]):
        (x,), (s,) = carried, slices
        dims = (BATCH, HEADS)

        def body(b: Builder, indices: list[Value], slices: list[Value]) -> list[Value]:
            q, k, v, s = slices
            p, y = attention(b, q, k, v)
            row = b("cast", b("add", *indices), dtype=F32)
            return [b("mul", y, b.broadcast(b("add", s, row), y.type.dims)), p, q]

        if tiled:
            op = build_tile(b, dims, [x, k, v, s], [x.type.dims, (*dims, TIME, KEY), (TIME, *dims, HEAD)], body)
            y, p, copy = op.results
        else:
            x_, v_ = b.broadcast(x, (*dims, TIME, HEAD)), b.broadcast(v, (*dims, KEY, HEAD))
            p, y = attention(b, x_, k, v_)
            rows = [b.broadcast(b("iota", dim=n, dtype=I64), dims) for n in dims]
            row = b("cast", b("add", *rows), dtype=F32)
            y = b("mul", y, b.broadcast(b("add", b.broadcast(s, dims), row), y.type.dims))
            y, copy = b.broadcast(y, x.type.dims), b.broadcast(x, (TIME, *dims, HEAD))
        return [b("add", y, x)], [p, copy]

    op = d.loop(Dim("layer", 2), [q], [(scale, "layer")], layer)
    for i, value in enumerate(op.results):
        d.result("output", f"o{i}", value)
    total = d.b.combine(d.b("reduce_sum", op.results[0], over=("batch",)))
    d.result("output", "total", total)
    return d.function()


def test_a_tile_means_what_its_block_means_for_every_index():
    inputs = [drawn(v.type, i) for i, v in enumerate(by_hand().block.arguments)]
    for tiled, plain in zip(*(interpret(by_hand(t), inputs, exact=True) for t in (True, False)), strict=True):
        np.testing.assert_array_equal(tiled, plain)
    for tiled, plain in zip(*(interpret(by_hand(t), inputs, precision="f64") for t in (True, False)), strict=True):
        np.testing.assert_allclose(tiled, plain, rtol=1e-9)


def test_a_tile_prints_and_parses():
    text = print_module(Module("tiles", BATCH, functions={"step": by_hand()}))
    assert print_module(parse_module(text)) == text


def test_what_is_between_the_kernels_of_a_tile_is_one_iteration_large_and_the_threads_own():
    program = schedule(by_hand())
    check(program, 4)
    (repeat,) = [s for s in program.steps if isinstance(s, Repeat)]
    (tiles,) = [s for s in repeat.steps if isinstance(s, Tiles)]
    private = [b for b in program.buffers if b.role == "private"]
    assert tiles.dims == (BATCH, HEADS) and "tiles batch:8/4, heads:3 {" in print_program(program)
    assert private and not any(b.type.has("batch") or b.type.has("heads") for b in private)
    plan = plan_memory(program, 2, {"scale": 0}, 64, 100)
    places = [o for b, o in zip(program.buffers, plan.offsets, strict=True) if b.role == "private"]
    assert min(places) == 128 and plan.scratch > 128 and set(lifetimes(program)) == set(program.buffers)


def test_tiles_on_the_plain_executor():
    function = by_hand()
    inputs = [drawn(v.type, i) for i, v in enumerate(function.block.arguments)]
    found = Machine(schedule(function), 4).run(inputs)
    for a, b in zip(found, interpret(function, inputs, exact=True), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize(("shares", "threads"), [((4,), 1), ((4,), 3), ((1, 3), 2), ((2, 1, 1), 5)])
def test_shares_and_threads_never_change_the_bits(name: str, shares: tuple[int, ...], threads: int):
    same_bits(by_hand(), shares, threads, name)
