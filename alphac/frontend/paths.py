"""Whether a gradient can get from the loss to every learned parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from alphac.diagnostics import fail
from alphac.ir.core import Block, Op, Value, walk
from alphac.ir.span import Span

_FLAT = frozenset({"floor", "ceil", "round", "sign", "stop_gradient"})  # their gradient is zero, or said to be


def check_paths(block: Block, loss: Value, parameters: Sequence[tuple[str, Value]], span: Span) -> None:
    """Raise E131 if the loss depends on a parameter only through whole numbers, bools or steps."""
    for name, value in parameters:
        cuts: list[Op] = []
        if not _reaches(block, value, loss, cuts):
            at = cuts[0].span if cuts and cuts[0].span is not None else span
            what = f"`{cuts[0].name}`" if cuts else "this loss"
            help = "a gradient passes floats only: depend smoothly on the parameter, or move it by a `transition`"
            raise fail("E131", f"no gradient gets through {what} to `{name}`", at, help)


def _reaches(block: Block, start: Value, goal: Value, cuts: list[Op]) -> bool:
    """Whether floats lead from one value to another. `cuts` gets the ops at which they end."""
    reached = {start}
    for op in block.ops:
        if not any(v in reached for v in _read(op)):
            continue
        smooth = [v for v in op.results if v.type.dtype.is_float and op.name not in _FLAT]
        if not smooth:
            cuts.append(op)
        reached.update(smooth)
    return goal in reached


def _read(op: Op) -> Iterable[Value]:
    """The values that an op reads, those that its blocks take from outside included."""
    yield from op.operands
    for block in op.blocks:
        yield from block.results
        for inner in walk(block):
            yield from inner.operands
