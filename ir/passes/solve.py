"""The search for the best plan of a described fleet.

Who takes part and with how many shards is a small mixed-integer program, solved by HiGHS for each role that may be in
the middle: minimize t + Σ talk(k) taking(k), where t is at least every taker's time, all shards are dealt out, and
memory suffices. It takes a role's time as linear in its shards and knows nothing of how ranges lie in the tree, so
its answer is improved under the exact model by small moves. Pipelines are cut by dynamic programming for each order of
endpoints. Large fleets are solved class by class (`solve_classes.py`).

before: a System of 32 shards, a Fleet of a fast and a slow endpoint
after:  Placements, best first: data on both (24 + 8 shards), …; and why the other kinds cannot be
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import import_module
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.ir.fleet import Endpoint, Fleet
from alphac.ir.passes.place import PlacementError, deal, place
from alphac.ir.passes.plan import KINDS, Misfit, Owner, Placement, Pricer, System, rates_of, unit_seconds
from alphac.ir.passes.solve_classes import solve_by_class

FEW = 4  # endpoints whose orders are all tried for pipelines
MANY = 8  # roles that are tried in the middle, and numbers of sharded roles
PIECES = 1.5  # subtrees that a range is taken for before it has a place
ROUNDS = 200  # of improvements
LARGE = 48  # endpoints of a fleet that is solved endpoint by endpoint, at most


@dataclass(frozen=True)
class Found:
    """The best plan of each kind that fits, best first, and why others do not. `beaten`: plans that anybody would try:
    equal shares, one endpoint alone."""

    placements: tuple[Placement, ...]
    misfits: dict[str, str]
    beaten: tuple[Placement, ...] = ()

    @property
    def best(self) -> Placement | None:
        return self.placements[0] if self.placements else None

    @property
    def executed(self) -> Placement | None:
        """The best one that this version executes."""
        return next((p for p in self.placements if p.executable), None)


def search(system: System, fleet: Fleet, endpoints: Sequence[Endpoint] | None = None) -> Found:
    """The best plans. `endpoints`: those admitted, all of the fleet if left out."""
    pricer = Pricer(system, fleet)
    able = tuple(fleet.endpoints if endpoints is None else endpoints)
    makers = {"data": _data, "sharded": _sharded, "pipeline": _pipeline, "tensor": _tensor}
    placements: list[Placement] = []
    misfits: dict[str, str] = {}
    chosen = able if len(able) <= LARGE else _fastest(pricer, able)
    for kind in KINDS:
        made = makers[kind](pricer, able if kind == "data" else chosen)
        if isinstance(made, Placement):
            placements.append(made)
        else:
            misfits[kind] = made.reason
    placements.sort(key=lambda p: (p.total, not p.executable))
    taken = {tuple((p.endpoint, p.owns) for p in plan.parts) for plan in placements}
    beaten = [p for p in _obvious(pricer, able) if tuple((q.endpoint, q.owns) for q in p.parts) not in taken]
    return Found(tuple(placements), misfits, tuple(beaten))


def search_regions(
    system: System, fleet: Fleet, endpoints: Sequence[Endpoint], able: Sequence[Collection[str]]
) -> Found:
    """The best plan of a system whose strands not everybody may own; `able`: for each strand, the names of those who
    may. Shards are dealt out to all, then endpoints left out as long as that helps, and shards handed on."""
    pricer = Pricer(system, fleet)
    best: Placement | Misfit | None = None
    for root in _roots(pricer, endpoints):
        chosen = [root, *(e for e in endpoints if e is not root)]
        found = _dealt(pricer, chosen, able)
        while True:
            fewer = [[e for e in chosen if e is not out] for out in chosen[1:]]
            made = [(_dealt(pricer, few, able), few) for few in fewer]
            other, few = min(made, key=lambda m: _total(m[0]), default=(found, chosen))
            if _total(other) >= _total(found):
                break
            found, chosen = other, few
        if isinstance(found, Placement):
            found = _handed_on(pricer, found, able)
        best = _better(best, found)
    if isinstance(best, Placement):
        return Found((best,), {})
    return Found((), {"data": best.reason if best else "the fleet has no admitted endpoint"})


def _handed_on(pricer: Pricer, found: Placement, able: Sequence[Collection[str]]) -> Placement:
    """A better plan by small moves, as long as there are any: shards of one strand to another role, places swapped."""
    for _ in range(ROUNDS):
        roles = [(pricer.fleet.endpoint(part.endpoint), part.owned) for part in found.parts]
        priced = (pricer.regions([e for e, _ in made], [own for _, own in made]) for made in _regional(roles, able))
        other = min((p for p in priced if isinstance(p, Placement)), key=_total, default=found)
        if other.total >= found.total:
            break
        found = other
    return found


Regional = list[tuple[Endpoint, tuple[int, ...]]]  # roles, and what they own of each strand


def _regional(roles: Regional, able: Sequence[Collection[str]]) -> Iterator[Regional]:
    count, strands = len(roles), range(len(able))
    for i in range(count):
        for j in range(i):
            swapped = list(roles)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            yield swapped
        for j, strand in ((j, s) for j in range(count) for s in strands):
            if i == j or roles[j][0].name not in able[strand]:
                continue
            owned = roles[i][1][strand]
            for step in {1 << k for k in range(owned.bit_length()) if 1 << k <= owned} | {owned} - {0}:
                by = {i: -step, j: step}
                made = [
                    (e, tuple(n + by.get(k, 0) * (s == strand) for s, n in enumerate(own)))
                    for k, (e, own) in enumerate(roles)
                ]
                yield [role for role in made if any(role[1])]


def _dealt(pricer: Pricer, endpoints: Sequence[Endpoint], able: Sequence[Collection[str]]) -> Placement | Misfit:
    """Endpoints in this order, each with what it may own."""
    if not all(any(e.name in names for e in endpoints) for names in able):
        return Misfit("a region has no owner")
    seconds = [
        [pricer.strand_seconds(e, s) if e.name in names else None for e in endpoints] for s, names in enumerate(able)
    ]
    try:
        shares = deal(pricer.system.shards, seconds)
    except PlacementError as error:
        return Misfit(str(error))
    return pricer.regions(endpoints, [tuple(share.shards for share in own) for own in shares])


def _obvious(pricer: Pricer, endpoints: Sequence[Endpoint]) -> Iterator[Placement]:
    """What one would try without a search."""
    shards = pricer.system.shards
    named = [(f"{e.name} alone", [(e, shards)]) for e in endpoints[:MANY]]
    if 1 < len(endpoints) <= shards:
        named.append(("equal shares", list(zip(endpoints, _equal(shards, len(endpoints)), strict=True))))
    for note, owners in named:
        made = pricer.data(owners)
        if isinstance(made, Placement):
            yield replace(made, note=note)


def _equal(shards: int, count: int) -> list[int]:
    return [share.shards for share in place(shards, [Fraction(1)] * count)]


def _better(best: Placement | Misfit | None, other: Placement | Misfit) -> Placement | Misfit:
    if isinstance(other, Placement) and (not isinstance(best, Placement) or other.total < best.total):
        return other
    return other if best is None else best


# ---------------------------------------------------------------------- shards
def _fastest(pricer: Pricer, endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """The fastest of a large fleet: for kinds of plans that take few roles."""
    ranked = sorted(endpoints, key=lambda e: pricer.role_seconds(e, pricer.system.shards)[0])
    return tuple(ranked[:MANY])


def _data_by_class(pricer: Pricer, endpoints: Sequence[Endpoint]) -> Placement | Misfit:
    best: Placement | Misfit | None = None
    for endpoint in _fastest(pricer, endpoints)[:1]:
        best = _better(best, pricer.data([(endpoint, pricer.system.shards)]))
    for root in _roots(pricer, endpoints):
        owners = solve_by_class(
            pricer, endpoints, root, lambda e, r=root: _talk(pricer, e, r), lambda e: _memory(pricer, e)
        )
        if owners and len(owners) <= LARGE // 2:
            owners = _improved(pricer, [e for e, _ in owners], owners, sharded=False)
        best = _better(best, pricer.data(owners)) if owners else best
    return best if best is not None else Misfit("the fleet has no admitted endpoint")


def _data(pricer: Pricer, endpoints: Sequence[Endpoint]) -> Placement | Misfit:
    if len(endpoints) > LARGE:
        return _data_by_class(pricer, endpoints)
    best: Placement | Misfit | None = None
    starts = [[(e, pricer.system.shards)] for e in endpoints]
    for root in _roots(pricer, endpoints) if len(endpoints) > 1 else ():
        starts += [owners] if (owners := _solve(pricer, endpoints, root)) else []
    for owners in starts:
        best = _better(best, pricer.data(owners))
    ranked = sorted(starts, key=lambda o: _total(pricer.data(o)))
    for owners in ranked[:3]:
        best = _better(best, pricer.data(_improved(pricer, endpoints, owners, sharded=False)))
    return best if best is not None else Misfit("the fleet has no admitted endpoint")


def _sharded(pricer: Pricer, endpoints: Sequence[Endpoint]) -> Placement | Misfit:
    best: Placement | Misfit | None = None
    counts = range(2, min(len(endpoints), pricer.system.shards) + 1)
    for count in list(counts)[:MANY] + list(counts)[MANY:][-1:]:
        owners = _solve(pricer, endpoints, None, count)
        if owners:
            best = _better(best, pricer.data(_improved(pricer, endpoints, owners, sharded=True), sharded=True))
    return best if best is not None else Misfit("it takes two endpoints that are linked")


def _roots(pricer: Pricer, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Who may be in the middle: those with the best links; of a large fleet, among those with most of them."""
    likely = endpoints
    if len(endpoints) > LARGE:
        kinds: dict[object, Endpoint] = {}
        for endpoint in sorted(endpoints, key=pricer.fleet.degree, reverse=True):
            kinds.setdefault((pricer.fleet.degree(endpoint), pricer.kind(endpoint)), endpoint)
        likely = list(kinds.values())[: 2 * MANY]

    def reach(one: Endpoint) -> tuple[float, float]:
        links = [pricer.fleet.link(one, other) for other in endpoints if other is not one]
        seconds = sum(l.seconds(pricer.system.message) if l else 1e9 for l in links)
        return round(seconds, 9), pricer.role_seconds(one, pricer.system.shards)[0]

    return sorted(likely, key=reach)[: MANY if likely is endpoints else MANY // 2]


def _solve(
    pricer: Pricer, endpoints: Sequence[Endpoint], root: Endpoint | None, count: int | None = None
) -> list[Owner] | None:
    """Shards for a star around `root`, or for `count` roles with a sharded optimizer; None if there is no plan.

    Variables: taking part (0 or 1) and shards of each endpoint, then t."""
    optimize: Any = import_module("scipy.optimize")  # only where there is something to solve; it has no types
    sparse: Any = import_module("scipy.sparse")

    system, number = pricer.system, len(endpoints)
    shards, share = system.shards, 1 / count if count else 1.0
    rows: list[dict[int, float]] = []
    low: list[float] = []
    high: list[float] = []
    scale = 1 / max(1e-12, pricer.role_seconds(endpoints[0], shards)[0])  # seconds as a fraction of one's alone

    def constrain(row: dict[int, float], least: float, most: float) -> None:
        rows.append(row)
        low.append(least)
        high.append(most)

    talk = np.zeros(number)
    for k, endpoint in enumerate(endpoints):
        talk[k], reachable = _talk(pricer, endpoint, root)
        small, large = pricer.role_seconds(endpoint, 1), pricer.role_seconds(endpoint, shards)
        slope = (large[0] - small[0]) / max(1, shards - 1)
        start = small[0] - slope - small[1] * (1 - share)
        able = math.isfinite(slope) and reachable
        memory = _memory(pricer, endpoint)
        most = min(shards, int((endpoint.memory - memory[0]) // memory[1]) if memory[1] else shards)
        if not able or most < 1:
            constrain({k: 1}, 0, 0)
            constrain({number + k: 1}, 0, 0)
            continue
        # t is not less than its time; shards only if it takes part, and then at least one
        constrain({k: start * scale, number + k: slope * scale, 2 * number: -1}, -np.inf, 0)
        constrain({k: most, number + k: -1}, 0, np.inf)
        constrain({k: -1, number + k: 1}, 0, np.inf)
        if endpoint is root:
            constrain({k: 1}, 1, 1)
    domains: dict[str, dict[int, float]] = {}
    for k, endpoint in enumerate(endpoints):
        row = domains.setdefault(endpoint.domain, {})
        row[k], row[number + k] = _memory(pricer, endpoint)
    for domain, row in domains.items():
        constrain(row, 0, pricer.fleet.capacity(domain))
    constrain({number + k: 1 for k in range(number)}, shards, shards)
    if count:
        constrain(dict.fromkeys(range(number), 1), count, count)
    bounds = optimize.Bounds(0, np.array([1] * number + [shards] * number + [np.inf], float))
    whole = np.array([1] * (2 * number) + [0])
    cost = np.concatenate([talk * scale, np.zeros(number), [1.0]])
    places = ([r for r, row in enumerate(rows) for _ in row], [column for row in rows for column in row])
    values = [value for row in rows for value in row.values()]
    matrix = sparse.csr_array((values, places), shape=(len(rows), 2 * number + 1))
    answer: Any = optimize.milp(
        cost, constraints=optimize.LinearConstraint(matrix, low, high), bounds=bounds, integrality=whole
    )
    if answer.x is None:
        return None
    taken = [(e, round(answer.x[number + k])) for k, e in enumerate(endpoints) if round(answer.x[number + k])]
    return sorted(taken, key=lambda owner: (owner[0] is not root, -owner[1]))


def _talk(pricer: Pricer, endpoint: Endpoint, root: Endpoint | None) -> tuple[float, bool]:
    """What one more role in a star costs, and whether it can be in it."""
    if root is None or endpoint is root:
        return 0.0, True
    link = pricer.fleet.link(root, endpoint)
    if link is None:
        return 0.0, False
    seconds = 0.0
    for exchange in pricer.system.work.exchanges:
        moved = exchange.bytes * (1 + PIECES)
        one = (
            link.seconds(moved) + link.latency + rates_of(root).exchange + PIECES * exchange.bytes * rates_of(root).fold
        )
        seconds += exchange.rounds * one
    return seconds, True


def _memory(pricer: Pricer, endpoint: Endpoint) -> tuple[float, float]:
    """Bytes of a role as a line: to take part, and per shard; not less than what it needs."""
    system = pricer.system
    one, most = system.arena(1), system.arena(system.shards)
    shard = (most - one) / max(1, system.shards - 1)
    return one - shard + system.scratch * endpoint.threads + system.data, shard


def _improved(pricer: Pricer, endpoints: Sequence[Endpoint], owners: list[Owner], sharded: bool) -> list[Owner]:
    """Better owners by small moves, as long as there are any."""
    best, total = owners, _total(pricer.data(owners, sharded=sharded))
    for _ in range(ROUNDS):
        found, least = min(
            ((o, _total(pricer.data(o, sharded=sharded))) for o in _moves(endpoints, best)),
            key=lambda pair: pair[1],
            default=(best, total),
        )
        if least >= total:
            break
        best, total = found, least
    return best


def _total(priced: Placement | Misfit) -> float:
    return priced.total if isinstance(priced, Placement) else math.inf


def _moves(endpoints: Sequence[Endpoint], owners: list[Owner]) -> Iterator[list[Owner]]:
    """Shards handed on; places swapped; an endpoint left out, replaced or taken in."""
    count = len(owners)
    unused = [e for e in endpoints if all(e is not o for o, _ in owners)]
    for i in range(count):
        for j in range(count):
            if i == j:
                continue
            step = 1
            while step < owners[i][1]:
                yield [(e, n + step * (k == j) - step * (k == i)) for k, (e, n) in enumerate(owners)]
                step *= 2
            left = owners[i][1]
            yield [(e, n + left * (k == j)) for k, (e, n) in enumerate(owners) if k != i]
            if i < j:
                swapped = list(owners)
                swapped[i], swapped[j] = swapped[j], swapped[i]
                yield swapped
        for other in unused:
            yield [(other if k == i else e, n) for k, (e, n) in enumerate(owners)]
            step = 1
            while step < owners[i][1]:
                kept = [(e, n - step * (k == i)) for k, (e, n) in enumerate(owners)]
                yield [*kept, (other, step)]
                yield [(other, step), *kept]
                step *= 2


# ---------------------------------------------------------------------- pipelines, tensors
def _pipeline(pricer: Pricer, endpoints: Sequence[Endpoint]) -> Placement | Misfit:
    units = pricer.system.units
    if len(units) < 2 or len(endpoints) < 2:
        return Misfit("it takes two endpoints, and a region with two parts")
    fast = sorted(endpoints, key=lambda e: sum(unit_seconds(u, rates_of(e)) for u in units))
    best: Placement | Misfit | None = None
    for count in range(2, min(len(fast), len(units)) + 1):
        orders = permutations(fast, count) if len(fast) <= FEW else [tuple(fast[:count])]
        for order in orders:
            for owners in _cuts(pricer, order):
                best = _better(best, pricer.pipeline(owners))
    return best if best is not None else Misfit("no way of cutting it fits")


def _cuts(pricer: Pricer, order: Sequence[Endpoint]) -> Iterator[list[Owner]]:
    """For each bound on the slowest stage, the cut with the least sum of stages."""
    units, stages = pricer.system.units, len(order)
    sums = [np.concatenate([[0.0], np.cumsum([unit_seconds(u, rates_of(e)) for u in units])]) for e in order]
    bounds = sorted({float(s[j] - s[i]) for s in sums for i in range(len(units)) for j in range(i + 1, len(units) + 1)})
    seen: set[tuple[int, ...]] = set()
    for bound in bounds:
        cut = _cut(sums, len(units), stages, bound)
        if cut is not None and cut not in seen:
            seen.add(cut)
            yield list(zip(order, cut, strict=True))


def _cut(sums: Sequence[npt.NDArray[np.float64]], units: int, stages: int, bound: float) -> tuple[int, ...] | None:
    """Units per stage, no stage above the bound, their sum least."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for k in range(stages):
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for begin, (total, taken) in best.items():
            for end in range(begin + 1, units - (stages - k - 1) + 1):
                one = float(sums[k][end] - sums[k][begin])
                if one > bound * (1 + 1e-12):
                    break
                if end not in following or total + one < following[end][0]:
                    following[end] = (total + one, (*taken, end - begin))
        best = following
    return best[units][1] if units in best else None


def _tensor(pricer: Pricer, endpoints: Sequence[Endpoint]) -> Placement | Misfit:
    best: Placement | Misfit | None = None
    shards = pricer.system.shards
    fast = sorted(endpoints, key=lambda e: pricer.role_seconds(e, shards)[0])
    for count in range(2, len(fast) + 1):
        speeds = [1 / max(1e-12, pricer.role_seconds(e, shards)[0]) for e in fast[:count]]
        parts = [max(1, int(256 * s / sum(speeds))) for s in speeds]
        parts[0] += 256 - sum(parts)
        best = _better(best, pricer.tensor(list(zip(fast[:count], parts, strict=True))))
    return best if best is not None else Misfit("it takes two endpoints")
