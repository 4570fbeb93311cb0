"""For tests of whole runs: the command line as a user types it, runs as records, and roles that a test tampers with."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from alphac import cli
from alphac.runtime.bundle import read_bundle
from alphac.runtime.collectives import Collective, Star
from alphac.runtime.errors import RuntimeFault
from alphac.runtime.launch.local import run_local
from alphac.runtime.role import Options, Role
from alphac.runtime.star import join_star

ROOT = Path(__file__).parents[1]
PATIENCE = 120.0  # seconds after which a process that should have ended is taken for hung
BATCH, SHARDS, FEATURES, EXAMPLES, HELD_OUT = 16, 8, 3, 172, 12

# Small, quick to compile, and long enough to be stopped in its midst.
LINE = f"""# A line through points.
system line
dim features = {FEATURES}
dim batch = {BATCH}
grain {SHARDS} of batch
let rate = 0.05

data points from "points.npz" {{
    x: f32[features] = x
    y: f32[]         = y
    hold out test last {100 * HELD_OUT / EXAMPLES!r}%
    shuffle seed 1
}}

param w: f32[features] = normal(0.1)
param b: f32[] = 0

region guess(x: f32[batch, features]) -> f32[batch] {{ x @ w + b }}

learn w, b with momentum(rate) minimizing {{ mean((guess(x) - y) ** 2) }}

evaluate error on test = mean(abs(guess(x) - y))

train on points for 1000000 steps, checkpoint every 100 steps
"""


def write_line(directory: Path, text: str = LINE, **columns: np.ndarray[Any, Any]) -> Path:
    """A system's source beside its data, by default `LINE` and points near a plane; the source's path."""
    random = np.random.default_rng(3)
    x = random.standard_normal((EXAMPLES, FEATURES), np.float32)
    y = x @ np.array([1, -2, 0.5], np.float32) + 0.25 + 0.1 * random.standard_normal(EXAMPLES, np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    np.savez(directory / "points.npz", **{"x": x, "y": y.astype(np.float32), **columns})
    source = directory / "line.alpha"
    source.write_text(text, encoding="utf-8")
    return source


# ---------------------------------------------------------------------- the command line
@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


def call(*arguments: object) -> Answer:
    """`alphac ARGUMENTS…` in this process; what its role processes write themselves is not seen."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(a) for a in arguments])
        except SystemExit as ended:
            code = ended.code
        finally:
            for number, handler in handlers.items():  # `alphac role` takes them for itself
                signal.signal(number, handler)
    assert isinstance(code, int)
    return Answer(code, out.getvalue(), err.getvalue())


def environment() -> dict[str, str]:
    """A process's, that finds this alphac."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


class Processes:
    """Processes that a test starts; `close` ends and reaps what is left of them."""

    def __init__(self) -> None:
        self._made: list[subprocess.Popen[str]] = []

    def alphac(self, *arguments: object, cwd: Path) -> subprocess.Popen[str]:
        """`alphac ARGUMENTS…`, its pipes open."""
        return self.python("-m", "alphac.cli", *arguments, cwd=cwd)

    def python(self, *arguments: object, cwd: Path) -> subprocess.Popen[str]:
        """`python ARGUMENTS…`, its pipes open."""
        made = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_interruptible,  # noqa: PLW1509 (it takes no lock)
        )
        self._made.append(made)
        return made

    def close(self) -> None:
        for process in self._made:
            if process.poll() is None:
                process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()


def _interruptible() -> None:
    """A shell that starts the tests in the background has them ignore SIGINT, and so their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(process: subprocess.Popen[str]) -> Answer:
    """Wait for a process."""
    out, err = process.communicate(timeout=PATIENCE)
    return Answer(process.returncode, out, err)


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Read a process's lines up to the first that holds `word`."""
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return line
    raise AssertionError(f"it never said `{word}`: {process.communicate()[1]}")


def children(parent: int) -> dict[int, int]:
    """The role processes of a launcher: process id by role."""
    found: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it ended meanwhile
        if int(status[1]) == parent and "--role" in words:
            found[int(words[words.index("--role") + 1])] = int(entry.name)
    return found


def wait_gone(pids: Sequence[int]) -> None:
    """Wait until processes that are not this one's children have ended."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with contextlib.closing(os.fdopen(handle, "rb", closefd=True)) as descriptor:
            assert select.select([descriptor], [], [], PATIENCE)[0], f"process {pid} lives on"


# ---------------------------------------------------------------------- runs
@dataclass(frozen=True)
class Run:
    """A finished run: what it left in its directory."""

    directory: Path

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.directory / "run.json").read_text(encoding="utf-8"))

    @property
    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        return load_file(self.directory / "parameters.safetensors")

    @property
    def states(self) -> set[str]:
        """The digests that the roles give of their states: one if they agree."""
        return {role["states_sha256"] for role in self.record["roles"]}

    def metrics(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in (self.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]

    def steps(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that tell of a step, evaluations left out."""
        names = {e.name for e in read_bundle(self.record["options"]["bundle"], verify=False).manifest.evaluations}
        return [line for line in self.metrics() if not names & set(line)]

    @property
    def checkpoints(self) -> list[int]:
        return sorted(int(p.name[5:]) for p in (self.directory / "checkpoints").glob("step-*"))


def train(bundle: Path, out: Path, steps: int, *, threads: int = 1, resume: str | None = None) -> Run:
    """Run all roles as processes, to the end of `steps` steps."""
    result = run_local(bundle, steps=steps, threads=threads, out=out, resume=resume)
    assert (result.exit_code, result.error, result.steps) == (0, None, steps)
    return Run(out)


def assert_same_bits(run: Run, expected: Run) -> None:
    """Every state of every role, every byte of the parameters and every loss are the same."""
    mine, theirs = run.parameters, expected.parameters
    assert mine.keys() == theirs.keys()
    differing = [name for name in mine if mine[name].tobytes() != theirs[name].tobytes()]
    assert not differing, f"these differ: {', '.join(differing)}"
    assert run.states == expected.states
    assert len(run.states) == 1
    files = [r.directory / "parameters.safetensors" for r in (run, expected)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert run.steps() == expected.steps()  # floats are written so that they are read back exactly


def assert_own_work(run: Run, shares: Sequence[int], threads: int) -> None:
    """The counters of a run say: in every step each role computed its own shards and no others, with all threads."""
    record = run.record
    roles, steps = record["roles"], record["steps"] - record["first_step"]
    assert [r["role"] for r in roles] == list(range(len(shares)))
    assert [r["shards"] for r in roles] == list(shares)
    assert [r["first"] for r in roles] == [sum(shares[:k]) for k in range(len(shares))]
    assert [r["steps_run"] for r in roles] == [steps] * len(roles)
    assert [r["shards_computed"] for r in roles] == [steps * share for share in shares]
    assert sum(r["examples"] for r in roles) == steps * record["batch"]
    assert sum(shares) == record["shards"]
    assert len({r["pid"] for r in roles}) == len(roles)
    for role in roles:
        assert [t["thread"] for t in role["threads"]] == list(range(threads))
        assert all(t["cpu_seconds"] > 0 for t in role["threads"])


# ---------------------------------------------------------------------- roles in this process
Tamper = Callable[[Collective], Collective]


def run_roles(
    bundle: Path, out: Path, steps: int, tamperers: dict[int, Callable[[Collective], Collective]]
) -> list[Any]:
    """Run every role of a bundle in a thread of this process, the group of some of them wrapped.

    Returns per role its Finished, or the fault that it raised."""
    count = len(read_bundle(bundle).manifest.roles)
    ends: list[Any] = [None] * count
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        inherited = os.dup(listener.fileno())

    def gather(role: Role, opened: Any, executor: Any, start: str) -> Collective:
        o = role.options
        star: Star = join_star(opened, executor.scopes, o.role, start, o.join, o.listener, o.patience)
        return tamperers.get(o.role, lambda whole: whole)(star)

    def live(number: int) -> None:
        listening = inherited if number == 0 else None
        options = Options(
            bundle, number, join=address, listener=listening, steps=steps, out=out if number == 0 else None
        )
        try:
            ends[number] = Role(options, gather=gather).run()
        except RuntimeFault as fault:
            ends[number] = fault

    threads = [threading.Thread(target=live, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return ends
