"""Which cores measured processes and threads are held to, where the system lets a process say so (macOS does not)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

HOLDS = hasattr(os, "sched_setaffinity")
NOTE = "this system holds no process to given cores: the scheduler may move what is measured"


def cores(threads: int) -> set[int]:
    """The cores that so many threads are held to: the last ones that this process may use, since the system's own work
    tends to the first."""
    able = sorted(os.sched_getaffinity(0))
    return set(able[-threads:]) if threads < len(able) else set(able)


@contextlib.contextmanager
def on_cores(threads: int) -> Iterator[None]:
    """What is started in here runs on as many cores as it has threads."""
    if not HOLDS:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores(threads))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def hold_thread(number: int) -> None:
    """Hold the calling thread, number `number` of several, to one core of this process."""
    if HOLDS:
        able = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {able[number % len(able)]})
