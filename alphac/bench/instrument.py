"""A system's code with a clock in it: every launch of a kernel in `step` counts the ticks that its threads spend in it.

Only the functions that launch kernels differ from a bundle's own code: kernels, memory plan, order and meetings of
threads are the same, so the object can stand in for the bundle's.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from alphac.backends.emit import lower_programs
from alphac.backends.segment import Segment, Shards
from alphac.backends.target import KernelSource, Target
from alphac.ir.core import Value
from alphac.ir.schedule import Kernel, Program

THREADS = 256  # that have counters
# How a counter that ticks evenly is read, by architecture.
TICKS = {
    "x86_64": "call i64 @llvm.readcyclecounter()",
    "aarch64": 'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()',
}
TICKS["arm64"] = TICKS["aarch64"]  # macOS's word
_COUNTERS = """
declare i64 @llvm.readcyclecounter()

@profile_ticks = internal global [{size} x i64] zeroinitializer, align 64

define i64 @profile_address() {{
  ret i64 ptrtoint (ptr @profile_ticks to i64)
}}

define i64 @profile_now() {{
  %now = {ticks}
  ret i64 %now
}}
"""


@dataclass(frozen=True)
class Instrumented:
    """`code` is the object; launch n of thread t counts in word t × `stride` + n of `profile_address()`. `launches` are
    the kernels by n."""

    code: bytes
    launches: tuple[Kernel, ...]
    stride: int


class _Timed(Segment):
    """A segment whose launches are timed; `launches` numbers their kernels."""

    def __init__(
        self,
        launches: dict[Kernel, int],
        stride: int,
        name: str,
        program: Program,
        sources: Mapping[Kernel, KernelSource],
        outer: Sequence[Value],
    ) -> None:
        super().__init__(name, program, sources, outer)
        self._launches, self._stride = launches, stride  # a kernel may stand in several functions

    def _launch(self, kernel: Kernel, thread: str, threads: str, part: Shards | None = None) -> None:
        ticks = TICKS[platform.machine()]
        before = self._do(ticks)
        super()._launch(kernel, thread, threads, part)
        spent = self._do(f"sub i64 {self._do(ticks)}, {before}")
        mine = self._do(f"mul i64 %thread, {self._stride}")
        word = self._do(f"add i64 {mine}, {self._launches.setdefault(kernel, len(self._launches))}")
        place = self._do(f"getelementptr i64, ptr @profile_ticks, i64 {word}")
        total = self._do(f"add i64 {self._do(f'load i64, ptr {place}')}, {spent}")
        self.lines.append(f"  store i64 {total}, ptr {place}")


def instrument(programs: Mapping[str, Program], target: Target, tiles: Mapping[str, str]) -> Instrumented:
    """Compile the programs of a bundle again, with clocks in `step`. `tiles`: the register tiles that measuring chose
    for the bundle, by kernels' symbols."""
    launches: dict[Kernel, int] = {}
    stride = -(-sum(1 for _ in programs["step"].kernels()) // 8) * 8  # no two threads write to one cache line

    def segment(name: str, program: Program, sources: Mapping[Kernel, KernelSource], outer: Sequence[Value]) -> Segment:
        if program is not programs["step"]:
            return Segment(name, program, sources, outer)
        return _Timed(launches, stride, name, program, sources, outer)

    chosen = [(tile, replace(target, tile=_tile(tile))) for tile in sorted(set(tiles.values()))]

    def lower(plain: Target, kernel: Kernel) -> KernelSource:
        for tile, tuned in chosen:
            source = tuned.lower(kernel)
            if tiles.get(source.name) == tile:
                return source
        return plain.lower(kernel)

    code = lower_programs(programs.values(), target, segment, lower=lower)
    code.segments += _COUNTERS.format(size=THREADS * stride, ticks=TICKS[platform.machine()])
    return Instrumented(code.object(), tuple(launches), stride)


def _tile(text: str) -> tuple[int, int]:
    rows, vectors = map(int, text.split("x"))
    return rows, vectors
