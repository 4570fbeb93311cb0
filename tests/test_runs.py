"""Runs from the command line, end to end: what they leave, how they stop, fail and go on, and what is learned is used.

The system is `running.LINE`, on one role or more. Interrupted runs are compared with whole ones bit by bit.
"""

from __future__ import annotations

import csv
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import running
from running import (
    Processes,
    Run,
    assert_own_work,
    assert_same_bits,
    call,
    children,
    ended,
    train,
    wait_for,
)
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from alphac.backends.registry import host_target, target
from alphac.pipeline import Plan, compile_file
from alphac.runtime.bundle import ClassRecord, read_bundle
from alphac.runtime.checkpoint import find_checkpoint, load_states
from alphac.runtime.errors import InputRefused, NonFiniteLoss
from alphac.runtime.inference import predictions
from alphac.runtime.launch.local import run_local

Bundle = Callable[..., Path]
STEPS = 240  # of the run that others are compared with; ten in an epoch


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return running.write_line(tmp_path_factory.mktemp("line"))


@pytest.fixture(scope="module")
def one(bundle: Bundle, source: Path) -> Path:
    return bundle(source)


@pytest.fixture(scope="module")
def three(bundle: Bundle, source: Path) -> Path:
    return bundle(source, roles=3)


@pytest.fixture(scope="module")
def whole(one: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run of one role."""
    out = tmp_path_factory.mktemp("whole") / "run"
    answer = call("run", one, "--steps", STEPS, "--out", out)
    assert (answer.code, answer.err) == (0, "")
    assert f"{STEPS} steps in" in answer.out and str(out) in answer.out
    return Run(out)


def until(one: Path, directory: Path, steps: int) -> Run:
    """An uninterrupted run of one role of so many steps."""
    return train(one, directory / f"whole-{steps}", steps)


# ---------------------------------------------------------------------- what a run leaves
def test_the_run_directory(whole: Run) -> None:
    names = {p.name for p in whole.directory.iterdir()}
    assert names == {"parameters.safetensors", "metrics.jsonl", "metrics.csv", "checkpoints", "run.json"}
    assert {p.name for p in (whole.directory / "checkpoints").iterdir()} == {
        "HEAD",
        "step-0000000100",
        "step-0000000200",
        "step-0000000240",
    }


def test_metrics(whole: Run) -> None:
    lines, steps = whole.metrics(), whole.steps()
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert [line["epoch"] for line in steps] == [k // 10 for k in range(STEPS)]
    assert steps[-1]["loss"] < 0.1 * steps[0]["loss"]
    errors = [line for line in lines if "error" in line]
    assert [line["step"] for line in errors] == list(range(10, STEPS + 1, 10))
    assert all(line["epoch"] == line["step"] // 10 - 1 for line in errors)
    with (whole.directory / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == len(lines)
    for row, line in zip(table, lines, strict=True):
        assert {k: float(v) for k, v in row.items() if v} == line


def test_the_record(whole: Run, one: Path) -> None:
    record, manifest = whole.record, read_bundle(one).manifest
    assert (record["system"], record["status"], record["steps"], record["first_step"]) == ("line", "done", STEPS, 0)
    assert (record["identity"], record["bundle"]) == (manifest.identity, manifest.bundle)
    assert (record["batch"], record["shards"]) == (running.BATCH, running.SHARDS)
    assert record["values"] == {"error": whole.metrics()[-1]["error"]}
    assert record["options"]["steps"] == STEPS
    assert record["seconds"] > 0 and record["started"] < record["ended"]
    (role,) = record["roles"]
    assert role["target"] == manifest.classes[0].target  # type: ignore[union-attr]
    assert role["arena_bytes"] > 0 and role["pid"] != os.getpid()
    assert_own_work(whole, (running.SHARDS,), 1)


def test_the_parameters(whole: Run) -> None:
    assert {n: (a.dtype.name, a.shape) for n, a in whole.parameters.items()} == {
        "w": ("float32", (3,)),
        "b": ("float32", ()),
        "momentum.w.v": ("float32", (3,)),
        "momentum.b.v": ("float32", ()),
    }
    np.testing.assert_allclose(whole.parameters["w"], [1, -2, 0.5], atol=0.1)
    with safe_open(whole.directory / "parameters.safetensors", "numpy") as file:
        assert file.metadata() == {"system": "line", "identity": whole.record["identity"]}


def test_checkpoints_hold_every_state(whole: Run, one: Path) -> None:
    manifest = read_bundle(one).manifest
    last = find_checkpoint(whole.directory, manifest)
    assert (last.manifest.step, last.path.name) == (STEPS, f"step-{STEPS:010d}")
    states = load_states(last.path / "states.safetensors", manifest)
    assert states.keys() == whole.parameters.keys()
    assert all(states[n].tobytes() == a.tobytes() for n, a in whole.parameters.items())


def test_three_roles_have_the_same_bits(three: Path, whole: Run, tmp_path: Path) -> None:
    run = train(three, tmp_path / "run", STEPS)
    assert_same_bits(run, whole)
    assert_own_work(run, (3, 3, 2), 1)
    assert run.checkpoints == whole.checkpoints


def test_no_steps_at_all_evaluates_the_first_values(one: Path, tmp_path: Path) -> None:
    run = train(one, tmp_path / "run", 0)
    assert run.steps() == [] and [line["step"] for line in run.metrics()] == [0]
    assert run.checkpoints == [0]
    assert_same_bits(train(one, tmp_path / "run", 30, resume="latest"), until(one, tmp_path, 30))


def test_the_default_run_directories(one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for steps in (5, 6):
        assert call("run", one, "--steps", steps).code == 0
    assert call("run", one, "--steps", 9, "--resume", "latest").code == 0
    assert [Run(tmp_path / "runs" / f"line-{k}").record["steps"] for k in (1, 2)] == [5, 9]
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["line-1", "line-2"]


# ---------------------------------------------------------------------- going on
@pytest.mark.parametrize(("before", "after"), [("one", "three"), ("three", "one")])
def test_resumed_by_another_number_of_roles(
    before: str, after: str, whole: Run, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first, second = request.getfixturevalue(before), request.getfixturevalue(after)
    train(first, tmp_path / "run", 133)
    run = train(second, tmp_path / "run", STEPS, resume="latest")
    assert run.record["first_step"] == 133
    assert_same_bits(run, whole)


def test_resumed_from_an_older_checkpoint_elsewhere(three: Path, whole: Run, tmp_path: Path) -> None:
    path = whole.directory / "checkpoints" / "step-0000000100"
    run = train(three, tmp_path / "elsewhere", STEPS, resume=str(path))
    assert [line["step"] for line in run.steps()] == list(range(101, STEPS + 1))
    assert run.states == whole.states
    assert run.steps() == whole.steps()[100:]


def test_resumed_from_a_run_directory(three: Path, whole: Run, tmp_path: Path) -> None:
    run = train(three, tmp_path / "run", STEPS + 40, resume=str(whole.directory))
    assert run.record["first_step"] == STEPS


# ---------------------------------------------------------------------- stopping
@pytest.mark.parametrize("roles", [1, 3])
def test_ctrl_c_leaves_a_state_to_go_on_from(
    roles: int, one: Path, three: Path, tmp_path: Path, processes: Processes
) -> None:
    bundle, other = (one, three) if roles == 1 else (three, one)
    process = processes.alphac("run", bundle, "--out", "run", cwd=tmp_path)
    wait_for(process, "checkpoint")
    process.send_signal(signal.SIGINT)
    answer = ended(process)
    assert answer.code == 3
    assert "as asked" in answer.out and "--resume latest" in answer.out and "failed" not in answer.out
    assert "Traceback" not in answer.out + answer.err
    run = Run(tmp_path / "run")
    stopped = run.record["steps"]
    assert (run.record["status"], run.checkpoints[-1]) == ("stopped", stopped)
    again = train(other, tmp_path / "run", stopped + 50, resume="latest")
    assert again.record["first_step"] == stopped
    assert_same_bits(again, until(one, tmp_path, stopped + 50))


@pytest.mark.parametrize("lost", [0, 2])
def test_a_killed_role_is_named_and_the_run_goes_on_from_its_last_checkpoint(
    lost: int, one: Path, three: Path, tmp_path: Path, processes: Processes
) -> None:
    process = processes.alphac("run", three, "--out", "run", cwd=tmp_path)
    wait_for(process, "checkpoint")
    roles = children(process.pid)
    assert sorted(roles) == [0, 1, 2]
    os.kill(roles[lost], signal.SIGKILL)
    answer = ended(process)
    running.wait_gone(list(roles.values()))
    assert answer.code == 3
    assert f"role {lost} was ended from outside (SIGKILL)" in answer.out
    assert "Traceback" not in answer.out + answer.err
    run = Run(tmp_path / "run")
    assert run.record["status"] == "failed"
    assert run.record["fault"]["fault"] == "PeerLost" and run.record["fault"]["peer"] == lost
    assert [r["role"] for r in run.record["roles"]] == [0, 1, 2]
    saved = run.checkpoints[-1]
    again = train(one, tmp_path / "run", saved + 50, resume="latest")
    assert again.record["first_step"] in (saved, saved - 100)  # killed between a checkpoint and its head
    assert_same_bits(again, until(one, tmp_path, saved + 50))


def test_roles_end_when_their_launcher_is_killed(three: Path, tmp_path: Path, processes: Processes) -> None:
    process = processes.alphac("run", three, "--out", "run", cwd=tmp_path)
    wait_for(process, "checkpoint")
    roles = children(process.pid)
    process.kill()
    running.wait_gone(list(roles.values()))
    assert len(roles) == 3


@pytest.mark.parametrize("roles", [1, 3])
def test_a_disk_that_is_full(roles: int, one: Path, three: Path, tmp_path: Path, processes: Processes) -> None:
    """Files may not grow beyond 60 kB: the metrics are the first to. What was saved before is there to go on from."""
    process = processes.python(
        "-c",
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000));"
        "from alphac.cli import main; main(sys.argv[1:])",
        "run", one if roles == 1 else three, "--out", "run", "--steps", 5000,
        cwd=tmp_path,
    )  # fmt: skip
    answer = ended(process)
    assert answer.code == 3 and "Traceback" not in answer.out + answer.err
    assert "failed: role 0: run cannot be written: File too large" in answer.out
    saved = Run(tmp_path / "run").checkpoints[-1]
    assert saved > 0
    assert train(one, tmp_path / "run", saved + 5, resume="latest").record["first_step"] in (saved, saved - 100)


# ---------------------------------------------------------------------- losses that are no numbers
RUIN = """# The level falls until its logarithm has no value.
system ruin
dim batch = 16
grain 8 of batch
data points from "points.npz" { x: f32[] = x }
param w: f32[] = 1
region level(x: f32[batch]) -> f32[batch] {
    log(w * x)
}
learn w with sgd(0.4) minimizing { mean(level(x)) }
evaluate height on train = mean(w * x)
train on points for 20 steps
"""


@pytest.mark.parametrize("roles", [1, 2])
def test_a_loss_that_is_no_number_stops_the_run_with_its_cause(roles: int, bundle: Bundle, tmp_path: Path) -> None:
    """w goes 1, 0.6, −0.07: the third step takes a negative number's logarithm."""
    source = running.write_line(tmp_path / "ruin", RUIN, x=np.full(64, 2, np.float32))
    answer = call("run", path := bundle(source, roles=roles), "--out", tmp_path / "run")
    assert answer.code == 3
    assert f"step 2: loss is not finite: `log` ({source}:8:5) made the first nan" in answer.out.replace("\n", " ")
    run = Run(tmp_path / "run")
    fault = run.record["fault"]
    assert (fault["fault"], fault["step"], fault["op"], fault["span"]) == ("NonFiniteLoss", 2, "log", f"{source}:8:5")
    assert fault["role"] in range(roles)
    assert [line["step"] for line in run.metrics()] == [1, 2]
    manifest = read_bundle(path).manifest
    last = find_checkpoint(tmp_path / "run", manifest)
    assert last.manifest.step == 2
    expected = np.float32(1) - np.float32(0.4)
    expected -= np.float32(0.4) / expected
    np.testing.assert_allclose(load_states(last.path / "states.safetensors", manifest)["w"], expected, rtol=1e-5)
    answer = call("eval", path, "--parameters", tmp_path / "run")
    assert (answer.code, answer.out.split()[0]) == (0, "height")


@pytest.mark.parametrize("targets", [("x86-64-v3", "x86-64-v3-128"), ("x86-64-v3-128", "x86-64-v3")], ids=str)
def test_each_role_replays_its_own_code(targets: tuple[str, str], tmp_path: Path) -> None:
    """Kernels of two targets have different symbols; the one that made the bad number is found in either's code."""
    for name in targets:
        if not target(name).runs_here():
            pytest.skip(f"this processor does not run {name}")
    x = np.full(64, 2, np.float32)
    x[13] = -1  # in the first batch, in the second role's half
    source = running.write_line(tmp_path / "ruin", RUIN, x=x)
    path = compile_file(source, out=tmp_path / "b", plan=Plan((Fraction(1),) * 2, targets)).path
    classes = read_bundle(path).manifest.classes
    mine, other, *_ = (c.symbols["step"] for c in classes if isinstance(c, ClassRecord))
    assert len(mine) == len(other) and mine != other
    result = run_local(path, out=tmp_path / "run")
    assert isinstance(result.fault, NonFiniteLoss)
    assert (result.fault.role, result.fault.step, result.fault.op) == (1, 0, "log")


def test_the_role_that_holds_the_bad_example_is_named(bundle: Bundle, tmp_path: Path) -> None:
    x = np.full(64, 2, np.float32)
    x[16 + 13] = -1  # in the second batch, in the second role's half
    text = RUIN.replace("sgd(0.4)", "sgd(1e-3)")
    source = running.write_line(tmp_path / "ruin", text, x=x)
    result = run_local(bundle(source, roles=2), out=tmp_path / "run")
    assert (result.exit_code, result.fault and result.fault.role, result.fault and result.fault.step) == (14, 1, 1)
    faults = [r["fault"] for r in Run(tmp_path / "run").record["roles"]]
    assert [f["op"] for f in faults] == ["", "log"]
    assert "another role's part" in faults[0]["message"]


def test_a_rate_that_is_far_too_large(bundle: Bundle, source: Path, tmp_path: Path) -> None:
    path = bundle(source, overrides={"rate": "1e30"})
    answer = call("run", path, "--out", tmp_path / "run", "--steps", 50)
    assert answer.code == 3
    assert "loss is not finite" in answer.out and "made the first inf" in answer.out.replace("\n", " ")
    parameters = find_checkpoint(tmp_path / "run", read_bundle(path).manifest)
    assert all(np.isfinite(a).all() for a in load_file(parameters.path / "states.safetensors").values())


# ---------------------------------------------------------------------- emulators
def test_a_role_that_an_emulator_runs_says_so(one: Path, tmp_path: Path) -> None:
    """This very Python stands for an emulator: the command line takes its command, the record tells it."""
    here, command = host_target().name, f"env A=B {sys.executable}"
    answer = call("run", one, "--steps", 3, "--out", tmp_path / "run", "--emulate", f"{here}={command}")
    assert answer.code == 0
    assert [role["emulated"] for role in Run(tmp_path / "run").record["roles"]] == [command]


def test_an_emulator_for_nobody_is_refused(one: Path, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="is for pdp-11"):
        run_local(one, out=tmp_path / "run", emulators={"pdp-11": ["simh"]})
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- roles one by one
def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_bundle_runs_a_role(one: Path, whole: Run, tmp_path: Path, processes: Processes) -> None:
    answer = ended(processes.python(one, "--role", 0, "--steps", STEPS, "--out", "run", cwd=tmp_path))
    assert (answer.code, answer.err) == (0, "")
    assert_same_bits(Run(tmp_path / "run"), whole)


def test_the_role_command(bundle: Bundle, source: Path, one: Path, tmp_path: Path, processes: Processes) -> None:
    two = bundle(source, roles=2)
    join = ["--join", free_address(), "--steps", 30]
    commands = [("-m", "alphac.cli", "role", two, "--role", 1, *join), (two, "--role", 0, *join, "--out", "run")]
    started = [processes.python(*command, cwd=tmp_path) for command in commands]
    assert [ended(p).code for p in started] == [0, 0]
    assert_same_bits(Run(tmp_path / "run"), until(one, tmp_path, 30))


def test_an_extracted_role_runs_by_itself(one: Path, tmp_path: Path, processes: Processes) -> None:
    answer = call("extract", one, "--role", 0, "-o", tmp_path / "alone.pyz")
    assert (answer.code, answer.out) == (0, f"wrote {tmp_path / 'alone.pyz'}\n")
    assert (tmp_path / "alone.pyz").stat().st_mode & stat.S_IXUSR
    (tmp_path / "alphac").mkdir()
    (tmp_path / "alphac" / "__init__.py").write_text("raise ImportError('not the archive')")
    process = processes.python("-E", "alone.pyz", "--steps", 30, "--threads", 2, "--out", "run", cwd=tmp_path)
    answer = ended(process)
    assert (answer.code, answer.err) == (0, "")
    states = until(one, tmp_path, 30).states
    assert Run(tmp_path / "run").states == states


def test_two_extracted_roles_join_each_other(
    bundle: Bundle, source: Path, one: Path, tmp_path: Path, processes: Processes
) -> None:
    two, address = bundle(source, roles=2), free_address()
    archives = [tmp_path / f"{k}.pyz" for k in range(2)]
    for number, archive in enumerate(archives):
        assert call("extract", two, "--role", number, "-o", archive).code == 0
    options = ["--join", address, "--steps", 30, "--out", "run"]
    started = [processes.python("-E", archive, *options, cwd=tmp_path) for archive in archives]
    answers = [ended(p) for p in started]
    assert [(a.code, a.err) for a in answers] == [(0, "")] * 2
    run = Run(tmp_path / "run")
    assert [r["shards_computed"] for r in run.record["roles"]] == [120, 120]
    assert run.states == until(one, tmp_path, 30).states


def test_an_extracted_role_is_no_other(bundle: Bundle, source: Path, tmp_path: Path, processes: Processes) -> None:
    two = bundle(source, roles=2)
    assert call("extract", two, "--role", 1, "-o", tmp_path / "1.pyz").code == 0
    answer = ended(processes.python(tmp_path / "1.pyz", "--role", 0, cwd=tmp_path))
    assert answer.code == 2 and "--role is given twice" in answer.err


def test_a_role_that_runs_another_bundle_may_not_join(
    bundle: Bundle, source: Path, tmp_path: Path, processes: Processes
) -> None:
    two, other = bundle(source, roles=2), bundle(source, shares=(3, 5))
    join = ["--join", free_address(), "--steps", 30, "--out", "run"]
    root = processes.python(two, "--role", 0, *join, cwd=tmp_path)
    stranger = ended(processes.python(other, "--role", 1, *join, cwd=tmp_path))
    assert stranger.code in (12, 13) and "another bundle" in stranger.err
    member = ended(processes.python(two, "--role", 1, *join, cwd=tmp_path))
    assert (member.code, ended(root).code) == (0, 0)


# ---------------------------------------------------------------------- what was learned is used
@pytest.mark.parametrize("what", ["parameters.safetensors", "checkpoints/step-0000000240", ""])
def test_evaluate(what: str, one: Path, three: Path, whole: Run) -> None:
    for path in (one, three):
        answer = call("eval", path, "--parameters", whole.directory / what)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out == f"error {whole.record['values']['error']:.6g}\n"


def test_an_evaluation_counts_a_ragged_batch_rightly(one: Path, whole: Run, source: Path) -> None:
    points = np.load(source.parent / "points.npz")
    x, y = points["x"][-running.HELD_OUT :], points["y"][-running.HELD_OUT :]
    p = whole.parameters
    expected = np.abs(x @ p["w"] + p["b"] - y).mean()
    assert whole.record["values"]["error"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("count", [1, 15, 16, 37])
def test_predict(count: int, one: Path, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(7).standard_normal((count, 3), np.float32)
    np.savez("inputs.npz", x=x)
    save_file({"x": x}, "inputs.safetensors")
    expected = x @ whole.parameters["w"] + whole.parameters["b"]
    for inputs in ("inputs.npz", "inputs.safetensors"):
        answer = call("predict", one, inputs, "--parameters", whole.directory, "--threads", 2)
        assert (answer.code, answer.out) == (0, f"wrote predictions.npz  guess[{count}]\n")
        np.testing.assert_allclose(np.load("predictions.npz")["guess"], expected, rtol=1e-5, atol=1e-5)


def test_predict_digits(bundle: Bundle, tmp_path: Path) -> None:
    """A network's outputs, against NumPy, from the number of examples that the file has."""
    path = bundle("digits_mlp")
    run = train(path, tmp_path / "run", 20)
    images = np.load(running.ROOT / "examples" / "data" / "digits.npz")["images"][:300].astype(np.float32) / 16
    found = predictions(path, "logits", {"image": images}, run.directory)
    p = {name: array.astype(np.float64) for name, array in run.parameters.items()}
    expected = np.maximum(images @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]
    (output,) = found.values()
    assert output.shape == (300, 10)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
