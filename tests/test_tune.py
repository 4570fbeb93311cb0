"""Register tiles chosen by measurement: kept by content, the same bits, and said in the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from native import run
from scheduling import Draft, inputs

from alphac import pipeline
from alphac.backends.cache import Cache
from alphac.backends.emit import lower_programs
from alphac.backends.registry import host_target, target
from alphac.backends.target import KernelSource
from alphac.backends.tiling import shapes
from alphac.backends.tune import Tuner, candidates
from alphac.inspect import describe
from alphac.ir.interpret import interpret
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import F32, Dim, TensorType

SHARDS, SHARES = 4, (3, 1)


class Clock:
    """The last source is the fastest, or, if `keen` is not set, hardly faster than the first."""

    def __init__(self, keen: bool = True) -> None:
        self.asked = 0
        self.keen = keen

    def __call__(self, kernel: object, sources: Sequence[KernelSource], *_: object) -> list[float]:
        self.asked += 1
        best = 0.5 if self.keen else 0.99
        return [1.0 if source is not sources[-1] else best for source in sources]


def product() -> Draft:
    draft = Draft()
    m, n, k = Dim("m", 40 * SHARDS, SHARDS), Dim("n", 70), Dim("k", 33)
    x = draft.argument("column", "x", TensorType(F32, (m, k)))
    w = draft.argument("state", "w", TensorType(F32, (k, n)))
    draft.result("output", "y", draft.b("neg", draft.b("contract", x, w, dims=(m, n))))
    return draft


def test_candidates_are_tiles_whose_bits_are_tested():
    for registers in (16, 32):
        assert set(candidates(registers)) <= set(shapes(registers))


def test_the_fastest_is_chosen_and_kept_and_gives_the_same_bits(tmp_path: Path):
    function, clock = product().function(), Clock()
    tuner = Tuner(Cache(tmp_path), clock=clock)
    program = schedule(function)
    code = lower_programs([program], host_target(), lower=tuner.lower)
    (choice,) = tuner.choices.values()
    assert choice.tile in candidates(host_target().registers)
    assert choice.gain == 2
    assert set(tuner.choices) == set(code.sources)
    assert set(code.sources) != set(lower_programs([program], host_target()).sources)

    again = Tuner(Cache(tmp_path), clock=clock)
    assert set(lower_programs([program], host_target(), lower=again.lower).sources) == set(code.sources)
    assert (clock.asked, again.choices) == (1, tuner.choices)

    arrays = inputs(function)
    roles, _ = run(program, code, arrays, SHARDS, SHARES, threads=2)
    (wanted,) = interpret(function, arrays, exact=True)
    ((_, buffer),) = program.results
    for role in roles:
        np.testing.assert_array_equal(role.read(buffer), role.part(buffer, wanted))


def test_hardly_faster_is_not_worth_it(tmp_path: Path):
    tuner = Tuner(Cache(tmp_path), clock=Clock(keen=False))
    program = schedule(product().function())
    code = lower_programs([program], host_target(), lower=tuner.lower)
    assert [c.tile for c in tuner.choices.values()] == [None]
    assert set(code.sources) == set(lower_programs([program], host_target()).sources)


def test_other_machines_targets_are_left_alone(tmp_path: Path):
    there = next(t for t in (target("aarch64"), target("x86-64-v4")) if not t.runs_here())
    clock = Clock()
    tuner = Tuner(Cache(tmp_path), clock=clock)
    lower_programs([schedule(product().function())], there, lower=tuner.lower)
    assert (clock.asked, tuner.choices, tuner.elsewhere) == (0, {}, {there.name})


def test_a_tuned_bundle_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = Path(__file__).parent.parent / "examples/digits_mlp/digits_mlp.alpha"
    tuner = Tuner(Cache(tmp_path / "tuned"), clock=Clock())
    plain = pipeline.compile_file(source, out=tmp_path / "plain.bundle")
    tuned = pipeline.compile_file(source, out=tmp_path / "tuned.bundle", tuner=tuner)
    assert "register tile" in describe(tuned.path)
    assert "register tile" not in describe(plain.path)
