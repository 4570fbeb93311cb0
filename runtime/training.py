"""One role's training: the steps, evaluations and checkpoints of a bundle, in lockstep with the other roles."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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
from alphac.runtime.single import steps_of

LONGEST = 0.05  # seconds that a burst may take
FASTER = 8  # a burst has at most so many times the steps of the one before


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
        """None if this role owns all shards."""
        return None if self.collective is None or self.executor.whole else self.collective.exchange

    def program(self, name: str) -> Program:
        return self.executor.programs[name]

    def feeds(self, data: str, split: str, ragged: bool = False) -> list[Feed]:
        """The batches of a split, this role's rows of them, by strand. Raises DataRefused if the split is empty."""
        manifest, executor = self.bundle.manifest, self.executor
        dataset, rows = self.data[data], manifest.grain.rows if manifest.grain else 0
        count = dataset.split(split).count
        if not count:
            raise DataRefused(f"{data} has no examples in its split `{split}`")
        batch = manifest.batch or count
        return [Feed(dataset, split, batch, first * rows, n * rows, ragged) for first, n in executor.ranges]

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
        feeds = self.feeds(evaluation.data, evaluation.split, ragged=True)
        feed, burst = feeds[0], steps_of(self.executor, program, feeds)
        totals = {port.name: view for port, view in program.arguments("total")}
        for port, view in program.arguments("total"):
            _start(port, program.record.buffers[port.buffer].dtype, view)
        _set(program, "count", feed.examples)
        for number in range(feed.batches):
            burst.load(number)
            _set(program, "step", 0)
            _set(program, "valid", feed.valid(number))
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
        self.feeds = machine.feeds(self.record.data, "train")
        feed = self.feeds[0]
        self.per_epoch = feed.batches
        if not self.per_epoch:
            raise DataRefused(f"{self.record.data} has {feed.examples} examples to train on, a batch {manifest.batch}")
        whole = self.record.steps or self.record.epochs * self.per_epoch
        self.total = whole if limit is None else min(whole, limit)
        self.values: dict[str, float] = {}
        self.burst = steps_of(machine.executor, self.program, self.feeds)
        self._pace = Pace()

    def run(self, step: int) -> tuple[int, bool]:
        """Train from `step` finished steps on. Returns how many are finished, and whether it was stopped before its
        end.

        Raises NonFiniteLoss, after the last good states were saved."""
        stopped, evaluated, saved = False, -1, -1
        while step < self.total and not stopped:
            step, stopped = self._advance(step)
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

    def _advance(self, step: int) -> tuple[int, bool]:
        """One step, or a burst of them: how many are finished then, and whether the run is to stop there."""
        machine, group = self.machine, self.machine.collective
        if group is not None:
            group.begin_step(step)
        exchange = machine.exchange
        if exchange is None:
            began = time.monotonic()
            count, guard = self.burst.run(step, min(self._pace.steps, self._until(step) - step))
            self._pace.took(count, time.monotonic() - began)
            segment = self.program.stopped_by(guard) if guard else None
            values = self.burst.values(count)
        else:
            self.burst.load(step)
            segment = machine.executor.run("step", exchange)
            count = int(segment is None)
            values = [[scalar(self.program, port.buffer)] for port in self.burst.scalars]
        self._tell(step, count, values)
        counters = machine.counters
        counters.steps += count
        counters.shards += count * machine.executor.shards
        counters.examples += count * sum(feed.size for feed in self.feeds)
        step += count
        if segment is not None:
            self.watcher.checkpoint(step)
            raise self._blame(step, segment)
        return step, group is not None and group.end_step()

    def _until(self, step: int) -> int:
        """The next step behind which something else than a step happens."""
        record, per_epoch = self.record, self.per_epoch
        evaluated = per_epoch if self.machine.bundle.manifest.evaluations else 0
        periods = (evaluated, record.checkpoint_steps, record.checkpoint_epochs * per_epoch)
        return min([self.total, *(step - step % period + period for period in periods if period)])

    def _tell(self, step: int, count: int, values: Sequence[Sequence[float]]) -> None:
        """Tell of `count` steps from `step` on: of each scalar its values."""
        named = list(zip(self.burst.scalars, values, strict=True))
        for k in range(count):
            losses = {port.name or "loss": of[k] for port, of in named if port.kind == "loss"}
            metrics = {port.name: of[k] for port, of in named if port.kind == "metric"}
            self.watcher.stepped(step + k + 1, (step + k) // self.per_epoch, losses, metrics)

    def _blame(self, step: int, stopped: Segment) -> NonFiniteLoss:
        from alphac.runtime.replay import Replay

        names = [
            port.name or "loss" for port, _ in self.program.results("loss") if not _finite(self.program, port.buffer)
        ]
        culprit = Replay(self.machine.executor, "step", stopped, self.machine.exchange).run()
        label = ", ".join(names) or "the loss"
        if culprit is None:
            return NonFiniteLoss(f"{label} is not finite: another role's part is to blame, or the sum", step=step)
        return NonFiniteLoss(
            f"{label} is not finite: {culprit}",
            op=culprit.op,
            span=culprit.span,
            step=step,
            help=self._bad_example(step),
        )

    def _bad_example(self, step: int) -> str:
        """What is not finite in the examples themselves that this role reads in a step; "" if nothing is."""
        for strand, feed in enumerate(self.feeds):
            rows = feed.take(step, 1).listed(feed.size).reshape(-1)
            for port, view in self.program.columns(strand):
                if view.dtype.kind != "f" or not feed.size:
                    continue
                column, values = port.name.partition(".")[2], np.empty(view.shape, view.dtype)
                feed.data.read(column, rows, values)
                bad = np.flatnonzero(~np.isfinite(values.reshape(len(rows), -1)).all(1))
                if len(bad):
                    what = "a nan" if np.isnan(values[bad[0]]).any() else "an inf"
                    data = feed.data.record.name
                    return f"column `{column}` of `{data}` has {what} in row {rows[bad[0]]}: leave such examples out"
        return ""

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


class Pace:
    """How many steps a burst may have: `LONGEST` seconds' worth, so that a stop is obeyed and progress is told soon."""

    def __init__(self) -> None:
        self.steps = 1

    def took(self, steps: int, seconds: float) -> None:
        """A burst of so many steps has taken so long."""
        self.steps = max(1, min(FASTER * steps, int(LONGEST * steps / max(seconds, 1e-6))))


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
