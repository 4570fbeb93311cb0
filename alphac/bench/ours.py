"""How alphac trains: a role of the bundle that owns all shards, on the runtime's own path."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from alphac.bench.peers import BATCHES, PARAMETERS
from alphac.runtime.arena import STORAGE
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
    training = dataclasses.replace(
        manifest.training, steps=ENDLESS, epochs=0, checkpoint_steps=0, checkpoint_epochs=0
    )  # fmt: skip
    return Bundle(bundle.path, dataclasses.replace(manifest, training=training, evaluations=()))


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
        self._step = 0

    def first(self, count: int) -> list[float]:
        """The losses of the next so many steps."""
        return self._train(count).kept

    def advance(self, count: int) -> float:
        """Train for so many steps; the last one's loss."""
        return self._train(count).kept[-1]

    def native(self, count: int) -> None:
        """Only run the program: no batch is read, no loss looked at."""
        for _ in range(count):
            self.machine.executor.run("step", self.machine.exchange)

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

    def _train(self, count: int) -> Losses:
        watcher = Losses()
        self._step, _ = Training(self.machine, watcher, self._step + count).run(self._step)
        return watcher


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
    manifest = machine.bundle.manifest
    assert manifest.training is not None
    dataset = machine.data[manifest.training.data]
    batch = manifest.batch or len(dataset.split("train"))
    whole = len(dataset.split("train")) // batch
    ports = machine.program("step").record.arguments
    buffers = machine.program("step").record.buffers
    columns = {p.name.partition(".")[2]: buffers[p.buffer] for p in ports if p.kind == "column"}
    size = sum(batch * int(np.prod(b.shape[1:])) * STORAGE[b.dtype].itemsize for b in columns.values())
    count = min(whole, max(least, BATCHES_LIMIT // size))
    rows = dataset.order("train", 0, np.arange(count * batch))
    arrays = {name: np.empty((count * batch, *b.shape[1:]), STORAGE[b.dtype]) for name, b in columns.items()}
    for name, array in arrays.items():
        dataset.read(name, rows, array)
    shaped = {name: array.reshape(count, batch, *array.shape[1:]) for name, array in arrays.items()}
    np.savez(directory / BATCHES, allow_pickle=False, **shaped)
    return ENDLESS if count == whole and dataset.record.shuffle_seed < 0 else count
