"""Fleet files: who may take part. TOML, one `[[endpoint]]` per participant.

[[endpoint]]
name = "desk"
target = "x86-64-v4"    # optional: this host's best
speed = 3               # optional: relative, 1 by default
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from alphac.backends.registry import targets
from alphac.diagnostics import Diagnostic, Diagnostics


@dataclass(frozen=True)
class Endpoint:
    """One participant: a role runs on it. `target` None is the compiling host's best."""

    name: str
    target: str | None
    speed: Fraction


@dataclass(frozen=True)
class Fleet:
    """The participants, in role order."""

    endpoints: tuple[Endpoint, ...]


def read_fleet(path: Path) -> Fleet:
    """Read and check a fleet file. Raises Diagnostics naming the file and the key."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _refuse("E207", f"there is no fleet file {path}", "give an existing TOML file to --fleet") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise _refuse("E207", f"{path} is no readable TOML: {error}", "see docs/fleets.md for the format") from error
    unknown = [key for key in content if key != "endpoint"]
    if unknown:
        raise _refuse("E202", f"{path}: unknown key `{unknown[0]}`", "a fleet file holds [[endpoint]] tables only")
    tables = content.get("endpoint", [])
    if not isinstance(tables, list) or not tables:
        raise _refuse("E202", f"{path} names no endpoint", "add at least one [[endpoint]] table")
    endpoints = tuple(_endpoint(path, i, table) for i, table in enumerate(tables))
    names = [e.name for e in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise _refuse("E206", f"{path}: endpoint `{name}` is named twice", "an endpoint counts once")
    return Fleet(endpoints)


def _endpoint(path: Path, index: int, table: Any) -> Endpoint:
    where = f"{path}: endpoint[{index}]"
    if not isinstance(table, dict):
        raise _refuse("E202", f"{where} is no table", "write [[endpoint]]")
    for key in table:
        if key not in ("name", "target", "speed"):
            raise _refuse("E202", f"{where}: unknown key `{key}`", "an endpoint has name, target and speed")
    name, target, speed = table.get("name"), table.get("target"), table.get("speed", 1)
    if not isinstance(name, str) or not name:
        raise _refuse("E202", f"{where}: `name` is missing or no text", 'write name = "…"')
    if target is not None and target not in targets():
        known = ", ".join(sorted(targets()))
        raise _refuse("E205", f"{where}: `{target}` is no target of this compiler", f"one of {known}")
    if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed < 1e12:
        raise _refuse("E202", f"{where}: `speed` must be a positive number", "write speed = 1")
    return Endpoint(name, target, Fraction(speed))


def _refuse(code: str, message: str, help: str) -> Diagnostics:
    return Diagnostics([Diagnostic(code, message, None, help=help)])
