"""A contest: every contestant is a process of its own, and they take turns, while the others are halted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from alphac.bench.cores import on_cores
from alphac.bench.worker import Spec
from alphac.diagnostics import fail
from alphac.runtime.errors import fault_from

ROOT = Path(__file__).parents[2]
TURN = 0.3  # seconds that a contestant runs when it is its turn
CLOSING = 20.0  # seconds that a process is given to end


class Process:
    """A process that runs `worker.py`, on as many cores as it has threads. What it prints is kept for messages."""

    def __init__(self, name: str, spec: Spec, environment: Mapping[str, str]) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  `end` closes it
        spec = replace(spec, began=time.monotonic())
        paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        with on_cores(spec.threads):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "alphac.bench.worker", json.dumps(asdict(spec))],
                env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )

    def answer(self) -> dict[str, Any]:
        """What it says next. Raises the RuntimeFault that it is, or Diagnostics if the process ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            last = (self._log.read().strip() or "it said nothing").splitlines()[-1]
            help = "that is a bug in alphac, or in a peer's file"
            raise fail("E503", f"the process of {self._name} ended with code {code}: {last}", None, help)
        said = json.loads(line)
        if "fault" in said:
            raise fault_from(said["fault"])
        return said

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """What it says to a command."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def halt(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Let it end, or end it. May be called twice."""
        self.go_on()
        try:
            self._process.communicate(timeout=CLOSING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._log.close()


@dataclass
class Contestant:
    """One process of a contest, halted when it is not its turn.

    cold, loading   seconds from its start to its first finished step, and what of that its data took
    losses          of its first steps
    times           seconds per step by mode, one per round
    peak            the most bytes it held
    """

    name: str
    spec: Spec
    environment: dict[str, str]
    modes: tuple[str, ...] = ("advance",)
    cold: float = 0.0
    loading: float = 0.0
    losses: list[float] = field(default_factory=list[float])
    times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    peak: int = 0
    _process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "it has not been started"
        return self._process

    def start(self) -> None:
        """Start the process and wait for its first steps. Raises RuntimeFault, Diagnostics."""
        self._process = Process(self.name, self.spec, self.environment)
        said = self.process.answer()
        self.cold, self.loading, self.losses = said["cold"], said["loading"], said["losses"]
        self.process.halt()

    def turn(self, seconds: float) -> None:
        """Run once in each mode."""
        self.process.go_on()
        for mode in self.modes:
            self.times.setdefault(mode, []).append(self.process.ask({"mode": mode, "seconds": seconds})["step"])
        self.process.halt()

    def finish(self) -> None:
        """Learn how much memory it took, and end it."""
        self.process.go_on()
        self.peak = self.process.ask({"end": True})["peak"]

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.end()

    def again(self) -> Contestant:
        """The same contestant, to be started once more for its first step alone."""
        return Contestant(self.name, replace(self.spec, steps=1), self.environment)


def hold(contestants: Sequence[Contestant], rounds: int, seconds: float, tell: Callable[[str], None]) -> None:
    """Start all of them, give each its turn in every round, and end them."""
    try:
        for contestant in contestants:
            tell(f"starting {contestant.name}")
            contestant.start()
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            for contestant in contestants:
                contestant.turn(seconds)
        for contestant in contestants:
            contestant.finish()
    finally:
        for contestant in contestants:
            contestant.close()


def ask_once(spec: Spec) -> dict[str, Any]:
    """Start a process that answers once. Raises RuntimeFault, Diagnostics."""
    process = Process(spec.kind, spec, os.environ)
    try:
        return process.answer()
    finally:
        process.end()
