"""Whole systems on a simulated GPU: alone, and in one run with a CPU. The same bits as on the CPU alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import simulated
from running import Run, assert_same_bits, run_roles, write_line
from session import Session
from shipped import EVERYWHERE
from test_fast import FAST, SYSTEM
from test_runs import RUIN

from alphac.backends import registry
from alphac.backends.cuda import MMA
from alphac.backends.registry import host_target
from alphac.pipeline import Plan, compile_file
from alphac.runtime.bundle import read_bundle
from alphac.runtime.devices.gpu import GpuDevice
from alphac.runtime.errors import KernelFailed, NonFiniteLoss
from alphac.runtime.executor import Executor
from alphac.runtime.role import Finished

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.skipif(not simulated.can_simulate(), reason="the simulator switches stacks of x86-64 Linux")
Compile = Callable[..., Path]


@pytest.fixture
def compile_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """`compile_for(example, *targets)`: its bundle for equal roles on these targets; `simulated`, and the same with a
    matrix instruction, may be among them."""
    for matrix in (None, MMA):
        there = simulated.simulated(matrix)
        monkeypatch.setitem(registry._scanned(), there.name, (there, "simulated"))
    device = ModuleType("alphac.runtime.devices.simulated")
    device.open_device = lambda code, *rest: GpuDevice(code, simulated.Simulator, *rest)  # pyright: ignore
    monkeypatch.setitem(sys.modules, device.__name__, device)

    def compile_example(example: str | Path, *names: str) -> Path:
        source = example if isinstance(example, Path) else EXAMPLES / example / f"{example}.alpha"
        plan = Plan((Fraction(1),) * len(names), names)
        out = tmp_path / f"{'-'.join(names)}.bundle"
        return compile_file(source, out=out, plan=plan).path

    return compile_example


def test_a_system_trains_with_the_bits_of_the_cpu(compile_for: Compile):
    host = host_target().name
    with Session(compile_for("digits_mlp", host)) as cpu, Session(compile_for("digits_mlp", "simulated")) as gpu:
        assert gpu.train(3) == cpu.train(3)
        found = gpu.states()
        differing = [name for name, state in cpu.states().items() if found[name].tobytes() != state.tobytes()]
        assert not differing, f"these differ: {', '.join(differing)}"
        assert gpu.evaluate() == cpu.evaluate()


SMALL = {  # examples, and what makes them small enough for a simulation
    "breast_cancer": "",
    "char_gpt": "batch=32 time=8 width=16 heads=2 layers=1",
    "char_rnn": "batch=32 time=8 width=8 hidden=16",
    "digits_cnn": "batch=32 edges=4 strokes=4",
    "digits_mlp": "batch=32 hidden=16",
    "gan_ring": "batch=32 hidden=16",
    "hybrid": "batch=32 hidden=16 clusters=12",
    "kmeans_digits": "batch=32",
}


def test_every_example_is_simulated():
    assert set(EVERYWHERE) == set(SMALL)


def shrunk(example: str, directory: Path) -> Path:
    """A copy of an example's source with smaller dims."""
    text = (EXAMPLES / example / f"{example}.alpha").read_text(encoding="utf-8")
    for part in SMALL[example].split():
        name, size = part.split("=")
        text, count = re.subn(rf"^(dim .*?\b{name}\s*=\s*)\d+", rf"\g<1>{size}", text, flags=re.MULTILINE)
        assert count == 1, f"{example} has no dim {name}"
    (directory / "data").symlink_to(EXAMPLES / "data")
    source = directory / example / f"{example}.alpha"
    source.parent.mkdir()
    source.write_text(text, encoding="utf-8")
    return source


@pytest.mark.slow
@pytest.mark.parametrize("example", SMALL)
def test_fifty_steps_of_every_example(example: str, compile_for: Compile, tmp_path: Path):
    source = shrunk(example, tmp_path)
    paths = [compile_for(source, name) for name in (host_target().name, "simulated")]
    with Session(paths[0]) as cpu, Session(paths[1]) as gpu:
        assert gpu.train(50) == cpu.train(50)
        found = gpu.states()
        differing = [name for name, state in cpu.states().items() if found[name].tobytes() != state.tobytes()]
        assert not differing, f"these differ: {', '.join(differing)}"
        assert gpu.evaluate() == cpu.evaluate()


def test_a_fast_region_learns_by_matrix_instructions(compile_for: Compile, tmp_path: Path):
    (tmp_path / "digits.npz").symlink_to(EXAMPLES / "data" / "digits.npz")
    source = tmp_path / "fast.alpha"
    source.write_text(SYSTEM.replace("MODE", FAST))
    losses: list[list[float]] = []
    for name in ("simulated", f"simulated-{MMA.name}"):
        with Session(compile_for(source, name)) as session:
            losses.append([session.step(i)["loss"] for i in range(20)])
    exact, fast = np.array(losses)
    assert not np.array_equal(exact, fast)
    np.testing.assert_allclose(fast, exact, rtol=1e-2)


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


@pytest.mark.parametrize("names", [("simulated",), ("x86", "simulated")], ids=str)
def test_the_op_that_made_a_bad_number_is_named(names: tuple[str, ...], compile_for: Compile, tmp_path: Path):
    names = tuple(host_target().name if name == "x86" else name for name in names)
    source = write_line(tmp_path / "ruin", RUIN, x=np.full(64, 2, np.float32))
    ends = run_roles(compile_for(source, *names), tmp_path / "run", 20, {})
    assert all(isinstance(end, NonFiniteLoss) and (end.step, end.op) == (2, "log") for end in ends), ends
    assert Run(tmp_path / "run").metrics()[-1]["step"] == 2


# ---------------------------------------------------------------------- fleets
FLEET = """
[[endpoint]]
name = "desk"
target = "x86-64-v3"
speed = 1

[[endpoint]]
name = "card"
target = "cuda-sm90"
speed = 3
"""


def test_a_fleet_file_mixes_targets(tmp_path: Path):
    (tmp_path / "fleet.toml").write_text(FLEET)
    source = EXAMPLES / "digits_mlp" / "digits_mlp.alpha"
    path = compile_file(source, out=tmp_path / "b", plan=Plan.of(fleet=tmp_path / "fleet.toml")).path
    bundle = read_bundle(path)
    classes = [bundle.class_of(bundle.role(k).role_class) for k in range(2)]
    assert [(c.target, c.device, c.shards) for c in classes] == [("x86-64-v3", "cpu", 8), ("cuda-sm90", "cuda", 24)]
    code = bundle.read(classes[1].object)
    assert b".target sm_90" in code
    assert b"ELF" not in code


def test_a_role_says_what_its_gpu_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_line(tmp_path / "line")
    path = compile_file(source, out=tmp_path / "b", plan=Plan((Fraction(1),), ("cuda-sm80",))).path
    bundle = read_bundle(path)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(KernelFailed, match=r"cuda-sm80 needs cuda-bindings.*\n.*alphac\[cuda\]"):
        Executor(bundle, bundle.class_of(0), 0, 1)
