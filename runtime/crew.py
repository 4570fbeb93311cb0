"""How many threads run a burst: all, or the first alone where meeting the others takes longer than what they take over.

That depends on how far apart the cores are that the threads run on, which nobody tells, and which changes while a
virtual machine runs. So it is measured, and now and then measured again. Bits do not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHORT = 1e-3  # seconds of a step: a longer one is always shared
LEAST = 16  # steps whose time counts
TRIAL = 5e-3  # seconds for which the other number of threads is tried
AGAIN = 1.0  # seconds until it is tried again
WORTH = 0.95  # of the time of the present number, at most, is what the other must take


class Crew:
    """Chooses whether all of so many threads run a burst, or one. `alone`: how many steps one of several has run."""

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.alone = 0
        self._all, self._threads = threads, threads
        self._clock = clock
        self._running = threads
        self._step = 0.0  # seconds of a step as `_threads` last ran it
        self._began = self._due = 0.0

    def begin(self, count: int) -> tuple[int, int]:
        """How many threads are to run how many of the next `count` steps, from now on."""
        self._began, self._running = self._clock(), self._threads
        if self._all > 1 and count >= LEAST and 0 < self._step < SHORT and self._began >= self._due:
            self._running = 1 if self._threads > 1 else self._all
            count = min(count, max(LEAST, int(TRIAL / self._step)))
        return self._running, count

    def end(self, steps: int) -> None:
        """So many of them are done now."""
        now = self._clock()
        if self._running < self._all:
            self.alone += steps
        if steps < LEAST:
            return
        step = (now - self._began) / steps
        if self._running == self._threads:
            self._step = step
            return
        self._due = now + AGAIN
        if step <= WORTH * self._step:
            self._threads, self._step = self._running, step
