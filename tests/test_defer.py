"""A role that owns all shards makes a large gradient right before the update that reads it."""

from __future__ import annotations

import numpy as np
import pytest
from native import run
from scheduling import Draft
from test_kernels import RUNNABLE, drawn

from alphac.backends.emit import lower_programs
from alphac.backends.registry import target
from alphac.ir.core import Function
from alphac.ir.interpret import interpret
from alphac.ir.passes import defer as deferring
from alphac.ir.passes.defer import defer
from alphac.ir.passes.plan_memory import place_states, plan_memory
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import Launch, Program
from alphac.ir.typesys import F32, Dim, TensorType

SHARDS, BATCH = 8, Dim("batch", 48, 8)
A, B, C = Dim("a", 37), Dim("b", 40), Dim("c", 33)


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferring, "LARGE", 0)


def two_layers(shown: bool = False) -> Function:
    """Two products with a state each, and their gradients; `shown`: one gradient is a result too."""
    draft = Draft()
    b = draft.b
    x = draft.argument("column", "x", TensorType(F32, (BATCH, A)))
    dy = draft.argument("column", "dy", TensorType(F32, (BATCH, C)))
    w, v = draft.state("w", A, B), draft.state("v", B, C)
    h = b("contract", x, w, dims=(BATCH, B))
    d_v = b.combine(b("contract", h, dy, dims=(B, C)))
    dh = b("contract", dy, v, dims=(BATCH, B))
    d_w = b.combine(b("contract", x, dh, dims=(A, B)))
    draft.result("state", "w", b("sub", w, d_w))
    draft.result("state", "v", b("sub", v, d_v))
    if shown:
        draft.result("output", "gradient", d_v)
    return draft.function()


def order(program: Program) -> list[str]:
    """What the kernels store."""
    return [s.kernel.stores[0][1].buffer.name for s in program.steps if isinstance(s, Launch)]


def arena(program: Program) -> int:
    states, base = place_states([program], SHARDS)
    return plan_memory(program, SHARDS, states, base, 0).arena


def test_gradients_follow_each_other_in_memory():
    program = schedule(two_layers())
    whole = defer(program)
    found = order(whole)
    assert [n.partition(".")[0] for n in found] == ["contract", "contract", "combine_sum", "w", "combine_sum", "v"]
    assert sorted(found) == sorted(order(program))
    assert arena(whole) < arena(program)


def test_a_result_stays_where_it_is_made():
    program = schedule(two_layers(shown=True))
    late = defer(program)
    assert order(late).index("gradient") == order(program).index("gradient")


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_are_those_of_the_oracle(name: str, threads: int):
    function, there = two_layers(), target(name)
    code = lower_programs([schedule(function, there.streams)], there)
    whole = code.whole["step"]
    code.records["step"]["steps"] = [{"kind": "segment", "symbol": code.records["step"]["whole"]}]
    arrays = [drawn(v.type, i) for i, v in enumerate(function.block.arguments)]
    (role,), _ = run(whole, code, arrays, SHARDS, (SHARDS,), threads)
    for (_, buffer), wanted in zip(whole.results, interpret(function, arrays, exact=True), strict=True):
        np.testing.assert_array_equal(role.read(buffer), wanted, err_msg=buffer.name)
