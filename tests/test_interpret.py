"""The interpreter: precisions, loops, watching, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from gradcheck import draw, function, run

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Module, Op, Value
from alphac.ir.errors import InternalError
from alphac.ir.interpret import Array, interpret
from alphac.ir.ops import DEFINITIONS
from alphac.ir.typesys import BF16, F32, F64, I64, Dim, TensorType

A, T = Dim("a", 3), Dim("t", 5)


def _square_of_a_third(b: Builder, x: Value) -> Value:
    return b("mul", b("mul", x, x), b.constant(1 / 3, x.type.dtype, x.type.dims))


@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
def test_references_work_in_the_types_own_precision(dtype) -> None:
    x = draw(TensorType(dtype, (A,)))
    (found,) = run(_square_of_a_third, [TensorType(dtype, (A,))], [x])
    (exact,) = run(_square_of_a_third, [TensorType(dtype, (A,))], [x], exact=True)
    assert found.dtype == exact.dtype == dtype.compute
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_allclose(found, x * x / 3, rtol=1e-2 if dtype == BF16 else 1e-6)
    if dtype == BF16:
        assert not (found.view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_references_in_float64(dtype) -> None:
    x = draw(TensorType(F64, (A,)))
    (found,) = run(_square_of_a_third, [TensorType(dtype, (A,))], [x], precision="f64")
    np.testing.assert_allclose(found, x * x / 3, rtol=1e-15)
    with pytest.raises(ValueError, match="exact bits"):
        interpret(function([TensorType(dtype, (A,))], _square_of_a_third), [x], exact=True, precision="f64")


def _loop(b: Builder, start: Value, xs: Value, *, reverse: bool) -> Op:
    """carry ← 2 carry + x + i; collects the carry before."""
    inner = Block([Value(TensorType(I64)), Value(start.type), Value(TensorType(F64, (A,)))])
    i, carry, x = inner.arguments
    k = Builder(inner)
    step = k.broadcast(k("cast", i, dtype=F64), (A,))
    inner.results = (k("add", k("add", k("add", carry, carry), x), step), carry)
    return b.build("loop", [start, xs], [inner], dim=Dim("i", T.size), carried=1, reverse=reverse, slices=("t",))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_loops(reverse: bool, exact: bool) -> None:
    types = [TensorType(F64, (A,)), TensorType(F64, (A, T))]
    start, xs = (draw(t, i) for i, t in enumerate(types))
    last, before = run(lambda b, s, x: _loop(b, s, x, reverse=reverse).results, types, [start, xs], exact=exact)
    carry, seen = start, np.zeros((5, 3))
    for i in range(4, -1, -1) if reverse else range(5):
        seen[i] = carry
        carry = carry + carry + xs[:, i] + i
    np.testing.assert_array_equal(last, carry)
    np.testing.assert_array_equal(before, seen)


def test_watch_sees_every_op_in_the_order_it_runs() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []

    def watch(op: Op, values: tuple[Array, ...]) -> None:
        seen.append((op.name, values[0].shape))

    types = [TensorType(F64, (A,)), TensorType(F64, (A, T))]
    f = function(types, lambda b, s, x: _loop(b, b("neg", s), x, reverse=False).results)
    interpret(f, [np.zeros(3), np.zeros((3, 5))], watch=watch)
    body = [("cast", ()), ("broadcast", (3,)), ("add", (3,)), ("add", (3,)), ("add", (3,))]
    assert seen == [("neg", (3,)), *body * 5, ("loop", (3,))]


def test_composites_run_by_their_parts_in_exact_mode() -> None:
    seen: list[str] = []
    batch, rows, k = Dim("batch", 2, 2), Dim("y", 4), Dim("k", 2)
    types = [TensorType(F32, (batch, rows, Dim("x", 4))), TensorType(F32, (k, Dim("l", 2)))]
    to = (Dim("y", 3), Dim("x", 3))
    f = function(
        types,
        lambda b, x, w: b(
            "conv2d",
            x,
            w,
            rows="y",
            columns="x",
            kernel_rows="k",
            kernel_columns="l",
            to_rows=to[0],
            to_columns=to[1],
            stride=1,
            padding=0,
            dilation=1,
            dims=(batch, *to),
        ),
    )
    inputs = [draw(t) for t in types]
    exact = interpret(f, inputs, exact=True, watch=lambda op, values: seen.append(op.name))
    assert seen == ["window", "window", "contract", "conv2d"]
    np.testing.assert_allclose(exact[0], interpret(f, inputs)[0], rtol=1e-5)


def test_modules_and_their_functions() -> None:
    f = function([TensorType(F64)], lambda b, x: b("neg", x))
    module = Module("m", None, functions={"step": f, "initialize": function([], lambda b: b.constant(2, F64))})
    assert interpret(module, [1.0]) == [np.array(-1.0)]
    assert interpret(module, [], function="initialize") == [np.array(2.0)]


def test_refusals() -> None:
    f = function([TensorType(F64, (A,))], lambda b, x: b("neg", x))
    with pytest.raises(ValueError, match="takes 1 inputs, not 0"):
        interpret(f, [])
    with pytest.raises(ValueError, match=r"input x0 is f64\[a:3\], not of shape \(4,\)"):
        interpret(f, [np.zeros(4)])
    inner = Block([Value(TensorType(F64))])
    inner.results = (inner.arguments[0],)
    g = function([TensorType(F64)], lambda b, x: b.build("grad", [x], [inner], wrt=1).results)
    with pytest.raises(InternalError, match="differentiate first"):
        interpret(g, [1.0])
    with pytest.raises(TypeError, match="run it with"):
        DEFINITIONS["grad"].reference(g.block.ops[0], np.array(1.0))
