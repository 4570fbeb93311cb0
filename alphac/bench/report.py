"""What `alphac bench` measured, as data; `--json` writes it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OURS = "alphac"


@dataclass(frozen=True)
class Spread:
    """Seconds over rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        return cls(statistics.median(samples), min(samples), max(samples))


@dataclass(frozen=True)
class Entry:
    """A contestant.

    step       seconds per training step, batches and losses included; `rounds` are its samples in order
    native     ours: of a step's native code alone; None for peers
    logged     ours: of a step of `alphac run`, which also writes metrics
    start      seconds from the start of a process to its first finished step: nothing cached (a peer), or out of a
               bundle (ours)
    restart    a peer's, when its framework's compile cache is warm
    loading    what of a start its data took
    peak       bytes of memory
    losses     of the first steps
    """

    name: str
    peer: bool
    step: Spread
    rounds: tuple[float, ...]
    native: Spread | None
    logged: Spread | None
    start: Spread | None
    restart: float | None
    loading: float
    peak: int
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """A kernel of the step, or a region with all its kernels. `percent` is how near it comes to the machine's limit."""

    name: str
    region: str
    op: str
    span: str
    calls: int
    seconds: float
    share: float
    gflops: float
    gbytes: float
    percent: float


@dataclass(frozen=True)
class Contest:
    """Everything with so many threads. `kernels` and `regions` are empty unless asked for."""

    threads: int
    entries: tuple[Entry, ...]
    peak_gflops: float
    bandwidth_gbytes: dict[int, float]
    limit_seconds: float
    kernels: tuple[Row, ...]
    regions: tuple[Row, ...]

    @property
    def ours(self) -> Entry:
        return next(e for e in self.entries if not e.peer)

    @property
    def best_peer(self) -> Entry | None:
        return min((e for e in self.entries if e.peer), key=lambda e: e.step.median, default=None)

    @property
    def leanest_peer(self) -> Entry | None:
        return min((e for e in self.entries if e.peer), key=lambda e: e.peak, default=None)

    def ratio(self, entry: Entry) -> Spread:
        """An entry's time over ours, round by round: above 1, ours is faster."""
        paired = [theirs / ours for theirs, ours in zip(entry.rounds, self.ours.rounds, strict=True)]
        return Spread(entry.step.median / self.ours.step.median, min(paired), max(paired))

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        best, leanest = self.best_peer, self.leanest_peer
        if best is not None and leanest is not None:
            found |= {
                "best_peer": best.name,
                "ratio_to_best_peer": self.ratio(best).median,
                "ratio_spread": [self.ratio(best).least, self.ratio(best).most],
                "leanest_peer": leanest.name,
                "memory_to_leanest_peer": self.ours.peak / leanest.peak,
            }
        return found


@dataclass(frozen=True)
class Compiling:
    """Seconds of `alphac compile`: nothing cached, everything cached."""

    cold: float
    cached: float


@dataclass(frozen=True)
class Report:
    """One run of `alphac bench`. flops and bytes are a step's; `losses_apart` is the largest relative distance between
    a first loss of ours and of a peer, over `losses_compared` steps."""

    system: str
    target: str
    settings: tuple[str, ...]
    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    compiling: Compiling | None
    flops: float
    bytes: float
    kernels: int
    losses_compared: int
    losses_apart: float
    contests: tuple[Contest, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "contests": [contest.as_dict() for contest in self.contests]}
