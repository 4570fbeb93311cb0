"""Fleet files: who may take part, and what each can do. TOML; docs/fleets.md is the format.

[[host]]                        [[endpoint]]                    [[link]]
name = "desk"                   name = "desk-cpu"               between = ["desk", "lap"]
memory = "64 GB"                host = "desk"                   rate = 1.2
                                target = "x86-64-v4"            latency = 50
                                compute = { f32 = 230 }
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from alphac.backends.registry import targets
from alphac.diagnostics import Diagnostic, Diagnostics
from alphac.fleet_table import Table
from alphac.ir.fleet import Endpoint, Fleet, Host, Link, assumed
from alphac.measured import Measured, read_measured
from alphac.toml_text import Toml, read_toml

__all__ = ["Endpoint", "Fleet", "Host", "Link", "read_fleet"]

HOST = ("name", "memory", "unified", "domains")
ENDPOINT = ("name", "target", "speed", "host", "threads", "compute", "bandwidth", "memory", "memory_domain")
DESCRIBES = ENDPOINT[3:]  # keys that only a file with hosts has
KINDS = {"host": "a host", "endpoint": "an endpoint", "link": "a link"}
LINK = ("between", "rate", "latency", "staging")
T = TypeVar("T")


def read_fleet(path: Path, *, unmeasured: bool = False) -> Fleet:
    """Read and check a fleet file, and what was measured of it. Raises Diagnostics with file, line and key.

    `unmeasured`: endpoints need not say how fast they are, for they are about to be measured."""
    toml = read_toml(path, missing="give an existing fleet file (TOML)", help="see docs/fleets.md for the format")
    return _Reader(toml, read_measured(path), unmeasured).run()


class _Reader:
    """Reads a file's tables; goes on after a mistake, so that all of them are told."""

    def __init__(self, toml: Toml, measured: Measured, unmeasured: bool) -> None:
        self.toml, self.measured, self.unmeasured = toml, measured, unmeasured
        self.found: list[Diagnostic] = []

    def run(self) -> Fleet:
        top = Table(self.toml, (), self.toml.content, "a fleet file")
        self._try(lambda: top.only(("endpoint", "host", "link")))
        hosts = self._tables("host", self._host)
        endpoints = self._tables("endpoint", lambda t: self._endpoint(t, {h.name: h for h in hosts}))
        names = dict.fromkeys((*(h.name for h in hosts), *(e.name for e in endpoints)))
        names |= dict.fromkeys(d for h in hosts for d in h.domains)
        links = self._tables("link", lambda t: self._link(t, names))
        if not self.found and not endpoints:
            self._refuse("E202", f"{self.toml.file} names no endpoint", "add at least one [[endpoint]] table")
        self._stop()
        fleet = Fleet(tuple(endpoints), tuple(hosts), (*links, *self.measured.links(hosts)))
        self._check_names(fleet)
        self._check_memory(fleet)
        self._check_links(fleet)
        self._stop()
        return fleet

    def _stop(self) -> None:
        if self.found:
            raise Diagnostics(self.found)

    def _try(self, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except Diagnostics as error:
            self.found += error.diagnostics
            return None

    def _refuse(self, code: str, message: str, help: str, *key: str | int) -> None:
        self.found.append(Diagnostic(code, message, self.toml.span(*key), help))

    def _tables(self, kind: str, make: Callable[[Table], T]) -> list[T]:
        """Every table of an array; an empty list if there is none."""
        given = self.toml.content.get(kind, [])
        if not isinstance(given, list) or not all(isinstance(table, dict) for table in given):
            self._refuse("E202", f"`{kind}` is no array of tables", f"write [[{kind}]]", kind)
            return []
        made = (
            self._try(lambda i=i, t=t: make(Table(self.toml, (kind, i), t, KINDS[kind]))) for i, t in enumerate(given)
        )
        return [one for one in made if one is not None]

    # ------------------------------------------------------------------ tables
    def _host(self, table: Table) -> Host:
        table.only(HOST)
        unified = table.flag("unified")
        memory = table.size("memory")
        if unified and not memory:
            raise table.refuse("E209", "a host of unified memory does not say how much", 'write memory = "64 GB"')
        return Host(table.name(), memory, unified, table.words("domains"))

    def _endpoint(self, table: Table, hosts: Mapping[str, Host]) -> Endpoint:
        table.only(ENDPOINT)
        name, target = table.name(), table.word("target")
        if target and target not in targets():
            known = ", ".join(sorted(targets()))
            raise table.refuse("E205", f"`{target}` is no target of this compiler", f"one of {known}", "target")
        simple = Endpoint(name, target or None, Fraction(table.number("speed", 1.0)))
        if not hosts and "host" not in self.toml.content:
            for key in DESCRIBES:
                if key in table.content:
                    raise table.refuse(
                        "E202", f"`{key}` is said of endpoint `{name}`, but no host is", "add a [[host]] table", key
                    )
            return simple
        return self._described(table, simple, hosts)

    def _described(self, table: Table, simple: Endpoint, hosts: Mapping[str, Host]) -> Endpoint:
        """An endpoint of a file with hosts."""
        name, host_name = simple.name, table.word("host")
        if not host_name:
            raise table.refuse("E202", f"endpoint `{name}` does not say which host it is of", 'write host = "…"')
        host = hosts.get(host_name)
        if host is None:
            known = ", ".join(hosts) or "none"
            raise table.refuse("E206", f"there is no host `{host_name}`", f"hosts of this file: {known}", "host")
        memory, domain = self._memory(table, name, host)
        compute = {dtype: 1e9 * rate for dtype, rate in table.numbers("compute").items()}
        bandwidth = 1e9 * table.number("bandwidth", 0.0)
        rates = self.measured.rates.get(name)
        if not rates and not compute and not self.unmeasured:
            raise table.refuse(
                "E202", f"nothing says how fast endpoint `{name}` is",
                "write compute = { f32 = GFLOP/s }, or run `alphac calibrate` on its host",
            )  # fmt: skip
        return replace(
            simple,
            host=host.name,
            compute=compute,
            bandwidth=bandwidth,
            memory=memory,
            domain=domain,
            threads=table.whole("threads", 1),
            rates=rates or (assumed(compute, bandwidth or max(compute.values()) / 8) if compute else None),
            calibrated=rates is not None,
        )

    def _memory(self, table: Table, name: str, host: Host) -> tuple[int, str]:
        """Bytes that an endpoint may take, and the domain they are part of."""
        own, said = table.size("memory"), table.word("memory_domain")
        if said not in ("", "host", "own"):
            raise table.refuse("E202", f"`{said}` is no memory domain", "there are `host` and `own`", "memory_domain")
        if said == "own" and host.unified:
            raise table.refuse(
                "E208", f"endpoint `{name}` promises memory of its own, but host `{host.name}` has one for all",
                "the memory of a unified host is declared once, at the host", "memory_domain",
            )  # fmt: skip
        if (said == "own" and not own) or (not own and not host.memory):
            raise table.refuse(
                "E209", f"endpoint `{name}` has no memory", 'write memory = "16 GB" here, or at its host', "memory"
            )
        return own or host.memory, name if said == "own" else host.name

    def _link(self, table: Table, known: Collection[str]) -> Link:
        table.only(LINK)
        ends = table.words("between")
        if len(ends) != 2:
            raise table.refuse("E202", "a link is between two", 'write between = ["desk", "lap"]', "between")
        for end in ends:
            if end not in known:
                names = ", ".join(known) or "none"
                raise table.refuse(
                    "E210", f"a link leads to `{end}`, which is no host or endpoint", f"there are {names}", "between"
                )
        rate, latency = table.number("rate"), table.number("latency")
        return Link((ends[0], ends[1]), 1e9 * rate, 1e-6 * latency, 1e9 * table.number("staging", 0.0))

    # ------------------------------------------------------------------ the whole
    def _check_names(self, fleet: Fleet) -> None:
        for kind, named in (("endpoint", fleet.endpoints), ("host", fleet.hosts)):
            seen: set[str] = set()
            for number, one in enumerate(named):
                if one.name in seen:
                    verb = "counts" if kind == "endpoint" else "is declared"
                    help = f"{KINDS[kind]} {verb} once"
                    self._refuse("E206", f"{kind} `{one.name}` is named twice", help, kind, number, "name")
                seen.add(one.name)
        hosts = {host.name for host in fleet.hosts}
        for number, endpoint in enumerate(fleet.endpoints):
            if endpoint.name in hosts:
                self._refuse(
                    "E206", f"`{endpoint.name}` is a host and an endpoint", "give them different names",
                    "endpoint", number, "name",
                )  # fmt: skip

    def _check_memory(self, fleet: Fleet) -> None:
        """What endpoints are promised of a host's memory must be there."""
        promises: dict[str, list[Endpoint]] = {}
        for number, endpoint in enumerate(fleet.endpoints):
            if self._says_memory(number):
                promises.setdefault(endpoint.domain, []).append(endpoint)
        for number, host in enumerate(fleet.hosts):
            promised = promises.get(host.name, [])
            total = sum(e.memory for e in promised)
            if host.memory and total > host.memory:
                names = " + ".join(f"{e.name} {shown_size(e.memory)}" for e in promised)
                verb = "its one memory is" if host.unified else "it has"
                own = "" if host.unified else ', or write memory_domain = "own" for that of an accelerator'
                self._refuse(
                    "E208", f"host `{host.name}` is promised for {shown_size(total)} ({names}), {verb} "
                    f"{shown_size(host.memory)}",
                    f"leave out `memory` where endpoints share it{own}",
                    "host", number, "memory",
                )  # fmt: skip

    def _says_memory(self, number: int) -> bool:
        return "memory" in self.toml.content["endpoint"][number]

    def _check_links(self, fleet: Fleet) -> None:
        """Roles talk over role 0's links, whichever endpoint that is: somebody must reach everybody."""
        if not fleet.described or self.found:
            return
        if any(all(fleet.link(root, e) for e in fleet.endpoints if e is not root) for root in fleet.endpoints):
            return
        first, *others = fleet.endpoints
        lost = next(e for e in others if fleet.link(first, e) is None)
        number = fleet.endpoints.index(lost)
        self._refuse(
            "E210", f"no link joins endpoint `{lost.name}` (host `{lost.host}`) with `{first.name}` "
            f"(host `{first.host}`), and no endpoint has links to all others",
            f'add [[link]] with between = ["{first.host}", "{lost.host}"]',
            "endpoint", number, "name",
        )  # fmt: skip


def shown_size(size: float) -> str:
    """Bytes for people: `1.5 GB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size:.0f} B"
