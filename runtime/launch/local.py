"""Starts all roles of a bundle on this machine, one process each, and watches them. Roles for another processor may be
started through an emulator; the run's record says so."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from alphac.runtime import record as run_directory
from alphac.runtime.bundle import Bundle, read_bundle
from alphac.runtime.checkpoint import find_start
from alphac.runtime.coding import CodingError
from alphac.runtime.errors import (
    InputRefused,
    Interrupted,
    KernelFailed,
    NonFiniteLoss,
    PeerLost,
    RuntimeFault,
    fault_from,
)
from alphac.runtime.events import Event, Failed, Finished, decode_event
from alphac.runtime.inference import evaluate, predict

__all__ = ["RunResult", "evaluate", "predict", "run_local"]

GRACE = 10.0  # seconds that the other roles have to end by themselves when one has failed
NATIVE = (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT)


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `exit_code`: 0 done, 19 stopped as asked, else the cause of failure; `steps` are finished in
    all; `values` are the last evaluations; `fault` and `error` (its text) say what failed."""

    system: str
    directory: Path
    steps: int
    seconds: float
    values: dict[str, float]
    exit_code: int
    fault: RuntimeFault | None = None

    @property
    def error(self) -> str | None:
        return str(self.fault) if self.fault is not None else None


def run_local(
    bundle_path: Path | str,
    *,
    steps: int | None = None,
    threads: int = 1,
    out: Path | None = None,
    resume: str | None = None,
    emulators: Mapping[str, Sequence[str]] | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
) -> RunResult:
    """Run every role of a bundle here. Ctrl-C asks for an orderly stop between two steps, a second one ends the roles.
    `emulators`: for targets that this machine does not run, the command that starts a Python which does.

    Raises InputRefused, BundleRefused, DataRefused, RunDirectoryRefused, CheckpointRefused before any role is started;
    what fails later is in the result."""
    bundle = read_bundle(bundle_path)
    system = bundle.manifest.system
    commands = _commands(bundle, emulators or {})
    last = run_directory.last_directory(system) if resume == "latest" else None
    if resume is not None:
        find_start(out or last if resume == "latest" else Path(resume), bundle.manifest)
    directory = out or last or run_directory.next_directory(system)
    run_directory.claim_directory(directory, resuming=resume is not None)
    launch = _Launch(bundle, directory, on_event, commands)
    try:
        launch.start(steps, threads, resume)
        launch.watch()
    finally:
        launch.close()
    return launch.result()


def _commands(bundle: Bundle, emulators: Mapping[str, Sequence[str]]) -> list[Sequence[str]]:
    """Of every role its emulator, or nothing. Raises InputRefused if one is for no role."""
    targets = [bundle.class_of(role.role_class).target for role in bundle.all_roles()]
    for name, command in emulators.items():
        if name not in targets:
            raise InputRefused(f"no role of {bundle.path} is for {name}", help=f"there are {', '.join(set(targets))}")
        if not command:
            raise InputRefused(f"the emulator for {name} has no command")
    return [emulators.get(name, ()) for name in targets]


@dataclass
class _Process:
    """A role's process; `events` and `control` are this side's ends of its pipes, −1 when closed."""

    role: int
    process: subprocess.Popen[bytes]
    events: int
    control: int
    pending: bytes = b""
    finished: Finished | None = None
    fault: RuntimeFault | None = None


@dataclass
class _Launch:
    bundle: Bundle
    directory: Path
    tell: Callable[[Event], None]
    commands: Sequence[Sequence[str]]  # that start each role's Python; none: this one
    roles: list[_Process] = field(default_factory=list[_Process])
    began: float = field(default_factory=time.monotonic)
    interrupts: int = 0
    ending: float | None = None  # when the roles that are left are ended

    def start(self, steps: int | None, threads: int, resume: str | None) -> None:
        count = len(self.bundle.manifest.roles)
        options = ["--threads", str(threads), "--out", str(self.directory)]
        options += ["--steps", str(steps)] if steps is not None else []
        options += ["--resume", str(resume)] if resume is not None else []
        if count == 1:
            self._spawn(0, options, [])
            return
        # The listening socket is made here and inherited by role 0: no port can be lost between choosing and using it.
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            host, port = listener.getsockname()[:2]
            for role in range(count):
                inherited = [listener.fileno()] if role == 0 else []
                extra = ["--listener", str(listener.fileno())] if role == 0 else []
                self._spawn(role, [*options, "--join", f"{host}:{port}", *extra], inherited)

    def _spawn(self, role: int, options: list[str], inherited: list[int]) -> None:
        events, events_end = os.pipe()
        control_end, control = os.pipe()
        emulator = self.commands[role]
        command = [*(emulator or [sys.executable]), "-m", "alphac.runtime.main", "role", str(self.bundle.path)]
        command += ["--role", str(role), *options, "--events", str(events_end), "--control", str(control_end)]
        command += ["--emulated", shlex.join(emulator)] if emulator else []
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[events_end, control_end, *inherited],
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which asks for an orderly stop
            )
        except BaseException:
            os.close(events)
            os.close(control)
            raise
        finally:
            os.close(events_end)
            os.close(control_end)
        self.roles.append(_Process(role, process, events, control))

    # ------------------------------------------------------------------ watching
    def watch(self) -> None:
        """Forward events until every role has ended."""
        with selectors.DefaultSelector() as selector:
            for role in self.roles:
                selector.register(role.events, selectors.EVENT_READ, role)
            while selector.get_map():
                try:
                    patience = None if self.ending is None else max(0.0, self.ending - time.monotonic())
                    ready = selector.select(patience)
                    for key, _ in ready:
                        self._read(selector, key.data)
                    if not ready and self.ending is not None and time.monotonic() >= self.ending:
                        self._kill()
                        self.ending = time.monotonic() + GRACE
                except KeyboardInterrupt:
                    self._interrupted()

    def _read(self, selector: selectors.BaseSelector, role: _Process) -> None:
        data = os.read(role.events, 1 << 16)
        if not data:
            selector.unregister(role.events)
            os.close(role.events)
            role.events = -1
            self._ended(role, role.process.wait())
            return
        *lines, role.pending = (role.pending + data).split(b"\n")
        for line in lines:
            try:
                event = decode_event(line)
            except CodingError:
                continue  # something else wrote there
            if isinstance(event, Finished):
                role.finished = event
            elif isinstance(event, Failed):
                role.fault = fault_from(event.fault)
            if isinstance(event, Failed) or not isinstance(event, Finished) or event.role == 0:
                self.tell(event)

    def _ended(self, role: _Process, code: int) -> None:
        if code in (0, Interrupted.exit_code) and role.finished is not None:
            return
        if role.fault is None:
            role.fault = _fault_of(role.role, code)
            self.tell(Failed(role.role, role.fault.as_dict()))
        if self.ending is None:
            self.ending = time.monotonic() + GRACE

    def _interrupted(self) -> None:
        self.interrupts += 1
        if self.interrupts > 1:
            self._kill()
            return
        for role in self.roles:
            with contextlib.suppress(OSError):
                os.write(role.control, b"s")

    def _kill(self) -> None:
        for role in self.roles:
            if role.process.poll() is None:
                role.process.kill()

    def close(self) -> None:
        """End what is left, and let go of all pipes."""
        self._kill()
        for role in self.roles:
            role.process.wait()
            for descriptor in (role.events, role.control):
                if descriptor >= 0:
                    os.close(descriptor)
            role.events = role.control = -1

    # ------------------------------------------------------------------ the end
    def result(self) -> RunResult:
        seconds, system = time.monotonic() - self.began, self.bundle.manifest.system
        fault = self._cause()
        if fault is not None:
            self._record(fault, seconds)
            return RunResult(system, self.directory, fault.step or 0, seconds, {}, fault.exit_code, fault)
        root = self.roles[0].finished
        assert root is not None
        if root.stopped:
            fault = Interrupted(f"stopped after step {root.step}, as asked", help="continue with --resume latest")
        code = fault.exit_code if fault is not None else 0
        return RunResult(system, self.directory, root.step, seconds, root.values, code, fault)

    def _cause(self) -> RuntimeFault | None:
        """What failed first: a role that lost a peer only suffered from it."""
        faults = [role.fault for role in self.roles if role.fault is not None]
        causes = [f for f in faults if not isinstance(f, PeerLost) or f.peer == f.role]
        named = [f for f in causes if isinstance(f, NonFiniteLoss) and f.op]  # the others' parts were all right
        return next(iter(named or causes or faults), None)

    def _record(self, fault: RuntimeFault, seconds: float) -> None:
        """A failed run has a record too."""
        manifest = self.bundle.manifest
        roles = [{"role": r.role, "fault": r.fault.as_dict() if r.fault is not None else None} for r in self.roles]
        record = {
            "system": manifest.system,
            "identity": manifest.identity,
            "bundle": manifest.bundle,
            "status": "failed",
        }
        with contextlib.suppress(OSError):
            run_directory.write_record(
                self.directory, {**record, "fault": fault.as_dict(), "seconds": seconds, "roles": roles}
            )


def _fault_of(role: int, code: int) -> RuntimeFault:
    """What the end of a process says that did not say it itself."""
    if code >= 0:
        return PeerLost(f"role {role} ended with code {code} and said nothing", peer=role, role=role)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code in NATIVE:
        return KernelFailed(f"native code ended the process ({name})", role=role)
    return PeerLost(f"role {role} was ended from outside ({name})", peer=role, role=role)
