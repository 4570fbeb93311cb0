"""Kernels that are two launches: what makes parts, by as many blocks as there is work for, and what joins them.

A combine that makes its partials itself goes through a role's shards one after the other. Where its results are too few
to fill a GPU, the shards are made at the same time, each as if nothing combined it, in a *room* that lasts from one
launch to the next:

    combine(reduce(x))    →    room = reduce(x), a partial for every shard; combine(room)
"""

from __future__ import annotations

from alphac.backends.gpu.lower import lower
from alphac.backends.gpu.tiling import BLOCKS
from alphac.backends.kernels import absorbed
from alphac.backends.target import Target
from alphac.ir.ops.define import definition
from alphac.ir.schedule import Buffer, Kernel, View
from alphac.ir.typesys import SHARD

ROOM = "room"  # the role of such a buffer
MOST = 64 << 20  # bytes of it


def split(kernel: Kernel, target: Target) -> tuple[Kernel, ...]:
    """The kernels to launch for this one, in order: it alone, or its parts."""
    anchor = kernel.anchor
    inner = absorbed(kernel, anchor) if anchor is not None and definition(anchor).shape == "collective" else None
    if inner is None:
        return (kernel,)
    partials = inner.result
    room = Buffer(ROOM, partials.type, ROOM)
    if partials.type.dim(SHARD).size < 2 or partials.type.size * partials.type.dtype.bytes > MOST:
        return (kernel,)
    grid = lower(kernel, target).grid
    assert grid is not None
    if -(-grid.count // grid.each) >= BLOCKS:
        return (kernel,)
    view = View(room)
    made = Kernel(f"{kernel.name} by shard", ((partials, view),), kernel.reads, inner, kernel.loops)
    return made, Kernel(kernel.name, kernel.stores, {partials: view}, anchor, kernel.loops)
