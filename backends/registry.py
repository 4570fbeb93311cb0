"""The targets, found by scanning this folder: a file that assigns `TARGETS` at its top level defines some."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

from alphac.backends.target import Target

_DEFINES = re.compile(r"^TARGETS\b", re.MULTILINE)


def targets() -> dict[str, Target]:
    """Every target by name."""
    return {name: found for name, (found, _) in _scanned().items()}


@cache
def _scanned() -> dict[str, tuple[Target, str]]:
    """Every target and its family by name."""
    found: dict[str, tuple[Target, str]] = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.name != Path(__file__).name and _DEFINES.search(file.read_text(encoding="utf-8")):
            for target in importlib.import_module(f"alphac.backends.{file.stem}").TARGETS:
                if target.name in found:
                    raise ValueError(f"target `{target.name}` is defined twice")
                found[target.name] = (target, file.stem.replace("_", "-"))
    return found


def capabilities(name: str) -> frozenset[str]:
    """What regions may require of a target, its family included. Raises KeyError as `target` does."""
    return target(name).capabilities | {f"family({_scanned()[name][1]})"}


def target(name: str) -> Target:
    """A target by name. Raises KeyError whose message lists the known ones."""
    try:
        return targets()[name]
    except KeyError:
        raise KeyError(f"no target `{name}`; there are {', '.join(sorted(targets()))}") from None


@cache
def targets_here() -> tuple[str, ...]:
    """The names of the targets that this machine runs."""
    return tuple(name for name, there in sorted(targets().items()) if there.runs_here())


@cache
def host_target(wanted: frozenset[str] = frozenset()) -> Target:
    """The best target that this machine runs: of those with the most of the wanted capabilities, the preferred. Raises
    LookupError if there is none."""
    able = [targets()[name] for name in targets_here()]
    if not able:
        raise LookupError(f"this machine runs none of the targets {', '.join(sorted(targets()))}")
    return max(able, key=lambda t: (len(wanted & t.capabilities), t.preference))
