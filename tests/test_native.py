"""Whole functions as native code: the same bits as `interpret` for any shares and any number of threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from native import run
from scheduling import digits, inputs

from alphac.backends.emit import lower_programs
from alphac.backends.registry import target, targets
from alphac.ir.core import Function
from alphac.ir.interpret import interpret
from alphac.ir.passes.project import schedule

RUNNABLE = [name for name, t in sorted(targets().items()) if t.runs_here()]


def same_bits(
    function: Function, shards: int, shares: Sequence[int], threads: int, name: str = RUNNABLE[-1], calls: int = 1
):
    """Run a function natively and compare every role's part of every result with the oracle's."""
    program = schedule(function)
    code = lower_programs([program], target(name))
    given = inputs(function)
    roles, stopped = run(program, code, given, shards, shares, threads, calls=calls)
    assert stopped == 0
    now = list(given)
    expected: list[np.ndarray] = []
    for _ in range(calls):
        expected = interpret(function, now, exact=True)
        states = {p: v for p, v in zip(function.results, expected, strict=True) if p.kind == "state"}
        now = [states.get(p, v) for p, v in zip(function.arguments, now, strict=True)]
    for role in roles:
        for (port, buffer), value in zip(program.results, expected, strict=True):
            np.testing.assert_array_equal(
                role.read(buffer), role.part(buffer, value), err_msg=f"{port.kind} {port.name} of role at {role.first}"
            )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shares", [[32], [16, 16], [12, 20], [3, 9, 20], [5, 6, 7, 8, 6]])
def test_a_training_step(shares: list[int], threads: int):
    same_bits(digits(), 32, shares, threads, calls=3)
