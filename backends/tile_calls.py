"""The calls that multiply one register tile: shard by shard, leaf by leaf, merged as the tree says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from alphac.backends.evaluation import Index, size
from alphac.backends.indexing import Affine, number, symbol
from alphac.backends.packing import Part, Side
from alphac.backends.tiling import LEAF

if TYPE_CHECKING:
    from alphac.backends.contraction import Contraction

MANY = 1 << 31  # more than there is of anything


@dataclass(frozen=True)
class Chunk:
    """Terms multiplied together: from `first` on, counted within a shard, or all of `count` shards from `shard` on."""

    first: Affine
    shard: Affine
    count: Affine


@dataclass(frozen=True)
class Unit:
    """Elements of the result whose sums are complete at the same time."""

    batch: Index
    row: Affine
    rows: Affine
    column: Affine
    columns: Affine


@dataclass(frozen=True)
class Target:
    """Where a unit's sums are stored: the first at `start`, a row `across` elements from the row before; nodes of a
    combine `slot` elements apart."""

    name: str
    start: Affine
    across: int
    slot: int


@dataclass(frozen=True)
class Ahead:
    """Memory that is fetched while a tile is multiplied: `lines` lines with every term, at the address in variable
    `place`, and `along` (another) elements further with each."""

    place: str
    along: str
    lines: int


@dataclass(frozen=True)
class Calls:
    """The calls of `multiply` for one tile, whose sums begin at `place` of every slot; the last goes to `target`."""

    contraction: Contraction
    unit: Unit
    parts: tuple[Part, Part]
    chunk: Chunk
    place: Affine
    target: Target | None
    ahead: Ahead | None

    def emit(self) -> None:
        """Write them."""
        c, frame, source, chunk = self.contraction, self.contraction.frame, self.contraction.source, self.chunk
        if not c.merged:
            self._leaves(number(0), number(0), None, [])
            return
        depth = "top" if c.plan.whole else source.name("d")
        source.line(f"{depth} = {'0' if c.plan.whole else 'top'}")
        end = chunk.shard + chunk.count
        with frame.loop("s", chunk.shard, end, c.shards) as shard:
            here, merges = source.name("n"), source.name("n")
            source.line(f"{here} = {depth}")
            source.line(f"{merges} = merge[{source.index(shard - frame.first)}]")
            skip = (shard - chunk.shard) * c.terms
            last = [f"({source.index(shard)} == {source.index(end - 1)})"]
            self._leaves(skip, symbol(here, source.level, 0, MANY), merges, last)
            source.line(f"{depth} += 1 - {merges}")

    def _leaves(self, skip: Affine, base: Affine, merges: str | None, last: list[str]) -> None:
        """The leaves of one shard that are in the chunk. `skip`: packed terms of earlier shards; `base`: slots in use;
        `merges`: how often the shard's sum is merged with earlier shards'; `last`: whether no shard follows."""
        c, frame, source = self.contraction, self.contraction.frame, self.contraction.source
        if c.leaves == 1:
            self._multiply(skip, number(c.terms), base, merges or "0", last)
            return
        start = self.chunk.first // LEAF
        stop = number(c.leaves) if c.plan.whole else frame.least(start + min(c.plan.terms // LEAF, c.leaves), c.leaves)
        with frame.loop("l", start, stop, c.leaves) as leaf:
            text = source.index(leaf)
            depth = symbol(source.define(f"popcount({text})", source.level, "n"), source.level, 0, 64)
            times = source.define(f"merges_after({text}, {c.leaves})", source.level, "n")
            if merges is not None:
                times = source.define(f"{times} + select({text} == {c.leaves - 1}, {merges}, 0)", source.level, "n")
            terms = frame.least(number(c.terms) - leaf * LEAF, LEAF)
            last = [*last, f"({text} == {c.leaves - 1})"]
            self._multiply(skip + leaf * LEAF - self.chunk.first, terms, base + depth, times, last)

    def _multiply(self, k: Affine, terms: Affine, slot: Affine, merges: str, last: list[str]) -> None:
        c, source = self.contraction, self.contraction.source
        plan, (a, b) = c.plan, self.parts
        rows = source.index(a.start + k * a.along)
        columns = source.index(b.start + k * b.along)
        place = source.index(self.place + slot * plan.slot)
        count = source.index(self.unit.columns)
        to, across = self._goal(place, slot, merges, last)
        ahead = "0, 0"
        if self.ahead is not None:
            terms_before = source.index(k * c.dtype.bytes)
            ahead = f"{self.ahead.place} + {self.ahead.along} * ({terms_before}), {self.ahead.along}"
        turns = terms // c.packing.pair
        call = (
            f"({c.sums.name}, {source.index(turns)}, address({a.name}, {rows}), {a.across}, {a.along},"
            f" address({b.name}, {columns}), {b.along}, address({c.sums.name}, {place}), {plan.width}, {plan.slot},"
            f" {merges}, {to}, {across}, {count}, {ahead})"
        )
        for row_condition, height in _forms(c.rows, c.tile.rows, source.index(self.unit.rows)):
            for column_condition, size_ in _forms(c.columns, c.tile.columns, count):
                vectors = -(-size_ // c.tile.lanes)
                flags = "m" * (size_ % c.tile.lanes > 0) + (f"p{self.ahead.lines}" if self.ahead else "")
                conditions = [x for x in (row_condition, column_condition) if x]
                indent = ""
                if conditions:
                    source.line(f"if {' & '.join(conditions)}:")
                    indent = "    "
                source.line(f"{indent}{c.packing.multiply}_{height}x{vectors}{flags}{call}")

    def _goal(self, place: str, slot: Affine, merges: str, last: list[str]) -> tuple[str, str]:
        """Address and stride where the sums of a call go, merged: a slot, or the target of the last."""
        c, source, target = self.contraction, self.contraction.source, self.target
        to = place if merges == "0" else f"{place} - {c.plan.slot} * {merges}"
        found = f"address({c.sums.name}, {to})", str(c.plan.width)
        if target is None:
            return found
        node = number(0)
        if c.merged:
            node = (slot - symbol(merges, source.level, 0, MANY)) * target.slot
        final = f"address({target.name}, {source.index(target.start + node)})", str(target.across)
        if not last:
            return final
        names = source.name("n"), source.name("n")
        for name, text in zip(names, found, strict=True):
            source.line(f"{name} = {text}")
        with source.block(f"if {' & '.join(last)}:"):
            for name, text in zip(names, final, strict=True):
                source.line(f"{name} = {text}")
        return names


def _forms(side: Side, most: int, count: str) -> list[tuple[str, int]]:
    """Of how many rows or columns register tiles are, and the condition under which they are of so many: the last may
    have a form of its own if it is known how many are left."""
    total = size(side.axes)
    if not side.count.is_constant or total % most == 0:
        return [("", most)]
    if total < most:
        return [("", total)]
    return [(f"({count} == {most})", most), (f"({count} < {most})", total % most)]
