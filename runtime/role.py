"""The life of a role: load, join, initialize or restore, train, evaluate, checkpoint, finish.

What is needed after the first step only is imported then: a role must start fast.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alphac.runtime import record as run_directory
from alphac.runtime.bundle import Bundle, read_bundle
from alphac.runtime.errors import KernelFailed, RunDirectoryRefused, RuntimeFault
from alphac.runtime.events import Checkpointed, Evaluated, Event, Failed, Finished, Started, Step
from alphac.runtime.executor import Executor
from alphac.runtime.groups import ROOT, Alone, Collective
from alphac.runtime.records import RoleRecord
from alphac.runtime.training import Machine, Training, open_data

if TYPE_CHECKING:
    from alphac.runtime.checkpoint import Checkpoint

PATIENCE = 60.0  # seconds that roles wait for each other to join
PACE = 0.05  # seconds between steps that are told
FLUSH = 1.0  # seconds that metrics may stay in memory


@dataclass(frozen=True)
class Options:
    """How one role is started. `join`: where role 0 listens (the root listens there), None for a role alone;
    `listener`: an inherited descriptor of a socket that listens already. `out` and `resume` as in `alphac run`;
    `directory` is made by the root. `emulated`: through what, if the processor is not a real one."""

    bundle: Path
    role: int
    join: tuple[str, int] | None = None
    listener: int | None = None
    steps: int | None = None
    threads: int = 1
    out: Path | None = None
    resume: str | None = None
    patience: float = PATIENCE
    emulated: str = ""


@dataclass
class Role:
    """One role of a bundle, in this process. `executor` and `gather` make its parts; tests put others in their
    place."""

    options: Options
    tell: Callable[[Event], None] = lambda _: None
    executor: Callable[..., Executor] = Executor
    gather: Callable[[Role, Bundle, Executor, str], Collective] | None = None
    started: float = field(default_factory=time.time)
    directory: Path | None = None  # the run directory, at the root
    _collective: Collective | None = None
    _stop: bool = False

    def request_stop(self) -> None:
        """Ask all roles to stop at the next step boundary. May be called from a signal handler or another thread."""
        self._stop = True
        if self._collective is not None:
            self._collective.request_stop()

    def run(self) -> Finished:
        """Live. Raises a RuntimeFault; it was told to the others and to `tell` before."""
        options = self.options
        executor: Executor | None = None
        try:
            bundle = read_bundle(options.bundle, verify=False)
            me = bundle.role(options.role)
            if me.role == ROOT:
                self.directory = self._claim(bundle)
            firsts = [first for first, _ in me.ranges]
            executor = self.executor(bundle, bundle.class_of(me.role_class), firsts, options.threads)
            machine = Machine(bundle, executor, open_data(bundle), None)
            start = self._start(bundle)
            make = self.gather or _gather
            self._collective = machine.collective = make(self, bundle, executor, start.name if start else "")
            if self._stop:
                self._collective.request_stop()
            finished = self._train(machine, me, start)
        except RuntimeFault as fault:
            fault.at(role=options.role)
            if self._collective is not None:
                self._collective.abort(fault)
            self.tell(Failed(options.role, fault.as_dict()))
            raise
        finally:
            if self._collective is not None:
                self._collective.close()
            if executor is not None:
                executor.close()
        self.tell(finished)
        return finished

    def _claim(self, bundle: Bundle) -> Path:
        """The run directory, claimed. Raises RunDirectoryRefused."""
        system, resume = bundle.manifest.system, self.options.resume
        last = run_directory.last_directory(system) if resume == "latest" else None
        directory = self.options.out or last or run_directory.next_directory(system)
        run_directory.claim_directory(directory, resuming=resume is not None)
        return directory

    def _start(self, bundle: Bundle) -> Checkpoint | None:
        """The checkpoint to start from."""
        options = self.options
        if options.resume is None:
            return None
        from alphac.runtime.checkpoint import find_start

        latest = options.out or run_directory.last_directory(bundle.manifest.system)
        return find_start(latest if options.resume == "latest" else Path(options.resume), bundle.manifest)

    def _train(self, machine: Machine, me: RoleRecord, start: Checkpoint | None) -> Finished:
        bundle, options = machine.bundle, self.options
        if start is None:
            machine.initialize()
            step = 0
        else:
            from alphac.runtime.checkpoint import restore

            step = restore(start, bundle.manifest, machine.executor.states)
        watcher = Writer(self, self.directory, machine, step) if self.directory is not None else Quiet()
        try:
            training = Training(machine, watcher, options.steps)
            if isinstance(watcher, Writer):
                shards = tuple(sum(n for _, n in role.ranges) for role in bundle.all_roles())
                self.tell(Started(bundle.manifest.system, shards, options.threads, step, training.total))
            step, stopped = training.run(step)
            assert machine.collective is not None
            records = machine.collective.leave(self._record(machine, me))
            finished = Finished(me.role, step, stopped, training.values)
            if isinstance(watcher, Writer):
                watcher.finish(finished, records)
            return finished
        finally:
            watcher.close()

    def _record(self, machine: Machine, me: RoleRecord) -> dict[str, Any]:
        """What this role says of itself in the run's record."""
        from alphac.runtime.checkpoint import states_digest
        from alphac.runtime.emulation import emulator

        bundle, executor = machine.bundle, machine.executor
        return {
            "role": me.role,
            "first": me.first,
            "shards": me.shards,
            "target": bundle.class_of(me.role_class).target,
            "device": executor.remote.describe() if executor.remote is not None else {},
            "steps_run": machine.counters.steps,
            "shards_computed": machine.counters.shards,
            "examples": machine.counters.examples,
            "threads": [{"thread": k, "cpu_seconds": s} for k, s in enumerate(executor.team.cpu_seconds())],
            "steps_alone": executor.crew.alone,
            "arena_bytes": executor.arena.bytes,
            **self._strands(bundle, me, machine.counters.steps),
            "states_sha256": states_digest(bundle.manifest, executor.states),
            "host": platform.node(),
            "machine": platform.machine(),
            "emulated": self.options.emulated or emulator(),
            "pid": os.getpid(),
        }

    def _strands(self, bundle: Bundle, me: RoleRecord, steps: int) -> dict[str, Any]:
        """Of each strand of a system with several: what is in it, and what this role did of it."""
        found = [
            {"regions": strand.regions, "first": first, "shards": count, "shards_computed": count * steps}
            for strand, (first, count) in zip(bundle.manifest.strands, me.ranges, strict=False)
        ]
        return {"strands": found} if found else {}


def _gather(role: Role, bundle: Bundle, executor: Executor, start: str) -> Collective:
    """Join the other roles."""
    manifest, options = bundle.manifest, role.options
    size = len(manifest.roles)
    if size == 1:
        return Alone()
    from alphac.runtime.star import join_star

    return join_star(bundle, executor.scopes, options.role, start, options.join, options.listener, options.patience)


class Quiet:
    """The watcher of a role that writes nothing down."""

    def stepped(self, step: int, epoch: int, losses: Mapping[str, float], metrics: Mapping[str, float]) -> None: ...

    def evaluated(self, step: int, epoch: int, whole: bool, values: Mapping[str, float]) -> None: ...

    def checkpoint(self, step: int) -> None: ...

    def close(self) -> None: ...


class Writer:
    """The root's watcher: writes the run directory and tells of progress."""

    def __init__(self, role: Role, directory: Path, machine: Machine, step: int) -> None:
        self._role, self._machine, self._tell = role, machine, role.tell
        self.directory, manifest = directory, machine.bundle.manifest
        results = manifest.programs["step"].results if "step" in manifest.programs else ()
        losses = [r.name or "loss" for r in results if r.kind == "loss"]
        metrics = [r.name for r in results if r.kind == "metric"] + [e.name for e in manifest.evaluations]
        self._metrics = run_directory.Metrics(self.directory, step, losses, metrics)
        self._first = step
        self._told = self._flushed = 0.0
        self._last: Step | None = None

    def stepped(self, step: int, epoch: int, losses: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        self._metrics.write(step, epoch, {**losses, **metrics})
        now = time.monotonic()
        self._last = Step(step, epoch, dict(losses))
        if now - self._told >= PACE:
            self._told = now
            self._tell_last()
        if now - self._flushed >= FLUSH:
            self._flushed = now
            self._metrics.flush()

    def _tell_last(self) -> None:
        if self._last is not None:
            self._tell(self._last)
            self._last = None

    def evaluated(self, step: int, epoch: int, whole: bool, values: Mapping[str, float]) -> None:
        self._metrics.write(step, epoch - whole if epoch else epoch, values)
        self._tell_last()
        self._tell(Evaluated(step, epoch if whole else None, dict(values)))

    def checkpoint(self, step: int) -> None:
        from alphac.runtime.checkpoint import DirectoryStore

        self._metrics.flush()
        store = DirectoryStore(self.directory / run_directory.CHECKPOINTS, self._machine.bundle.manifest)
        made = store.publish(step, self._machine.executor.states)
        self._tell_last()
        self._tell(Checkpointed(step, str(made.path)))

    def finish(self, finished: Finished, records: list[dict[str, Any]]) -> None:
        """Write the parameters and the run's record. Raises KernelFailed if the roles' states differ."""
        from alphac.runtime.checkpoint import save_states

        manifest, role = self._machine.bundle.manifest, self._role
        self._metrics.close()
        ended = time.time()
        try:
            save_states(self.directory / run_directory.PARAMETERS, manifest, self._machine.executor.states)
            run_directory.write_record(
                self.directory,
                {
                    "system": manifest.system,
                    "identity": manifest.identity,
                    "bundle": manifest.bundle,
                    "seed": manifest.seed,
                    "status": "stopped" if finished.stopped else "done",
                    "first_step": self._first,
                    "steps": finished.step,
                    "batch": manifest.batch,
                    "shards": manifest.shards,
                    "values": finished.values,
                    "started": role.started,
                    "ended": ended,
                    "seconds": ended - role.started,
                    "options": {k: str(v) if isinstance(v, Path) else v for k, v in asdict(role.options).items()},
                    "roles": records,
                },
            )
        except OSError as error:
            raise RunDirectoryRefused(f"{self.directory} cannot be written: {error.strerror or error}") from None
        if len({record.get("states_sha256") for record in records}) > 1:
            raise KernelFailed(
                "the roles ended with different states: a host computes wrongly, or this is a bug in alphac",
                step=finished.step,
            )

    def close(self) -> None:
        self._metrics.close()
