"""Deferring: the order in which a role that owns all shards runs a program's steps.

Such a role exchanges nothing, so that what it combines may be made right before it is read. Then the gradients of large
parameters, of which nothing but the update is made, lie in the same memory one after the other:

Before: d_w2 = …; d_w1 = …; exchange; w1 = adam(w1, d_w1); w2 = adam(w2, d_w2)
After:  exchange; d_w1 = …; w1 = adam(w1, d_w1); meet; d_w2 = …; w2 = adam(w2, d_w2)
"""

from __future__ import annotations

from dataclasses import replace

from alphac.ir.schedule import Buffer, Exchange, Guard, Launch, Program, Step, kernels_in

LARGE = 4 << 20  # bytes of what is made later; less is not worth a meeting of threads

MEETING = Exchange(())  # all threads meet: what the step before it read is needed no more


def defer(program: Program) -> Program:
    """The program of a role that owns all shards; the same program if nothing moves."""
    steps = list(program.steps)
    kept = {buffer for _, buffer in program.results}
    moved: set[Buffer] = set()
    for step in program.steps:
        if isinstance(step, Launch) and _is_large(step, kept):
            goal = _deferred(step, steps)
            if goal is not None:
                steps.remove(step)
                place = steps.index(goal)
                steps[place:place] = [MEETING, step]
                moved.add(step.kernel.stores[0][1].buffer)
    return replace(program, steps=tuple(_without(s, moved) for s in steps)) if moved else program


def _without(step: Step, moved: set[Buffer]) -> Step:
    """A step that does not exchange what is made behind it."""
    if not isinstance(step, Exchange):
        return step
    return Exchange(tuple((buffer, kind) for buffer, kind in step.buffers if buffer not in moved))


def _is_large(step: Launch, kept: set[Buffer]) -> bool:
    """Whether a kernel makes one large combined value, and nothing else."""
    (_, view), *more = step.kernel.stores
    buffer = view.buffer
    large = buffer.fixed * buffer.type.dtype.bytes >= LARGE
    return not more and not view.slices and buffer.role == "nodes" and large and buffer not in kept


def _deferred(step: Launch, steps: list[Step]) -> Step | None:
    """The step that reads what a kernel makes, if no other does, and if what the kernel reads is still there then."""
    made = step.kernel.stores[0][1].buffer
    behind = steps[steps.index(step) + 1 :]
    readers = [s for s in behind if made in _buffers(s, stores=False)]
    if len(readers) != 1 or not isinstance(readers[0], Launch):
        return None
    reads = {view.buffer for view in step.kernel.reads.values()}
    between = behind[: behind.index(readers[0])]
    overwritten = {buffer for s in between for buffer in _buffers(s, stores=True)}
    return None if reads & overwritten else readers[0]


def _buffers(step: Step, stores: bool) -> set[Buffer]:
    """What a step stores, or what it reads; an exchange has nobody to exchange with."""
    if isinstance(step, Guard):
        return set() if stores else set(step.buffers)
    kernels = list(kernels_in([step]))
    if stores:
        return {view.buffer for kernel in kernels for _, view in kernel.stores}
    return {view.buffer for kernel in kernels for view in kernel.reads.values()}
