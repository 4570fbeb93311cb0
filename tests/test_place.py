"""Placement: the plan that is chosen, against all plans there are, and what it says of itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations

import pytest

from alphac.ir.fleet import Endpoint, Fleet, Host, Link, assumed
from alphac.ir.passes.plan import Owner, Placement, Pricer, System, Unit
from alphac.ir.passes.solve import search
from alphac.ir.passes.work import Amount, ExchangeWork, KernelWork, Work

GB = 10**9


def kernel(flops: float, *, fixed: bool = False, leaves: int = 1) -> KernelWork:
    """A contraction of so many multiply-adds per shard (or in all)."""
    amount = Amount(flops) if fixed else Amount(0, flops)
    result = amount.times(leaves / 256)
    return KernelWork("k", "contract", Amount(1), 1, "f32", leaves, amount, result, bytes=amount.times(1 / 64))


def system_of(shards: int, *, compute: float = 1e8, message: int = 1 << 20, parts: int = 3, leaves: int = 4) -> System:
    kernels = tuple(kernel(compute / parts, leaves=leaves) for _ in range(parts))
    update = kernel(message / 4, fixed=True)
    units = tuple(
        Unit(f"u{k}", (kernel(compute / parts / 3),), message // parts, 1 << 16, 1 << 14) for k in range(parts)
    )
    return System(
        shards,
        Work((*kernels, update), (ExchangeWork(message, 1),)),
        parameters=message,
        optimizer=2 * message,
        states=3 * message,
        arena=lambda n: 4 * message + (n if isinstance(n, int) else sum(n)) * (1 << 18),
        units=units,
    )


def fleet_of(speeds: Sequence[float], *, rate: float = 1e9, latency: float = 5e-5, memory: int = GB) -> Fleet:
    """An endpoint of so many GFLOP/s on a host of its own each, all linked."""
    hosts = tuple(Host(f"h{k}", memory) for k in range(len(speeds)))
    ends = tuple(
        Endpoint(f"e{k}", host=f"h{k}", memory=memory, domain=f"h{k}", rates=assumed({"f32": s * 1e9}, s * 1e8))
        for k, s in enumerate(speeds)
    )
    links = tuple(Link((a.name, b.name), rate, latency) for a, b in combinations(hosts, 2))
    return Fleet(ends, hosts, links)


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def every_plan(system: System, fleet: Fleet) -> Iterator[Placement]:
    """All plans of all kinds: who takes part, in which order, with how much."""
    pricer = Pricer(system, fleet)
    for count in range(1, len(fleet.endpoints) + 1):
        for order in permutations(fleet.endpoints, count):
            for taken in compositions(system.shards, count) if count <= system.shards else ():
                owners: list[Owner] = list(zip(order, taken, strict=True))
                yield from _fitting(pricer.data(owners), pricer.data(owners, sharded=True) if count > 1 else None)
            for taken in compositions(len(system.units), count) if 1 < count <= len(system.units) else ():
                yield from _fitting(pricer.pipeline(list(zip(order, taken, strict=True))))
            if count == 2:
                for first in range(1, 256, 5):
                    yield from _fitting(pricer.tensor(list(zip(order, (first, 256 - first), strict=True))))


def _fitting(*found: object) -> Iterator[Placement]:
    yield from (p for p in found if isinstance(p, Placement))


def generated(seed: int) -> tuple[System, Fleet]:
    """A system and a fleet of 2 to 4 endpoints, drawn from a wide range: some have slow links, little memory, staging,
    or share a host."""
    draw = random.Random(seed)
    count = draw.choice([2, 3, 3, 4])
    shards = draw.choice([4, 8]) if count == 4 else draw.choice([5, 8, 12])
    system = system_of(
        shards,
        compute=10 ** draw.uniform(7, 10.5),
        message=int(10 ** draw.uniform(4, 7.8)),
        parts=draw.choice([2, 3, 4]),
        leaves=draw.choice([1, 4]),
    )
    memory = int(system.arena(shards) * draw.choice([0.8, 1.5, 20]))
    memory += draw.choice([0, 6]) * system.message
    fleet = fleet_of([10 ** draw.uniform(1.6, 2.6) for _ in range(count)], memory=memory)
    links = tuple(
        replace(
            link,
            rate=10 ** draw.uniform(8, 10),
            latency=10 ** draw.uniform(-5, -3),
            staging=draw.choice([0.0, 2e9]),
        )
        for link in fleet.links
        if count < 3 or draw.random() < 0.9
    )
    ends = fleet.endpoints
    if draw.random() < 0.3:
        ends = (ends[0], replace(ends[1], host="h0", domain="h0"), *ends[2:])
    return system, Fleet(ends, fleet.hosts, links)


def test_generated_fleets_are_of_all_kinds() -> None:
    found = [search(*generated(seed)) for seed in range(30)]
    assert {f.best.kind for f in found if f.best} == {"data", "sharded", "pipeline"}
    assert {len(f.executed.parts) for f in found if f.executed} == {1, 2, 3, 4}
    assert any(f.best and not f.executed for f in found), "some fit by a plan alone that is not executed yet"


@pytest.mark.parametrize("seed", range(30))
def test_the_chosen_plan_is_within_two_percent_of_the_best(seed: int) -> None:
    system, fleet = generated(seed)
    best: dict[bool, float] = {}
    for plan in every_plan(system, fleet):
        for key in {False, plan.executable}:
            best[key] = min(best.get(key, plan.total), plan.total)
    found = search(system, fleet)
    assert (found.best is None) == (not best)
    assert (found.executed is None) == (True not in best)
    if found.best is not None:
        assert found.best.total <= 1.02 * best[False]
    if found.executed is not None:
        assert found.executed.total <= 1.02 * best[True]
