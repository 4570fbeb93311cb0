"""One role's training: the steps, evaluations and checkpoints of a bundle, in lockstep with the other roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from alphac.runtime.arena import Array
from alphac.runtime.bundle import Bundle
from alphac.runtime.combine import narrow, widen
from alphac.runtime.data import Dataset, Feed
from alphac.runtime.errors import DataRefused, InputRefused, NonFiniteLoss
from alphac.runtime.executor import Exchange, Executor, Program, Segment
from alphac.runtime.groups import Collective
from alphac.runtime.records import EvaluationRecord, PortRecord, TrainingRecord


class Watcher(Protocol):
    """Told what happens, as it happens; the root's writes it down."""

    def stepped(self, step: int, epoch: int, losses: Mapping[str, float], metrics: Mapping[str, float]) -> None: ...

    def evaluated(self, step: int, epoch: int, whole: bool, values: Mapping[str, float]) -> None: ...

    def checkpoint(self, step: int) -> None:
        """Save all states as they are now."""
        ...


@dataclass
class Counters:
    """What a role did: shards and examples are its own, those of training steps only."""

    steps: int = 0
    shards: int = 0
    examples: int = 0


@dataclass
class Machine:
    """A role's executor, its opened data and its group, ready to run programs."""

    bundle: Bundle
    executor: Executor
    data: Mapping[str, Dataset]
    collective: Collective | None  # None: the executor owns all shards
    counters: Counters = field(default_factory=Counters)

    @property
    def exchange(self) -> Exchange | None:
        return self.collective.exchange if self.collective is not None else None

    def program(self, name: str) -> Program:
        return self.executor.programs[name]

    def feed(self, program: Program, data: str, split: str) -> Feed:
        """The batches of a split for a program, this role's rows of them. Raises DataRefused if the split is empty."""
        manifest, executor = self.bundle.manifest, self.executor
        dataset, rows = self.data[data], manifest.grain.rows if manifest.grain else 0
        if not len(dataset.split(split)):
            raise DataRefused(f"{data} has no examples in its split `{split}`")
        batch = manifest.batch or len(dataset.split(split))
        return Feed(dataset, split, batch, executor.first * rows, executor.shards * rows, program.arguments("column"))

    def initialize(self) -> None:
        """Give every state its first value."""
        program = self.program("initialize")
        for port, out in program.arguments("sample"):
            self.data[port.name.split(".", 1)[0]].sample(port, out)
        _set(program, "step", 0)
        self.executor.run("initialize", self.exchange)

    def evaluate(self, evaluation: EvaluationRecord) -> float:
        """One evaluation over its whole split; the last batch may be ragged."""
        program, finish = self.program(f"evaluate.{evaluation.name}"), self.program(f"finish.{evaluation.name}")
        feed = self.feed(program, evaluation.data, evaluation.split)
        totals = {port.name: view for port, view in program.arguments("total")}
        for port, view in program.arguments("total"):
            _start(port, program.record.buffers[port.buffer].dtype, view)
        _set(program, "step", 0)
        _set(program, "count", feed.examples)
        for number in range(feed.batches):
            _set(program, "valid", feed.load(0, number))
            self.executor.run(program.name, self.exchange)
            for port, value in program.results("total"):
                totals[port.name][...] = value
        carried = {name: view.copy() for name, view in totals.items()}  # programs share memory
        for port, view in finish.arguments("total"):
            view[...] = carried[port.name]
        _set(finish, "count", feed.examples)
        self.executor.run(finish.name, self.exchange)
        return next((scalar(finish, port.buffer) for port, _ in finish.results("metric")), float("nan"))


class Training:
    """The training loop of one role. `limit`: stop after so many steps in all."""

    def __init__(self, machine: Machine, watcher: Watcher, limit: int | None) -> None:
        self.machine, self.watcher = machine, watcher
        manifest = machine.bundle.manifest
        if manifest.training is None:
            raise InputRefused(f"{manifest.system} has nothing to train: its source lacks `train on`")
        self.record: TrainingRecord = manifest.training
        self.program = machine.program("step")
        self.feed = machine.feed(self.program, self.record.data, "train")
        self.per_epoch = self.feed.full
        if not self.per_epoch:
            raise DataRefused(
                f"{self.record.data} has {self.feed.examples} examples to train on, a batch {manifest.batch}"
            )
        whole = self.record.steps or self.record.epochs * self.per_epoch
        self.total = whole if limit is None else min(whole, limit)
        self.values: dict[str, float] = {}

    def run(self, step: int) -> tuple[int, bool]:
        """Train from `step` finished steps on. Returns how many are finished, and whether it was stopped before its
        end.

        Raises NonFiniteLoss, after the last good states were saved."""
        stopped, evaluated, saved = False, -1, -1
        while step < self.total and not stopped:
            step, stopped = self._step(step)
            if step % self.per_epoch == 0:
                self._evaluate(step)
                evaluated = step
            if self._due(step):
                self.watcher.checkpoint(step)
                saved = step
        if evaluated != step and not stopped:
            self._evaluate(step)
        if saved != step:
            self.watcher.checkpoint(step)
        return step, stopped and step < self.total

    def _step(self, step: int) -> tuple[int, bool]:
        machine, (epoch, number) = self.machine, divmod(step, self.per_epoch)
        self.feed.load(epoch, number)
        _set(self.program, "step", step)
        if machine.collective is not None:
            machine.collective.begin_step(step)
        guard, segment = machine.executor.run("step", machine.exchange)
        if guard and segment is not None:
            self.watcher.checkpoint(step)
            raise self._blame(step, segment)
        counters = machine.counters
        counters.steps += 1
        counters.shards += machine.executor.shards
        counters.examples += self.feed.rows
        losses = {port.name or "loss": scalar(self.program, port.buffer) for port, _ in self.program.results("loss")}
        metrics = {port.name: scalar(self.program, port.buffer) for port, _ in self.program.results("metric")}
        self.watcher.stepped(step + 1, epoch, losses, metrics)
        return step + 1, machine.collective is not None and machine.collective.end_step()

    def _blame(self, step: int, stopped: Segment) -> NonFiniteLoss:
        from alphac.runtime.replay import Replay

        names = [
            port.name or "loss" for port, _ in self.program.results("loss") if not _finite(self.program, port.buffer)
        ]
        culprit = Replay(self.machine.executor, "step", stopped, self.machine.exchange).run()
        label = ", ".join(names) or "the loss"
        if culprit is None:
            return NonFiniteLoss(f"{label} is not finite: another role's part is to blame, or the sum", step=step)
        return NonFiniteLoss(f"{label} is not finite: {culprit}", op=culprit.op, span=culprit.span, step=step)

    def _evaluate(self, step: int) -> None:
        evaluations = self.machine.bundle.manifest.evaluations
        self.values = {e.name: self.machine.evaluate(e) for e in evaluations}
        if evaluations:
            epoch, within = divmod(step, self.per_epoch)
            self.watcher.evaluated(step, epoch, within == 0, self.values)

    def _due(self, step: int) -> bool:
        record = self.record
        by_steps = record.checkpoint_steps and step % record.checkpoint_steps == 0
        return bool(by_steps or (record.checkpoint_epochs and step % (record.checkpoint_epochs * self.per_epoch) == 0))


def needed_data(bundle: Bundle) -> Iterator[str]:
    """The data that a role reads: for training, evaluations and first values."""
    manifest = bundle.manifest
    names = [manifest.training.data] if manifest.training else []
    names += [evaluation.data for evaluation in manifest.evaluations]
    if "initialize" in manifest.programs:
        names += [p.name.split(".", 1)[0] for p in manifest.programs["initialize"].arguments if p.kind == "sample"]
    yield from dict.fromkeys(names)


def open_data(bundle: Bundle) -> dict[str, Dataset]:
    """Open what is needed, digests verified. Raises DataRefused."""
    return {
        name: Dataset(record := bundle.manifest.data[name], bundle.verify(record.path)) for name in needed_data(bundle)
    }


def scalar(program: Program, buffer: int) -> float:
    """A scalar result as a float."""
    value = program.value(buffer)
    return float(_wide(value, program.record.buffers[buffer].dtype).reshape(-1)[0])


def _wide(value: Array, dtype: str) -> np.ndarray[Any, Any]:
    return widen(value) if dtype == "bf16" else value


def _finite(program: Program, buffer: int) -> bool:
    return bool(np.isfinite(scalar(program, buffer)))


def _start(port: PortRecord, dtype: str, view: Array) -> None:
    """Give a total its first value, `start` of its port: what its reduction starts from."""
    start = port.attributes.get("start", 0)
    value = float(start) if isinstance(start, str) else start  # JSON has no infinities: they are words
    view[...] = narrow(np.float32(value).reshape(1))[0] if dtype == "bf16" else value


def _set(program: Program, kind: str, value: int) -> None:
    for _, view in program.arguments(kind):
        view[...] = value
