"""Many functions as one object of one target, run in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
from gpu_team import GpuTeam
from native import Role, Team, run_steps, team_of
from numpy.typing import NDArray

from alphac.backends.cache import Cache
from alphac.backends.emit import lower_programs
from alphac.backends.target import Target
from alphac.ir.core import Function
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import Program

Array = NDArray[Any]


class Batch:
    """Functions by name, compiled together for a target. Use it as a context manager: it owns threads."""

    def __init__(self, functions: Mapping[str, Function], target: Target, store: Cache | None = None) -> None:
        self.programs: dict[str, Program] = {}
        for number, (name, function) in enumerate(functions.items()):
            program = schedule(function)
            program.name = f"f{number}"  # symbols are made of it
            self.programs[name] = program
        self.code = lower_programs(self.programs.values(), target)
        self.data = self.code.object(store)
        self.teams: dict[int, Team | GpuTeam] = {}
        self.roles: dict[tuple[str, int, tuple[int, ...], int], list[Role]] = {}

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for team in self.teams.values():
            team.close()

    def symbols(self, name: str) -> list[str]:
        """The kernels of a function: digests of what they compute."""
        return self.code.symbols[self.programs[name].name]

    def run(
        self, name: str, given: Sequence[Array], shards: int = 1, shares: Sequence[int] = (1,), threads: int = 1
    ) -> list[list[tuple[Role, Array]]]:
        """For every result, what each role holds of it in `dtype.compute`, axes as in the layout.

        The roles own `shares` of the `shards`, in order, and run one after the other between two exchanges."""
        program, roles = self.programs[name], self._roles(name, shards, tuple(shares), threads)
        for (_, buffer), value in zip(program.arguments, given, strict=True):
            for role in roles:
                role.write(buffer, value)
        if threads not in self.teams:
            self.teams[threads] = team_of(self.code, self.data, threads)
        stopped = run_steps(self.code.records[program.name]["steps"], roles, self.teams[threads])
        assert not stopped
        return [[(role, role.read(buffer)) for role in roles] for _, buffer in program.results]

    def _roles(self, name: str, shards: int, shares: tuple[int, ...], threads: int) -> list[Role]:
        """Arenas, which a function keeps from run to run."""
        key = (name, shards, shares, threads)
        if key not in self.roles:
            firsts = np.cumsum([0, *shares]).tolist()
            scratch = max([self.code.sources[s].scratch for s in self.symbols(name)], default=0)
            self.roles[key] = [
                Role(self.programs[name], shards, first, count, scratch, threads)
                for first, count in zip(firsts, shares, strict=False)
            ]
        return self.roles[key]

    def whole(self, name: str, given: Sequence[Array], threads: int = 1, shards: int = 1) -> list[Array]:
        """The results of a single role that owns everything, axes as in their types."""
        results = self.run(name, given, shards, (shards,), threads)
        found: list[Array] = []
        for (_, buffer), ((_, value),) in zip(self.programs[name].results, results, strict=True):
            order = [d.name for d in buffer.layout]
            found.append(value.transpose([order.index(n) for n in buffer.type.names]))
        return found


def collected_cases(session: pytest.Session) -> list[tuple[object, Path]]:
    """The parameters called `case` of the tests that will run, and the file of each test: what is not collected need
    not be compiled."""
    calls = [(getattr(item, "callspec", None), item.path) for item in session.items]
    return [(call.params["case"], path) for call, path in calls if call is not None and "case" in call.params]


def part(role: Role, result: int, value: Array) -> Array:
    """What that role must hold of a whole result (axes as in its type)."""
    return role.part(role.program.results[result][1], value)
