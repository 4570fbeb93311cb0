"""Compiled functions run on roles in this process. Nothing of the compiler but the IR: an emulated processor runs this
too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from native_roles import Role, Runner, run_steps
from numpy.typing import NDArray

from alphac.ir.schedule import Program

Array = NDArray[Any]


@dataclass(frozen=True)
class Compiled:
    """A function as compiled: its program, the steps of its record, and the bytes of scratch that its kernels take."""

    program: Program
    steps: list[dict[str, Any]]
    scratch: int


class Runs:
    """Functions of one object by name. Use it as a context manager: it owns threads."""

    def __init__(self, compiled: Mapping[str, Compiled]) -> None:
        self.compiled = compiled
        self.teams: dict[int, Runner] = {}
        self.roles: dict[tuple[str, int, tuple[int, ...], int], list[Role]] = {}

    def team(self, threads: int) -> Runner:
        """What runs the object with so many threads."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for team in self.teams.values():
            team.close()

    def run(
        self, name: str, given: Sequence[Array], shards: int = 1, shares: Sequence[int] = (1,), threads: int = 1
    ) -> list[list[tuple[Role, Array]]]:
        """For every result, what each role holds of it in `dtype.compute`, axes as in the layout.

        The roles own `shares` of the `shards`, in order, and run one after the other between two exchanges."""
        program, roles = self.compiled[name].program, self._roles(name, shards, tuple(shares), threads)
        for (_, buffer), value in zip(program.arguments, given, strict=True):
            for role in roles:
                role.write(buffer, value)
        if threads not in self.teams:
            self.teams[threads] = self.team(threads)
        stopped = run_steps(self.compiled[name].steps, roles, self.teams[threads])
        assert not stopped
        return [[(role, role.read(buffer)) for role in roles] for _, buffer in program.results]

    def _roles(self, name: str, shards: int, shares: tuple[int, ...], threads: int) -> list[Role]:
        """Arenas, which a function keeps from run to run."""
        key = (name, shards, shares, threads)
        if key not in self.roles:
            firsts = np.cumsum([0, *shares]).tolist()
            found = self.compiled[name]
            self.roles[key] = [
                Role(found.program, shards, first, count, found.scratch, threads)
                for first, count in zip(firsts, shares, strict=False)
            ]
        return self.roles[key]

    def whole(self, name: str, given: Sequence[Array], threads: int = 1, shards: int = 1) -> list[Array]:
        """The results of a single role that owns everything, axes as in their types."""
        results = self.run(name, given, shards, (shards,), threads)
        found: list[Array] = []
        for (_, buffer), ((_, value),) in zip(self.compiled[name].program.results, results, strict=True):
            order = [d.name for d in buffer.layout]
            found.append(value.transpose([order.index(n) for n in buffer.type.names]))
        return found


def part(role: Role, result: int, value: Array) -> Array:
    """What that role must hold of a whole result (axes as in its type)."""
    return role.part(role.program.results[result][1], value)
