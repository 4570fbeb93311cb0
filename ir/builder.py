"""Building IR: appends ops to a block, types by the ops' own rules."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from alphac.ir.core import Attribute, Block, Op, Value
from alphac.ir.ops.define import DEFINITIONS, TypeRuleError
from alphac.ir.span import Span
from alphac.ir.typesys import SHARD, Dim, DType


class Builder:
    """Appends to `block`; `span` is given to every op built."""

    def __init__(self, block: Block, span: Span | None = None) -> None:
        self.block = block
        self.span = span

    @contextmanager
    def at(self, span: Span | None) -> Generator[None]:
        """Give `span` to the ops built inside."""
        before, self.span = self.span, span
        try:
            yield
        finally:
            self.span = before

    def build(
        self,
        name: str,
        operands: Sequence[Value],
        blocks: Sequence[Block] = (),
        hint: str = "",
        **attributes: Attribute,
    ) -> Op:
        """Append op `name`. Raises TypeRuleError if its operands do not fit."""
        definition = DEFINITIONS[name]
        if definition.operands is not None and definition.operands != len(operands):
            raise TypeRuleError(f"`{name}` takes {definition.operands} operands, not {len(operands)}")
        if set(attributes) != set(definition.attributes):
            raise TypeRuleError(f"`{name}` has attributes {definition.attributes}, not {tuple(attributes)}")
        types = definition.result([v.type for v in operands], attributes, blocks)
        op = Op(name, tuple(operands), dict(attributes), (), tuple(blocks), self.span)
        op.results = tuple(Value(t, hint, op, i) for i, t in enumerate(types))
        self.block.ops.append(op)
        return op

    def __call__(self, name: str, *operands: Value, hint: str = "", **attributes: Attribute) -> Value:
        """Append op `name` and return its only result."""
        return self.build(name, operands, (), hint, **attributes).result

    # ------------------------------------------------------------------ constants and shapes
    def constant(self, value: float | int | bool, dtype: DType, dims: tuple[Dim, ...] = ()) -> Value:
        """A constant, rounded to dtype; with dims, the same value everywhere."""
        scalar = self("constant", value=value, dtype=dtype)
        return self.broadcast(scalar, dims)

    def like(self, value: float | int | bool, x: Value) -> Value:
        """A constant of x's type."""
        return self.constant(value, x.type.dtype, x.type.dims)

    def broadcast(self, x: Value, dims: tuple[Dim, ...]) -> Value:
        """x with exactly `dims` in that order: missing axes are added, present ones permuted, by name. A per-shard
        value (axis `shard`) meets the grain's axis by giving each example its shard's element."""
        if x.type.dims == dims:
            return x
        return self("broadcast", x, dims=dims)

    def sum_to(self, x: Value, dims: tuple[Dim, ...]) -> Value:
        """The adjoint of `broadcast(y, dims of x)`: sums the axes not in `dims`. If the grain's axis is among
        them, or x is per-shard, the result is per-shard: it has a leading `shard` axis."""
        names = {d.name for d in dims}
        over = tuple(n for n in x.type.names if n not in names and n != SHARD)
        if over:
            x = self("reduce_sum", x, over=over)
        if x.type.is_partial and SHARD not in names:
            dims = (x.type.dim(SHARD), *dims)
        return self.broadcast(x, dims)

    def combine(self, x: Value, kind: str = "sum") -> Value:
        """A per-shard partial (leading axis `shard`) into one value, by the shard tree. kind: sum, max, min."""
        return self(f"combine_{kind}", x)
