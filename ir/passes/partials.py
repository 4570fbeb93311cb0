"""Partials: a sum over the shards of many rows, but with few results, becomes two kernels.

Before: d_b = combine(reduce_sum(dy))      one kernel; the results are too few for threads to share
After:  partial = reduce_sum(dy)           each thread sums its own shards, which it may have in its cache
        d_b = combine(partial)             a few additions
"""

from __future__ import annotations

from alphac.ir.core import Op
from alphac.ir.ops.define import definition
from alphac.ir.passes.fuse import Cluster, Fused, Level, Nest, Use

MUCH = 256 << 10  # bytes that are read
TIMES = 8  # as many as the partials have, at least


def part(fused: Fused) -> Fused:
    """Part sums from their combines in a fused function, loops included."""
    _level(fused, fused.root)
    return fused


def _level(fused: Fused, level: Level) -> None:
    for node in list(level.nodes):
        if isinstance(node, Nest) and node.op.name == "loop":
            _level(fused, node.body)
        elif isinstance(node, Cluster):
            op = _sum(fused, node)
            if op is not None:
                _part(fused, level, node, op)


def _sum(fused: Fused, cluster: Cluster) -> Op | None:
    """The op under a `combine` that is worth a kernel of its own."""
    combine = cluster.anchor
    if combine is None or definition(combine).shape != "collective" or fused.stored(combine.operands[0]):
        return None
    op = combine.operands[0].op
    if op is None or definition(op).shape not in ("reduce", "contract"):
        return None
    read = sum(v.type.bytes for v in fused.leaves(cluster))
    return op if read >= max(MUCH, TIMES * op.result.type.bytes) else None


def _part(fused: Fused, level: Level, combine: Cluster, op: Op) -> None:
    """Let another cluster compute what a combine puts together."""
    value = op.result
    made = Cluster([value], op, value.type.dims, combine.order, combine.rounds)
    for followers in level.after.values():
        if combine in followers:
            followers.remove(combine)
            followers.add(made)
    level.add(made)
    level.after[made] = {combine}
    level.producer[value] = made
    fused.level_of[made] = level
    for uses in fused.uses.values():
        if combine in uses:
            uses[made] = uses.pop(combine)
    fused.uses[value] = {combine: Use(False, {None: value.type.size})}
