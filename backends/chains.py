"""A contraction of which no element of an operand serves several results of a vector: chain by chain."""

from __future__ import annotations

from alphac.backends.evaluation import Frame, Index, owned, size
from alphac.backends.indexing import Affine
from alphac.backends.printer import Handle
from alphac.backends.reduction import Terms
from alphac.backends.tiling import LEAF
from alphac.ir.core import Op
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.typesys import SHARD


class Chains(Terms):
    """The terms of a contraction whose result's innermost axes are in both operands (a depthwise convolution): no
    element of an operand serves several results of a vector, so each result has a chain of its own."""

    leaf = LEAF
    lanes = 1

    def __init__(self, frame: Frame, op: Op, combined: bool) -> None:
        super().__init__(frame, op, combined, contracted_axes(op))
        first, second = op.operands
        shared = [first.type.has(d.name) and second.type.has(d.name) and not owned(d) for d in self.axes]
        cut = next((i + 1 for i in reversed(range(len(shared))) if not shared[i]), 0)
        self.inner = self.axes[cut:]
        free = [d for d, s in zip(self.axes, shared, strict=True) if not s and d.name != SHARD]
        most = max(size([d for d in free if v.type.has(d.name)]) for v in (first, second))
        # Otherwise a vector of columns is fuller.
        self.suit = size(self.inner) > 1 and min(size(free) // most, size(free)) < min(8, size(self.inner))

    def identity(self) -> Handle:
        return self.frame.k.const(0, self.accumulator)

    def add(self, sum_: Handle, kept: Index, reduced: Index, shard: Affine | None) -> Handle:
        k = self.frame.k
        x, y = (self.element(v, kept, reduced, shard) for v in self.op.operands)
        return k.fma(x, y, sum_) if self.accumulator.is_float else k.add(k.mul(x, y), sum_)

    def combine(self, x: Handle, y: Handle) -> Handle:
        return self.frame.k.add(x, y)
