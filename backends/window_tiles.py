"""How the rows of a product with windows are cut: into register tiles, and where it pays into parts, each of which
leaves out the terms that for all its rows are zeros around an image.

    the first image row       the kernel's last two rows          x x x x x
    others, by columns        all but the first column            x o o o x      o: all terms
                              all                                 x o o o x
                              all but the last                    x x x x x
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from alphac.backends.simd_windows import RowTile
from alphac.backends.target import Target
from alphac.backends.tiling import VECTORS, vector_width
from alphac.ir.typesys import Dim


@dataclass(frozen=True)
class Level:
    """Neighboring axes whose elements are equally far apart, as if they were one."""

    axes: tuple[Dim, ...] = ()
    count: int = 1
    stride: int = 0


@dataclass(frozen=True)
class Run:
    """Of a row's axis, indices `start` … `stop`; of an axis of terms, those that do not read zeros there."""

    start: int
    stop: int
    axis: str
    terms: tuple[int, int]


@dataclass(frozen=True)
class Part:
    """Tiles over `outer` and `inner`, first row and number of them, of the two levels. `terms`: of axes that are
    summed, the indices there are; of others all."""

    tile: RowTile
    outer: tuple[int, int]
    inner: tuple[int, int]
    terms: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    @property
    def across(self) -> int:
        return -(-self.inner[1] // self.tile.inner)

    @property
    def tiles(self) -> int:
        return -(-self.outer[1] // self.tile.outer) * self.across


@dataclass(frozen=True)
class Rows:
    """What is cut: two levels of rows, of a product with so many columns of elements of so many bytes."""

    outer: Level
    inner: Level
    columns: int
    element: int
    target: Target

    @property
    def lanes(self) -> int:
        return vector_width(self.element, self.target)

    def whole(self) -> Part:
        """All rows as one part."""
        return self._part((0, self.outer.count), (0, self.inner.count), {}, VECTORS)

    def cut(self, summed: Sequence[Dim], runs: Mapping[str, Sequence[Run]]) -> list[Part]:
        """The parts that take the fewest cycles: all rows as one, or cut by the runs of the levels' first axes. Rows
        that lack terms along the outer level may stay together: what they lack along the inner one too is little."""
        whole = self.whole()
        kept, cut = list[Part](), list[Part]()
        for low, count, terms in _ranges(self.outer, runs, summed):
            pieces = [
                self._part((low, count), (start, number), {**terms, **more}, (whole.tile.vectors,))
                for start, number, more in _ranges(self.inner, runs, summed)
            ]
            cut += pieces
            together = self._part((low, count), (0, self.inner.count), terms, (whole.tile.vectors,))
            kept += [together] if terms else pieces
        return min(([whole], kept, cut), key=lambda parts: sum(self._work(p, summed) for p in parts))

    def _work(self, part: Part, summed: Sequence[Dim]) -> float:
        """Cycles of all terms, and of what is done with every sum behind them: stored, and looked at if terms lack."""
        sums = part.tiles * part.tile.sums * -(-self.columns // (part.tile.vectors * self.lanes))
        terms = math.prod(stop - start for start, stop in (part.terms.get(d.name, (0, d.size)) for d in summed))
        return self._cycles(part) * terms + sums * (4 if part.terms else 2)

    def _part(
        self,
        outer: tuple[int, int],
        inner: tuple[int, int],
        terms: Mapping[str, tuple[int, int]],
        vectors: Sequence[int],
    ) -> Part:
        target = self.target
        tiles = (
            RowTile(o, self.outer.stride if o > 1 else 0, i, self.inner.stride if i > 1 else 0, v)
            for v in vectors
            for i in range(1, min(inner[1], target.registers) + 1)
            for o in (range(1, min(outer[1], target.registers) + 1) if i == inner[1] else (1,))
            if o * i * v + v + 1 <= target.registers
        )
        return min((Part(t, outer, inner, terms) for t in tiles), key=lambda p: (self._cycles(p), -p.tile.sums))

    def _cycles(self, part: Part) -> float:
        """Of a term: two fma or loads a cycle, a chain's next fma after four. The tables are two loads more."""
        height, vectors = part.tile.height, part.tile.vectors
        tiles = part.tiles * -(-self.columns // (vectors * self.lanes))
        return tiles * (max(height * vectors / 2, (height + vectors + 2) / 2, 4.0) + 1)


def _ranges(
    level: Level, runs: Mapping[str, Sequence[Run]], summed: Sequence[Dim]
) -> list[tuple[int, int, dict[str, tuple[int, int]]]]:
    """A level's rows by the runs of its first axis: the first, how many, and their terms if some lack."""
    known = runs.get(level.axes[0].name, ()) if level.axes else ()
    if not known:
        return [(0, level.count, {})]
    unit = level.count // level.axes[0].size
    whole = {d.name: (0, d.size) for d in summed}
    return [
        (r.start * unit, (r.stop - r.start) * unit, {r.axis: r.terms} if r.terms != whole[r.axis] else {})
        for r in known
    ]
