"""Roles as processes: the same bits however they share, stop and resume, failures that are named, and what is
written."""

from __future__ import annotations

import csv
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from alphac.runtime import main as entry
from alphac.runtime.bundle import Bundle, read_bundle
from alphac.runtime.checkpoint import find_checkpoint, load_states
from alphac.runtime.collectives import Collective
from alphac.runtime.errors import (
    BundleRefused,
    CheckpointRefused,
    DataRefused,
    InputRefused,
    JoinFailed,
    KernelFailed,
    NonFiniteLoss,
    PeerLost,
    RunDirectoryRefused,
    fault_from,
)
from alphac.runtime.events import Checkpointed, Evaluated, Event, Failed, Finished, Started, Step
from alphac.runtime.executor import Exchanged, Executor
from alphac.runtime.inference import evaluate, predict, predictions
from alphac.runtime.launch.local import RunResult, run_local
from alphac.runtime.record import last_directory, next_directory
from alphac.runtime.role import Options, Role
from alphac.runtime.star import join_star

FOREVER = tiny.b.TrainingRecord("points", steps=10**9)


def run(path: Path, shares: tuple[int, ...] = (4,), name: str = "run", **options: Any) -> RunResult:
    bundle = path / f"{'-'.join(map(str, shares))}.bundle"
    if not bundle.exists():
        tiny.write(bundle, shares, **{k: options.pop(k) for k in ("arrays", "training") if k in options})
    return run_local(bundle, out=path / name, **options)


def parameters(path: Path, name: str = "run") -> bytes:
    return (path / name / "parameters.safetensors").read_bytes()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run on one role."""
    path = tmp_path_factory.mktemp("reference")
    assert run(path).exit_code == 0
    return path


@pytest.mark.parametrize(("shares", "threads"), [((2, 2), 2), ((1, 3), 1), ((1, 2, 1), 1)])
def test_any_sharing_gives_the_same_bits(
    reference: Path, tmp_path: Path, shares: tuple[int, ...], threads: int
) -> None:
    events: list[Event] = []
    result = run(tmp_path, shares, threads=threads, on_event=events.append)
    assert (result.exit_code, result.steps, result.error) == (0, 20, None)
    assert parameters(tmp_path) == parameters(reference)
    assert (tmp_path / "run/metrics.csv").read_bytes() == (reference / "run/metrics.csv").read_bytes()
    record = json.loads((tmp_path / "run/run.json").read_text())
    roles = record["roles"]
    assert [r["shards_computed"] for r in roles] == [20 * n for n in shares]
    assert sum(r["examples"] for r in roles) == 20 * tiny.BATCH
    assert {len(r["threads"]) for r in roles} == {threads}
    assert all(t["cpu_seconds"] > 0 for r in roles for t in r["threads"])
    assert len({r["states_sha256"] for r in roles}) == 1
    assert len({r["pid"] for r in roles} | {os.getpid()}) == len(shares) + 1
    kinds = [type(e) for e in events]
    assert kinds[0] is Started and kinds[-1] is Finished
    assert events[0] == Started("tiny", shares, threads, 0, 20)
    assert {Step, Evaluated, Checkpointed} <= set(kinds)
    assert [e.step for e in events if isinstance(e, Checkpointed)] == [8, 16, 20]


def test_what_is_written(reference: Path) -> None:
    directory = reference / "run"
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 21))
    assert [line["epoch"] for line in steps] == [k // 4 for k in range(20)]
    assert [line["step"] for line in lines if "mean" in line] == [4, 8, 12, 16, 20]
    with (directory / "metrics.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["loss"]) for row in table if row["loss"]] == [line["loss"] for line in steps]
    record = json.loads((directory / "run.json").read_text())
    bundle = read_bundle(reference / "4.bundle")
    assert (record["status"], record["steps"], record["identity"]) == ("done", 20, tiny.IDENTITY)
    assert record["bundle"] == bundle.manifest.bundle
    states = load_states(directory / "parameters.safetensors", bundle.manifest)
    assert states["n"] == 20


@pytest.mark.parametrize(("before", "after"), [((4,), (1, 3)), ((2, 2), (4,))])
def test_a_run_is_resumed_by_any_number_of_roles(
    reference: Path, tmp_path: Path, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    assert run(tmp_path, before, steps=9).steps == 9
    result = run(tmp_path, after, resume="latest")
    assert (result.exit_code, result.steps) == (0, 20)
    assert parameters(tmp_path) == parameters(reference)
    resumed = [line for line in metrics(tmp_path) if line["step"] != 9 or "mean" not in line]
    assert resumed == metrics(reference)  # but for the evaluation at the end of the first part


def metrics(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "run/metrics.jsonl").read_text().splitlines()]


def test_resuming_from_an_older_checkpoint_takes_later_metrics_back(reference: Path, tmp_path: Path) -> None:
    run(tmp_path)
    result = run(tmp_path, resume=str(tmp_path / "run/checkpoints/step-0000000008"))
    assert (result.exit_code, result.steps) == (0, 20)
    assert metrics(tmp_path) == metrics(reference)
    assert parameters(tmp_path) == parameters(reference)
    other = run(tmp_path, name="other", resume=str(tmp_path / "run"))
    assert (other.exit_code, other.steps) == (0, 20)


# ---------------------------------------------------------------------- refusals
def test_a_run_directory_that_exists_is_left_alone(reference: Path) -> None:
    with pytest.raises(RunDirectoryRefused, match="exists") as caught:
        run(reference)
    assert (caught.value.exit_code, caught.value.is_role_failure) == (1, False)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused) as caught:
        run(tmp_path, resume="latest")
    assert (caught.value.exit_code, caught.value.is_role_failure) == (15, False)
    assert not (tmp_path / "run").exists()


def test_a_damaged_bundle_starts_nothing(tmp_path: Path) -> None:
    bundle = tiny.write(tmp_path / "b.bundle")
    (bundle / "data/points.npz").write_bytes(b"")
    with pytest.raises(DataRefused):
        run_local(bundle, out=tmp_path / "run")
    with pytest.raises(BundleRefused):
        run_local(tmp_path / "nothing", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_little_data(tmp_path: Path) -> None:
    arrays = {name: array[:9] for name, array in tiny.points().items()}
    result = run(tmp_path, arrays=arrays)
    assert isinstance(result.fault, DataRefused)
    assert "examples to train on, a batch 8" in str(result.error)


# ---------------------------------------------------------------------- failures
@pytest.mark.parametrize("shares", [(4,), (3, 1)])
def test_a_loss_that_is_not_finite(tmp_path: Path, shares: tuple[int, ...]) -> None:
    arrays = tiny.points()
    arrays["x"][20, 1] = np.inf
    result = run(tmp_path, shares, arrays=arrays)
    fault = result.fault
    assert isinstance(fault, NonFiniteLoss)
    assert (result.exit_code, fault.op, fault.span) == (14, "sums", tiny.SPAN)
    assert f"role {fault.role}, step {fault.step}: loss is not finite" in str(fault)
    saved = find_checkpoint(tmp_path / "run", read_bundle(tmp_path / f"{'-'.join(map(str, shares))}.bundle").manifest)
    assert saved.manifest.step == fault.step


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that the launcher starts, by role."""
    made: list[subprocess.Popen[bytes]] = []
    start: Any = subprocess.Popen

    def remember(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        made.append(start(command, **options))
        return made[-1]

    monkeypatch.setattr("alphac.runtime.launch.local.subprocess.Popen", remember)
    return made


def at_first_step(act: Callable[[], object]) -> Callable[[Event], None]:
    done: list[bool] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Step) and not done:
            done.append(True)
            act()

    return on_event


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_killed_role_is_named_and_the_others_stop(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]], lost: int
) -> None:
    kill = at_first_step(lambda: os.kill(processes[lost].pid, signal.SIGKILL))
    events: list[Event] = []
    result = run(tmp_path, (1, 1, 2), training=FOREVER, on_event=lambda e: (events.append(e), kill(e)))
    assert isinstance(result.fault, PeerLost)
    assert (result.exit_code, result.fault.peer) == (17, lost)
    assert f"role {lost} was ended from outside (SIGKILL)" in str(result.error)
    codes = [process.returncode for process in processes]
    assert codes == [-signal.SIGKILL if role == lost else 17 for role in range(3)]
    assert {e.role for e in events if isinstance(e, Failed)} == {0, 1, 2}


def test_native_code_that_crashes_is_named(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    result = run(tmp_path, training=FOREVER, on_event=at_first_step(lambda: processes[0].send_signal(signal.SIGSEGV)))
    assert isinstance(result.fault, KernelFailed)
    assert "SIGSEGV" in str(result.error)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("shares", [(4,), (1, 3)])
def test_ctrl_c_leaves_a_resumable_state(tmp_path: Path, shares: tuple[int, ...]) -> None:
    result = run(tmp_path, shares, training=FOREVER, on_event=at_first_step(interrupt))
    assert (result.exit_code, result.fault is not None) == (19, True)
    assert f"stopped after step {result.steps}" in str(result.error)
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "stopped"
    again = run(tmp_path, shares, resume="latest", steps=result.steps + 5)
    assert (again.exit_code, again.steps) == (0, result.steps + 5)
    assert [line["step"] for line in metrics(tmp_path) if "loss" in line] == list(range(1, again.steps + 1))


def test_a_second_ctrl_c_ends_the_roles(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts = 0

    class Selector(selectors.DefaultSelector):
        """Interrupted once more when the launcher waits again after the first time."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            nonlocal interrupts
            if interrupts == 1:
                interrupts = 2
                interrupt()
            return super().select(timeout)

    def interrupt_deaf_roles() -> None:
        nonlocal interrupts
        interrupts = 1
        for process in processes:
            process.send_signal(signal.SIGSTOP)  # they cannot hear the first one
        interrupt()

    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    result = run(tmp_path, training=FOREVER, on_event=at_first_step(interrupt_deaf_roles))
    assert (interrupts, result.exit_code) == (2, 17)


def test_roles_end_with_their_launcher(tmp_path: Path) -> None:
    bundle = tiny.write(tmp_path / "b.bundle", (2, 2), training=FOREVER)
    code = f"""
import sys
from pathlib import Path
from alphac.runtime.launch import local
start = local.subprocess.Popen
def tell(*arguments, **options):
    process = start(*arguments, **options)
    print(process.pid, flush=True)
    return process
local.subprocess.Popen = tell
def on_event(event):
    print(type(event).__name__, flush=True)
local.run_local({str(bundle)!r}, out=Path({str(tmp_path / "run")!r}), on_event=on_event)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        handles = [os.pidfd_open(int(launcher.stdout.readline())) for _ in range(2)]
        while launcher.stdout.readline() != "Step\n":
            pass
        launcher.kill()
        for handle in handles:
            assert select.select([handle], [], [], 20)[0], "a role outlived its launcher"
            os.close(handle)


# ---------------------------------------------------------------------- roles one by one
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_roles_started_by_hand(reference: Path, tmp_path: Path) -> None:
    bundle = tiny.write(tmp_path / "b.bundle", (3, 1))
    join = ["--join", f"127.0.0.1:{free_port()}"]
    commands = [[sys.executable, str(bundle), "--role", str(k), *join, "--out", str(tmp_path / "run")] for k in (1, 0)]
    started = [subprocess.Popen(command) for command in commands]
    assert [process.wait(30) for process in started] == [0, 0]
    assert parameters(tmp_path) == parameters(reference)


def test_a_role_that_must_be_told_where_to_join(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tiny.write(tmp_path / "b.bundle", (3, 1))
    for role in ("0", "1"):
        code = entry.main(["role", str(bundle), "--role", role, "--out", str(tmp_path / "run")])
        assert (code, "say where role 0 listens" in capsys.readouterr().err) == (JoinFailed.exit_code, True)
    assert entry.main(["role", str(bundle), "--role", "2"]) == BundleRefused.exit_code
    assert "there is no role 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "BUNDLE and --role are needed"),
        (["b"], "BUNDLE and --role are needed"),
        (["b", "--role"], "--role lacks its value"),
        (["b", "--role", "x"], "--role takes a number, not `x`"),
        (["b", "--role", "0", "--role", "1"], "--role is given twice"),
        (["b", "c", "--role=0"], "`c` is not understood"),
        (["b", "--role=0", "--fast"], "`--fast` is not understood"),
        (["b", "--role=0", "--threads=0"], "--threads takes a number from 1 to 256"),
        (["b", "--role=0", "--join=here"], "--join takes HOST:PORT, not `here`"),
    ],
)
def test_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--help"]) == 0
    assert "usage: python BUNDLE --role K" in capsys.readouterr().out


def test_a_role_loads_no_compiler(tmp_path: Path) -> None:
    bundle = tiny.write(tmp_path / "b.bundle")
    code = f"""
import sys
from alphac.runtime.main import main
code = main(["role", {str(bundle)!r}, "--role", "0", "--steps", "2", "--out", {str(tmp_path / "run")!r}])
slow = {{"numba", "lark", "typer", "rich", "scipy", "asyncio", "socket"}}
names = slow & {{name.split(".")[0] for name in sys.modules}}
print(code, sorted(names), [n for n in sys.modules if n.startswith("alphac.") and not n.startswith("alphac.runtime")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0 [] []\n", "")


class Corrupting:
    """A group in which this role lies about its part."""

    def __init__(self, group: Collective) -> None:
        self.group = group

    def exchange(self, value: Exchanged) -> None:
        value.nodes[0][-1:] = value.nodes[0][-1:].view(np.float32) + 1
        self.group.exchange(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


def test_corrupting_one_roles_contribution_changes_what_is_learned(reference: Path, tmp_path: Path) -> None:
    bundle = tiny.write(tmp_path / "b.bundle", (3, 1))
    address = ("127.0.0.1", free_port())

    def gather(role: Role, opened: Bundle, executor: Executor, start: str) -> Collective:
        group = join_star(opened, executor.scopes, role.options.role, start, address, None, 20)
        return Corrupting(group) if role.options.role == 1 else group  # type: ignore[return-value]

    roles = [Role(Options(bundle, k, out=tmp_path / "run"), gather=gather) for k in range(2)]
    threads = [threading.Thread(target=role.run) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    manifest = read_bundle(bundle).manifest
    changed = load_states(tmp_path / "run/parameters.safetensors", manifest)
    right = load_states(reference / "run/parameters.safetensors", manifest)
    assert changed["n"] == right["n"]
    assert (changed["w"] != right["w"]).all()


def test_roles_that_end_with_different_states_are_not_believed(tmp_path: Path) -> None:
    bundle = tiny.write(tmp_path / "b.bundle", (3, 1))
    address = ("127.0.0.1", free_port())

    class Drifting(Corrupting):
        def exchange(self, value: Exchanged) -> None:
            self.group.exchange(value)
            value.nodes[0][:1] = value.nodes[0][:1].view(np.float32) + 1

    def gather(role: Role, opened: Bundle, executor: Executor, start: str) -> Collective:
        group = join_star(opened, executor.scopes, role.options.role, start, address, None, 20)
        return Drifting(group) if role.options.role == 1 else group  # type: ignore[return-value]

    member = Role(Options(bundle, 1, out=tmp_path / "run"), gather=gather)
    thread = threading.Thread(target=member.run)
    thread.start()
    with pytest.raises(KernelFailed, match="the roles ended with different states"):
        Role(Options(bundle, 0, out=tmp_path / "run"), gather=gather).run()
    thread.join(30)


# ---------------------------------------------------------------------- using what was learned
def test_evaluate(reference: Path) -> None:
    bundle = reference / "4.bundle"
    last = [line["mean"] for line in metrics(reference) if "mean" in line][-1]
    directory = reference / "run"
    for path in (
        directory,
        directory / "parameters.safetensors",
        directory / "checkpoints",
        directory / "checkpoints/step-0000000020",
    ):
        assert evaluate(bundle, path, threads=2) == {"mean": last}
    with pytest.raises(CheckpointRefused):
        evaluate(bundle, reference / "nothing")


@pytest.mark.parametrize("count", [1, 8, 19])
def test_predict(reference: Path, tmp_path: Path, count: int) -> None:
    x = np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    bundle, learned = reference / "4.bundle", reference / "run"
    shapes = predict(bundle, "scale", tmp_path / "in.npz", learned, out=tmp_path / "out.npz")
    assert shapes == {"y": (count, 3)}
    w = load_states(learned / "parameters.safetensors", read_bundle(bundle).manifest)["w"]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], x * w)
    np.testing.assert_array_equal(predictions(bundle, "scale", {"x": x.astype(np.float64)}, learned)["y"], x * w)


BAD_INPUTS: dict[str, tuple[str | None, dict[str, np.ndarray]]] = {
    "say which region": (None, {}),
    "there is no region `z`": ("z", {}),
    "inputs lack `x`": ("scale", {}),
    "inputs have the unknown `y`": ("scale", {"x": np.zeros((1, 3)), "y": np.zeros(1)}),
    "an example of it": ("scale", {"x": np.zeros((1, 4))}),
    "inputs have no examples": ("scale", {"x": np.zeros((0, 3))}),
    "is complex128, which does not go into f32": ("scale", {"x": np.zeros((1, 3), complex)}),
    "output `trace` is of a whole batch": ("loops", {"z": np.zeros(3, np.float32)}),
}


@pytest.mark.parametrize("message", BAD_INPUTS)
def test_inputs_that_do_not_fit(reference: Path, message: str) -> None:
    region, inputs = BAD_INPUTS[message]
    with pytest.raises(InputRefused, match=message):
        predictions(reference / "4.bundle", region, inputs, reference / "run")


def test_default_run_directories(tmp_path: Path) -> None:
    assert last_directory("tiny", tmp_path) is None
    assert next_directory("tiny", tmp_path) == tmp_path / "tiny-1"
    (tmp_path / "tiny-1").mkdir()
    assert next_directory("tiny", tmp_path) == tmp_path / "tiny-2"
    assert last_directory("tiny", tmp_path) == tmp_path / "tiny-1"


def test_faults_travel() -> None:
    for fault in (
        NonFiniteLoss("m", op="log", span="f:1:2", role=3, step=4),
        PeerLost("m", peer=2, scope="5"),
        JoinFailed("m"),
    ):
        back = fault_from(json.loads(json.dumps(fault.as_dict())))
        assert type(back) is type(fault)
        assert back.as_dict() == fault.as_dict()
    assert str(fault_from({"fault": "Unheard", "message": "m", "role": "x"})) == "m"
