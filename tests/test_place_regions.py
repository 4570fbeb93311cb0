"""Plans of systems whose regions not everybody may run, against all such plans there are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import pytest
from test_place import fleet_of, kernel, system_of

from alphac.ir.fleet import Fleet
from alphac.ir.passes.plan import Placement, Pricer, System
from alphac.ir.passes.solve import search_regions
from alphac.ir.passes.work import ExchangeWork, Work


def generated(seed: int) -> tuple[System, Fleet, list[set[str]]]:
    """A system of two strands that meet in two exchanges, and a fleet of 2 or 3 endpoints, of which each strand may be
    run by some."""
    draw = random.Random(seed)
    count = draw.choice([2, 2, 3])
    shards = 4 if count == 3 else draw.choice([4, 6, 8])
    message = int(10 ** draw.uniform(4, 7))
    kernels = [
        replace(kernel(10 ** draw.uniform(6, 9)), strand=strand, round=round)
        for strand, round in ((0, 0), (1, 0), (draw.choice([0, 1]), 1))
    ]
    update = replace(kernel(message / 4, fixed=True), round=2)
    exchanges = (ExchangeWork(message, 1, 0), ExchangeWork(message // 2, 1, 1))
    system = replace(system_of(shards, message=message), work=Work((*kernels, update), exchanges))
    speeds = [10 ** draw.uniform(1.6, 2.6) for _ in range(count)]
    fleet = fleet_of(speeds, rate=10 ** draw.uniform(8, 10), latency=10 ** draw.uniform(-5, -3.5))
    names = [e.name for e in fleet.endpoints]
    able = [set(names), set(draw.sample(names, draw.randint(1, count)))]
    if draw.random() < 0.3:
        able[0] = set(draw.sample(names, draw.randint(1, count))) | (set(names) - able[1])
    return system, fleet, able


def dealt(shards: int, roles: int) -> Iterator[tuple[int, ...]]:
    """All ways to deal out shards, with nothing for some."""
    if roles == 1:
        yield (shards,)
        return
    for first in range(shards + 1):
        for rest in dealt(shards - first, roles - 1):
            yield (first, *rest)


def every_plan(system: System, fleet: Fleet, able: list[set[str]]) -> Iterator[Placement]:
    pricer = Pricer(system, fleet)
    for count in range(1, len(fleet.endpoints) + 1):
        for order in permutations(fleet.endpoints, count):
            ways = [
                [
                    w
                    for w in dealt(system.shards, count)
                    if all(e.name in a or not n for e, n in zip(order, w, strict=True))
                ]
                for a in able
            ]
            for both in product(*ways):
                owned = list(zip(*both, strict=True))
                if all(any(own) for own in owned):
                    made = pricer.regions(order, owned)
                    if isinstance(made, Placement):
                        yield made


@pytest.mark.parametrize("seed", range(30))
def test_the_chosen_plan_of_regions_is_within_two_percent_of_the_best(seed: int) -> None:
    system, fleet, able = generated(seed)
    best = min(plan.total for plan in every_plan(system, fleet, able))
    found = search_regions(system, fleet, fleet.endpoints, able).best
    assert found is not None and found.total <= 1.02 * best
    for strand, names in enumerate(able):
        assert sum(part.owned[strand] for part in found.parts) == system.shards
        assert all(part.endpoint in names for part in found.parts if part.owned[strand])
