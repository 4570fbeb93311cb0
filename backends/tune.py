"""Register tiles of contractions chosen by measurement: `alphac compile --tune`.

For every distinct kernel that multiplies by register tiles, and whose target this machine runs, the tiles that might
be best are compiled and timed, side by side on one thread. What was found is kept by content, with the machine that it
was found on. Bits do not depend on the tile.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from alphac.backends.cache import Cache, code_version
from alphac.backends.target import KernelSource, Target
from alphac.backends.tiling import shapes
from alphac.backends.timing import seconds
from alphac.ir.schedule import Kernel

BUDGET = 0.25  # seconds for the candidates of a kernel
WORTH = 0.98  # of the time of the tile that the shape suggests, at most, is what another must take
Clock = Callable[[Kernel, Sequence[KernelSource], Target, int, float, Cache], list[float]]


@dataclass(frozen=True)
class Choice:
    """What was measured of a kernel: `text` says what it computes; `tile` is the fastest, None the one that its shape
    suggests, which takes `gain` times as long."""

    text: str
    tile: tuple[int, int] | None
    gain: float


@dataclass
class Tuner:
    """Lowers kernels, each by the register tile that is fastest here. `tell` hears what is being measured; `choices`
    are all that were made, by symbol; `elsewhere` the targets that this machine cannot measure."""

    store: Cache
    tell: Callable[[str], None] = lambda _: None
    clock: Clock = seconds
    choices: dict[str, Choice] = field(default_factory=dict[str, Choice])
    elsewhere: set[str] = field(default_factory=set[str])

    def lower(self, target: Target, kernel: Kernel) -> KernelSource:
        """The source of one kernel."""
        plain = target.lower(kernel)
        if target.is_gpu or not target.runs_here():
            self.elsewhere.add(target.name)
            return plain
        text = kernel.name if plain.source.count('"""') < 2 else plain.source.split('"""')[1]
        sources: dict[str, tuple[tuple[int, int] | None, KernelSource]] = {plain.name: (None, plain)}
        for tile in candidates(target.registers):
            source = replace(target, tile=tile).lower(kernel)
            sources.setdefault(source.name, (tile, source))
        if len(sources) == 1:
            return plain
        key = _key(target, sorted(sources))
        found = self._recalled(key, text) or self._measured(key, text, kernel, target, list(sources.values()))
        chosen = next(source for tile, source in sources.values() if tile == found.tile)
        self.choices[chosen.name] = found
        return chosen

    def _recalled(self, key: str, text: str) -> Choice | None:
        payload = self.store.get(key)
        if payload is None:
            return None
        tile, gain = json.loads(payload)
        return Choice(text, tuple(tile) if tile else None, gain)

    def _measured(
        self, key: str, text: str, kernel: Kernel, target: Target,
        sources: list[tuple[tuple[int, int] | None, KernelSource]],
    ) -> Choice:  # fmt: skip
        self.tell(f"{target.name}: {text}")
        shards = max((d.shards for b in kernel.buffers() for d in b.layout), default=0) or 1
        times = self.clock(kernel, [s for _, s in sources], target, shards, BUDGET, self.store)
        best = min(range(len(times)), key=times.__getitem__)
        best = best if times[best] < WORTH * times[0] else 0
        choice = Choice(text, sources[best][0], times[0] / times[best])
        self.store.put(key, json.dumps([choice.tile, choice.gain]).encode())
        return choice


def candidates(registers: int) -> list[tuple[int, int]]:
    """Register tiles worth trying: of every number of vectors the highest, and two thirds of it."""
    most = {v: max(h for h, w in shapes(registers) if w == v) for _, v in shapes(registers)}
    return [(h, v) for v, high in sorted(most.items()) for h in dict.fromkeys((high, max(1, 2 * high // 3)))]


def _key(target: Target, names: Sequence[str]) -> str:
    """What a choice is found by: this machine, the target, and all candidates."""
    machine = (platform.node(), platform.machine(), _processor())
    return hashlib.sha256(repr((code_version(), machine, target.name, names)).encode()).hexdigest()


def _processor() -> str:
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name()
