"""Long reductions of few results, by two launches: the leaves by as many blocks as there are, and their tree.

leaves     16 threads are the lanes of a leaf, a block makes 16 of them
tree       a block makes a result: 256 leaves at a time are folded by pairs of neighbours, which is the canonical tree
           of so many; one thread pushes what comes out onto its stack
"""

from __future__ import annotations

from collections.abc import Callable

from alphac.backends.evaluation import Index
from alphac.backends.gpu import THREADS
from alphac.backends.gpu.frame import GpuFrame
from alphac.backends.gpu.reduction import GROUPS, Block, Stack
from alphac.backends.indexing import Affine, number
from alphac.backends.reduction import Elements, Emit
from alphac.ir.core import Op
from alphac.ir.schedule import Buffer, Kernel, View
from alphac.ir.typesys import SHARD, Dim, TensorType

ROLE = "leaves"  # of the buffer that they lie in
LEAF = "leaf of it"  # their axis there
FEW = 128  # results from which on each may do with one block


def split(kernel: Kernel, frame: GpuFrame) -> tuple[Kernel, ...]:
    """The kernels to launch for a reduction: it alone, or what makes the leaves and what puts them together."""
    op = kernel.anchor
    assert op is not None
    terms = Elements(frame, op, combined=False)
    results = 1
    for d in terms.axes:
        results *= d.size
    if terms.leaves <= GROUPS or results >= FEW:
        return (kernel,)
    first = [d for d in terms.axes if d.name == SHARD]
    dims = (*first, Dim(LEAF, terms.leaves), *(d for d in terms.axes if d not in first))
    view = View(Buffer(ROLE, TensorType(terms.accumulator, dims), ROLE))
    leaves = Kernel(f"leaves of {kernel.name}", ((op.result, view),), kernel.reads, op, kernel.loops)
    return leaves, Kernel(kernel.name, kernel.stores, {**kernel.reads, op.result: view}, op, kernel.loops)


def emit_leaves(frame: GpuFrame, op: Op) -> None:
    """The kernel of a reduction's leaves."""
    leaves = _Leaves(frame, Elements(frame, op, combined=False))
    leaves.prepare()
    ((_, view),) = frame.kernel.stores
    name, dtype = frame.names[id(view.buffer)], view.buffer.type.dtype
    frame.tasks(
        leaves.tasks,
        leaves.weight,
        lambda task: leaves.run(
            task, task.get(SHARD), lambda index, sum_: frame.store(name, dtype, frame.flat(view, index), sum_)
        ),
    )


class _Leaves(Block):
    """A block makes leaves: each is a result of its own."""

    def __init__(self, frame: GpuFrame, terms: Elements) -> None:
        super().__init__(frame, terms, leaves=1)
        ((_, view),) = frame.kernel.stores
        self.tasks = view.buffer.layout

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        self.single(task, shard, task[LEAF] * self.terms.leaf, emit)


class Tree:
    """A block makes a result of leaves that lie in memory."""

    def __init__(self, frame: GpuFrame, terms: Elements) -> None:
        self.frame, self.terms = frame, terms
        self.tasks = terms.axes
        self.weight = terms.leaves
        frame.together = 1
        self.view = frame.kernel.reads[terms.op.result]
        self.sums = frame.shared_array("leaf_sums", terms.accumulator, THREADS)
        self.chunks = -(-terms.leaves // THREADS)
        self.stack = Stack(frame, terms, self.chunks) if self.chunks > 1 else None

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        with self.frame.source.block("if own == 0:"):
            body(task)

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        frame, stack = self.frame, self.stack
        if stack is not None:
            stack.clear()
        with frame.loop("l", number(0), number(self.chunks), self.chunks) as chunk:
            self._fold(task, chunk * THREADS)
            if stack is not None:
                with frame.source.block("if own == 0:"):
                    stack.push(chunk, frame.shared_element(self.sums, number(0)))
                frame.barrier()
        with frame.source.block("if own == 0:"):
            sum_ = stack.sum() if stack is not None else frame.shared_element(self.sums, number(0))
            emit(task, self.terms.rounded(sum_))
        frame.barrier()

    def _fold(self, task: Index, first: Affine) -> None:
        """The sum of up to 256 leaves, where all see it."""
        frame, source, own, sums = self.frame, self.frame.source, self.frame.own, self.sums
        count = frame.least(number(self.terms.leaves) - first, THREADS)
        bound = source.index(count)
        with source.block(f"if own < {bound}:"):
            leaf = frame.variable(first + own, self.terms.leaves)
            flat = frame.flat(self.view, {**task, LEAF: leaf})
            found = frame.element(frame.names[id(self.view.buffer)], self.terms.accumulator, flat)
            source.line(f"{sums.name}[own] = {frame.k.text(found)}")
        frame.barrier()
        apart = 1
        while apart < min(THREADS, self.terms.leaves):
            with source.block(f"if ({source.index(own % (2 * apart))} == 0) & (own + {apart} < {bound}):"):
                left, right = (frame.shared_element(sums, own + n) for n in (0, apart))
                source.line(f"{sums.name}[own] = {frame.k.text(self.terms.combine(left, right))}")
            frame.barrier()
            apart *= 2
