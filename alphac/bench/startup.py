"""Compile time, and how long until a role has finished its first step."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from alphac.bench.cores import on_cores
from alphac.diagnostics import fail
from alphac.runtime.events import Step, decode_event

STEPS = 3  # that a started role makes


def first_step(command: Sequence[str], inherited: Sequence[int] = ()) -> float:
    """Start a role's process, whose `command` lacks `--events` only; seconds until it tells of its first step. Waits
    until it has ended. Raises Diagnostics if it fails."""
    events, events_end = os.pipe()
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "--events", str(events_end)], stdin=subprocess.DEVNULL, pass_fds=[events_end, *inherited]
    )
    os.close(events_end)
    first: float | None = None
    with os.fdopen(events, "rb") as stream:
        for line in stream:
            now = time.monotonic()
            if first is None and isinstance(decode_event(line), Step):
                first = now
    if process.wait() or first is None:
        raise fail("E503", f"a role ended with code {process.returncode}", None, "see what `alphac run` says")
    return first - began


def starts(bundle: Path, threads: int, count: int) -> list[float]:
    """Start a bundle's only role so many times, as `alphac run` does, after once that counts for nothing."""
    found: list[float] = []
    for _ in range(count + 1):
        with tempfile.TemporaryDirectory() as folder, on_cores(threads):
            options = ["--role", "0", "--steps", str(STEPS), "--threads", str(threads), "--out", f"{folder}/run"]
            found.append(first_step([sys.executable, "-m", "alphac.runtime.main", "role", str(bundle), *options]))
    return found[1:]


def compile_times(source: Path, settings: Sequence[str]) -> tuple[float, float]:
    """Seconds that `alphac compile` takes with nothing cached, and again with everything cached. Raises Diagnostics."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        chosen = [word for setting in settings for word in ("--set", setting)]

        def once(name: str) -> float:
            command = [sys.executable, "-m", "alphac.cli", "compile", str(source), "-o", f"{folder}/{name}", *chosen]
            began = time.monotonic()
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise fail("E503", f"`alphac compile {source}` ended with code {done.returncode}", None,
                           "see what it says")  # fmt: skip
            return time.monotonic() - began

        return once("cold.bundle"), once("cached.bundle")
