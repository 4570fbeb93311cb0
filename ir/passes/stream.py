"""Streams: clusters that go over the same rows (the grain's axis) become one kernel, which reads them once.

Before: x is read three times, z and g are trips through memory.

    z = contract(x, w)                 cluster 1 stores g = z - y
    loss = combine(reduce_sum(z²))     cluster 2
    d_w = combine(contract(x, g))      cluster 3

After: one cluster whose stages a kernel computes block of rows by block of rows. It stores per-shard partials, which
the `combine`s read; g has no memory.

Sums over the rows with few results start streams: what makes the rows they sum joins, then other sums of these rows.
A stream is made if it saves trips through memory, or lets threads share rows where there are too few results to share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from alphac.ir.core import Op, Value
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.ops.define import definition
from alphac.ir.ops.reduce import reduced_axes
from alphac.ir.passes.fuse import Cluster, Fused, Level, Nest, Use
from alphac.ir.passes.slicing import passes
from alphac.ir.schedule import Stage
from alphac.ir.typesys import Dim, TensorType

ROWS = 256  # of a shard at least: fewer are not worth a partial result
ROW_BYTES = 512  # of all that is read and made of a row: a block of rows stays in the second level of cache
COLUMNS = 16  # of a row's product
TERMS = 256
RESULTS = 4096  # of a sum over the rows
WIDTH = 256  # of its longer side
FEW = 256  # results: not enough for threads to share
GAIN = 256 << 10  # bytes that a stream saves or shares
NUMBERS = ("f32", "f64", "i32", "i64")


def stream(fused: Fused) -> Fused:
    """Form the streams of a fused function, loops included."""
    _level(fused, fused.root)
    return fused


def _level(fused: Fused, level: Level) -> None:
    for node in level.nodes:
        if isinstance(node, Nest) and node.op.name == "loop":
            _level(fused, node.body)
    _Streams(fused, level).form()


class _Streams:
    def __init__(self, fused: Fused, level: Level) -> None:
        self.fused, self.level = fused, level
        results = zip(fused.function.results, fused.function.block.results, strict=True)
        self.states = {v for port, v in results if port.kind == "state"}

    def form(self) -> None:
        clusters = [n for n in self.level.nodes if isinstance(n, Cluster)]
        self.sums = {c: op for c in clusters if (op := self._sum(c)) is not None}
        self.makers = [c for c in clusters if c not in self.sums and self._makes_rows(c)]
        taken: set[Cluster] = set()
        for start in self.sums:
            if start not in taken:
                members = self._grown(start, taken)
                if self._worth(members):
                    taken |= set(members)
                    self._merge(members)

    # ------------------------------------------------------------------ what may be in a stream
    def _sum(self, cluster: Cluster) -> Op | None:
        """The op under a `combine` that sums rows, with few results."""
        combine = cluster.anchor
        if combine is None or definition(combine).shape != "collective" or self.fused.stored(combine.operands[0]):
            return None
        op = combine.operands[0].op
        assert op is not None
        grain = op.operands[0].type.grain
        if grain is None or grain.size // grain.shards < ROWS or op.result.type.dtype.name not in NUMBERS:
            return None
        kept = [[d for d in v.type.dims if d != grain] for v in op.operands]
        sizes = [_size(k) for k in kept]
        if op.name == "contract":
            apart = not set(kept[0]) & set(kept[1]) and contracted_axes(op) == [grain]
            return op if apart and sizes[0] * sizes[1] * grain.shards <= RESULTS * 8 and max(sizes) <= WIDTH else None
        reduces = definition(op).shape == "reduce" and reduced_axes(op) == [grain]
        return op if reduces and sizes[0] <= WIDTH else None

    def _makes_rows(self, cluster: Cluster) -> bool:
        """Whether a cluster computes each row's values from its own row alone, in a way that a block can."""
        grain, op = cluster.stores[0].type.grain, cluster.anchor
        if grain is None or grain.size // grain.shards < ROWS or any(v in self.states for v in cluster.stores):
            return False
        if op is None:
            return True
        if op.result.type.dtype.name not in NUMBERS or not passes(op, grain.name):
            return False
        if op.name == "contract":
            x, w = op.operands if op.operands[0].type.has(grain.name) else op.operands[::-1]
            terms = contracted_axes(op)
            whole = {d.name for d in x.type.dims} == {grain.name, *(d.name for d in terms)}
            alone = not w.type.has(grain.name) and not w.type.is_partial
            return whole and alone and _size(terms) <= TERMS and op.result.type.size // grain.size <= COLUMNS
        if definition(op).shape == "reduce":
            (x,) = op.operands
            return op.result.type.dims == (grain,) and x.type.size // grain.size <= TERMS
        return False

    # ------------------------------------------------------------------ growing
    def _grown(self, start: Cluster, taken: set[Cluster]) -> list[Cluster]:
        members = [start]
        grain = self._grain(start)
        free = [c for c in (*self.makers, *self.sums) if c not in taken and c.rounds == start.rounds]
        free = [c for c in free if self._grain(c) == grain]
        grew = True
        while grew:
            grew = False
            for cluster in free:
                more = [*members, cluster]
                if cluster not in members and self._related(cluster, members) and self._fits(more):
                    members, grew = more, True
        return members

    def _grain(self, cluster: Cluster) -> Dim | None:
        op = self.sums.get(cluster)
        return (op.operands[0] if op is not None else cluster.stores[0]).type.grain

    def _rows(self, cluster: Cluster) -> list[Value]:
        """The stored values of rows that a cluster reads."""
        return [v for v in self.fused.leaves(cluster) if v.type.grain is not None]

    def _related(self, cluster: Cluster, members: list[Cluster]) -> bool:
        read = {v for m in members for v in self._rows(m)}
        if cluster in self.sums:
            made = {v for m in members if m not in self.sums for v in m.stores}
            return any(v in read or v in made for v in self._rows(cluster))
        return any(v in read for v in cluster.stores)

    def _fits(self, members: list[Cluster]) -> bool:
        """Whether members can be one kernel: a row is small, what one makes another reads of its own row, and nothing
        outside must run between them."""
        makers = [m for m in members if m not in self.sums]
        made = {v for m in makers for v in m.stores}
        made |= {m.anchor.result for m in makers if m.anchor is not None}
        grain = self._grain(members[0])
        assert grain is not None
        touched = made | {v for m in members for v in self._rows(m)}
        if sum(_bytes(v.type) for v in touched) > ROW_BYTES * grain.size:
            return False
        if not all(self._by_row(m, made, grain.name) for m in members):
            return False
        inside = set(members)
        outside = {n for m in members for n in self.level.after[m]} - inside
        return not any(self.level.reaches(n, m) for n in outside for m in members)

    def _by_row(self, cluster: Cluster, made: set[Value], grain: str) -> bool:
        """Whether a cluster reads what is `made` in the stream row by row: its own row's values, or sums of them."""
        op = self.sums.get(cluster)
        own = {*cluster.stores, *(cluster.anchor.results if cluster.anchor is not None else ())}
        todo = [(v, True) for v in (op.operands if op is not None else cluster.stores)]
        seen: set[tuple[Value, bool]] = set()
        while todo:
            value, by_row = todo.pop()
            if (value, by_row) in seen:
                continue
            seen.add((value, by_row))
            if value in made and value not in own:
                if not by_row:
                    return False
            elif value.op is not None and (value in own or not self.fused.stored(value)):
                by_row &= passes(value.op, grain)
                todo += [(v, by_row) for v in value.op.operands]
        return True

    # ------------------------------------------------------------------ worth
    def _worth(self, members: list[Cluster]) -> bool:
        grain = self._grain(members[0])
        assert grain is not None
        rows = [self._rows(m) for m in members]
        distinct = sum(_bytes(v.type) for v in {v for read in rows for v in read})
        saved = sum(_bytes(v.type) for read in rows for v in read) - distinct
        partial = sum(_bytes(self.sums[m].result.type) for m in members if m in self.sums)
        few = any(self.sums[m].result.type.size // grain.shards <= FEW for m in members if m in self.sums)
        return max(saved, distinct if few else 0) >= max(GAIN, 32 * partial)

    # ------------------------------------------------------------------ one kernel
    def _merge(self, members: list[Cluster]) -> None:
        """Replace members by a stream; the combines stay, and read what it stores."""
        level, fused = self.level, self.fused
        makers = [m for m in self._sorted(members) if m not in self.sums]
        sums = [m for m in members if m in self.sums]
        inside = set(members)
        kept = [v for m in makers for v in m.stores if self._outlives(v, inside)]
        partials = [self.sums[m].result for m in sums]
        stages = [Stage(tuple(m.stores), m.anchor, sums=False) for m in makers]
        stages += [Stage((self.sums[m].result,), self.sums[m], sums=True) for m in sums]
        order, rounds = min(m.order for m in members), members[0].rounds
        made = Cluster([*kept, *partials], None, members[0].dims, order, rounds, tuple(stages))
        after = {n for m in makers for n in level.after[m]} - inside
        for node, followers in level.after.items():
            if node not in inside and followers & inside:
                level.after[node] = (followers - inside) | {made}
        level.nodes = [n for n in level.nodes if n not in makers]
        for maker in makers:
            del level.after[maker], fused.level_of[maker]
            for value in maker.stores:
                del level.producer[value]
        level.add(made)
        level.after[made] = after | set(sums)
        fused.level_of[made] = level
        for value in made.stores:
            level.producer[value] = made
        for uses in fused.uses.values():
            moved = [uses.pop(m) for m in members if m in uses]
            if moved:
                uses[made] = Use(False, {None: sum(u.evaluations for u in moved)})
        for value, combine in zip(partials, sums, strict=True):
            fused.uses[value] = {combine: Use(False, {None: value.type.size})}

    def _outlives(self, value: Value, inside: set[Cluster]) -> bool:
        """Whether something outside reads a value that a member stores."""
        return value in self.level.block.results or any(n not in inside for n in self.fused.uses.get(value, {}))

    def _sorted(self, members: list[Cluster]) -> list[Cluster]:
        """In an order in which each reads what those before it store."""
        left, found = list(members), list[Cluster]()
        while left:
            first = next(m for m in left if not any(n is not m and self.level.reaches(n, m) for n in left))
            left.remove(first)
            found.append(first)
        return found


def _size(dims: Iterable[Dim]) -> int:
    return math.prod(d.size for d in dims)


def _bytes(type_: TensorType) -> int:
    return type_.size * type_.dtype.bytes
