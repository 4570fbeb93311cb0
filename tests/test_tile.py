"""Tiles: groups of kernels that run index by index of their outer axes, with what is between them in a thread's own
memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scheduling import Draft, Machine, RandomFunction, check, inputs
from test_kernels import RUNNABLE, drawn, same_bits

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Op, State, Value, walk
from alphac.ir.interpret import interpret
from alphac.ir.ops.define import definition
from alphac.ir.passes.plan_memory import lifetimes, plan_memory
from alphac.ir.passes.project import schedule
from alphac.ir.passes.tile import Tile
from alphac.ir.schedule import Exchange, Repeat, Tiles
from alphac.ir.schedule_text import print_program
from alphac.ir.text import parse_module, print_module
from alphac.ir.typesys import F32, I64, Dim, TensorType
from alphac.ir.verify import verify

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


# ---------------------------------------------------------------------- the pass
EAGER = Tile(cache=1 << 13, gain=-1, launch=0, shared=1 << 30)


def tiled(function: Function, options: Tile = EAGER) -> Function:
    """The function after the pass, verified."""
    states = {
        p.name: State(p.name, v.type, "param")
        for p, v in zip(function.arguments, function.block.arguments, strict=True)
        if p.kind == "state"
    }
    module = options.run(Module("tiles", BATCH, states=states, functions={function.name: function}))
    verify(module, differentiated=True)
    return module.functions[function.name]


def tiles(function: Function) -> list[Op]:
    return [op for op in walk(function.block) if op.name == "tile"]


def test_attention_becomes_one_tile_over_the_axes_that_it_keeps():
    function = by_hand(tiled=False)
    found = tiled(function, replace(EAGER, cache=30 << 10))
    (tile,) = tiles(found)
    assert tile.attributes["dims"] == (BATCH, HEADS)
    inside = [op.name for op in tile.blocks[0].ops if definition(op).shape in ("contract", "reduce")]
    assert inside == ["contract", "reduce_max", "reduce_sum", "contract"]
    inputs = [drawn(v.type, i) for i, v in enumerate(function.block.arguments)]
    for a, b in zip(interpret(found, inputs, exact=True), interpret(function, inputs, exact=True), strict=True):
        np.testing.assert_array_equal(a, b)
    for name in RUNNABLE:
        same_bits(found, (1, 3), 2, name)


def test_a_tile_runs_over_as_few_axes_as_fit_and_must_gain_something():
    function = by_hand(tiled=False)
    (wide,) = tiles(tiled(function, replace(EAGER, cache=1 << 20)))
    assert wide.attributes["dims"] == (BATCH,)
    assert not tiles(tiled(function, replace(EAGER, cache=100)))
    assert not tiles(tiled(function, replace(EAGER, gain=1 << 22)))
    assert not tiles(tiled(function, replace(EAGER, launch=1 << 20)))
    assert not tiles(tiled(function, Tile()))  # small enough to stay in cache as it is


def test_a_product_with_a_large_common_operand_stays_outside():
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (BATCH, TIME, HEAD)))
    w = d.state("w", HEAD, KEY)
    d.result("output", "y", softmax(d.b, d.b("contract", softmax(d.b, x, "head"), w, dims=(BATCH, TIME, KEY)), "key"))
    function = d.function()
    options = replace(EAGER, cache=1 << 20)
    (one,) = tiles(tiled(function, options))
    assert [op.name for op in one.blocks[0].ops].count("reduce_max") == 2
    first, second = tiles(tiled(function, replace(options, shared=100)))
    assert "contract" not in [op.name for t in (first, second) for op in t.blocks[0].ops]


def test_what_must_run_between_two_kernels_keeps_them_apart():
    """The mean over the batch needs an exchange; rows are centered by it before they are scaled."""
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (BATCH, TIME, HEAD)))
    dims = x.type.dims
    y = softmax(d.b, x, "head")
    mean = d.b.combine(d.b("reduce_sum", y, over=("batch",)))
    d.result("output", "z", softmax(d.b, d.b("sub", y, d.b.broadcast(mean, dims)), "head"))
    function = d.function()
    found = tiled(function, replace(EAGER, cache=1 << 20))
    assert len(tiles(found)) == 2
    assert len([s for s in schedule(found).steps if isinstance(s, Exchange)]) == 1
    same_bits(found, (3, 1), 2)


@pytest.mark.parametrize("seed", range(40))
def test_any_function_tiled(seed: int):
    made = RandomFunction(seed)
    made.grain = BATCH
    function = made.make(24)
    found = tiled(function)
    program = schedule(found)
    check(program, 4)
    given = inputs(function, seed)
    with np.errstate(all="ignore"):
        wanted = interpret(function, given, exact=True)
        for a, b, again in zip(
            Machine(program, 4).run(given), wanted, interpret(found, given, exact=True), strict=True
        ):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(again, b)
