"""Segments of a GPU target: not code but a list of launches, which the runtime's device goes through.

    {"launch": SYMBOL, "buffers": […], "loops": n, "grid": [threads, count, each, grows], "tiles": [[size, grows], …]}
    {"guard": [BUFFERS]}                                stop if one of these scalars is not finite
    {"repeat": n, "reverse": bool, "steps": [ACTIONS]}

Tiles are all iterations at once, `tiles` says how many: of an axis that grows, so many for each owned shard.

A target's object is this list for every segment, as a line of JSON, and the kernels' code behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from alphac.backends.target import KernelSource
from alphac.ir.schedule import Guard, Kernel, Launch, Repeat, Step, Tiles

Action = dict[str, Any]


def actions(
    steps: Sequence[Step],
    sources: Mapping[Kernel, KernelSource],
    number: Mapping[int, int],
) -> list[Action]:
    """What to do, one after the other; for exchanges, nothing: a role that owns all shards has no use for them.
    `number`: a buffer's, by its id."""
    found: list[Action] = []
    for step in steps:
        if isinstance(step, Launch):
            source = sources[step.kernel]
            assert source.grid is not None
            grid = [source.grid.threads, source.grid.count, source.grid.each, source.grid.grows]
            buffers = [number[id(b)] for b in step.kernel.buffers()]
            loops = source.loops - len(source.tiles)
            found.append(
                {"launch": source.name, "buffers": buffers, "loops": loops, "grid": grid, "tiles": source.tiles}
            )
        elif isinstance(step, Guard):
            found.append({"guard": [number[id(b)] for b in step.buffers]})
        elif isinstance(step, Repeat):
            inner = actions(step.steps, sources, number)
            found.append({"repeat": step.count, "reverse": step.reverse, "steps": inner})
        elif isinstance(step, Tiles):
            found += actions(step.steps, sources, number)
    return found


def packed(target: str, segments: Mapping[str, list[Action]], code: bytes) -> bytes:
    """The object of a GPU target."""
    return json.dumps({"target": target, "segments": segments}).encode() + b"\n" + code
