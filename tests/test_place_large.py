"""Placement of large fleets, class by class."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from test_place import fleet_of, system_of

from alphac.fleet import read_fleet
from alphac.ir.fleet import Endpoint, Fleet, Host, Link, assumed
from alphac.ir.passes.plan import Misfit, Placement, Pricer
from alphac.ir.passes.solve import LARGE, search

SPEEDS = (40, 60, 90, 150, 220, 400)  # GFLOP/s of six kinds
SITE = Link(("site", "site"), rate=5e9, latency=2e-5)


def large(count: int, shards_memory: int = 1 << 32) -> Fleet:
    """So many endpoints of six kinds, each on a host of its own, all of one site."""
    rates = [assumed({"f32": s * 1e9}, s * 1e8) for s in SPEEDS]
    hosts = tuple(Host(f"h{k}", shards_memory, domains=("site",)) for k in range(count))
    ends = tuple(
        Endpoint(f"e{k}", host=h.name, memory=h.memory, domain=h.name, rates=rates[k % len(rates)])
        for k, h in enumerate(hosts)
    )
    return Fleet(ends, hosts, (SITE,))


def taken(fleet: Fleet, plan: Placement) -> Counter[str]:
    """How many roles there are of each speed."""
    return Counter(f"{1e-9 * 2 / fleet.endpoint(p.endpoint).rates.fma['f32']:.0f}" for p in plan.parts)  # pyright: ignore


def test_a_large_fleet_is_shared_by_its_fastest() -> None:
    fleet, system = large(10_000), system_of(512, compute=3e9, message=1 << 12)
    best = search(system, fleet).executed
    assert best is not None and sum(p.owns for p in best.parts) == 512
    kinds = taken(fleet, best)
    assert kinds["400"] == max(kinds.values())
    assert best.total < 0.2 * alone(system, fleet)


def alone(system: object, fleet: Fleet) -> float:
    """What the fastest takes by itself."""
    made = Pricer(system, fleet).data([(fleet.endpoints[5], 512)])  # pyright: ignore[reportArgumentType]
    assert not isinstance(made, Misfit)
    return made.total


@pytest.mark.slow
def test_two_hundred_thousand_endpoints() -> None:
    fleet, system = large(200_000), system_of(1024, compute=3e9, message=1 << 10)
    best = search(system, fleet).executed
    assert best is not None and sum(p.owns for p in best.parts) == 1024


@pytest.mark.slow
@pytest.mark.parametrize("message", [1 << 10, 1 << 20])
def test_classes_find_what_endpoint_by_endpoint_is_found(message: int) -> None:
    """A fleet just too large to be solved endpoint by endpoint, against the same without those that nobody takes."""
    system = system_of(32, compute=1e9, message=message)
    fleet = large(LARGE + 6)
    best = search(system, fleet).executed
    fast = [e for e in fleet.endpoints if e.rates == fleet.endpoints[5].rates or e.rates == fleet.endpoints[4].rates]
    small = replace(fleet, endpoints=tuple(fast))
    exact = search(system, small).executed
    assert best is not None and exact is not None and best.total <= 1.1 * exact.total


def test_memory_bounds_what_a_role_of_a_large_fleet_owns() -> None:
    system = system_of(256, compute=3e9, message=1 << 16)
    fleet = large(LARGE * 4, system.arena(4) + (24 << 20))
    best = search(system, fleet).executed
    assert best is not None and max(p.memory for p in best.parts) <= fleet.endpoints[0].memory
    assert len(best.parts) > 16


def test_links_may_join_domains(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    hosts = "".join(f'[[host]]\nname = "h{k}"\nmemory = "8 GB"\ndomains = ["rack-{k % 2}"]\n' for k in range(4))
    ends = "".join(f'[[endpoint]]\nname = "e{k}"\nhost = "h{k}"\ncompute = {{ f32 = 100 }}\n' for k in range(4))
    links = "".join(
        f'[[link]]\nbetween = ["rack-{a}", "rack-{b}"]\nrate = {rate}\nlatency = 20\n'
        for a, b, rate in ((0, 0, 5), (1, 1, 5), (0, 1, 1))
    )
    path.write_text(hosts + ends + links)
    fleet = read_fleet(path)
    found = [fleet.link(fleet.endpoints[0], other) for other in fleet.endpoints[1:]]
    assert [link.rate for link in found if link] == [1e9, 5e9, 1e9]
    path.write_text((hosts + ends + links).replace('["rack-0", "rack-1"]', '["rack-0", "rack-2"]'))
    with pytest.raises(Exception, match=r"E210.*rack-2"):
        read_fleet(path)


def test_a_small_fleet_is_not_solved_by_class() -> None:
    assert len(fleet_of([100] * 3).endpoints) <= LARGE
