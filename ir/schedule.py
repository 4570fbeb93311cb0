"""A schedule: the kernels of one function, in order, and the buffers they work on.

`fuse` and `project` make it from IR; a target lowers each kernel to source; the runtime executes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from alphac.ir.core import Op, Port, Value
from alphac.ir.typesys import SHARD, Dim, TensorType


@dataclass(eq=False)
class Buffer:
    """Memory for one value.

    Physical layout: row-major over `layout`, the grain's axis (or `shard`) moved to the front, of which a role holds
    its own shards only. role:

    state      lives across steps and functions; named by `port`
    argument   written by the runtime before the function runs (column, sample, step, valid, count, input, total)
    temporary  everything else
    private    within `Tiles`: one copy for each thread, in its scratch memory
    nodes      result of a `combine`: slot 0 is the result; before the exchange, slots 0.. hold the role's maximal
               aligned subtrees, `slot` elements apart

    `pieces`: of per-shard partials that a stream makes, so many parts of each shard, one after the other: the sums of
    aligned runs of its blocks. `strand`: whose shards it has (or, of nodes, subtrees).
    """

    name: str
    type: TensorType
    role: str
    port: Port | None = None
    pieces: int = 1
    strand: int = 0

    @property
    def layout(self) -> tuple[Dim, ...]:
        first = [d for d in self.type.dims if d.shards or d.name == SHARD]
        return (*first, *(d for d in self.type.dims if not d.shards and d.name != SHARD))

    @property
    def fixed(self) -> int:
        """Elements beside the grain's axis: of one example (grain), of one shard (`shard`), or of everything."""
        n = 1
        for d in self.type.dims:
            if not d.shards and d.name != SHARD:
                n *= d.size
        return n

    @property
    def per_shard(self) -> int:
        """Elements per owned shard; 0 if the buffer does not grow with them."""
        for d in self.type.dims:
            if d.shards:
                return self.fixed * (d.size // d.shards)
            if d.name == SHARD:
                return self.fixed * self.pieces
        return 0


@dataclass(frozen=True, eq=False)
class View:
    """Where a value's elements lie: `buffer`, at the given loop indices along `slices` (dim name, loop index).

    A value whose type lacks a dim of the buffer's type has it in `slices`."""

    buffer: Buffer
    slices: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a stream: `values` of a row, with an anchor like a kernel's, or per-shard `sums` over the rows."""

    values: tuple[Value, ...]
    anchor: Op | None
    sums: bool


@dataclass(eq=False)
class Kernel:
    """One native function: computes `stores` from `reads`.

    Ops between them are inlined: evaluated per element where needed, never stored. `anchor` is the one op with a loop
    of its own (shape reduce, contract, special or collective), None for a plain map. With an anchor the stored values
    are the anchor's result or elementwise expressions of it (epilogue), of the same dims. A collective anchor whose
    operand is not in `reads` contains the reduce or contract that makes it: shards go through the tree as they
    come. `stages` of a stream are computed one after the other for every block of rows (the grain's axis); it stores
    values of rows and per-shard partials.

    Native signature: buffers in the order of `buffers()` as pointers, then as i64: one index per enclosing loop
    (outermost first), shards owned, first shard, pointer to merges, pointer to this thread's scratch, thread, threads.
    Index of the grain's axis is global: owned examples are [first * rows, (first + shards) * rows).
    """

    name: str
    stores: tuple[tuple[Value, View], ...]
    reads: dict[Value, View]
    anchor: Op | None = None
    loops: tuple[Value, ...] = ()
    alone: bool = False  # one thread runs all of it: within `Tiles`
    stages: tuple[Stage, ...] = ()

    def buffers(self) -> list[Buffer]:
        """The distinct buffers: stored ones first, then read ones."""
        seen: dict[int, Buffer] = {}
        for view in (*(v for _, v in self.stores), *self.reads.values()):
            seen.setdefault(id(view.buffer), view.buffer)
        return list(seen.values())


@dataclass(frozen=True, eq=False)
class Launch:
    """Run one kernel on all threads, then meet."""

    kernel: Kernel


@dataclass(frozen=True, eq=False)
class Exchange:
    """Finish `combine`s across roles: gather every role's subtrees of these buffers, put the root into slot 0."""

    buffers: tuple[tuple[Buffer, str], ...]  # with kind: sum, max, min; all of one strand


@dataclass(frozen=True, eq=False)
class Guard:
    """Stop the function here, before any state is written, if one of these scalars is not finite."""

    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """Run `steps` `count` times; `index` counts up, or down if `reverse`."""

    count: int
    index: Value
    reverse: bool
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Tiles:
    """Run `steps` for every index of `dims` that this role owns, in any order: iterations are dealt to the threads,
    each of which runs the kernels of its own alone and meets the others at the end."""

    dims: tuple[Dim, ...]
    indices: tuple[Value, ...]
    steps: tuple[Launch, ...]


Step = Launch | Exchange | Guard | Repeat | Tiles


@dataclass(eq=False)
class Program:
    """The schedule of one function."""

    name: str
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    steps: tuple[Step, ...] = ()
    arguments: list[tuple[Port, Buffer]] = field(default_factory=list[tuple[Port, Buffer]])
    results: list[tuple[Port, Buffer]] = field(default_factory=list[tuple[Port, Buffer]])

    def kernels(self) -> Iterator[Kernel]:
        """Every kernel, in order."""
        yield from kernels_in(self.steps)


def strand_of(step: Step) -> int | None:
    """The strand whose shards a step works on; None if every role does it, whatever it owns."""
    if isinstance(step, Launch):
        return kernel_strand(step.kernel)
    if isinstance(step, Tiles) and step.dims[0].shards:
        return step.dims[0].strand
    if isinstance(step, Repeat | Tiles):
        return next((s for s in map(strand_of, step.steps) if s is not None), None)
    return None


def kernel_strand(kernel: Kernel) -> int | None:
    """The strand of a kernel that is not within `Tiles`."""
    stores = (view.buffer for _, view in kernel.stores)
    reads = (view.buffer for view in kernel.reads.values())
    own = [b for b in stores if b.per_shard or b.role == "nodes"] + [b for b in reads if b.per_shard]
    return own[0].strand if own else None


def kernels_in(steps: Iterable[Step]) -> Iterator[Kernel]:
    """Every kernel of some steps, in order."""
    for step in steps:
        if isinstance(step, Launch):
            yield step.kernel
        elif isinstance(step, Repeat | Tiles):
            yield from kernels_in(step.steps)


BLOCK = 1024  # rows: one leaf of a reduction, four of a contraction
PIECES = 8


def pieces(rows: int) -> tuple[int, int]:
    """How a stream cuts a shard of so many rows: blocks in a piece (a power of two, so that pieces are subtrees of the
    tree over blocks), and pieces."""
    blocks = -(-rows // BLOCK)
    run = 1
    while blocks > PIECES * run:
        run *= 2
    return run, -(-blocks // run)


def subtrees(shards: int, first: int, count: int) -> list[tuple[int, int]]:
    """The maximal aligned subtrees [start, stop) of the tree over `shards` leaves that lie in [first, first + count),
    left to right (design §4: the left child holds the largest power of two below n)."""
    found: list[tuple[int, int]] = []

    def descend(start: int, stop: int) -> None:
        if stop <= first or start >= first + count:
            return
        if first <= start and stop <= first + count:
            found.append((start, stop))
            return
        middle = start + split(stop - start)
        descend(start, middle)
        descend(middle, stop)

    descend(0, shards)
    return found


def split(n: int) -> int:
    """Leaves in the left child of a tree over n > 1 leaves: the largest power of two below n."""
    return 1 << (n - 1).bit_length() - 1


def merges(shards: int, first: int, count: int) -> list[int]:
    """For each owned shard in order: how often the two topmost partials are merged after its own was pushed."""
    after = [0] * count

    def build(start: int, stop: int) -> None:
        if stop - start > 1:
            middle = start + split(stop - start)
            build(start, middle)
            build(middle, stop)
            after[stop - 1 - first] += 1

    for start, stop in subtrees(shards, first, count):
        build(start, stop)
    return after
