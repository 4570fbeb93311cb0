"""Schedules as text, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from alphac.ir.core import Op, Value
from alphac.ir.schedule import Exchange, Guard, Kernel, Launch, Program, Repeat, Step, Tiles, View


def print_program(program: Program) -> str:
    """One program: its buffers, then its steps."""
    lines = [f"program {program.name} {{"]
    ports = {id(b): f"{p.kind} {p.name}".strip() for p, b in program.arguments}
    for b in program.buffers:
        bound = f"  = {ports[id(b)]}" if id(b) in ports else ""
        lines.append(f"    buffer {b.name}: {b.type} {b.role}{bound}")
    lines += [f"    {line}" for line in _steps(program.steps)]
    lines += [f"    result {p.kind} {p.name} = {b.name}" for p, b in program.results]
    return "\n".join([*lines, "}", ""])


def _steps(steps: tuple[Step, ...]) -> Iterator[str]:
    for step in steps:
        match step:
            case Launch(kernel):
                yield _kernel(kernel)
            case Exchange(buffers):
                yield "exchange " + ", ".join(f"{kind} {b.name}" for b, kind in buffers)
            case Guard(buffers):
                yield "guard " + ", ".join(b.name for b in buffers)
            case Repeat():
                yield f"repeat {step.count}{' down' if step.reverse else ''} {{"
                yield from (f"    {line}" for line in _steps(step.steps))
                yield "}"
            case Tiles():
                yield f"tiles {', '.join(map(str, step.dims))} {{"
                yield from (f"    {line}" for line in _steps(step.steps))
                yield "}"


def _kernel(kernel: Kernel) -> str:
    stored = ", ".join(_view(view) for _, view in kernel.stores)
    read = ", ".join(dict.fromkeys(_view(view) for view in kernel.reads.values()))
    inlined = " ".join(op.name for op in inlined_ops(kernel))
    return f"{kernel.name}: {stored} <- {read or '()'}  [{inlined}]"


def _view(view: View) -> str:
    at = "".join(f"[{name}]" for name, _ in view.slices)
    return f"{view.buffer.name}{at}"


def inlined_ops(kernel: Kernel) -> list[Op]:
    """The ops a kernel evaluates, operands before their readers."""
    return _evaluated(kernel, [value for value, _ in kernel.stores])


def operand_ops(kernel: Kernel, op: Op) -> list[Op]:
    """The ops that a kernel evaluates for the operands of one of its ops."""
    return _evaluated(kernel, op.operands)


def _evaluated(kernel: Kernel, values: Sequence[Value]) -> list[Op]:
    found: dict[int, Op] = {}

    def visit(value: Value) -> None:
        op = value.op
        if value in kernel.reads or op is None or id(op) in found:
            return
        for operand in op.operands:
            visit(operand)
        found[id(op)] = op

    for value in values:
        visit(value)
    return list(found.values())
