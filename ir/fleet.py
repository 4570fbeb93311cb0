"""A fleet: hosts, the endpoints on them, and the links between, as placement sees them.

Sizes are bytes, times seconds, rates per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

# Where bytes lie that were touched no more than so many others ago: in a core's first or second cache, or in one that
# is shared; behind them is `memory`.
CACHES = {"first": 24 << 10, "second": 1 << 20, "shared": 16 << 20}


@dataclass(frozen=True)
class Rates:
    """What one endpoint takes, in seconds, for each unit of a kernel's work: see `alphac.ir.passes.work`.

    step      once a step: the runtime's own work              exchange  once an exchange, beside its link
    launch    once a kernel                                     fma       a multiply-add of a contraction, by dtype
    flop      an operation of all else                          bytes     a byte, by where it comes from
    fold      a byte that an exchange's tree puts together      draw      a round of the shuffle, for each example
    counted   a unit of what code does, by kind, and `target`, whose code that is: of an endpoint that was calibrated
    """

    step: float
    exchange: float
    launch: float
    fma: Mapping[str, float]
    flop: float
    bytes: Mapping[str, float]
    fold: float
    draw: float
    counted: Mapping[str, float] = field(default_factory=dict[str, float])
    target: str = ""


def assumed(compute: Mapping[str, float], bandwidth: float) -> Rates:
    """Rates of an endpoint that was not calibrated: `compute` in flop/s by dtype, `bandwidth` in bytes/s.

    Contractions reach the rate that is declared, elementwise code an eighth of it (no multiply-adds, and functions take
    many operations for the one that they count as)."""
    best = compute.get("f32") or max(compute.values())
    return Rates(
        step=2e-4,
        exchange=1e-4,
        launch=2e-6,
        fma={dtype: 2 / rate for dtype, rate in compute.items()},
        flop=8 / best,
        bytes={"first": 0.0, "second": 0.25 / bandwidth, "shared": 0.5 / bandwidth, "memory": 1 / bandwidth},
        fold=4 / bandwidth,
        draw=1e-8,
    )


@dataclass(frozen=True)
class Host:
    """One machine. `memory`: of the machine, 0 if not said; `unified`: processors and accelerators share it. `domains`:
    what may fail and take the host with it, such as a rack."""

    name: str
    memory: int = 0
    unified: bool = False
    domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint:
    """One participant: a role runs on it.

    target     None: the compiling host's best
    speed      relative, for fleets that say no more
    host       "" in such fleets
    compute    flop/s by element type; empty if not said
    bandwidth  bytes/s from its memory; 0 if not said
    memory     bytes that it may take; 0: of a simple fleet, which does not say
    domain     the memory that these are part of: the host's name, or the endpoint's own
    threads    that its role runs on
    rates      as calibrated, or assumed of what is declared; None if neither is known
    """

    name: str
    target: str | None = None
    speed: Fraction = Fraction(1)
    host: str = ""
    compute: Mapping[str, float] = field(default_factory=dict[str, float])
    bandwidth: float = 0.0
    memory: int = 0
    domain: str = ""
    threads: int = 1
    rates: Rates | None = None
    calibrated: bool = False


@dataclass(frozen=True)
class Link:
    """A connection of two endpoints or hosts (or within one host). `staging`: bytes/s of a copy that comes on top on
    the way, 0 for none."""

    ends: tuple[str, str]
    rate: float
    latency: float
    staging: float = 0.0

    def seconds(self, size: float) -> float:
        """One message of `size` bytes."""
        return self.latency + size / self.rate + (size / self.staging if self.staging else 0.0)


LOOPBACK = Link(("", ""), rate=2e9, latency=3e-5)  # between roles on one host, unless it is measured or declared


@dataclass(frozen=True)
class Fleet:
    """Who may take part, in role order. `described`: endpoints say what they can do, so that placement decides."""

    endpoints: tuple[Endpoint, ...]
    hosts: tuple[Host, ...] = ()
    links: tuple[Link, ...] = ()

    @property
    def described(self) -> bool:
        return bool(self.hosts)

    def endpoint(self, name: str) -> Endpoint:
        return next(e for e in self.endpoints if e.name == name)

    def link(self, one: Endpoint, other: Endpoint) -> Link | None:
        """How two endpoints talk: by a link of their own, else one between their hosts, else over their one host's
        loopback; None if nothing joins them."""
        pairs = ({one.name, other.name}, {one.name, other.host}, {one.host, other.name}, {one.host, other.host})
        for pair in pairs:
            for link in self.links:
                if set(link.ends) == pair:
                    return link
        return LOOPBACK if one.host == other.host else None

    def capacity(self, domain: str) -> int:
        """Bytes of a memory domain."""
        for host in self.hosts:
            if host.name == domain:
                return host.memory
        return self.endpoint(domain).memory
