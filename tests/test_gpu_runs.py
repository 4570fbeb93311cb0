"""Whole systems on a simulated GPU: alone, and in one run with a CPU. The same bits as on the CPU alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import simulated
from running import Run, assert_same_bits, run_roles
from session import Session

from alphac.backends import registry
from alphac.backends.registry import host_target
from alphac.pipeline import Plan, compile_file
from alphac.runtime.devices.gpu import GpuDevice
from alphac.runtime.role import Finished

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.skipif(not simulated.can_simulate(), reason="the simulator switches stacks of x86-64 Linux")
Compile = Callable[..., Path]


@pytest.fixture
def compile_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """`compile_for(example, *targets)`: its bundle for equal roles on these targets; `simulated` may be one."""
    monkeypatch.setitem(registry._scanned(), "simulated", (simulated.simulated(), "simulated"))
    device = ModuleType("alphac.runtime.devices.simulated")
    device.open_device = lambda code, *rest: GpuDevice(code, simulated.Simulator, *rest)  # pyright: ignore
    monkeypatch.setitem(sys.modules, device.__name__, device)

    def compile_example(example: str, *names: str) -> Path:
        source = EXAMPLES / example / f"{example}.alpha"
        plan = Plan((Fraction(1),) * len(names), names)
        return compile_file(source, out=tmp_path / f"{'-'.join(names)}.bundle", plan=plan).path

    return compile_example


def test_a_system_trains_with_the_bits_of_the_cpu(compile_for: Compile):
    host = host_target().name
    with Session(compile_for("digits_mlp", host)) as cpu, Session(compile_for("digits_mlp", "simulated")) as gpu:
        assert gpu.train(3) == cpu.train(3)
        found = gpu.states()
        differing = [name for name, state in cpu.states().items() if found[name].tobytes() != state.tobytes()]
        assert not differing, f"these differ: {', '.join(differing)}"
        assert gpu.evaluate() == cpu.evaluate()


def test_states_set_on_the_host_count_on_the_device(compile_for: Compile):
    with Session(compile_for("digits_mlp", "simulated")) as gpu:
        before = gpu.train(1)
        first = gpu.states()
        gpu.step(1)
        gpu.initialize()
        assert gpu.train(1) == before
        gpu.assign({name: np.zeros_like(state) for name, state in first.items()})
        assert all(not state.any() for state in gpu.states().values())
        gpu.assign(first)
        after = gpu.step(1)
        gpu.assign(first)
        assert gpu.step(1) == after


def test_a_gpu_and_a_cpu_learn_together(compile_for: Compile, tmp_path: Path):
    host = host_target().name
    runs: list[Run] = []
    for targets_ in ((host, host), (host, "simulated"), ("simulated", host)):
        out = tmp_path / "-and-".join(targets_)
        ends = run_roles(compile_for("digits_mlp", *targets_), out, 3, {})
        assert all(isinstance(end, Finished) for end in ends), ends
        runs.append(Run(out))
        assert tuple(r["target"] for r in runs[-1].record["roles"]) == targets_
        assert_same_bits(runs[-1], runs[0])
