"""A kernel in the making for one thread of a grid: tasks go to threads, or to whole blocks, in strides of the grid.

    for e1 in range(lo + thread, hi, threads):      neighbours in a warp work on neighbours in memory
        ...

So any number of blocks gives the same result; `Frame.grid` says how many there is work for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from alphac.backends.evaluation import PARAMETERS, VARIABLES, Axes, Body, Frame, Index, named, owned, size
from alphac.backends.gpu import THREADS
from alphac.backends.gpu.intrinsics import FUNCTIONS, WIDE, tile_functions
from alphac.backends.indexing import Affine, number, symbol
from alphac.backends.printer import Handle, register, stored
from alphac.backends.target import Grid, Target
from alphac.ir.schedule import Kernel
from alphac.ir.typesys import BF16, BOOL, F32, F64, DType

MANY = 1 << 31
NAMES = ("own", "block", "blocks", "result", "inside", "task", "lane", "leaf", "tx", "ty", "turn", "tag")
NAMES = (*NAMES, "line", "part", "down", "across")
NAMES = (*NAMES, "lane_sums", "leaf_sums", "row_tile", "column_tile", "found", "some", *tile_functions(1, 1))
ARGUMENTS = PARAMETERS[:3]  # shards, first, merges: the others are a thread's own business


@dataclass(frozen=True)
class Shared:
    """An array in the block's memory, from byte `start` of it on."""

    name: str
    dtype: DType
    elements: int
    start: int


class GpuFrame(Frame):
    """One kernel in the making."""

    widest = 1
    variables = (*VARIABLES, *NAMES)

    def __init__(self, kernel: Kernel, target: Target) -> None:
        super().__init__(kernel, target, dict(FUNCTIONS))
        self.shared: list[Shared] = []
        self.shared_bytes = 0
        self.grid = Grid(THREADS, 1, 1, False)
        self.fitting = 1 if F64 in (b.type.dtype for b in self.buffers) else 2
        self.neighbours = False  # whether a thread loads elements that lie side by side
        self.together: int | None = None  # results that a block makes together; else one to a thread
        self.own = symbol("own", 0, 0, THREADS - 1)  # the thread's number in its block

    def shared_array(self, name: str, dtype: DType, elements: int) -> Shared:
        """Memory of the block."""
        made = Shared(name, F32 if dtype == BF16 else dtype, elements, self.shared_bytes)
        self.shared.append(made)
        self.shared_bytes += -(-elements * made.dtype.bytes // 16) * 16
        return made

    def shared_element(self, array: Shared, at: Affine) -> Handle:
        """An element of the block's memory, as it is now."""
        name = self.source.name("t")
        self.source.line(f"{name} = {array.name}[{self.source.index(at)}]")
        return Handle(array.dtype, name, self.source.level)

    def element(self, name: str, dtype: DType, flat: Affine, level: int | None = None) -> Handle:
        run = WIDE // dtype.bytes
        if not self.neighbours or dtype == BOOL or any(n % run for n in (flat.constant, *(n for _, n in flat.terms))):
            return super().element(name, dtype, flat, level)
        level = self.source.level if level is None else level
        text = f"aligned({name}, {self.source.index(flat)})"
        text = f"widen({text})" if dtype == BF16 else text
        return Handle(dtype, self.source.define(text, level), level)

    def barrier(self) -> None:
        """All threads of the block meet here."""
        self.source.line("barrier()")

    def variable(self, form: Affine, bound: int) -> Affine:
        """An index as a variable of the innermost block, below `bound`: what depends on it is not computed before."""
        name = self.source.name("n")
        self.source.line(f"{name} = {self.source.index(form)}")
        return symbol(name, self.source.level, 0, max(0, bound - 1))

    # ------------------------------------------------------------------ the grid
    def covers(self, axes: Axes, each: int) -> None:
        """The grid is for the owned indices of `axes`, `each` of them to a block."""
        grows = bool(axes) and owned(axes[0])
        shards = (axes[0].shards or axes[0].size) if grows else 1
        self.grid = Grid(THREADS, size(axes) // shards, each, grows)

    def stride(self, low: Affine, high: Affine, bound: int, body: Callable[[Affine], None]) -> None:
        """Run `body` for [low, high), shared among all threads of the grid."""
        source = self.source
        name, start = source.name("e"), source.index(low)
        begin = "thread" if start == "0" else f"{start} + thread"
        with source.block(f"for {name} in range({begin}, {source.index(high)}, threads):"):
            body(symbol(name, source.level, 0, bound - 1))

    def tasks(self, axes: Axes, weight: int, body: Callable[[Index], None]) -> None:
        """Run `body` for every owned index of `axes`: by one thread each, or by a block for `together` of them (where
        there are no more, for the last again: see `Block`)."""
        low, high = self.owned_range(axes)
        total = size(axes)
        if self.together is None:
            self.covers(axes, THREADS)
            self.stride(low, high, total, lambda e: body(named(axes, e)))
            return
        self.covers(axes, self.together)
        source, count = self.source, self.together
        tiles = source.index((high - low + (count - 1)) // count)
        name = source.name("e")
        with source.block(f"for {name} in range(block, {tiles}, blocks):"):
            tile = symbol(name, source.level, 0, total // count)
            at = low + tile * count + (symbol("result", 0, 0, count - 1) if count > 1 else number(0))
            source.line(f"inside = {source.index(at)} < {source.index(high)}")
            last = source.index(high - 1)
            source.line(f"task = minimum({source.index(at)}, {last})")
            body(named(axes, symbol("task", source.level, 0, total - 1)))

    def split(self, axes: Axes, body: Body, weight: int = 1) -> None:
        """Run `body(index, flat)` for all owned elements, one to a thread."""
        low, high = self.owned_range(axes)
        self.covers(axes, THREADS)
        self.stride(low, high, size(axes), lambda e: body(named(axes, e), e))

    # ------------------------------------------------------------------ the function around the body
    def header(self, body: str) -> list[str]:
        """What stands before the body."""
        count = len(self.buffers) + len(self.arrays) + len(self.shared) + 1
        lines = ["own = local_number()", "block = block_number()", "blocks = block_count()"]
        lines.append(f"thread = block * {THREADS} + own")
        lines.append(f"threads = blocks * {THREADS}")
        for i, buffer in enumerate(self.buffers):
            made = f"memory(p{i}, {stored(buffer.type.dtype)}, {i}, {count})"
            lines.append(f"{self.names[id(buffer)]} = {made}  # {buffer.type}")
        for i, array in enumerate(self.arrays, len(self.buffers)):
            lines.append(f"{array.name} = local({array.elements}, {register(array.dtype)}, {i}, {count})")
        for i, array in enumerate(self.shared, len(self.buffers) + len(self.arrays)):
            lines.append(f"{array.name} = shared({array.start}, {register(array.dtype)}, {i}, {count})")
        if re.search(r"\bmerge\[", body):
            lines.append(f"merge = memory(merges, i64, {count - 1}, {count})")
        return lines
