"""Whole functions as native code: the same bits as `interpret` for any shares and any number of threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from native import run
from scheduling import RandomFunction, digits, inputs

from alphac.backends.emit import lower_programs
from alphac.backends.registry import target, targets
from alphac.ir.core import Function
from alphac.ir.interpret import interpret
from alphac.ir.passes.project import schedule

RUNNABLE = [name for name, t in sorted(targets().items()) if t.runs_here()]


def same_bits(
    function: Function, shards: int, shares: Sequence[int], threads: int, name: str = RUNNABLE[0], calls: int = 1
) -> None:
    """Run a function natively, each call with the states that the one before left, and compare every role's part of
    every result with the oracle's. After a loss that is not finite, all states are as they were."""
    program = schedule(function)
    code = lower_programs([program], target(name))
    given = list(inputs(function))
    roles, stopped = run(program, code, given, shards, shares, threads, calls=calls)
    results: list[np.ndarray] = []
    for _ in range(calls):
        results = interpret(function, given, exact=True)
        made = dict(zip(function.results, results, strict=True))
        if not all(np.isfinite(v) for p, v in made.items() if p.kind == "loss"):
            assert stopped, "the guard let a loss pass that is not finite"
            before = dict(zip(function.arguments, given, strict=True))
            results = [before.get(p, v) for p, v in made.items()]
            break
        given = [made.get(p, v) for p, v in zip(function.arguments, given, strict=True)]
    for role in roles:
        for (port, buffer), value in zip(program.results, results, strict=True):
            if port.kind == "state" or not stopped:
                message = f"{port.kind} {port.name} of the role at {role.first}"
                np.testing.assert_array_equal(role.read(buffer), role.part(buffer, value), err_msg=message)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shares", [[32], [16, 16], [12, 20], [3, 9, 20], [5, 6, 7, 8, 6]], ids=str)
def test_a_training_step(shares: list[int], threads: int):
    same_bits(digits(), 32, shares, threads, calls=3)


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_training_step_on_every_target(name: str):
    same_bits(digits(), 32, [12, 20], 2, name, calls=2)


@pytest.mark.parametrize("seed", range(6))
def test_any_function(seed: int):
    same_bits(RandomFunction(seed).make(16), 4, [1, 3] if seed % 2 else [4], 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 150))
def test_many_functions(seed: int):
    for shares in ([4], [1, 3], [1, 1, 2]):
        same_bits(RandomFunction(seed).make(24), 4, shares, 2)
