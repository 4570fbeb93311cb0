"""Bursts: many steps in one native call are the steps one by one, whatever their batches lie in; how they end."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from alphac.runtime import burst as bursts
from alphac.runtime import training
from alphac.runtime.arena import TABLE, address_of
from alphac.runtime.bundle import read_bundle
from alphac.runtime.burst import Burst
from alphac.runtime.collectives import Alone
from alphac.runtime.errors import NonFiniteLoss
from alphac.runtime.executor import Executor
from alphac.runtime.records import ClassRecord, ColumnRecord
from alphac.runtime.training import Machine, Training, open_data

Make = Callable[..., Machine]
X = tiny.points()["x"]
PLAIN = tiny.manifest().data["points"]
IN_ORDER = PLAIN._replace(held_out=0.0, stratified_by="", shuffle_seed=-1)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Make]:
    """A role that owns all shards, its states initialized. `data`: the data's record; `column`: that of `x`."""
    made: list[Machine] = []

    def make(
        x: np.ndarray = X, data: Any = PLAIN, column: ColumnRecord | None = None, threads: int = 1, **changes: Any
    ) -> Machine:
        if column is not None:
            data = data._replace(columns=(column,))
        held = data.held_out > 0
        changes = {"data": {"points": data}, **({} if held else {"evaluations": ()}), **changes}
        arrays = {"x": x, "label": tiny.points()["label"][: len(x)]}
        path = tiny.write(tmp_path / f"{len(made)}.bundle", arrays=arrays, **changes)
        bundle = read_bundle(path)
        record = bundle.class_of(bundle.manifest.solo)
        assert isinstance(record, ClassRecord)
        made.append(Machine(bundle, Executor(bundle, record, 0, threads), open_data(bundle), Alone()))
        made[-1].initialize()
        return made[-1]

    yield make
    for each in made:
        each.executor.close()


class Notes:
    """A watcher that remembers; it asks for a stop when told of step `stop`."""

    def __init__(self, group: Any = None, stop: int = 0) -> None:
        self.lines: list[Any] = []
        self.group, self.stop = group, stop

    def stepped(self, step: int, epoch: int, losses: Any, metrics: Any) -> None:
        self.lines.append((step, epoch, losses, metrics))
        if step == self.stop:
            self.group.request_stop()

    def evaluated(self, step: int, epoch: int, whole: bool, values: Any) -> None:
        self.lines.append((step, epoch, whole, values))

    def checkpoint(self, step: int) -> None:
        self.lines.append(f"checkpoint {step}")


def train(machine: Machine, steps: int | None = None, stop: int = 0) -> tuple[list[Any], bytes]:
    """What a run told, and its states at the end."""
    notes = Notes(machine.collective, stop)
    Training(machine, notes, steps).run(0)
    return notes.lines, b"".join(state.tobytes() for state in machine.executor.states.values())


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`lengths(n)`: bursts of n steps, unless something happens before."""

    def choose(steps: int) -> None:
        monkeypatch.setattr(training.Pace, "took", lambda *_: None)
        before = training.Pace.__init__

        def init(self: training.Pace) -> None:
            before(self)
            self.steps = steps

        monkeypatch.setattr(training.Pace, "__init__", init)

    return choose


WINDOW = ColumnRecord("x", "x", "f32", (3,), window=3, stride=2, offset=1)
SOURCES: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "in order": {"data": IN_ORDER},
    "a tail held out": {"data": IN_ORDER._replace(held_out=0.25, split_kind="tail")},
    "listed, in order": {"data": PLAIN._replace(shuffle_seed=-1)},
    "converted": {"x": (8 * X).astype(np.int16)},
    "converted, in order": {"x": (8 * X).astype(np.int16), "data": IN_ORDER},
    "the other byte order": {"x": X.astype(">f4"), "data": IN_ORDER},
    "by columns": {"x": np.asfortranarray(X), "data": IN_ORDER},
    "windows that overlap": {"x": X.reshape(-1), "data": IN_ORDER, "column": WINDOW},
    "windows side by side": {"x": X.reshape(-1), "data": IN_ORDER, "column": WINDOW._replace(stride=3)},
    "shuffled windows": {"x": X.reshape(-1), "data": PLAIN._replace(stratified_by=""), "column": WINDOW},
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_burst_is_its_steps_one_by_one(
    machine: Make, lengths: Callable[[int], None], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bursts, "AHEAD", 3 * X[:8].nbytes)
    lengths(1)
    expected = train(machine(**SOURCES[source]))
    assert len(expected[0]) > 20
    for steps, threads in ((2, 1), (1000, 1), (1000, 2), (7, 3)):
        lengths(steps)
        assert train(machine(**SOURCES[source], threads=threads)) == expected


@pytest.mark.parametrize("source", SOURCES)
def test_every_step_gets_its_batch(machine: Make, source: str) -> None:
    made = machine(**SOURCES[source], threads=2)
    feed, program = made.feeds("points", "train")[0], made.program("step")
    burst = Burst(made.executor, program, feed)
    ((port, out),) = program.arguments("column")
    for step in range(2 * feed.batches):
        expected = np.empty_like(out)
        made.data["points"].read("x", feed.take(step, 1).listed(feed.size)[0], expected)
        burst.load(step)
        address = int(program.tables[0][TABLE + port.buffer])
        found = (ctypes.c_float * out.size).from_address(address)
        np.testing.assert_array_equal(np.array(found), expected.reshape(-1))


@pytest.mark.parametrize(
    ("source", "moved"), [("in order", False), ("windows side by side", False), ("shuffled", True)]
)
def test_rows_side_by_side_are_used_where_they_lie(machine: Make, source: str, moved: bool) -> None:
    made = machine(**SOURCES[source])
    program = made.program("step")
    Burst(made.executor, program, made.feeds("points", "train")[0]).load(1)
    ((port, out),) = program.arguments("column")
    address, (_, stored) = int(program.tables[0][TABLE + port.buffer]), made.data["points"].column("x")
    inside = address_of(stored) <= address < address_of(stored) + stored.nbytes
    assert (inside, address == address_of(out)) == (not moved, moved)


def test_nothing_happens_inside_a_burst(machine: Make, lengths: Callable[[int], None]) -> None:
    """Evaluations and checkpoints come at their steps; every step is told."""
    lengths(1000)
    training = tiny.manifest().training
    assert training is not None
    record = training._replace(checkpoint_epochs=0, checkpoint_steps=3)
    lines, _ = train(machine(training=record), 9)
    told = [line if isinstance(line, str) else f"{'step' if len(line[2]) else ''} {line[0]}" for line in lines
            if isinstance(line, str) or isinstance(line[2], dict)]  # fmt: skip
    assert told == [
        *("step 1", "step 2", "step 3", "checkpoint 3", "step 4", "step 5", "step 6", "checkpoint 6"),
        *("step 7", "step 8", "step 9", "checkpoint 9"),
    ]
    assert [line[0] for line in lines if not isinstance(line, str) and isinstance(line[2], bool)] == [4, 8, 9]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_guard_inside_a_burst(machine: Make, lengths: Callable[[int], None], threads: int) -> None:
    lengths(1000)
    x = X.copy()
    x[27, 1] = np.nan  # in the fourth batch
    made, notes = machine(x, IN_ORDER, threads=threads), Notes()
    with pytest.raises(NonFiniteLoss, match=r"`sums` \(tiny.alpha:7:5\) made the first nan") as caught:
        Training(made, notes, None).run(0)
    assert caught.value.step == 3
    assert [line[0] for line in notes.lines[:-1]] == [1, 2, 3]
    assert notes.lines[-1] == "checkpoint 3"
    good = machine(X, IN_ORDER)
    train(good, 3)
    for name, state in good.executor.states.items():
        np.testing.assert_array_equal(made.executor.states[name], state)
    assert made.counters.steps == 3


def test_a_stop_ends_the_run_behind_the_burst(machine: Make, lengths: Callable[[int], None]) -> None:
    lengths(2)
    lines, _ = train(machine(data=IN_ORDER), stop=3)
    assert [line if isinstance(line, str) else line[0] for line in lines] == [1, 2, 3, 4, "checkpoint 4"]


def test_how_long_a_burst_may_be() -> None:
    pace = training.Pace()
    assert pace.steps == 1
    pace.took(1, 1e-5)
    assert pace.steps == training.FASTER
    pace.took(1000, 0.01)
    assert pace.steps == 5000
    pace.took(10, 1)
    assert pace.steps == 1


def test_a_team_dropped_without_being_closed_does_no_harm(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "a.bundle")
    code = f"""
import gc
from alphac.runtime.bundle import read_bundle
from alphac.runtime.executor import Executor
bundle = read_bundle(__import__("pathlib").Path({str(path)!r}))
for _ in range(20):
    executor = Executor(bundle, bundle.class_of(bundle.manifest.solo), 0, 3)
    executor.run("initialize", None)
    team = executor.team
    del executor
    gc.collect()
    assert not any(t.is_alive() for t in team._workers)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    gc.collect()
