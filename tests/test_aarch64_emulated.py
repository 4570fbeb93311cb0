"""Code for aarch64 on an emulated processor: every op, every example, and runs that it shares with this machine's own
processor. The same bits throughout. Linux's objects run as they do in a bundle; macOS's, which are for the same
processor, are linked into a process on Linux, op by op."""

from __future__ import annotations

import json
import pickle
import shlex
import subprocess
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from emulated_bits import Job, Trial
from emulation import PATIENCE, Unavailable, emulated_python
from everyop_native import Batch
from everyop_table import CASES
from running import Run, assert_own_work, assert_same_bits, write_line
from test_gpu_runs import EXAMPLES, SMALL, shrunk
from test_kernels import CONTRACTIONS, REDUCTIONS, SPECIALS, drawn, function_of
from test_runs import RUIN
from test_stream import FUNCTIONS as STREAMS
from test_windows import CASES as CONVOLUTIONS

from alphac.backends.registry import host_target, target
from alphac.ir.core import Function
from alphac.ir.interpret import interpret
from alphac.pipeline import Plan, compile_file
from alphac.runtime.bundle import read_bundle
from alphac.runtime.errors import NonFiniteLoss
from alphac.runtime.launch.local import run_local

pytestmark = pytest.mark.slow
STEPS = 50
Train = Callable[..., Run]


@pytest.fixture(scope="session")
def python() -> tuple[str, ...]:
    """The command that starts an emulated Python."""
    try:
        return emulated_python()
    except Unavailable as reason:
        pytest.skip(f"no aarch64 under emulation: {reason}")


# ---------------------------------------------------------------------- op by op
@pytest.fixture
def failures(python: tuple[str, ...], tmp_path: Path) -> Callable[..., dict[str, str]]:
    """`failures(target, functions, trials)`: of every function that differs from what is expected, whoever owns the
    shards, with one thread or two, how. One process runs them all."""

    def run(name: str, functions: Mapping[str, Function], trials: Mapping[str, Trial]) -> dict[str, str]:
        made = target(name)
        batch = Batch(functions, made)
        job, answer = tmp_path / "job", tmp_path / "answer.json"
        job.write_bytes(pickle.dumps(Job(batch.data, made.triple, batch.compiled, trials)))
        script = Path(__file__).with_name("emulated_bits.py")
        subprocess.run([*python, script, job, answer], check=True, timeout=PATIENCE)
        return json.loads(answer.read_text())

    return run


@pytest.mark.parametrize("name", ["aarch64", "aarch64-macos"])
def test_every_op_in_every_dtype(name: str, failures: Callable[..., dict[str, str]]) -> None:
    functions = {str(case): case.function for case in CASES}
    trials = {str(case): Trial(case.given(0), case.bits, case.shards) for case in CASES}
    assert not failures(name, functions, trials)


def _trial(function: Function, shards: int) -> Trial:
    given = [drawn(v.type, i) for i, v in enumerate(function.block.arguments)]
    return Trial(given, interpret(function, given, exact=True), shards)


@pytest.mark.parametrize("name", ["aarch64", "aarch64-macos"])
def test_every_form_of_a_kernel(name: str, failures: Callable[..., dict[str, str]]) -> None:
    """Tiles, edges, packing, leaves; streams; convolutions and their gradients."""
    functions = {str(case): function_of([case]) for case in (*REDUCTIONS, *CONTRACTIONS, *SPECIALS)}
    functions |= {stream: make() for stream, make in STREAMS.items()}
    functions |= {str(case): case.functions()[1] for case in CONVOLUTIONS}
    trials = {n: _trial(f, 1 if "one shard" in n else 8) for n, f in functions.items()}
    assert not failures(name, functions, trials)


COMPILE = """
import sys
from pathlib import Path
from alphac.pipeline import Plan, compile_file
compile_file(Path(sys.argv[1]), out=Path(sys.argv[2]), plan=Plan.of())
"""


def test_what_is_compiled_there_is_what_is_compiled_here(python: tuple[str, ...], tmp_path: Path) -> None:
    """Without a fleet, for its own processor: the same bundle, byte by byte."""
    source = EXAMPLES / "digits_mlp" / "digits_mlp.alpha"
    no_cache = ["env", f"XDG_CACHE_HOME={tmp_path / 'cache'}"]
    command = [*no_cache, *python, "-c", COMPILE, source, tmp_path / "there"]
    subprocess.run(command, check=True, timeout=PATIENCE)
    compile_file(source, out=tmp_path / "here", plan=Plan((Fraction(1),), ("aarch64",)))
    there, here = (read_bundle(tmp_path / name).manifest for name in ("there", "here"))
    assert there.files == here.files
    assert there.bundle == here.bundle


# ---------------------------------------------------------------------- whole systems
@pytest.fixture
def train(python: tuple[str, ...], tmp_path: Path) -> Train:
    """`train(source, *targets)`: a run of 50 steps by equal roles on these targets, those for aarch64 emulated."""

    def run(source: Path, *names: str) -> Run:
        out = tmp_path / "-".join(names)
        plan = Plan((Fraction(1),) * len(names), names)
        path = compile_file(source, out=out.with_suffix(".bundle"), plan=plan).path
        emulators = {"aarch64": python} if "aarch64" in names else {}
        result = run_local(path, steps=STEPS, threads=2, out=out, emulators=emulators)
        assert result.error is None
        return Run(out)

    return run


@pytest.mark.parametrize("example", SMALL)
def test_fifty_steps_of_every_example(example: str, train: Train, tmp_path: Path) -> None:
    source = shrunk(example, tmp_path)
    assert_same_bits(train(source, "aarch64"), train(source, host_target().name))


def test_a_role_started_by_hand_sees_its_emulator(python: tuple[str, ...], tmp_path: Path) -> None:
    shown = subprocess.check_output([*python, "-c", "print(open('/proc/cpuinfo').read())"], text=True)
    if "CPU implementer" in shown:
        pytest.skip("this emulator says what Linux would say on aarch64")
    path = compile_file(write_line(tmp_path / "line"), out=tmp_path / "b", plan=Plan((Fraction(1),), ("aarch64",))).path
    subprocess.run([*python, path, "--role", "0", "--steps", "3", "--out", tmp_path / "run"], check=True)
    assert [role["emulated"] for role in Run(tmp_path / "run").record["roles"]] == ["unknown, on x86_64"]


@pytest.mark.parametrize("example", ["digits_mlp", "hybrid"])
@pytest.mark.parametrize("first", ["aarch64", "x86-64"])
def test_two_processors_learn_together(
    example: str, first: str, train: Train, python: tuple[str, ...], tmp_path: Path
) -> None:
    """Each computes half of the shards, and has half of a batch's examples; neither could go on without the other."""
    source, mine = shrunk(example, tmp_path), host_target().name
    targets = ("aarch64", mine) if first == "aarch64" else (mine, "aarch64")
    both = train(source, *targets)
    assert_same_bits(both, train(source, mine))
    assert_own_work(both, [both.record["shards"] // 2] * 2, threads=2)
    assert tuple(role["target"] for role in both.record["roles"]) == targets
    for role in both.record["roles"]:
        emulated = role["target"] == "aarch64"
        assert role["emulated"] == (shlex.join(python) if emulated else "")
        assert (role["machine"] == "aarch64") == emulated


def test_an_emulated_role_replays_its_own_code(python: tuple[str, ...], tmp_path: Path) -> None:
    """The role that holds the bad example is the emulated one, which has other kernels than its peer."""
    x = np.full(64, 2, np.float32)
    x[13] = -1  # in the first batch, in the second role's half
    source = write_line(tmp_path / "ruin", RUIN, x=x)
    plan = Plan((Fraction(1),) * 2, (host_target().name, "aarch64"))
    path = compile_file(source, out=tmp_path / "b", plan=plan).path
    result = run_local(path, out=tmp_path / "run", emulators={"aarch64": python})
    assert isinstance(result.fault, NonFiniteLoss)
    assert (result.fault.role, result.fault.step, result.fault.op) == (1, 0, "log")
