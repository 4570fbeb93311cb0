"""Plans: who does which part of a system, and what a step of it costs under the model (docs/placement.md).

kind       a role                                                         executed
data       owns shards; state is replicated                               yes
regions    owns shards of those regions that it may; state is replicated  yes
sharded    owns shards, and a part of the optimizer's state               not yet: reduce-scatter, all-gather
pipeline   owns consecutive parts of a region, shards pass through        not yet: sends between stages
tensor     computes some leaves of every long contraction                 not yet: all-gather of partial sums
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from alphac.ir.fleet import Endpoint, Fleet, Link, Rates
from alphac.ir.passes.plan_memory import Owned, slots
from alphac.ir.passes.work import KernelWork, Work
from alphac.ir.schedule import subtrees

EXECUTABLE = ("data", "regions")
KINDS = ("data", "sharded", "pipeline", "tensor")  # of systems all of whose roles may run all of it
RUNTIME = 8 << 20  # bytes: the linker and the runtime's objects, and the last of the arena's huge pages


@dataclass(frozen=True)
class Unit:
    """A part of a region's forward pass that is not cut: its kernels; bytes of state that it reads; bytes per shard
    that it keeps for the way back, and that cross the cut behind it."""

    name: str
    kernels: tuple[KernelWork, ...]
    state: int
    kept: int
    boundary: int


@dataclass(frozen=True)
class System:
    """What placement must know of a system. `arena(n)`: bytes that a role of n shards computes in, states included,
    with room for as many subtrees as n shards may make; `nodes`: bytes of one subtree; `scratch`: bytes per thread;
    `data`: bytes of the files that every role reads; `draw`: rounds of the shuffle for a shard, in a step."""

    shards: int
    work: Work
    parameters: int
    optimizer: int
    states: int
    arena: Callable[[Owned], int]
    nodes: int = 0
    scratch: int = 0
    data: int = 0
    draw: float = 0.0
    units: tuple[Unit, ...] = ()

    @cached_property
    def message(self) -> int:
        """Bytes of the largest exchange."""
        return max((e.bytes for e in self.work.exchanges), default=0)


@dataclass(frozen=True)
class Price:
    """Seconds of a step by factor: computing on the slowest role, updating state that is replicated, copies on the way,
    bytes on links (and their sums), and meeting."""

    compute: float
    state: float = 0.0
    staging: float = 0.0
    rate: float = 0.0
    synchronization: float = 0.0

    @property
    def total(self) -> float:
        return self.compute + self.state + self.staging + self.rate + self.synchronization


@dataclass(frozen=True)
class Part:
    """One role of a plan. `owns`: how many shards, units or leaves, from `first` on; `seconds` of its own work in a
    step; `memory`: bytes at most; `owned`: its shards by strand, in a plan of regions."""

    endpoint: str
    first: int
    owns: int
    seconds: float
    memory: int
    owned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placement:
    """A plan and its price. `note`: what it is, if it is not the best of its kind."""

    kind: str
    parts: tuple[Part, ...]
    price: Price
    note: str = ""

    @property
    def executable(self) -> bool:
        return self.kind in EXECUTABLE

    @property
    def total(self) -> float:
        return self.price.total


@dataclass(frozen=True)
class Misfit:
    """Why a plan cannot be."""

    reason: str


Owner = tuple[Endpoint, int]


class Pricer:
    """Prices plans of one system on one fleet."""

    def __init__(self, system: System, fleet: Fleet) -> None:
        self.system, self.fleet = system, fleet
        self._seconds: dict[tuple[int, int], tuple[float, float]] = {}
        self._kinds: dict[str, int] = {}
        self._kind_of: dict[int, int] = {}

    def kind(self, endpoint: Endpoint) -> int:
        """A number that endpoints of equal rates have in common."""
        rates = rates_of(endpoint)
        if id(rates) not in self._kind_of:
            self._kind_of[id(rates)] = self._kinds.setdefault(repr(rates), len(self._kinds))
        return self._kind_of[id(rates)]

    def role_seconds(self, endpoint: Endpoint, shards: int) -> tuple[float, float]:
        """Of a role's step: all of it, and the part that does not depend on its shards."""
        key = (self.kind(endpoint), shards)
        if key not in self._seconds:
            rates, kernels = rates_of(endpoint), self.system.work.kernels
            fixed = sum(k.seconds(rates, shards) for k in kernels if k.fixed)
            own = self.system.work.seconds(rates, shards) + self.system.draw * shards * rates.draw
            self._seconds[key] = (rates.step + own, fixed)
        return self._seconds[key]

    # ------------------------------------------------------------------ data and sharded
    def data(self, owners: Sequence[Owner], *, sharded: bool = False) -> Placement | Misfit:
        """Shards dealt out in this order, the first role in the middle of the star. `sharded`: the optimizer's state is
        dealt out too, in equal parts."""
        system, count = self.system, len(owners)
        if sum(n for _, n in owners) != system.shards or min(n for _, n in owners) < 1:
            return Misfit("not every shard has one owner")
        if sharded and count < 2:
            return Misfit("it takes two roles to share the optimizer's state")
        firsts = [0, *accumulate(n for _, n in owners[:-1])]
        pieces = [len(subtrees(system.shards, f, n)) for f, (_, n) in zip(firsts, owners, strict=True)]
        alone = [self.role_seconds(e, n) for e, n in owners]
        share = 1 / count if sharded else 1.0
        each = [whole - fixed * (1 - share) for whole, fixed in alone]
        slowest = max(range(count), key=lambda k: each[k])
        links = self._links([e for e, _ in owners], sharded)
        if isinstance(links, Misfit):
            return links
        talk = (_ring if sharded else _star)(system, [e for e, _ in owners], links, [pieces])
        state = alone[slowest][1] * share
        price = Price(each[slowest] - state, state, *talk)
        if not math.isfinite(price.total):
            return Misfit(f"the rates of `{owners[slowest][0].name}` lack an element type")
        memory = [self.role_memory(owners, k, pieces, sharded) for k in range(count)]
        lacking = self._lacking([e for e, _ in owners], memory)
        if lacking is not None:
            return lacking
        return Placement("sharded" if sharded else "data", _parts(owners, firsts, each, memory), price)

    # ------------------------------------------------------------------ regions
    def regions(self, endpoints: Sequence[Endpoint], owned: Sequence[tuple[int, ...]]) -> Placement | Misfit:
        """Shards of each strand dealt out in this order; `owned[k]`: role k's, by strand. Between two exchanges the
        slowest role decides."""
        system, strands = self.system, range(len(owned[0]))
        links = self._links(endpoints, False)
        if isinstance(links, Misfit):
            return links
        pieces = [
            [len(subtrees(system.shards, sum(o[s] for o in owned[:k]), own[s])) if own[s] else 0
             for k, own in enumerate(owned)]
            for s in strands
        ]  # fmt: skip
        each = [self._round_seconds(e, own) for e, own in zip(endpoints, owned, strict=True)]
        slowest = sum(max(role.get(r, 0.0) for role in each) for r in set[int]().union(*each))
        state = max(self.role_seconds(e, 1)[1] for e in endpoints)
        step = max(rates_of(e).step for e in endpoints)
        price = Price(step + slowest - state, state, *_star(system, endpoints, links, pieces))
        if not math.isfinite(price.total):
            return Misfit("the rates of an endpoint lack an element type")
        arrived = [
            system.message * (1 if k else 2 + sum(map(sum, pieces))) * (len(owned) > 1) for k in range(len(owned))
        ]
        memory = [
            system.arena(own) + system.scratch * e.threads + system.data + more + RUNTIME
            for e, own, more in zip(endpoints, owned, arrived, strict=True)
        ]
        lacking = self._lacking(endpoints, memory)
        if lacking is not None:
            return lacking
        parts = tuple(
            Part(e.name, 0, sum(own), sum(role.values()), m, own)
            for e, own, role, m in zip(endpoints, owned, each, memory, strict=True)
        )
        return Placement("regions", parts, price)

    def _round_seconds(self, endpoint: Endpoint, owned: tuple[int, ...]) -> dict[int, float]:
        """A role's own work between exchanges, by how many of these come before."""
        rates = rates_of(endpoint)
        found = {0: self.system.draw * sum(owned) * rates.draw}
        for kernel in self.system.work.kernels:
            shards = 1 if kernel.strand is None else owned[kernel.strand]
            found[kernel.round] = found.get(kernel.round, 0.0) + (kernel.seconds(rates, shards) if shards else 0.0)
        return found

    def strand_seconds(self, endpoint: Endpoint, strand: int) -> float:
        """What one more shard of a strand takes."""
        rates, shards = rates_of(endpoint), self.system.shards
        own = [k for k in self.system.work.kernels if k.strand == strand]
        return sum(k.seconds(rates, shards) for k in own) / shards

    # ------------------------------------------------------------------ memory and links
    def role_memory(self, owners: Sequence[Owner], role: int, pieces: Sequence[int], sharded: bool = False) -> int:
        """Bytes at the peak: arena, but for subtrees that its range does not make; threads' scratch; data; what lies in
        communication buffers; and what the runtime itself takes."""
        system, (endpoint, shards) = self.system, owners[role]
        spared = system.optimizer * (len(owners) - 1) // len(owners) if sharded else 0
        arrived = 0
        if len(owners) > 1:
            # The root keeps all contributions until they are put together, in a tree of temporaries.
            arrived = system.message * (sum(pieces[1:]) + 2) if role == 0 and not sharded else system.message
        spared += system.nodes * (slots(shards) - pieces[role])  # never touched
        return system.arena(shards) - spared + system.scratch * endpoint.threads + system.data + arrived + RUNTIME

    def _links(self, endpoints: Sequence[Endpoint], all_pairs: bool) -> list[Link] | Misfit:
        """From the first to each other endpoint, or of every pair."""
        firsts = endpoints if all_pairs else endpoints[:1]
        found: list[Link] = []
        for i, one in enumerate(firsts):
            for other in endpoints[i + 1 :]:
                link = self.fleet.link(one, other)
                if link is None:
                    return Misfit(f"no link joins `{one.name}` and `{other.name}`")
                found.append(link)
        return found

    def _lacking(self, endpoints: Sequence[Endpoint], memory: Sequence[int]) -> Misfit | None:
        """Who would take more memory than there is: an endpoint, or those of one domain together."""
        domains: dict[str, int] = {}
        for endpoint, size in zip(endpoints, memory, strict=True):
            if size > endpoint.memory:
                return Misfit(f"`{endpoint.name}` would need {size:,} bytes of memory, it has {endpoint.memory:,}")
            domains[endpoint.domain] = domains.get(endpoint.domain, 0) + size
        for domain, size in domains.items():
            capacity = self.fleet.capacity(domain)
            if size > capacity:
                return Misfit(f"the roles on `{domain}` would need {size:,} bytes of memory, it has {capacity:,}")
        return None

    # ------------------------------------------------------------------ pipeline
    def pipeline(self, owners: Sequence[Owner]) -> Placement | Misfit:
        """Consecutive units dealt out in this order; shards pass one after another, forward and back."""
        system, count = self.system, len(owners)
        if sum(n for _, n in owners) != len(system.units) or min(n for _, n in owners) < 1:
            return Misfit("not every unit has one owner")
        endpoints = [e for e, _ in owners]
        stages: list[float] = []
        memory: list[int] = []
        rate = staging = 0.0
        latency = 0.0
        begin = 0
        for k, (endpoint, taken) in enumerate(owners):
            units = system.units[begin : begin + taken]
            stages.append(3 * sum(unit_seconds(u, rates_of(endpoint)) for u in units))
            memory.append(self._stage_memory(units))
            begin += taken
            if k + 1 < count:
                link = self.fleet.link(endpoint, endpoints[k + 1])
                if link is None:
                    return Misfit(f"no link joins `{endpoint.name}` and `{endpoints[k + 1].name}`")
                sent = 2.0 * units[-1].boundary
                rate += sent / link.rate
                staging += sent / link.staging if link.staging else 0.0
                latency += 2 * link.latency + rates_of(endpoint).exchange
        lacking = self._lacking(endpoints, memory)
        if lacking is not None:
            return lacking
        compute = sum(stages) + (system.shards - 1) * max(stages)
        updates = [self.role_seconds(e, 1)[1] * n / len(system.units) for e, n in owners]
        price = Price(
            compute + max(rates_of(e).step for e in endpoints), max(updates),
            staging * system.shards / count, rate * system.shards / count, latency * system.shards / count,
        )  # fmt: skip
        if not math.isfinite(price.total):
            return Misfit("an endpoint's rates lack an element type")
        firsts = [sum(n for _, n in owners[:k]) for k in range(count)]
        parts = zip(owners, firsts, stages, memory, strict=True)
        return Placement(
            "pipeline", tuple(Part(e.name, f, n, s * system.shards, m) for (e, n), f, s, m in parts), price
        )

    def _stage_memory(self, units: Sequence[Unit]) -> int:
        system = self.system
        states = system.parameters + system.optimizer
        copies = states / system.parameters if system.parameters else 1.0
        kept = sum(u.kept for u in units) * system.shards
        return int(sum(u.state for u in units) * (copies + 1)) + kept + system.data

    # ------------------------------------------------------------------ tensor
    def tensor(self, owners: Sequence[Owner]) -> Placement | Misfit:
        """Every contraction of several leaves is dealt out in proportion (of 256ths); all else is done by all."""
        system, count = self.system, len(owners)
        if sum(n for _, n in owners) != 256 or min(n for _, n in owners) < 1 or count < 2:
            return Misfit("not every leaf has one owner")
        endpoints = [e for e, _ in owners]
        links = self._links(endpoints, True)
        if isinstance(links, Misfit):
            return links
        split = [k for k in system.work.kernels if k.leaves >= count]
        if not split:
            return Misfit(f"no contraction has {count} leaves")
        each: list[float] = []
        for endpoint, part in owners:
            rates, whole = rates_of(endpoint), self.role_seconds(endpoint, system.shards)[0]
            spared = sum(
                k.seconds(rates, system.shards) * (1 - math.ceil(k.leaves * part / 256) / k.leaves) for k in split
            )
            each.append(whole - spared)
        slow = min(links, key=lambda l: l.rate)
        moved = sum(4.0 * k.tile.at(system.shards) / k.leaves * (count - 1) for k in split)
        meetings = sum(max(1.0, k.launches) for k in split) * (count - 1)
        fold = max(rates_of(e).fold for e in endpoints)
        price = Price(
            max(each), 0.0,
            moved / slow.staging if slow.staging else 0.0, moved / slow.rate + moved * fold,
            meetings * (max(l.latency for l in links) + max(rates_of(e).exchange for e in endpoints)),
        )  # fmt: skip
        memory = [system.arena(system.shards) + system.scratch * e.threads + system.data for e in endpoints]
        lacking = self._lacking(endpoints, memory)
        if lacking is not None:
            return lacking
        if not math.isfinite(price.total):
            return Misfit("an endpoint's rates lack an element type")
        firsts = [sum(n for _, n in owners[:k]) for k in range(count)]
        return Placement("tensor", _parts(owners, firsts, each, memory), price)


def _parts(
    owners: Sequence[Owner], firsts: Sequence[int], seconds: Sequence[float], memory: Sequence[int]
) -> tuple[Part, ...]:
    made = zip(owners, firsts, seconds, memory, strict=True)
    return tuple(Part(e.name, first, n, s, m) for (e, n), first, s, m in made)


def rates_of(endpoint: Endpoint) -> Rates:
    """The rates of an endpoint of a described fleet."""
    assert endpoint.rates is not None, f"endpoint {endpoint.name} has no rates"
    return endpoint.rates


def unit_seconds(unit: Unit, rates: Rates) -> float:
    """One shard through a unit, forward."""
    return sum(k.seconds(rates, 1) for k in unit.kernels)


Talk = tuple[float, float, float]  # seconds of staging, rate, synchronization


def _star(
    system: System, endpoints: Sequence[Endpoint], links: Sequence[Link], pieces: Sequence[Sequence[int]]
) -> Talk:
    """Every role's subtrees (`pieces`, by strand) to the root, one role after the other, and the sums back to each."""
    staging = rate = meeting = 0.0
    root = rates_of(endpoints[0])
    for exchange in system.work.exchanges if links else ():
        size, rounds = exchange.bytes, exchange.rounds
        counts = pieces[exchange.strand]
        for link, count in zip(links, counts[1:], strict=True):
            moved = rounds * size * (count + 1)
            staging += moved / link.staging if link.staging else 0.0
            rate += moved / link.rate
        rate += rounds * size * sum(counts) * root.fold
        meeting += rounds * (2 * max(l.latency for l in links) + len(links) * root.exchange)
    return staging, rate, meeting


def _ring(
    system: System, endpoints: Sequence[Endpoint], links: Sequence[Link], pieces: Sequence[Sequence[int]]
) -> Talk:
    """Reduce-scatter of gradients, all-gather of parameters, between every pair at once: the slowest link decides."""
    if not links:
        return 0.0, 0.0, 0.0
    count, slow = len(endpoints), min(links, key=lambda l: l.rate)
    away = (count - 1) / count
    gathered, (counts,) = system.parameters * away, pieces
    moved = gathered + sum(e.rounds * e.bytes * max(counts) * away for e in system.work.exchanges)
    folded = sum(e.rounds * e.bytes * sum(counts) / count for e in system.work.exchanges)
    meetings = (count - 1) * (1 + sum(e.rounds for e in system.work.exchanges))
    latency, overhead = max(l.latency for l in links), max(rates_of(e).exchange for e in endpoints)
    rate = moved / slow.rate + folded * max(rates_of(e).fold for e in endpoints)
    return moved / slow.staging if slow.staging else 0.0, rate, meetings * (latency + overhead)
