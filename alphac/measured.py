"""What `alphac calibrate` found, kept beside the fleet file: `fleet.toml`, `fleet.measured.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from alphac.diagnostics import Diagnostics, fail
from alphac.ir.fleet import Host, Link, Rates

FORMAT = 3


@dataclass
class Measured:
    """Rates by endpoint, and the loopback of hosts. `notes`: of each endpoint, when and on what it was measured."""

    rates: dict[str, Rates] = field(default_factory=dict[str, Rates])
    loopbacks: dict[str, Link] = field(default_factory=dict[str, Link])
    notes: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def links(self, hosts: Sequence[Host]) -> tuple[Link, ...]:
        """Measured links, of the hosts that there are."""
        return tuple(self.loopbacks[h.name] for h in hosts if h.name in self.loopbacks)


def measured_path(fleet: Path) -> Path:
    """Where the measurements of a fleet file are."""
    return fleet.with_suffix(".measured.json")


def read_measured(fleet: Path) -> Measured:
    """What was measured of a fleet; nothing if it never was. Raises Diagnostics."""
    path = measured_path(fleet)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise _refused(path, f"it is of format {content['format']}")
        return Measured(
            {name: Rates(**rates) for name, rates in content["rates"].items()},
            {
                name: Link((name, name), link["rate"], link["latency"], link["staging"])
                for name, link in content["loopbacks"].items()
            },
            content["notes"],
        )
    except FileNotFoundError:
        return Measured()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _refused(path, str(error)) from error


def write_measured(fleet: Path, measured: Measured) -> Path:
    """Keep measurements beside a fleet file. Raises OSError."""
    content = {
        "format": FORMAT,
        "rates": {name: asdict(rates) for name, rates in measured.rates.items()},
        "loopbacks": {name: asdict(link) for name, link in measured.loopbacks.items()},
        "notes": measured.notes,
    }
    path = measured_path(fleet)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def _refused(path: Path, reason: str) -> Diagnostics:
    return fail("E207", f"{path} holds no measurements: {reason}", None, "remove it, and run `alphac calibrate` again")
