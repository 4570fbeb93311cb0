"""The search for the best data plan of a large fleet: class by class.

Endpoints that are alike (what they take for a shard, memory, link to the role in the middle) are one class. If a
step's slowest role may take a time t, a role of a class can own so many shards; how many roles of each class are taken,
so that all shards have an owner and talking costs least, is an integer program of as many variables as there are
classes. The best t is sought among the times that roles of each class can take.

before: 10,000 endpoints of 6 kinds, 1,024 shards     after: 310 of the fastest kind own 3 shards each, 94 of the next 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from alphac.ir.fleet import Endpoint
from alphac.ir.passes.plan import Owner, Pricer

TIMES = 96  # that are tried for the slowest role
Talk = Callable[[Endpoint], tuple[float, bool]]
Memory = Callable[[Endpoint], tuple[float, float]]


@dataclass(frozen=True)
class Class:
    """Endpoints that are alike: a role's seconds are `start` and so much more for each shard, of which it can own
    `most`; `talk`: what one more of them costs the role in the middle."""

    members: tuple[Endpoint, ...]
    start: float
    slope: float
    talk: float
    most: int

    def within(self, seconds: float) -> int:
        """How many shards a role can own if it may take so long."""
        if self.start + self.slope > seconds * (1 + 1e-12):
            return 0
        return min(self.most, int((seconds * (1 + 1e-12) - self.start) / self.slope) if self.slope else self.most)


def solve_by_class(
    pricer: Pricer, endpoints: Sequence[Endpoint], root: Endpoint, talk: Talk, memory: Memory
) -> list[Owner] | None:
    """Shards for a star around `root`; None if there is no plan. `talk`: what one more role costs, and whether it can
    be in the star; `memory`: bytes of a role as a line."""
    shards = pricer.system.shards
    made = [_class_of(pricer, [root], talk, memory)]
    made += [_class_of(pricer, members, talk, memory) for members in _alike(pricer, endpoints, root, talk)]
    classes = [c for c in made if c is not None]
    if not classes or classes[0].members[0] is not root:
        return None
    best: tuple[float, list[int], list[int]] | None = None
    for seconds in _times(classes, shards):
        able = [c.within(seconds) for c in classes]
        taken = _taken(classes, able, shards) if able[0] else None
        if taken is not None:
            total = seconds + sum(c.talk * n for c, n in zip(classes, taken, strict=True))
            best = min(best, (total, taken, able)) if best else (total, taken, able)
    return None if best is None else _dealt(classes, best[1], best[2], shards)


def _alike(pricer: Pricer, endpoints: Sequence[Endpoint], root: Endpoint, talk: Talk) -> Iterable[list[Endpoint]]:
    groups: dict[Hashable, list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint is not root:
            cost, reachable = talk(endpoint)
            if reachable:
                own = (pricer.kind(endpoint), endpoint.threads, _memory_of(pricer, endpoint), cost)
                groups.setdefault(own, []).append(endpoint)
    return groups.values()


def _memory_of(pricer: Pricer, endpoint: Endpoint) -> int:
    """Bytes that surely are there for an endpoint: those of a domain in equal parts."""
    return min(endpoint.memory, pricer.fleet.capacity(endpoint.domain) // pricer.fleet.sharing(endpoint.domain))


def _class_of(pricer: Pricer, members: Sequence[Endpoint], talk: Talk, memory: Memory) -> Class | None:
    first, shards = members[0], pricer.system.shards
    one, whole = pricer.role_seconds(first, 1)[0], pricer.role_seconds(first, shards)[0]
    slope = (whole - one) / max(1, shards - 1)
    base, each = memory(first)
    room = _memory_of(pricer, first) - base
    most = min(shards, int(room // each) if each else shards) if room > 0 else 0
    if most < 1 or not math.isfinite(slope):
        return None
    return Class(tuple(members), one - slope, slope, talk(first)[0], most)


def _times(classes: Sequence[Class], shards: int) -> list[float]:
    """Times worth trying: of roles with so many shards as a plan may give them."""
    found = {c.start + c.slope * n for c in classes for n in range(1, min(c.most, shards) + 1)}
    ordered = sorted(found)
    least = next((t for t in ordered if sum(c.within(t) * len(c.members) for c in classes) >= shards), math.inf)
    useful = [t for t in ordered if t >= least]
    step = max(1, len(useful) // TIMES)
    return useful[: TIMES // 2] + useful[TIMES // 2 :: step]


def _taken(classes: Sequence[Class], able: Sequence[int], shards: int) -> list[int] | None:
    """How many roles of each class can own so many shards between them that talk least; the first class is taken."""
    optimize: Any = import_module("scipy.optimize")
    sizes = [len(c.members) if n else 0 for c, n in zip(classes, able, strict=True)]
    if sum(n * size for n, size in zip(able, sizes, strict=True)) < shards:
        return None
    low = np.zeros(len(classes))
    low[0] = 1
    # Among plans that talk as much, the one with the fewest roles.
    cost = np.array([c.talk for c in classes])
    cost = cost / max(1e-12, cost.max()) + 1e-6
    answer: Any = optimize.milp(
        cost,
        constraints=optimize.LinearConstraint(np.array([able], float), shards, np.inf),
        bounds=optimize.Bounds(low, np.array(sizes, float)),
        integrality=np.ones(len(classes)),
    )
    return None if answer.x is None else [round(x) for x in answer.x]


def _dealt(classes: Sequence[Class], taken: Sequence[int], able: Sequence[int], shards: int) -> list[Owner]:
    """Who owns how many: what is too much is taken from whoever takes longest."""
    counts = [[n] * size for n, size in zip(able, taken, strict=True)]
    excess = sum(map(sum, counts)) - shards
    while excess:
        k = max((k for k in range(len(classes)) if any(n > 1 for n in counts[k])), default=None,
                key=lambda k: classes[k].start + classes[k].slope * max(counts[k]))  # fmt: skip
        if k is None:
            break
        most = max(counts[k])
        at = [i for i, n in enumerate(counts[k]) if n == most][:excess]
        for i in at:
            counts[k][i] -= 1
        excess -= len(at)
    for own in reversed(counts[1:]):
        del own[len(own) - min(len(own), excess) :]
        excess = sum(map(sum, counts)) - shards
    owners = [(e, n) for c, own in zip(classes, counts, strict=True) for e, n in zip(c.members, own, strict=False)]
    return [owners[0], *sorted(owners[1:], key=lambda owner: -owner[1])]
