"""Many functions as one object of one target, run in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from everyop_runs import Compiled, Runs
from native import team_of
from native_roles import Runner

from alphac.backends.cache import Cache
from alphac.backends.emit import lower_programs
from alphac.backends.target import Target
from alphac.ir.core import Function
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import Program


class Batch(Runs):
    """Functions by name, compiled together for a target. Use it as a context manager: it owns threads."""

    def __init__(self, functions: Mapping[str, Function], target: Target, store: Cache | None = None) -> None:
        programs: dict[str, Program] = {}
        for number, (name, function) in enumerate(functions.items()):
            program = schedule(function)
            program.name = f"f{number}"  # symbols are made of it
            programs[name] = program
        self.code = lower_programs(programs.values(), target)
        self.data = self.code.object(store)
        super().__init__({name: self._compiled(program) for name, program in programs.items()})

    def _compiled(self, program: Program) -> Compiled:
        symbols, steps = self.code.symbols[program.name], self.code.records[program.name]["steps"]
        return Compiled(program, steps, max([self.code.sources[s].scratch for s in symbols], default=0))

    def team(self, threads: int) -> Runner:
        return team_of(self.code, self.data, threads)

    def symbols(self, name: str) -> list[str]:
        """The kernels of a function: digests of what they compute."""
        return self.code.symbols[self.compiled[name].program.name]


def collected_cases(session: pytest.Session) -> list[tuple[object, Path]]:
    """The parameters called `case` of the tests that will run, and the file of each test: what is not collected need
    not be compiled."""
    calls = [(getattr(item, "callspec", None), item.path) for item in session.items]
    return [(call.params["case"], path) for call, path in calls if call is not None and "case" in call.params]
