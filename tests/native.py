"""For tests: programs as native code in this process, as one role or as several that exchange through memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gpu_team import GpuTeam
from native_roles import Loaded, Role, Runner, Team, run_steps

from alphac.backends.cache import Cache
from alphac.backends.emit import Code
from alphac.ir.schedule import Program


def team_of(code: Code, data: bytes, threads: int) -> Runner:
    """What runs the segments of an object."""
    return GpuTeam(code, data) if code.target.is_gpu else Team(Loaded(data), threads)


def run(
    program: Program, code: Code, given: Sequence[np.ndarray], shards: int, shares: Sequence[int], threads: int = 1,
    store: Cache | None = None, calls: int = 1,
) -> tuple[list[Role], int]:  # fmt: skip
    """Run a program natively `calls` times on roles that own `shares` shards each; the roles, and what a guard
    returned.

    Roles run one after the other between two exchanges. States keep their values from call to call."""
    team = team_of(code, code.object(store), threads)
    firsts = np.cumsum([0, *shares])
    roles = [Role(program, shards, int(f), n, code.scratch, threads) for f, n in zip(firsts, shares, strict=False)]
    try:
        for call in range(calls):
            for (port, buffer), value in zip(program.arguments, given, strict=True):
                for role in roles:
                    if call == 0 or port.kind != "state":
                        role.write(buffer, value)
            stopped = run_steps(code.records[program.name]["steps"], roles, team)
            if stopped:
                return roles, stopped
    finally:
        team.close()
    return roles, 0
