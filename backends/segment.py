"""Segments: the steps between two exchanges, or all of a program's, as one native function, called by every thread of
a team.

The functions are LLVM IR as text: they load pointers from the table, call the kernels, and meet at a spin barrier
behind those whose results are needed next. docs/architecture.md, "Native interface", says what the table holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from alphac.backends.target import KernelSource
from alphac.ir.core import Value
from alphac.ir.errors import InternalError
from alphac.ir.passes.meetings import Meeting, by_shards, meets
from alphac.ir.schedule import Buffer, Guard, Kernel, Launch, Program, Repeat, Step, Tiles

SHARDS, FIRST, MERGES, SCRATCH, SCRATCH_BYTES, LOOPS, BUFFERS = 0, 1, 2, 3, 4, 8, 16  # entries of the table
NEAR = 768 << 10  # bytes that stay in the second level of cache
MAX_RUNTIME_LOOPS = 4  # entries 8 … 11
_EXPONENT = {16: 8, 32: 8, 64: 11}  # bits of the exponent of bf16, f32, f64


def declaration(symbol: str, pointers: int, integers: int) -> str:
    """The declaration of a kernel."""
    return f"declare void @{symbol}({', '.join(['ptr'] * pointers + ['i64'] * integers)})\n"


@dataclass(frozen=True)
class Shards:
    """Shards `low` … of the role's, for which a kernel is called with `tail`. Of `private` buffers, the place of shard
    `reused` is used."""

    low: str
    tail: Sequence[str]
    reused: str = ""
    private: frozenset[Buffer] = frozenset()


def _per_shard(buffers: Iterable[Buffer]) -> Iterator[int]:
    return (b.per_shard * b.type.dtype.bytes for b in buffers)


def _is_large(kernel: Kernel) -> bool:
    """Whether what a kernel touches of one shard is more than what it reads that has none, and may pack."""
    buffers = kernel.buffers()
    return sum(_per_shard(buffers)) > sum(b.type.size * b.type.dtype.bytes for b in buffers if not b.per_shard)


class Segment:
    """The text of one segment function.

    `program`: the one it is a part of; `sources`: the kernels'; `outer`: the indices of the loops around it that
    the runtime runs.
    """

    def __init__(
        self, name: str, program: Program, sources: Mapping[Kernel, KernelSource], outer: Sequence[Value]
    ) -> None:
        self.name = name
        self.sources = sources
        self.entry = {id(buffer): BUFFERS + i for i, buffer in enumerate(program.buffers)}
        self.outer = outer
        self.touched: dict[Buffer, set[Kernel]] = {}  # by which kernels, of temporary buffers
        results = {buffer for _, buffer in program.results}
        for kernel in program.kernels():
            for buffer in kernel.buffers():
                if buffer.role == "temporary" and buffer not in results:
                    self.touched.setdefault(buffer, set()).add(kernel)
        self.indices: dict[Value, str] = {}
        self.lines: list[str] = []
        self.count = 0
        self.guards = 0
        self.block = "entry"

    def text(self, steps: Sequence[Step]) -> str:
        """Define the segment that runs `steps`; of a role that owns all shards, if there are exchanges among them, for
        which there is nothing to do then. Behind the last step the team ends its call, which is a meeting too."""
        if len(self.outer) > MAX_RUNTIME_LOOPS:
            raise InternalError(f"more than {MAX_RUNTIME_LOOPS} nested loops with exchanges in them")
        for i, value in enumerate(self.outer):
            self.indices[value] = self._load(LOOPS + i, "i64")
        shards, first, merges, scratch, size = (
            self._load(i, "i64") for i in (SHARDS, FIRST, MERGES, SCRATCH, SCRATCH_BYTES)
        )
        offset = self._do(f"mul i64 %thread, {size}")
        own = self._do(f"add i64 {scratch}, {offset}")
        self.shards, self.first, self.offset = shards, first, offset
        self.tail = [f"i64 {v}" for v in (shards, first, merges, own)]
        self.several = self._do("icmp ugt i64 %threads, 1")
        self._divide()
        self.turned: dict[int, str] = {0: "%thread"}
        self.head, self.lines = self.lines, []
        self._steps(steps, [*meets(steps)[:-1], Meeting.NONE])
        body = "\n".join([*self.head, *self.lines])
        return f"define i64 @{self.name}(ptr %table, i64 %thread, i64 %threads) {{\nentry:\n{body}\n  ret i64 0\n}}\n"

    def _divide(self) -> None:
        """This thread's own shards, [low, low + count) of the role's, and whether threads come out even on them: the
        slowest has at most an eighth more than the average."""
        shards = self.shards
        behind = self._do("add i64 %thread, 1")
        ends = [self._do(f"udiv i64 {self._do(f'mul i64 {shards}, {t}')}, %threads") for t in ("%thread", behind)]
        self.low, self.high = ends
        count = self._do(f"sub i64 {ends[1]}, {ends[0]}")
        first = self._do(f"add i64 {self.first}, {ends[0]}")
        self.own_tail = [f"i64 {count}", f"i64 {first}", *self.tail[2:]]
        filled = self._do(f"add i64 {shards}, {self._do('sub i64 %threads, 1')}")
        most = self._do(f"udiv i64 {filled}, %threads")
        idle = self._do(f"sub i64 {self._do(f'mul i64 {most}, %threads')}, {shards}")
        even = self._do(f"icmp ule i64 {self._do(f'shl i64 {idle}, 3')}, {shards}")
        enough = self._do(f"icmp uge i64 {shards}, %threads")
        self.even = self._do(f"and i1 {even}, {enough}")

    def _steps(self, steps: Sequence[Step], met: Sequence[Meeting]) -> None:
        """Steps in chains, each of which ends where all threads meet."""
        begin = 0
        for end, meeting in enumerate(met, 1):
            if meeting == Meeting.ALWAYS or end == len(met):
                self._chain(steps[begin:end], met[begin:end])
                if meeting == Meeting.ALWAYS and isinstance(steps[end - 1], Launch | Tiles):
                    self._meet()
                begin = end

    def _chain(self, steps: Sequence[Step], met: Sequence[Meeting]) -> None:
        """One step, or kernels that threads run without a meeting between them, if they come out even."""
        if Meeting.SHARED not in met:
            self._together(steps, met)
            return
        apart, together, joined = (self._label(name) for name in ("apart", "together", "joined"))
        self.lines.append(f"  br i1 {self.even}, label %{apart}, label %{together}")
        self._begin(apart)
        own = [by_shards(step) for step in steps]
        turns = self._turns(steps, [not o for o in own])
        for mine, run in groupby(zip(steps, own, turns, strict=True), lambda x: x[1]):
            if mine:
                self._own([step.kernel for step, _, _ in run if isinstance(step, Launch)])
            else:
                for step, _, turn in run:
                    self._work(step, turn)
        self.lines.append(f"  br label %{joined}")
        self._begin(together)
        self._together(steps, met)
        self.lines.append(f"  br label %{joined}")
        self._begin(joined)

    def _own(self, kernels: Sequence[Kernel]) -> None:
        """Kernels for this thread's own shards: those that hand on much, for a few shards at a time."""
        for large, run in groupby(kernels, _is_large):
            part = list(run)
            size = sum(_per_shard({view.buffer for kernel in part for _, view in kernel.stores}))
            if large and len(part) > 1 and 2 * size > NEAR:
                self._by_shards(part, max(1, NEAR // size))
            else:
                for kernel in part:
                    self._launch(kernel, "0", "1", Shards(self.low, self.own_tail))

    def _by_shards(self, kernels: Sequence[Kernel], group: int) -> None:
        """Kernels for a group of this thread's own shards after the other, so that what they hand on stays in the
        cache. What only they touch lies, of every group, where it lies of the first."""
        inside = set(kernels)
        private, met = set[Buffer](), set[Buffer]()
        for kernel in kernels:
            met.update(view.buffer for view in kernel.reads.values())
            made = {view.buffer for _, view in kernel.stores} - met
            private.update(b for b in made if b in self.touched and self.touched[b] <= inside)
            met |= made
        body, after = self._label("shards"), self._label("all_shards")
        at, following = f"%shard{self.count}", f"%following{self.count}"
        before = self.block
        self.lines.append(f"  br label %{body}")
        self._begin(body)
        self.lines.append(f"  {at} = phi i64 [ {self.low}, %{before} ], [ {following}, %{body} ]")
        left = self._do(f"sub i64 {self.high}, {at}")
        few = self._do(f"icmp ult i64 {left}, {group}")
        count = self._do(f"select i1 {few}, i64 {left}, i64 {group}")
        first = self._do(f"add i64 {self.first}, {at}")
        for kernel in kernels:
            tail = [f"i64 {count}", f"i64 {first}", *self.tail[2:]]
            self._launch(kernel, "0", "1", Shards(at, tail, self.low, frozenset(private)))
        self.lines.append(f"  {following} = add i64 {at}, {group}")
        over = self._do(f"icmp uge i64 {following}, {self.high}")
        self.lines.append(f"  br i1 {over}, label %{after}, label %{body}")
        self._begin(after)

    def _together(self, steps: Sequence[Step], met: Sequence[Meeting]) -> None:
        """All threads share the work of each step."""
        begin = 0
        for end, meeting in enumerate(met, 1):
            if meeting == Meeting.SHARED or end == len(met):
                part = steps[begin:end]
                for step, turn in zip(part, self._turns(part, [True] * len(part)), strict=True):
                    self._work(step, turn)
                if meeting == Meeting.SHARED:
                    self._meet()
                begin = end

    def _turns(self, steps: Sequence[Step], shared: Sequence[bool]) -> list[int]:
        """Which thread passes for thread 0, so that kernels that it runs alone are dealt out."""
        found: list[int] = []
        count = 0
        for step, counts in zip(steps, shared, strict=True):
            alone = counts and isinstance(step, Launch) and self.sources[step.kernel].alone
            found.append(count if alone else 0)
            count += alone
        return found

    def _work(self, step: Step, turn: int) -> None:
        if isinstance(step, Launch):
            self._launch(step.kernel, self._thread(turn), "%threads")
        elif isinstance(step, Tiles):
            self._tiles(step)
        elif isinstance(step, Guard):
            self._guard(step)
        elif isinstance(step, Repeat):
            self._repeat(step)

    def _thread(self, turn: int) -> str:
        """This thread's number when counting begins at thread `turn`; worked out once, at the head."""
        if turn not in self.turned:
            lines, self.lines = self.lines, self.head
            behind = self._do(f"sub i64 %threads, {self._do(f'urem i64 {turn}, %threads')}")
            self.turned[turn] = self._do(f"urem i64 {self._do(f'add i64 %thread, {behind}')}, %threads")
            self.lines = lines
        return self.turned[turn]

    def _launch(self, kernel: Kernel, thread: str, threads: str, part: Shards | None = None) -> None:
        """Call a kernel, for all shards or a part of them."""
        pointers = [f"ptr {self._pointer(buffer, part)}" for buffer in kernel.buffers()]
        indices = [f"i64 {self.indices[v]}" for v in kernel.loops]
        tail = self.tail if part is None else part.tail
        arguments = [*pointers, *indices, *tail, f"i64 {thread}", f"i64 {threads}"]
        self.lines.append(f"  call void @{self.sources[kernel].name}({', '.join(arguments)})")

    def _pointer(self, buffer: Buffer, part: Shards | None) -> str:
        """Where a buffer lies; of a private one, this thread's copy."""
        pointer = self._load(self.entry[id(buffer)], "ptr")
        if part is not None and buffer.per_shard:
            low = part.reused if buffer in part.private else part.low
            before = self._do(f"mul i64 {low}, {buffer.per_shard * buffer.type.dtype.bytes}")
            return self._do(f"getelementptr i8, ptr {pointer}, i64 {before}")
        if buffer.role != "private":
            return pointer
        return self._do(f"getelementptr i8, ptr {pointer}, i64 {self.offset}")

    def _meet(self) -> None:
        meet, go_on = self._label("meet"), self._label("go_on")
        self.lines.append(f"  br i1 {self.several}, label %{meet}, label %{go_on}")
        self._begin(meet)
        self.lines.append("  call void @alphac_barrier(ptr %table, i64 %thread, i64 %threads)")
        self.lines.append(f"  br label %{go_on}")
        self._begin(go_on)

    def _guard(self, step: Guard) -> None:
        """Leave with the guard's number if a scalar is not finite: its exponent's bits are all ones."""
        self.guards += 1
        for buffer in step.buffers:
            bits = buffer.type.dtype.bits
            mask = ((1 << _EXPONENT[bits]) - 1) << (bits - 1 - _EXPONENT[bits])
            word = self._do(f"load i{bits}, ptr {self._load(self.entry[id(buffer)], 'ptr')}")
            exponent = self._do(f"and i{bits} {word}, {mask}")
            bad = self._do(f"icmp eq i{bits} {exponent}, {mask}")
            leave, stay = self._label("leave"), self._label("stay")
            self.lines.append(f"  br i1 {bad}, label %{leave}, label %{stay}")
            self._begin(leave)
            self.lines.append(f"  ret i64 {self.guards}")
            self._begin(stay)

    def _repeat(self, step: Repeat) -> None:
        start, end, by = (step.count - 1, -1, -1) if step.reverse else (0, step.count, 1)
        body, after = self._label("repeat"), self._label("repeated")
        index, following = f"%index{self.count}", f"%following{self.count}"
        before = self.block
        self.lines.append(f"  br label %{body}")
        self._begin(body)
        place = len(self.lines)
        self.indices[step.index] = index
        self._steps(step.steps, meets(step.steps))
        self.lines.insert(place, f"  {index} = phi i64 [ {start}, %{before} ], [ {following}, %{self.block} ]")
        self.lines.append(f"  {following} = add i64 {index}, {by}")
        over = self._do(f"icmp eq i64 {following}, {end}")
        self.lines.append(f"  br i1 {over}, label %{after}, label %{body}")
        self._begin(after)

    def _tiles(self, step: Tiles) -> None:
        """This thread's part of the owned indices of `dims`, counted as one."""
        sizes = [d.size // d.shards if d.shards else d.size for d in step.dims]
        grown = bool(step.dims[0].shards)
        total = str(math.prod(sizes))
        if grown:
            total = self._do(f"mul i64 {self.shards}, {total}")
        ends: list[str] = []
        for thread in ("%thread", self._do("add i64 %thread, 1")):
            ends.append(self._do(f"udiv i64 {self._do(f'mul i64 {total}, {thread}')}, %threads"))
        body, after = self._label("tile"), self._label("tiled")
        at, following = f"%at{self.count}", f"%next{self.count}"
        before = self.block
        none = self._do(f"icmp eq i64 {ends[0]}, {ends[1]}")
        self.lines.append(f"  br i1 {none}, label %{after}, label %{body}")
        self._begin(body)
        self.lines.append(f"  {at} = phi i64 [ {ends[0]}, %{before} ], [ {following}, %{body} ]")
        rest = at
        for value, size in zip(reversed(step.indices[1:]), reversed(sizes[1:]), strict=True):
            self.indices[value] = self._do(f"urem i64 {rest}, {size}")
            rest = self._do(f"udiv i64 {rest}, {size}")
        if grown:
            rest = self._do(f"add i64 {rest}, {self._do(f'mul i64 {self.first}, {sizes[0]}')}")
        self.indices[step.indices[0]] = rest
        for launch in step.steps:
            self._launch(launch.kernel, "0", "1")
        self.lines.append(f"  {following} = add i64 {at}, 1")
        over = self._do(f"icmp eq i64 {following}, {ends[1]}")
        self.lines.append(f"  br i1 {over}, label %{after}, label %{body}")
        self._begin(after)

    # ------------------------------------------------------------------ text
    def _label(self, name: str) -> str:
        self.count += 1
        return f"{name}{self.count}"

    def _begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def _do(self, instruction: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {instruction}")
        return f"%v{self.count}"

    def _load(self, entry: int, type: str) -> str:
        place = self._do(f"getelementptr i64, ptr %table, i64 {entry}")
        return self._do(f"load {type}, ptr {place}")
