"""Which endpoints of a fleet are this machine's, and keeping what calibrating them finds."""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from alphac.backends.registry import host_target, target
from alphac.bench import machine
from alphac.calibrate import calibrate
from alphac.diagnostics import fail
from alphac.fleet import Endpoint, Fleet, read_fleet
from alphac.measured import read_measured, write_measured


def run(path: Path, names: tuple[str, ...], tell: Callable[[str], None]) -> Path:
    """Calibrate endpoints of a fleet file; where the rates lie. Raises Diagnostics, RuntimeFault."""
    chosen = mine(read_fleet(path, unmeasured=True), names)
    measured = read_measured(path)
    for endpoint in chosen:
        name = endpoint.target or host_target().name
        rates, link, note = calibrate(endpoint, name, lambda text, e=endpoint: tell(f"{e.name}: {text}"))
        measured.rates[endpoint.name] = rates
        measured.loopbacks[endpoint.host] = link
        measured.notes[endpoint.name] = {
            "target": name,
            "threads": endpoint.threads,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.describe(),
            **note,
        }
    try:
        return write_measured(path, measured)
    except OSError as error:
        raise fail("E402", f"measurements cannot be kept: {error.strerror or error}", None, "move the file") from error


def mine(fleet: Fleet, names: tuple[str, ...]) -> list[Endpoint]:
    """The endpoints to calibrate here: those named, else those of the host that has this machine's name, or of the only
    one. Raises Diagnostics."""
    if not fleet.described:
        raise fail("E212", "this fleet names no host to measure", None, "describe its hosts (docs/fleets.md)")
    known = {e.name: e for e in fleet.endpoints}
    for name in names:
        if name not in known:
            raise fail("E212", f"there is no endpoint `{name}`", None, f"one of {', '.join(known)}")
    here = platform.node().partition(".")[0]
    hosts = [h.name for h in fleet.hosts if h.name == here] or [h.name for h in fleet.hosts if len(fleet.hosts) == 1]
    chosen = [known[n] for n in names] or [e for e in fleet.endpoints if e.host in hosts]
    for endpoint in chosen:
        made_for = target(endpoint.target) if endpoint.target else host_target()
        if made_for.is_gpu or not made_for.runs_here():
            reason = "GPUs are not calibrated yet" if made_for.is_gpu else "this machine does not run it"
            raise fail("E212", f"endpoint `{endpoint.name}` is for {made_for.name}: {reason}", None,
                       "name others with --endpoint")  # fmt: skip
    if not chosen:
        raise fail("E212", f"no host of this fleet is called `{here}`, as this machine is", None,
                   "say which endpoints are here with --endpoint")  # fmt: skip
    return chosen
