"""The executor: memory, code and threads of one role; replay of a step that a guard stopped."""

from __future__ import annotations

import platform
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from alphac.runtime import emulation
from alphac.runtime.arena import Arena
from alphac.runtime.bundle import Bundle, ClassRecord, KernelRecord, LoopRecord, read_bundle
from alphac.runtime.collectives import Alone
from alphac.runtime.devices.cpu import load, refuse_foreign
from alphac.runtime.errors import KernelFailed, NonFiniteLoss, OutOfMemory
from alphac.runtime.executor import Exchanged, Executor, Segment
from alphac.runtime.records import StepRecord
from alphac.runtime.replay import Replay
from alphac.runtime.training import Machine, Training, open_data

Run = Callable[..., Executor]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return read_bundle(tiny.write(tmp_path_factory.mktemp("bundle") / "tiny.bundle", (1, 3)))


@pytest.fixture
def executor(bundle: Bundle) -> Iterator[Run]:
    """`executor(class, first, threads)`; closed at the end."""
    made: list[Executor] = []

    def make(number: int = 2, first: int = 0, threads: int = 1) -> Executor:
        made.append(Executor(bundle, bundle.class_of(number), first, threads))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("team-")]


def step(executor: Executor, x: np.ndarray) -> Segment | None:
    executor.run("initialize", None)
    ((_, view),) = executor.programs["step"].arguments("column")
    view[...] = x
    return executor.run("step", None)


X = np.arange(24, dtype=np.float32).reshape(8, 3) / 8


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_step_changes_the_states(executor: Run, threads: int) -> None:
    role = executor(threads=threads)
    assert step(role, X) is None
    w = np.float32(0.5) * np.float32(0.9) + X.sum(0) * np.float32(0.01)
    np.testing.assert_allclose(role.states["w"].astype(float), w, rtol=1e-6)
    assert role.states["n"] == 1
    ((_, loss),) = role.programs["step"].results("loss")
    assert loss == (X.sum() * 0.5) / 8


def test_states_are_shared_by_all_programs(executor: Run) -> None:
    role = executor()
    step(role, X)
    role.states["w"][...] = [1, 10, 100]
    ((_, x),) = role.programs["region.scale"].arguments("input")
    x[...] = 2
    role.run("region.scale", None)
    ((_, y),) = role.programs["region.scale"].results("output")
    np.testing.assert_array_equal(y, np.tile(np.array([2, 20, 200], np.float32), (8, 1)))


@pytest.mark.parametrize("threads", [1, 3])
def test_loops_that_the_runtime_runs(executor: Run, threads: int) -> None:
    role = executor(threads=threads)
    ((_, z),) = role.programs["region.loops"].arguments("input")
    z[...] = 0
    role.run("region.loops", None)
    ((_, trace),) = role.programs["region.loops"].results("output")
    assert trace.tolist() == [210] * 4  # digits 2, 1, 0: the inner loop runs down


def test_an_exchange_gets_every_subtree(executor: Run) -> None:
    role = executor(1, 1)  # shards 1, 2 and 3: subtrees [1, 2) and [2, 4)
    seen: list[Exchanged] = []
    role.run("initialize", None)
    ((_, x),) = role.programs["step"].arguments("column")
    assert x.shape == (6, 3)
    x[...] = X[2:]
    role.run("step", seen.append)
    (exchange,) = seen
    assert (exchange.scope, exchange.kinds, exchange.dtypes) == (1, ("sum", "sum"), ("f32", "f32"))
    sums, losses = exchange.nodes
    np.testing.assert_array_equal(sums, [X[2:4].sum(0), X[4:].sum(0)])
    np.testing.assert_array_equal(losses, [X[2:4].sum() / 2, X[4:].sum() / 2])


def test_scopes_are_numbered_through_all_programs(executor: Run) -> None:
    role = executor()
    numbers = {
        name: [s.scope for s in p.steps if isinstance(s, Exchanged)] for name, p in role.programs.items() if p.steps
    }
    assert (numbers["evaluate.mean"], numbers["step"]) == ([0], [1])
    assert role.scopes == 2


def test_every_thread_works(executor: Run) -> None:
    role = executor(threads=2)
    for _ in range(2000):
        role.run("region.scale", None)
    assert all(seconds > 0 for seconds in role.team.cpu_seconds())
    role.close()
    after = role.team.cpu_seconds()
    role.close()
    assert len(after) == 2 and after[1] > 0


def test_memory_is_aligned_and_zero(bundle: Bundle) -> None:
    arena = Arena(bundle.manifest, bundle.class_of(2), 0, 3)
    for part in ("arena", "scratch", "barrier", "team", "merges 0", "step 0"):
        assert arena.address(part) % 64 == 0
    assert arena.integers("merges 0", 4).tolist() == [0, 1, 0, 2]
    assert arena.integers("arena", 16).tolist() == [0] * 16
    assert arena.scratch_bytes == 64


def test_memory_that_the_host_lacks(bundle: Bundle) -> None:
    record = bundle.class_of(2)._replace(arena=1 << 46)
    with pytest.raises(OutOfMemory, match="cannot give") as caught:
        Executor(bundle, record, 0, 1)
    assert caught.value.exit_code == 16


# ---------------------------------------------------------------------- code
def test_a_missing_symbol_is_named(bundle: Bundle) -> None:
    program = bundle.manifest.programs["initialize"]
    broken = program._replace(steps=(StepRecord("segment", "s_nothing"),))
    programs = {**bundle.manifest.programs, "initialize": broken}
    with pytest.raises(KernelFailed, match="no function `s_nothing`") as caught:
        Executor(replace(bundle, manifest=bundle.manifest._replace(programs=programs)), bundle.class_of(2), 0, 1)
    assert caught.value.exit_code == 18


def elf(machine: int, kind: int = 1) -> bytes:
    return (
        b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + kind.to_bytes(2, "little") + machine.to_bytes(2, "little") + bytes(44)
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (b"", "is no 64-bit ELF object"),
        (b"MZ" * 99, "is no 64-bit ELF object"),
        (elf(243), "is for machine 243, this host is"),
        (elf(62, kind=3), "is no relocatable object"),
    ],
)
def test_foreign_code_is_refused(code: bytes, reason: str) -> None:
    with pytest.raises(KernelFailed, match=reason):
        load(code, (), "x.o")


def mach_o(machine: int, kind: int = 1) -> bytes:
    return struct.pack("<IIII", 0xFEEDFACF, machine, 0, kind).ljust(64, b"\0")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (elf(183), "is no 64-bit Mach-O object"),
        (mach_o(0x01000007), "is for x86_64, this host is arm64"),
        (mach_o(0x0100000C, kind=2), "is no relocatable object"),
        (mach_o(0x0100000C), ""),
    ],
)
def test_foreign_code_is_refused_on_an_apple(code: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    if not reason:
        refuse_foreign(code, "x.o")
        return
    with pytest.raises(KernelFailed, match=reason):
        refuse_foreign(code, "x.o")


@pytest.mark.parametrize(
    ("machine", "said", "found"),
    [
        ("aarch64", "vendor_id : AuthenticAMD", "unknown, on x86_64"),
        ("aarch64", "CPU implementer : 0x41", ""),
        ("x86_64", "CPU implementer : 0x41", "unknown, on aarch64"),
        ("x86_64", "vendor_id : GenuineIntel", ""),
        ("x86_64", "", ""),
        ("riscv64", "vendor_id : GenuineIntel", ""),
    ],
)
def test_an_emulator_shows(
    machine: str, said: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hands on what Linux says of the processor that is there."""
    monkeypatch.setattr(emulation, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(said)
    assert emulation.emulator() == found


def test_a_processor_without_the_features_is_refused() -> None:
    with pytest.raises(KernelFailed, match=r"x\.o needs a processor with telepathy"):
        load(tiny.code(), ("telepathy",), "x.o")


# ---------------------------------------------------------------------- guards and replay
def bad(value: float, row: int = 5) -> np.ndarray:
    x = X.copy()
    x[row, 1] = value
    return x


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("value", "what"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_a_guard_stops_before_any_state_is_changed(executor: Run, threads: int, value: float, what: str) -> None:
    role = executor(threads=threads)
    segment = step(role, bad(value))
    assert segment is not None
    assert (role.states["w"].tolist(), int(role.states["n"])) == ([0.5] * 3, 0)
    culprit = Replay(role, "step", segment, None).run()
    assert culprit is not None
    assert str(culprit) == f"`sums` (tiny.alpha:7:5) made the first {what}, in `sums`"
    assert (role.states["w"].tolist(), int(role.states["n"])) == ([0.5] * 3, 0)


def test_the_first_bad_number_is_an_overflow(executor: Run) -> None:
    role = executor()
    role.run("initialize", None)
    role.states["w"][...] = 3e38
    ((_, x),) = role.programs["step"].arguments("column")
    x[...] = 3
    segment = role.run("step", None)
    assert segment is not None
    culprit = Replay(role, "step", segment, None).run()
    assert culprit is not None
    assert (culprit.op, culprit.what) == ("losses", "inf")


def test_replay_runs_loops_as_the_segment_does(executor: Run) -> None:
    """Two kernels in one loop take turns; the next loop begins when it has ended."""
    role = executor()
    replay = Replay(role, "region.loops", None, None)  # type: ignore[arg-type]
    calls: list[tuple[str, list[int]]] = []
    replay._launch = lambda number, kernel, inner: calls.append((kernel.op, inner))  # type: ignore[method-assign]
    outer, inner, other = LoopRecord(0, 2), LoopRecord(1, 2, True), LoopRecord(2, 2)
    names = {"a": (), "b": (outer,), "c": (outer, inner), "d": (outer, inner), "e": (outer,), "f": (other,)}
    kernels = [KernelRecord((), 0, name, "", loops) for name, loops in names.items()]
    replay._kernels(list(enumerate(kernels)), 0, [])
    assert " ".join(name + "".join(map(str, inner)) for name, inner in calls) == (
        "a b0 c01 d01 c00 d00 e0 b1 c11 d11 c10 d10 e1 f0 f1"
    )
    calls.clear()
    role.ranges = ((3, 2),)
    replay._kernels([(0, KernelRecord((), 0, "g", "", (LoopRecord(3, 20, rows=2), inner)))], 0, [])
    assert " ".join("".join(map(str, inner)) for _, inner in calls) == "61 60 71 70 81 80 91 90"


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stepped(self, step: int, epoch: int, losses: Any, metrics: Any) -> None:
        self.lines.append(f"step {step} epoch {epoch}")

    def evaluated(self, step: int, epoch: int, whole: bool, values: Any) -> None:
        self.lines.append(f"evaluated {step} epoch {epoch} {'whole' if whole else 'part'}")

    def checkpoint(self, step: int) -> None:
        self.lines.append(f"checkpoint {step}")


def machine(bundle: Bundle, collective: Any = None) -> Machine:
    record = bundle.class_of(bundle.manifest.solo)
    assert isinstance(record, ClassRecord)
    return Machine(bundle, Executor(bundle, record, 0, 1), open_data(bundle), collective or Alone())


@pytest.fixture
def solo(tmp_path: Path) -> Callable[..., Machine]:
    def make(arrays: dict[str, np.ndarray] | None = None, collective: Any = None, **changes: Any) -> Machine:
        return machine(read_bundle(tiny.write(tmp_path / "own.bundle", arrays=arrays, **changes)), collective)

    return make


def test_what_happens_in_a_run(solo: Callable[..., Machine]) -> None:
    made, notes = solo(), Notes()
    made.initialize()
    assert Training(made, notes, 6).run(3) == (6, False)
    assert notes.lines == [
        "step 4 epoch 0",
        "evaluated 4 epoch 1 whole",
        "step 5 epoch 1",
        "step 6 epoch 1",
        "evaluated 6 epoch 1 part",
        "checkpoint 6",
    ]
    assert (made.counters.steps, made.counters.shards, made.counters.examples) == (3, 12, 24)
    made.executor.close()


def test_a_run_that_is_over_is_only_evaluated(solo: Callable[..., Machine]) -> None:
    made, notes = solo(), Notes()
    made.initialize()
    assert Training(made, notes, 6).run(6) == (6, False)
    assert notes.lines == ["evaluated 6 epoch 1 part", "checkpoint 6"]
    made.executor.close()


def test_a_stop_is_at_a_step_boundary_with_a_checkpoint(solo: Callable[..., Machine]) -> None:
    alone, notes = Alone(), Notes()
    made = solo(collective=alone)
    made.initialize()
    alone.request_stop()
    assert Training(made, notes, None).run(0) == (1, True)
    assert notes.lines == ["step 1 epoch 0", "checkpoint 1"]
    made.executor.close()


def test_an_evaluation_counts_every_example_of_the_split_once(solo: Callable[..., Machine]) -> None:
    made = solo()
    made.initialize()
    data = made.data["points"]
    test = data.split("test")
    expected = tiny.points()["x"][test.at(np.arange(test.count)), 0].astype(np.float64).mean()
    assert test.count % tiny.BATCH != 0
    assert made.evaluate(made.bundle.manifest.evaluations[0]) == pytest.approx(expected, rel=1e-6)
    made.executor.close()


def test_a_total_starts_where_its_reduction_does(solo: Callable[..., Machine]) -> None:
    programs = tiny.programs()
    evaluate = programs["evaluate.mean"]
    port = evaluate.arguments[2]._replace(attributes={"start": "-inf"})
    programs["evaluate.mean"] = evaluate._replace(arguments=(*evaluate.arguments[:2], port))
    made = solo(programs=programs)
    made.initialize()
    assert made.evaluate(made.bundle.manifest.evaluations[0]) == -np.inf
    made.executor.close()


def test_a_loss_that_is_not_finite_names_step_op_and_place(solo: Callable[..., Machine]) -> None:
    arrays = tiny.points()
    arrays["x"][:, 2] = np.where(np.arange(44) == 20, np.nan, arrays["x"][:, 2])
    made, notes = solo(arrays), Notes()
    made.initialize()
    with pytest.raises(
        NonFiniteLoss, match=r"loss is not finite: `sums` \(tiny.alpha:7:5\) made the first nan"
    ) as caught:
        Training(made, notes, None).run(0)
    fault = caught.value
    assert (fault.op, fault.span, fault.exit_code) == ("sums", tiny.SPAN, 14)
    assert notes.lines[-1] == f"checkpoint {fault.step}"
    assert int(made.executor.states["n"]) == fault.step  # the last good state
    made.executor.close()
