"""Whole systems in OpenCL C on PoCL: alone, and in one run with a CPU's own code. The same bits as on the CPU alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from pocl import runs
from running import Run, assert_same_bits, run_roles, write_line
from session import Session
from test_gpu_runs import SMALL, shrunk

from alphac.backends.registry import host_target
from alphac.pipeline import Plan, compile_file
from alphac.runtime.bundle import read_bundle
from alphac.runtime.errors import KernelFailed
from alphac.runtime.executor import Executor
from alphac.runtime.role import Finished

Compile = Callable[..., Path]


@pytest.fixture
def compile_for(tmp_path: Path) -> Compile:
    """`compile_for(source, *targets)`: its bundle for equal roles on these targets."""

    def compile_source(source: Path, *names: str) -> Path:
        plan = Plan((Fraction(1),) * len(names), names)
        return compile_file(source, out=tmp_path / f"{'-'.join(names)}.bundle", plan=plan).path

    return compile_source


def same_steps(host: Path, device: Path, steps: int) -> None:
    with Session(host) as cpu, Session(device) as other:
        assert other.train(steps) == cpu.train(steps)
        found = other.states()
        differing = [name for name, state in cpu.states().items() if found[name].tobytes() != state.tobytes()]
        assert not differing, f"these differ: {', '.join(differing)}"
        assert other.evaluate() == cpu.evaluate()


@runs
@pytest.mark.slow
@pytest.mark.parametrize("example", SMALL)
def test_fifty_steps_of_every_example(example: str, compile_for: Compile, tmp_path: Path):
    source = shrunk(example, tmp_path)
    same_steps(compile_for(source, host_target().name), compile_for(source, "opencl-cpu"), 50)


@runs
def test_two_families_learn_together(compile_for: Compile, tmp_path: Path):
    """x86-64 code and OpenCL C in one run; the record says what ran it."""
    host, source = host_target().name, write_line(tmp_path / "line")
    found: list[Run] = []
    for names in ((host, host), (host, "opencl-cpu"), ("opencl-cpu", host)):
        out = tmp_path / "-and-".join(names)
        ends = run_roles(compile_for(source, *names), out, 5, {})
        assert all(isinstance(end, Finished) for end in ends), ends
        found.append(Run(out))
        assert tuple(r["target"] for r in found[-1].record["roles"]) == names
        assert_same_bits(found[-1], found[0])
    devices = {r["target"]: r["device"] for r in found[-1].record["roles"]}
    assert devices["opencl-cpu"]["runs_on"] == "PoCL on a CPU"
    assert devices[host] == {}


@runs
def test_what_is_asked_of_an_accelerator_never_runs_on_a_processor(compile_for: Compile, tmp_path: Path):
    bundle = read_bundle(compile_for(write_line(tmp_path / "line"), "opencl"))
    with pytest.raises(KernelFailed, match=r"(?s)no OpenCL device can be used.*is a processor.*`opencl-cpu`"):
        Executor(bundle, bundle.class_of(0), 0, 1)


def test_a_role_says_what_its_device_lacks(compile_for: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bundle = read_bundle(compile_for(write_line(tmp_path / "line"), "opencl"))
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(KernelFailed, match=r"(?s)opencl needs pyopencl.*alphac\[opencl\]"):
        Executor(bundle, bundle.class_of(0), 0, 1)
