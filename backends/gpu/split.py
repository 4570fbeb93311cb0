"""Kernels that are several launches: what makes parts, by as many blocks as there is work for, and what joins them.

A combine that makes its partials itself goes through a role's shards one after the other. Where its results are too few
to fill a GPU, the shards are made at the same time, each as if nothing combined it, in a *room* that lasts from one
launch to the next; so are the leaves of a long reduction (leaves.py):

    combine(reduce(x))    →    partials = reduce(x), for every shard; combine(partials)
"""

from __future__ import annotations

from alphac.backends.gpu import leaves
from alphac.backends.gpu.frame import GpuFrame
from alphac.backends.gpu.lower import lower
from alphac.backends.gpu.tiling import BLOCKS
from alphac.backends.kernels import absorbed
from alphac.backends.target import Target
from alphac.ir.ops.define import definition
from alphac.ir.schedule import Buffer, Kernel, View
from alphac.ir.typesys import SHARD

PARTIALS = "partials"
ROOMS = (leaves.ROLE, PARTIALS)  # the roles of such buffers
MOST = 64 << 20  # bytes of one


def split(kernel: Kernel, target: Target) -> tuple[Kernel, ...]:
    """The kernels to launch for this one, in order: it alone, or its parts."""
    anchor = kernel.anchor
    shape = definition(anchor).shape if anchor is not None else ""
    if shape == "collective":
        first, *rest = _by_shard(kernel, target)
        return (*split(first, target), *rest) if rest else (kernel,)
    return leaves.split(kernel, GpuFrame(kernel, target)) if shape == "reduce" else (kernel,)


def _by_shard(kernel: Kernel, target: Target) -> tuple[Kernel, ...]:
    assert kernel.anchor is not None
    inner = absorbed(kernel, kernel.anchor)
    if inner is None:
        return (kernel,)
    partials = inner.result
    if partials.type.dim(SHARD).size < 2 or partials.type.bytes > MOST:
        return (kernel,)
    grid = lower(kernel, target).grid
    assert grid is not None
    if -(-grid.count // grid.each) >= BLOCKS:
        return (kernel,)
    view = View(Buffer(PARTIALS, partials.type, PARTIALS))
    made = Kernel(f"{kernel.name} by shard", ((partials, view),), kernel.reads, inner, kernel.loops)
    return made, Kernel(kernel.name, kernel.stores, {partials: view}, kernel.anchor, kernel.loops)
