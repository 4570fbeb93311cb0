"""Segments of a GPU target: not code but a list of launches, which the runtime's device goes through.

    {"launch": SYMBOL, "buffers": […], "loops": n, "grid": [threads, count, each, grows], "tiles": [[size, grows], …],
     "rooms": [[bytes, grows], …], "before": [LAUNCHES]}
    {"guard": [BUFFERS]}                                stop if one of these scalars is not finite
    {"repeat": n, "reverse": bool, "steps": [ACTIONS]}

Tiles are all iterations at once, `tiles` says how many: of an axis that grows, so many for each owned shard. What makes
a kernel's parts runs `before` it and leaves them in rooms, of so many bytes (for each owned shard): buffers -1 and -2.

A target's object is this list for every segment, as a line of JSON, and the kernels' code behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from alphac.backends.gpu.split import ROOMS
from alphac.backends.target import KernelSource
from alphac.ir.schedule import Guard, Kernel, Launch, Repeat, Step, Tiles

Action = dict[str, Any]


def actions(
    steps: Sequence[Step],
    parts: Mapping[Kernel, Sequence[tuple[Kernel, KernelSource]]],
    number: Mapping[int, int],
) -> list[Action]:
    """What to do, one after the other; for exchanges, nothing: a role that owns all shards has no use for them.
    `parts`: what is launched for a kernel; `number`: a buffer's, by its id."""
    found: list[Action] = []
    for step in steps:
        if isinstance(step, Launch):
            *before, made = (_launch(kernel, source, number) for kernel, source in parts[step.kernel])
            found.append({**made, "before": before})
        elif isinstance(step, Guard):
            found.append({"guard": [number[id(b)] for b in step.buffers]})
        elif isinstance(step, Repeat):
            inner = actions(step.steps, parts, number)
            found.append({"repeat": step.count, "reverse": step.reverse, "steps": inner})
        elif isinstance(step, Tiles):
            found += actions(step.steps, parts, number)
    return found


def _launch(kernel: Kernel, source: KernelSource, number: Mapping[int, int]) -> Action:
    assert source.grid is not None
    grid = [source.grid.threads, source.grid.count, source.grid.each, source.grid.grows]
    rooms, numbers = [[0, False] for _ in ROOMS], dict(number)
    for buffer in kernel.buffers():
        if buffer.role in ROOMS:
            room = ROOMS.index(buffer.role)
            elements = buffer.per_shard or buffer.fixed
            rooms[room] = [elements * buffer.type.dtype.bytes, bool(buffer.per_shard)]
            numbers[id(buffer)] = -1 - room
    return {
        "launch": source.name,
        "buffers": [numbers[id(b)] for b in kernel.buffers()],
        "loops": source.loops - len(source.tiles),
        "grid": grid,
        "tiles": source.tiles,
        "rooms": rooms,
    }


def packed(target: str, segments: Mapping[str, list[Action]], code: bytes) -> bytes:
    """The object of a GPU target."""
    return json.dumps({"target": target, "segments": segments}).encode() + b"\n" + code
