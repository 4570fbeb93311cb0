"""For tests: segments of a GPU target on roles whose memory is on the host. A role's memory goes to the device before a
segment and comes back after it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from hardware import DRIVERS
from simulated import Simulator

from alphac.backends.emit import Code
from alphac.backends.target import Target
from alphac.runtime.devices.gpu import Driver, Launch
from alphac.runtime.devices.metal import MetalDriver
from alphac.runtime.devices.opencl import OpenClDriver

if TYPE_CHECKING:
    from native_roles import Role

Actions = list[dict[str, Any]]


def launches_in(actions: Iterable[Actions]) -> Iterator[dict[str, Any]]:
    for action in itertools.chain.from_iterable(actions):
        if "launch" in action:
            yield from (*action.get("before", []), action)
        yield from launches_in([action.get("steps", [])])


def _driver(kernels: bytes, there: Target) -> Driver:
    if there.device == "metal":
        return MetalDriver(kernels, there.name)
    make = {**DRIVERS, "opencl": OpenClDriver}.get(there.device)
    return make(kernels, there.name, there.needs) if make is not None else Simulator(kernels)


class GpuTeam:
    """In the place of a team of threads: goes through a segment's launches."""

    def __init__(self, code: Code, data: bytes) -> None:
        kernels, there = data.split(b"\n", 1)[1], code.target
        self.driver = _driver(kernels, there)
        self.launches = code.launches
        self._places: dict[int, int] = {}
        self._made: dict[int, list[int]] = {}  # rooms, by shards

    def run(self, symbol: str, role: Role) -> int:
        self._private = self._scratch(role)
        parts = [part for part in (role.arena, role.merges) if part.nbytes]
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
        arena, scratch = role.arena.ctypes.data, role.scratch.ctypes.data
        if scratch <= address < scratch + role.scratch.nbytes:
            return self._private + address - scratch
        return self._place(role.arena) + address - arena

    def _scratch(self, role: Role) -> int:
        """Memory for the private buffers of all iterations of tiles."""
        start = role.scratch.ctypes.data
        if start not in self._places:
            sizes = [[n for n, _ in a["tiles"]] for a in launches_in(self.launches.values()) if a["tiles"]]
            most = max((math.prod(s) for s in sizes), default=1) * role.count
            self._places[start] = self.driver.allocate(int(role.table[4]) * most)
        return self._places[start]

    def _rooms(self, role: Role) -> list[int]:
        """Memory that lasts from a kernel's first launch to its last."""
        if role.count not in self._made:
            rooms = [[n * role.count for n, _ in a["rooms"]] for a in launches_in(self.launches.values())]
            self._made[role.count] = [self.driver.allocate(max(1, *sizes)) for sizes in zip(*rooms, strict=True)]
        return self._made[role.count]

    def _actions(self, actions: Actions, role: Role, outer: Sequence[int], inner: Sequence[int]) -> None:
        shards = role.count
        for action in actions:
            if "launch" in action:
                self._actions(action.get("before", []), role, outer, inner)
                threads, count, each, grows = action["grid"]
                count *= shards if grows else 1
                pointers = [
                    self._there(role, int(role.table[16 + b])) if b >= 0 else self._rooms(role)[-1 - b]
                    for b in action["buffers"]
                ]
                indices = [*outer[: action["loops"] - len(inner)], *inner]
                tail = [shards, role.first, self._place(role.merges)]
                tiles = math.prod(size * (shards if grows else 1) for size, grows in action["tiles"])
                if action["tiles"]:
                    tail += [0, int(role.table[4])]
                function = self.driver.function(action["launch"])
                arguments = (*pointers, *indices, *tail)
                self.driver.launch(Launch(function, -(-count // each), tiles, threads, arguments))
            elif "repeat" in action:
                turns = range(action["repeat"])
                for i in reversed(turns) if action["reverse"] else turns:
                    self._actions(action["steps"], role, outer, [*inner, i])

    def close(self) -> None:
        self.driver.close()
