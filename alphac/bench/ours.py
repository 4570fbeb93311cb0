"""How alphac trains: a role of the bundle that owns all shards, on the runtime's own path."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from alphac.bench.peers import BATCHES, PARAMETERS
from alphac.runtime.bundle import Bundle, read_bundle
from alphac.runtime.devices import Library
from alphac.runtime.errors import BundleRefused, InputRefused
from alphac.runtime.executor import Executor
from alphac.runtime.groups import Alone
from alphac.runtime.role import Options, Role, Writer
from alphac.runtime.training import Machine, Training, open_data

Load = Callable[[bytes, Sequence[str], str], Library]
ENDLESS = 1 << 40
BATCHES_LIMIT = 256 << 20  # bytes of batches that peers are given


def open_endless(path: Path) -> Bundle:
    """A bundle that trains on and on, and neither evaluates nor checkpoints. Raises BundleRefused, InputRefused."""
    bundle = read_bundle(path, verify=False)
    manifest = bundle.manifest
    if manifest.training is None:
        raise InputRefused(f"{manifest.system} has nothing to train: its source lacks `train on`")
    if manifest.solo < 0:
        raise BundleRefused(
            f"{path} has no role that owns all shards", help="measure the bundle, not an extracted role"
        )
    training = manifest.training._replace(steps=ENDLESS, epochs=0, checkpoint_steps=0, checkpoint_epochs=0)
    return Bundle(bundle.path, manifest._replace(training=training, evaluations=()))


def open_machine(bundle: Bundle, threads: int, load: Load | None = None) -> tuple[Machine, float]:
    """The role, its states at their first values; and how many seconds the data took. `load` links its object."""
    executor = Executor(bundle, bundle.class_of(bundle.manifest.solo), 0, threads, load)
    began = time.monotonic()
    data = open_data(bundle)
    loading = time.monotonic() - began
    machine = Machine(bundle, executor, data, Alone())
    machine.initialize()
    return machine, loading


class Losses:
    """A watcher that keeps the losses."""

    def __init__(self) -> None:
        self.kept: list[float] = []

    def stepped(self, step: int, epoch: int, losses: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        self.kept.append(sum(losses.values()))

    def evaluated(self, step: int, epoch: int, whole: bool, values: Mapping[str, float]) -> None: ...

    def checkpoint(self, step: int) -> None: ...


class Logged(Writer):
    """The watcher that writes the run directory, but for checkpoints."""

    def checkpoint(self, step: int) -> None: ...


class Contender:
    """A training loop. `loading` is how many seconds it took to open the data."""

    quantum = 1

    def __init__(self, path: Path, threads: int) -> None:
        self.bundle = open_endless(path)
        self.machine, self.loading = open_machine(self.bundle, threads)
        self._losses, self._step = Losses(), 0
        self._training = Training(self.machine, self._losses, None)

    def first(self, count: int) -> list[float]:
        """The losses of the next so many steps."""
        return self._train(count)

    def advance(self, count: int) -> float:
        """Train for so many steps; the last one's loss."""
        return self._train(count)[-1]

    def native(self, count: int) -> None:
        """Only what native code does of it: no loss is looked at."""
        end = self._step + count
        while self._step < end:
            done, _ = self._training.burst.run(self._step, end - self._step)
            self._step += done

    def logged(self, count: int) -> None:
        """Train and write metrics, as `alphac run` does."""
        with tempfile.TemporaryDirectory() as folder:
            role = Role(Options(self.bundle.path, 0))
            watcher = Logged(role, Path(folder), self.machine, self._step)
            try:
                self._step, _ = Training(self.machine, watcher, self._step + count).run(self._step)
            finally:
                watcher.close()

    def close(self) -> None:
        self.machine.executor.close()

    def _train(self, count: int) -> list[float]:
        """Train for so many steps; their losses."""
        self._losses.kept, self._training.total = [], self._step + count
        self._step, _ = self._training.run(self._step)
        return self._losses.kept


def export(path: Path, directory: Path, least: int) -> int:
    """Write what peers start from: the first values of all parameters, and the batches of the first epoch, or as many
    as `BATCHES_LIMIT` allows, at least `least`. Returns for how many steps a peer that takes them in turn does the same
    work."""
    bundle = open_endless(path)
    machine, _ = open_machine(bundle, 1)
    try:
        states = machine.executor.states
        params = {s.name: states[s.name] for s in bundle.manifest.states if s.kind == "param"}
        np.savez(directory / PARAMETERS, allow_pickle=False, **params)
        return _export_batches(machine, directory, least)
    finally:
        machine.executor.close()


def _export_batches(machine: Machine, directory: Path, least: int) -> int:
    training, program = machine.bundle.manifest.training, machine.program("step")
    assert training is not None
    feed = machine.feeds(training.data, "train")[0]
    columns = {port.name.partition(".")[2]: view for port, view in program.arguments("column")}
    size = sum(view.nbytes for view in columns.values())
    count = min(feed.batches, max(least, BATCHES_LIMIT // size))
    arrays = {name: np.empty((count, *view.shape), view.dtype) for name, view in columns.items()}
    for number in range(count):
        rows = feed.take(number, 1).listed(feed.size)[0]
        for name, array in arrays.items():
            feed.data.read(name, rows, array[number])
    np.savez(directory / BATCHES, allow_pickle=False, **arrays)
    return ENDLESS if count == feed.batches and not feed.data.shuffles("train") else count
