"""A bundle in this process, as one role that owns all shards: a test sets its states, feeds it a step, reads what comes
out, and sees the very batch that the step learned from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime.bundle import read_bundle
from alphac.runtime.executor import Executor
from alphac.runtime.single import steps_of
from alphac.runtime.training import Machine, open_data, scalar

Array = npt.NDArray[Any]


class Session:
    """One role of a bundle, ready to train; its states have their first values.

    Use it as a context manager, or call `close` at the end. Raises the runtime's faults."""

    def __init__(self, bundle: Path, *, threads: int = 1) -> None:
        self.bundle = read_bundle(bundle, verify=False)
        manifest = self.bundle.manifest
        self._executor = Executor(self.bundle, self.bundle.class_of(manifest.solo), 0, threads)
        self._machine = Machine(self.bundle, self._executor, open_data(self.bundle), None)
        self._step = self._machine.program("step")
        assert manifest.training is not None
        self._training = manifest.training
        feeds = self._machine.feeds(manifest.training.data, "train")
        self._feed = feeds[0]
        self.burst = steps_of(self._executor, self._step, feeds)
        self.initialize()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the role's threads."""
        self._executor.close()

    def initialize(self) -> None:
        """Give every state its first value."""
        self._machine.initialize()

    @property
    def whole(self) -> int:
        """The steps that the system says to train for."""
        return self._training.steps or self._training.epochs * self._feed.batches

    # ------------------------------------------------------------------ states
    def states(self, kind: str | None = None) -> dict[str, Array]:
        """Copies of all states by name, or of those of a kind: `param`, `state`, `optimizer`."""
        records = self.bundle.manifest.states
        return {r.name: self._executor.states[r.name].copy() for r in records if kind in (None, r.kind)}

    def assign(self, states: Mapping[str, Array]) -> None:
        """Set states by name; shapes and dtypes must be theirs. Raises KeyError for an unknown name."""
        for name, array in states.items():
            target = self._executor.states[name]
            given = np.asarray(array)
            assert (given.shape, given.dtype) == (target.shape, target.dtype), f"{name}: {given.dtype}{given.shape}"
            target[...] = given

    # ------------------------------------------------------------------ steps
    def step(self, number: int) -> dict[str, float]:
        """Run the step that follows `number` finished ones; its losses by name, which must be finite."""
        self.burst.load(number)
        assert self._executor.run("step", None) is None, f"step {number}: a guard found a loss that is not finite"
        return {port.name or "loss": scalar(self._step, port.buffer) for port, _ in self._step.results("loss")}

    def train(self, steps: int) -> list[dict[str, float]]:
        """The first `steps` steps; their losses."""
        return [self.step(number) for number in range(steps)]

    def batch(self, number: int) -> dict[str, Array]:
        """The whole batch of a step, as stored in the file: columns by name, copied."""
        rows = self._feed.take(number, 1).listed(self._feed.size)[0]
        found: dict[str, Array] = {}
        for port, view in self._step.arguments("column"):
            found[port.name.partition(".")[2]] = batch = np.empty_like(view)
            self._feed.data.read(port.name.partition(".")[2], rows, batch)
        return found

    # ------------------------------------------------------------------ other programs
    def evaluate(self) -> dict[str, float]:
        """Every `evaluate` of the system with the states as they are."""
        manifest = self.bundle.manifest
        return {e.name: self._machine.evaluate(e) for e in manifest.evaluations}

    def region(self, name: str, **inputs: Array) -> dict[str, Array]:
        """The outputs of a region for one whole batch."""
        program = self._machine.program(f"region.{name}")
        for port, view in program.arguments("input"):
            view[...] = inputs[port.name]
        for _, view in program.arguments("step"):
            view[...] = 0
        for _, view in program.arguments("valid"):
            view[...] = self.bundle.manifest.batch
        self._executor.run(program.name, None)
        return {port.name: np.array(value) for port, value in program.results("output")}
