"""Reductions on a grid, in the canonical order.

short ones      one thread makes a result: its 16 lanes are local
long ones       16 threads are the 16 lanes of a leaf, and a block works on 16 leaves at a time, of one result or of
                several; then one thread folds the lanes, and one pushes a result's leaves onto its stack of partial
                sums

result = own // 16      lane = own % 16       where the reduced axis is innermost in memory
result = own % 16       lane = own // 16      else: so neighbours read neighbours
"""

from __future__ import annotations

from collections.abc import Callable

from alphac.backends.evaluation import Array, Index, named, size
from alphac.backends.gpu import THREADS
from alphac.backends.gpu.frame import GpuFrame, Shared
from alphac.backends.indexing import Affine, number, symbol
from alphac.backends.printer import Handle
from alphac.backends.reduction import LANES, Elements, Emit, Partials, Terms
from alphac.ir.core import Op

GROUPS = THREADS // LANES  # leaves at a time
SHORT = 2 * LANES  # terms that one thread reduces
ENOUGH = 4096  # results from which on each is made leaf after leaf


def reduction(frame: GpuFrame, op: Op, combined: bool) -> Partials:
    """The results of a reduction, in the form that suits how much there is of it."""
    terms = Elements(frame, op, combined)
    if terms.count <= SHORT:
        return Alone(frame, terms)
    few = size(terms.axes) < ENOUGH and terms.leaves > 1
    return Block(frame, terms, min(GROUPS, 1 << (terms.leaves - 1).bit_length()) if few else 1)


class Stack:
    """The partial sums of leaves that wait for each other, in local memory."""

    def __init__(self, frame: GpuFrame, terms: Terms, leaves: int) -> None:
        self.frame, self.terms, self.leaves = frame, terms, leaves
        self.array = frame.array("part", terms.accumulator, leaves.bit_length() + 1)
        self.depth = ""

    def clear(self) -> None:
        source = self.frame.source
        self.depth = source.name("d")
        source.line(f"{self.depth} = 0")

    def push(self, leaf: Affine, sum_: Handle) -> None:
        """The next leaf's sum, merged with those before it as the tree says."""
        frame, source = self.frame, self.frame.source
        frame.put(self.array, self._here(), sum_)
        with source.block(f"for _ in range(merges_after({source.index(leaf)}, {self.leaves})):"):
            source.line(f"{self.depth} -= 1")
            here = self._here()
            left, right = (frame.scratch_element(self.array, i) for i in (here, here + 1))
            frame.put(self.array, here, self.terms.combine(left, right))
        source.line(f"{self.depth} += 1")

    def _here(self) -> Affine:
        name = self.frame.source.name("n")
        self.frame.source.line(f"{name} = {self.depth}")
        return symbol(name, self.frame.source.level, 0, 64)

    def sum(self) -> Handle:
        return self.frame.scratch_element(self.array, number(0))


class Alone:
    """One thread makes a result."""

    def __init__(self, frame: GpuFrame, terms: Terms) -> None:
        self.frame, self.terms = frame, terms
        self.tasks = terms.axes
        self.weight = terms.count
        self.used = min(terms.lanes, terms.count)
        self.lanes: Array | None = None
        self.stack: Stack | None = None

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        body(task)

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        frame, terms = self.frame, self.terms
        if self.lanes is None:
            self.lanes = frame.array("lanes", terms.accumulator, self.used)
            self.stack = Stack(frame, terms, terms.leaves) if terms.leaves > 1 else None
        stack = self.stack
        if stack is None:
            emit(task, terms.rounded(self._leaf(task, shard, number(0))))
            return
        stack.clear()
        with frame.loop("l", number(0), number(terms.leaves), terms.leaves) as leaf:
            stack.push(leaf, self._leaf(task, shard, leaf * terms.leaf))
        emit(task, terms.rounded(stack.sum()))

    def _leaf(self, task: Index, shard: Affine | None, first: Affine) -> Handle:
        frame, terms, lanes = self.frame, self.terms, self.lanes
        assert lanes is not None
        for lane in range(self.used):
            frame.put(lanes, number(lane), terms.identity())
        with frame.loop("r", first, first + terms.leaf_size(first), terms.count) as r:
            lane = r % terms.lanes
            kept = frame.scratch_element(lanes, lane)
            frame.put(lanes, lane, terms.add(kept, task, named(terms.reduced, r), shard))
        return folded(terms, [frame.scratch_element(lanes, number(lane)) for lane in range(self.used)])


def folded(terms: Terms, lanes: list[Handle]) -> Handle:
    """Lane l with l + 8, then 4, 2, 1. A lane that no element went to holds the identity: it may be left out."""
    half = terms.lanes // 2
    while half:
        for lane in range(min(half, len(lanes) - half)):
            lanes[lane] = terms.combine(lanes[lane], lanes[lane + half])
        lanes = lanes[:half]
        half //= 2
    return lanes[0]


class Block:
    """A block makes some results, of so many of their leaves at a time: every thread is one lane of a leaf."""

    def __init__(self, frame: GpuFrame, terms: Elements, leaves: int) -> None:
        self.frame, self.terms = frame, terms
        self.tasks = terms.axes
        self.weight = terms.count
        self.leaves, self.results = leaves, GROUPS // leaves
        frame.together = self.results
        self.pitch = LANES + 1  # so that the threads that fold read different banks
        self.lanes: Shared | None = None
        self.sums: Shared | None = None
        self.stack: Stack | None = None

    def each(self, task: Index, body: Callable[[Index], None]) -> None:
        with self.frame.source.block(self._leader("inside")):
            body(task)

    def _leader(self, *conditions: str) -> str:
        """The thread that keeps a result."""
        first = ["(lane == 0)", *(["(leaf == 0)"] if self.leaves > 1 else []), *conditions]
        return f"if {' & '.join(first)}:"

    def prepare(self) -> None:
        """Which result, leaf and lane a thread is."""
        frame, terms, source = self.frame, self.terms, self.frame.source
        adjacent = not terms.inner
        group, lane = frame.own // LANES, frame.own % LANES
        if not adjacent:
            lane, group = group, lane
        source.line(f"lane = {source.index(lane)}")
        source.line(f"result = {source.index(group % self.results)}")
        source.line(f"leaf = {source.index(group // self.results)}")
        self.lanes = frame.shared_array("lane_sums", terms.accumulator, GROUPS * self.pitch)
        if self.leaves > 1:
            self.sums = frame.shared_array("leaf_sums", terms.accumulator, GROUPS)

    def run(self, task: Index, shard: Affine | None, emit: Emit) -> None:
        frame, terms, source = self.frame, self.terms, self.frame.source
        if terms.leaves == 1:
            self.single(task, shard, number(0), lambda index, sum_: emit(index, terms.rounded(sum_)))
            return
        stack = self.stack = self.stack or Stack(frame, terms, terms.leaves)
        stack.clear()
        turns = -(-terms.leaves // self.leaves)
        with frame.loop("l", number(0), number(turns), turns) as turn:
            first = turn * self.leaves + self._symbol("leaf", self.leaves)
            self._leaf(task, shard, first * terms.leaf)
            if self.sums is None:
                with source.block("if lane == 0:"):
                    stack.push(turn, self._folded())
            else:
                self._several(turn, stack, self.sums)
            frame.barrier()
        with source.block(self._leader("inside")):
            emit(task, terms.rounded(stack.sum()))

    def single(self, task: Index, shard: Affine | None, first: Affine, emit: Emit) -> None:
        """The sum of the one leaf that begins at `first`."""
        frame = self.frame
        self._leaf(task, shard, first)
        with frame.source.block("if (lane == 0) & inside:"):
            emit(task, self._folded())
        frame.barrier()

    def _several(self, turn: Affine, stack: Stack, sums: Shared) -> None:
        """The sums of several leaves of a result, pushed one after the other by its first thread."""
        frame, terms, source = self.frame, self.terms, self.frame.source
        group = self._symbol("leaf", self.leaves) + self._symbol("result", self.results) * self.leaves
        with source.block("if lane == 0:"):
            source.line(f"{sums.name}[{source.index(group)}] = {frame.k.text(self._folded())}")
        frame.barrier()
        base = self._symbol("result", self.results) * self.leaves
        with source.block(self._leader()):
            left = frame.least(number(terms.leaves) - turn * self.leaves, self.leaves)
            with frame.loop("g", number(0), left, self.leaves) as g:
                stack.push(turn * self.leaves + g, frame.shared_element(sums, base + g))

    def _leaf(self, task: Index, shard: Affine | None, first: Affine) -> None:
        """This thread's lane of the leaf that begins at `first`, into the block's memory, where all see it."""
        frame, terms, source = self.frame, self.terms, self.frame.source
        assert self.lanes is not None
        sum_, stop, start = source.name("c"), source.name("n"), source.index(first + self._symbol("lane", LANES))
        source.line(f"{sum_} = {frame.k.text(terms.identity())}")
        source.line(f"{stop} = {source.index(frame.least(first + terms.leaf, terms.count))}")
        name = source.name("r")
        with source.block(f"for {name} in range({start}, {stop}, {LANES}):"):
            r = symbol(name, source.level, 0, terms.count - 1)
            before = Handle(terms.accumulator, sum_, source.level)
            after = terms.add(before, task, named(terms.reduced, r), shard)
            source.line(f"{sum_} = {frame.k.text(after)}")
        source.line(f"{self.lanes.name}[{source.index(self._row() + self._symbol('lane', LANES))}] = {sum_}")
        frame.barrier()

    def _folded(self) -> Handle:
        frame = self.frame
        assert self.lanes is not None
        used = min(LANES, self.terms.count)
        row = self._row()
        return folded(self.terms, [frame.shared_element(self.lanes, row + lane) for lane in range(used)])

    def _row(self) -> Affine:
        """Where the lanes of this thread's leaf are."""
        group = self._symbol("leaf", self.leaves) * self.results + self._symbol("result", self.results)
        return group * self.pitch

    def _symbol(self, name: str, count: int) -> Affine:
        return symbol(name, 0, 0, count - 1) if count > 1 else number(0)
