"""For tests: segments of a GPU target on roles whose memory is on the host. A role's memory goes to the device before a
segment and comes back after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from simulated import Simulator

from alphac.backends.emit import Code
from alphac.runtime.devices.cuda import CudaDriver
from alphac.runtime.devices.gpu import Driver

if TYPE_CHECKING:
    from native import Role

Actions = list[dict[str, Any]]


class GpuTeam:
    """In the place of a team of threads: goes through a segment's launches."""

    def __init__(self, code: Code, data: bytes) -> None:
        kernels, there = data.split(b"\n", 1)[1], code.target
        simulated = there.device == "simulated"
        self.driver: Driver = Simulator(kernels) if simulated else CudaDriver(kernels, there.name, there.needs)
        self.launches = code.launches
        self._places: dict[int, int] = {}

    def run(self, symbol: str, role: Role) -> int:
        parts = [part for part in (role.arena, role.scratch, role.merges) if part.nbytes]
        for part in parts:
            self.driver.write(self._place(part), part)
        self._actions(self.launches[symbol], role, [int(i) for i in role.table[8:12]], [])
        for part in parts:
            self.driver.read(self._place(part), part)
        return 0

    def _place(self, part: np.ndarray) -> int:
        """Where a part of a role's memory is on the device."""
        start = part.ctypes.data
        if start not in self._places:
            self._places[start] = self.driver.allocate(part.nbytes)
        return self._places[start]

    def _there(self, role: Role, address: int) -> int:
        """The device's address of a buffer."""
        inside = (p for p in (role.arena, role.scratch) if p.ctypes.data <= address < p.ctypes.data + p.nbytes)
        part = next(inside)
        return self._place(part) + address - part.ctypes.data

    def _actions(self, actions: Actions, role: Role, outer: Sequence[int], inner: Sequence[int]) -> None:
        shards, first = role.count, role.first
        for action in actions:
            if "launch" in action:
                threads, count, each, grows = action["grid"]
                count *= shards if grows else 1
                pointers = [self._there(role, int(role.table[16 + b])) for b in action["buffers"]]
                indices = [*outer[: action["loops"] - len(inner)], *inner]
                arguments = [*pointers, *indices, shards, first, self._place(role.merges)]
                self.driver.launch(self.driver.function(action["launch"]), -(-count // each), threads, arguments)
            elif "repeat" in action:
                turns = range(action["repeat"])
                for i in reversed(turns) if action["reverse"] else turns:
                    self._actions(action["steps"], role, outer, [*inner, i])
            elif "tiles" in action:
                ranges = [range(first * r, (first + shards) * r) if r else range(n) for n, r in action["tiles"]]
                for found in np.ndindex(*map(len, ranges)):
                    at = [r[i] for r, i in zip(ranges, found, strict=True)]
                    self._actions(action["steps"], role, outer, [*inner, *at])

    def close(self) -> None:
        self.driver.close()
