"""A fleet file as tables: `alphac fleet show`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from alphac.backends.registry import host_target
from alphac.fleet import Endpoint, Fleet, shown_size


def show(fleet: Fleet, out: Console) -> None:
    """Hosts, endpoints and links."""
    for host in fleet.hosts:
        memory = f"{shown_size(host.memory)}{' unified' if host.unified else ''}" if host.memory else "memory not said"
        domains = f"  in {', '.join(host.domains)}" if host.domains else ""
        out.print(f"[bold]{host.name}[/]  {memory}{domains}", markup=True)
    out.print(_endpoints(fleet))
    if fleet.links:
        out.print(_links(fleet))


def _endpoints(fleet: Fleet) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("endpoint", "host", "target"):
        table.add_column(title)
    for title in ("threads", "contractions", "memory"):
        table.add_column(title, justify="right")
    table.add_column("rates")
    for e in fleet.endpoints:
        target = e.target or f"{host_target().name} (here)"
        if not fleet.described:
            table.add_row(e.name, "", target, "", "", "", f"speed {float(e.speed):g}")
            continue
        memory = f"{shown_size(e.memory)}{'' if e.domain == e.host else ' own'}"
        kind = "calibrated" if e.calibrated else "assumed"
        table.add_row(e.name, e.host, target, str(e.threads), _flops(e), memory, kind)
    return table


def _flops(endpoint: Endpoint) -> str:
    """What contractions reach, by element type."""
    if endpoint.rates is None:
        return ""
    said = endpoint.compute or {"f32": 0.0}
    rates = {t: 2 / endpoint.rates.fma[t] for t in said if endpoint.rates.fma.get(t)}
    return ", ".join(f"{dtype} {rate / 1e9:.3g} GFLOP/s" for dtype, rate in rates.items())


def _links(fleet: Fleet) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("link")
    for title in ("rate", "latency", "staging"):
        table.add_column(title, justify="right")
    for link in fleet.links:
        name = " – ".join(dict.fromkeys(link.ends)) + (" (loopback)" if link.ends[0] == link.ends[1] else "")
        staging = f"{link.staging / 1e9:.3g} GB/s" if link.staging else ""
        table.add_row(name, f"{link.rate / 1e9:.3g} GB/s", f"{link.latency * 1e6:.3g} µs", staging)
    return table
