"""Tiles of a product that nobody reads: where its epilogue takes a sum only if one axis's counter is below another's
(the causal mask of attention), a tile of which no element passes the test is not multiplied.

    where(le(j, i), s / c, -inf)      reads no sum of a tile all of whose j are above all of its i

Whatever lies in the place of these sums is selected away, so that bits stay, of infinite and NaN operands too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from alphac.backends.indexing import Affine
from alphac.backends.printer import Source
from alphac.ir.core import Value
from alphac.ir.schedule import Kernel


@dataclass(frozen=True)
class Test:
    """A comparison of the counters of two axes."""

    op: str
    first: str
    second: str

    def passed(self, source: Source, ranges: Mapping[str, tuple[Affine, Affine]]) -> str | None:
        """The condition under which some elements pass, whose index along an axis begins at the first of its range and
        takes so many values; None if the range of an axis is not known."""
        if self.first not in ranges or self.second not in ranges:
            return None
        (low, count), (other, other_count) = ranges[self.first], ranges[self.second]
        if self.op in ("le", "lt"):
            return f"{source.index(low)} {'<=' if self.op == 'le' else '<'} {source.index(other + other_count - 1)}"
        return f"{source.index(low + count - 1)} {'>=' if self.op == 'ge' else '>'} {source.index(other)}"


def tests(kernel: Kernel, result: Value) -> frozenset[Test]:
    """What holds wherever the stored values take an element of `result`, at their own index."""
    known: dict[Value, frozenset[Test] | None] = {}

    def visit(value: Value) -> frozenset[Test] | None:
        """None if the value does not depend on the result."""
        if value not in known:
            known[value] = _held(value)
        return known[value]

    def _held(value: Value) -> frozenset[Test] | None:
        if value is result:
            return frozenset()
        if value in kernel.reads or value.op is None:
            return None
        found = [visit(v) for v in value.op.operands]
        held = [f for f in found if f is not None]
        if not held:
            return None
        common = frozenset[Test].intersection(*held)
        if value.op.name == "where" and found[0] is None and found[2] is None:
            return common | _comparisons(value.op.operands[0])
        return common

    stored = [f for f in (visit(v) for v, _ in kernel.stores) if f is not None]
    return frozenset[Test].intersection(*stored) if stored else frozenset()


def _comparisons(value: Value) -> frozenset[Test]:
    """Comparisons of counters that hold where a boolean does."""
    op = value.op
    if op is None:
        return frozenset()
    if op.name == "broadcast":
        return _comparisons(op.operands[0])
    if op.name not in ("le", "lt", "ge", "gt"):
        return frozenset()
    axes = [_counted(v) for v in op.operands]
    return frozenset({Test(op.name, axes[0], axes[1])}) if axes[0] and axes[1] else frozenset()


def _counted(value: Value) -> str:
    """The axis along which a value is the index, as an exact integer."""
    while value.op is not None and value.op.name == "broadcast":
        (value,) = value.op.operands
    if value.op is None or value.op.name != "iota" or not value.type.dtype.is_integer:
        return ""
    return value.type.names[0]
