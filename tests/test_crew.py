"""How many threads run a burst is measured, on a clock that the test turns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny

from alphac.runtime import crew as crews
from alphac.runtime.bundle import read_bundle
from alphac.runtime.collectives import Alone
from alphac.runtime.crew import AGAIN, LEAST, TRIAL, Crew
from alphac.runtime.executor import Executor
from alphac.runtime.training import Machine, Training, open_data


class Clock:
    """Time, as bursts take it: `step` is how long a step takes by how many threads run it."""

    def __init__(self, **step: float) -> None:
        self.now, self.step = 0.0, {int(name[1:]): seconds for name, seconds in step.items()}

    def __call__(self) -> float:
        return self.now

    def burst(self, crew: Crew, count: int = 1000) -> tuple[int, int]:
        """Run a burst: threads and steps that it had."""
        threads, steps = crew.begin(count)
        self.now += steps * self.step[threads]
        crew.end(steps)
        return threads, steps


def test_one_thread_goes_on_alone_where_several_take_longer() -> None:
    clock = Clock(t1=30e-6, t2=60e-6)
    crew = Crew(2, clock)
    assert [clock.burst(crew) for _ in range(3)] == [(2, 1000), (1, int(TRIAL / 60e-6)), (1, 1000)]
    assert crew.alone == int(TRIAL / 60e-6) + 1000


def test_all_go_on_where_one_takes_longer_and_it_is_tried_again() -> None:
    clock = Clock(t1=30e-6, t4=10e-6)
    crew = Crew(4, clock)
    assert [clock.burst(crew)[0] for _ in range(5)] == [4, 1, 4, 4, 4]
    clock.now += AGAIN
    clock.step[4] = 50e-6  # the cores are further apart than before
    assert [clock.burst(crew)[0] for _ in range(3)] == [1, 4, 4]
    clock.now += AGAIN
    assert [clock.burst(crew)[0] for _ in range(3)] == [1, 1, 1]
    clock.now += AGAIN
    clock.step[4] = 10e-6
    assert [clock.burst(crew)[0] for _ in range(3)] == [4, 4, 4]


def test_long_steps_short_bursts_and_single_threads_are_not_measured() -> None:
    long, short, single = Clock(t1=1e-3, t2=2e-3), Clock(t1=30e-6, t2=60e-6), Clock(t1=30e-6)
    for clock, threads, count in ((long, 2, 1000), (short, 2, LEAST - 1), (single, 1, 1000)):
        crew = Crew(threads, clock)
        assert {clock.burst(crew, count) for _ in range(5)} == {(threads, count)}
        assert crew.alone == 0


def test_bits_do_not_depend_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose threads change with every burst ends as the run of one thread."""
    monkeypatch.setattr(crews, "SHORT", 1e9)
    monkeypatch.setattr(crews, "AGAIN", 0.0)
    monkeypatch.setattr(crews, "LEAST", 1)
    found: list[tuple[int, bytes]] = []
    for threads in (1, 3):
        bundle = read_bundle(tiny.write(tmp_path / f"{threads}.bundle", evaluations=()))
        executor = Executor(bundle, bundle.class_of(bundle.manifest.solo), 0, threads)
        machine = Machine(bundle, executor, open_data(bundle), Alone())
        machine.initialize()
        training = Training(machine, Nobody(), None)
        training.run(0)
        found.append((executor.crew.alone, b"".join(np.asarray(s).tobytes() for s in executor.states.values())))
        executor.close()
    assert found[0][1] == found[1][1]
    assert found[0][0] == 0 < found[1][0]


class Nobody:
    """A watcher that looks away."""

    def stepped(self, step: int, epoch: int, losses: object, metrics: object) -> None: ...

    def evaluated(self, step: int, epoch: int, whole: bool, values: object) -> None: ...

    def checkpoint(self, step: int) -> None: ...
