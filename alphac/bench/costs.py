"""What a step must do: the flops and bytes of every kernel, from its schedule and the costs that ops declare.

flops   of ops that compute: elementwise ones on floats, reductions, contractions, combinations. Moving and indexing
        count nothing, an element that a kernel evaluates twice counts once.
bytes   what a kernel must read and write: each part of a buffer that it touches once each way, the whole batch. What
        lives in a thread's scratch memory does not count: it stays in the nearest cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from alphac.ir.core import Block, Module, Op
from alphac.ir.ops.define import definition
from alphac.ir.schedule import Kernel, Launch, Program, Repeat, Step, Tiles, View
from alphac.ir.schedule_text import inlined_ops
from alphac.ir.span import Span

PREFIX = "region."


@dataclass(frozen=True)
class Cost:
    """One launch of a kernel in a step: flops and bytes are those of all its `calls` together.

    region   the region that its op is written in; for an op outside of regions its file, in parentheses
    op       the op with a loop of its own, or what is stored
    shape    of the first value stored, its name before it
    """

    kernel: str
    region: str
    op: str
    value: str
    span: str
    calls: int
    flops: float
    bytes: float


def step_costs(module: Module, program: Program) -> list[Cost]:
    """The kernels of a compiled module's step, its `program`, in the order of their launch."""
    regions = dict(_region_spans(module))
    return [_cost(kernel, calls, regions) for kernel, calls in _launches(program.steps, 1)]


def _launches(steps: tuple[Step, ...], calls: int) -> Iterator[tuple[Kernel, int]]:
    for step in steps:
        if isinstance(step, Launch):
            yield step.kernel, calls
        elif isinstance(step, Repeat):
            yield from _launches(step.steps, calls * step.count)
        elif isinstance(step, Tiles):
            yield from _launches(step.steps, calls * math.prod(d.size for d in step.dims))


def _cost(kernel: Kernel, calls: int, regions: dict[Span, str]) -> Cost:
    ops = inlined_ops(kernel)
    main = _main(kernel, ops)
    span = next((op.span for op in ([main] if main else []) + ops[::-1] if op.span is not None), None)
    value, view = kernel.stores[0]
    return Cost(
        kernel=kernel.name,
        region=regions.get(span) or f"({Path(span.file).stem})" if span else "(unknown)",
        op=main.name if main else "copy",
        value=f"{view.buffer.name}{list(value.type.shape)}",
        span=str(span) if span else "",
        calls=calls,
        flops=calls * sum(op_flops(op) for op in ops),
        bytes=calls * kernel_bytes(kernel),
    )


def _main(kernel: Kernel, ops: list[Op]) -> Op | None:
    """Whom a kernel is named after: of an anchor that combines, what makes its partials."""
    anchor = kernel.anchor
    if anchor is None or definition(anchor).shape != "collective":
        return anchor or kernel.stores[0][0].op
    return next((op for op in ops if op is anchor.operands[0].op), anchor)


def op_flops(op: Op) -> float:
    """Arithmetic of one op on its whole operands."""
    made = definition(op)
    if made.shape == "contract":
        extents = {d.name: d.size for v in op.operands for d in v.type.dims}
        return made.cost.flops * math.prod(extents.values())
    if made.shape in ("reduce", "collective", "special"):
        return made.cost.flops * op.operands[-1].type.size
    floats = any(v.type.dtype.is_float for v in (*op.operands, *op.results))
    return made.cost.flops * op.results[0].type.size if made.shape == "elementwise" and floats else 0


def kernel_bytes(kernel: Kernel) -> int:
    """Bytes that one call must move."""
    stored = {_place(view): view for _, view in kernel.stores}
    read = {_place(view): view for view in kernel.reads.values()}
    return sum(_view_bytes(view) for view in (*stored.values(), *read.values()) if view.buffer.role != "private")


def _place(view: View) -> tuple[int, tuple[str, ...]]:
    return id(view.buffer), tuple(name for name, _ in view.slices)


def _view_bytes(view: View) -> int:
    sliced = {name for name, _ in view.slices}
    type = view.buffer.type
    return type.dtype.bytes * math.prod(d.size for d in type.dims if d.name not in sliced)


def _region_spans(module: Module) -> Iterator[tuple[Span, str]]:
    """Where the ops of every region are written."""
    for name, function in module.functions.items():
        if name.startswith(PREFIX):
            yield from ((op.span, name.removeprefix(PREFIX)) for op in _ops(function.block) if op.span is not None)


def _ops(block: Block) -> Iterator[Op]:
    for op in block.ops:
        yield op
        for inner in op.blocks:
            yield from _ops(inner)
