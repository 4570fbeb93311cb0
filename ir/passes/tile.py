"""Tiles: kernels that share outer axes run together, index by index of these, so that what they hand on stays in cache.

before    %s = contract(%q, %k) : f32[batch, heads, time, key]     each a trip through memory
          %p = softmax(%s) …
          %y = contract(%p, %v)
after     %y = tile(%q, %k, %v) {dims = (batch, heads), …} do (…, %q: f32[time, head], …) {
              …  the same ops on [time, key]
          }

What becomes a kernel, and what is stored, is asked of `fuse`. Groups start as single kernels and merge along the values
they hand on, the largest first, as long as

- some axes pass through all of their ops untouched, and over the fewest of these, outermost first, what is live in one
  iteration fits the cache;
- nothing outside must run between their members, and the same exchanges come before them.

A group becomes a tile if the trips through memory that it saves are worth its iterations. Bits stay: an op on slices
sums in the order in which it sums on the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from typing import ClassVar

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Op, Value
from alphac.ir.errors import InternalError
from alphac.ir.ops.define import definition
from alphac.ir.passes.fuse import Cluster, Fused, Level, Nest, Node, fuse
from alphac.ir.passes.slicing import build_sliced, passes
from alphac.ir.rewrite import ValueMap, captures, clone_op, fresh, live_ops, map_functions, remap
from alphac.ir.typesys import I64, Dim, TensorType


@dataclass(frozen=True)
class Tile:
    """`cache`: bytes that one iteration may keep live, half of what a core has for itself. `gain`: bytes of trips
    through memory that a tile saves at least. `launch`: what running a kernel once more costs, in bytes moved: its code
    and what predicts its branches are no longer at hand, about 3 microseconds in all. `shared`: bytes that a
    contraction may read anew in every iteration."""

    name: ClassVar[str] = "tile"
    cache: int = 512 << 10
    gain: int = 2 << 20
    launch: int = 48 << 10
    shared: int = 32 << 10

    def run(self, module: Module) -> Module:
        return map_functions(module, self.function)

    def function(self, function: Function) -> Function:
        """One function, tiled."""
        fused = fuse(function)
        block = _Rewriting(fused, self).block(fused.root)
        return replace(function, block=block)


@dataclass(eq=False)
class Group:
    """Nodes of one level, clusters if more than one. `dims`: what they run over together, outermost first; empty while
    there is one only."""

    nodes: list[Node]
    axes: list[Dim]  # that pass through all of its ops, outermost first
    dims: tuple[Dim, ...] = ()

    @property
    def clusters(self) -> list[Cluster]:
        return [n for n in self.nodes if isinstance(n, Cluster)]


class Grouping:
    """Groups the clusters of one level."""

    def __init__(self, fused: Fused, level: Level, options: Tile) -> None:
        self.fused, self.level, self.options = fused, level, options
        self.leaves: dict[Cluster, list[Value]] = {}
        self.ops: dict[Cluster, list[Op]] = {}
        self.group: dict[Node, Group] = {}
        self.states = {
            v
            for port, v in zip(fused.function.results, fused.function.block.results, strict=True)
            if port.kind == "state"
        }

    def groups(self) -> list[Group]:
        """Those that are worth a tile."""
        for node in self.level.nodes:
            if isinstance(node, Cluster):
                self.ops[node] = cluster_ops(self.fused, node)
                self.leaves[node] = self.fused.leaves(node)
                self.group[node] = Group([node], self._axes(node))
            else:
                self.group[node] = Group([node], [])
        for first, second in self._edges():
            a, b = self.group[first], self.group[second]
            if a is not b:
                self._merge(a, b)
        found = dict.fromkeys(self.group.values())
        return [g for g in found if g.dims and self._gain(g)]

    # ------------------------------------------------------------------ one cluster
    def _axes(self, cluster: Cluster) -> list[Dim]:
        """The axes that pass through a cluster, but for the innermost one of its largest value."""
        if any(v in self.states for v in cluster.stores) or not self.ops[cluster]:
            return []
        touched = [*cluster.stores, *self.leaves[cluster]]
        largest = _physical(max(touched, key=lambda v: v.type.size).type)
        ops = self.ops[cluster]
        return [
            d
            for d in _physical(cluster.stores[0].type)
            if d != largest[-1]
            and all(v.type.has(d.name) for v in cluster.stores)
            and all(passes(o, d.name) for o in ops)
        ]

    # ------------------------------------------------------------------ merging
    def _edges(self) -> Iterable[tuple[Cluster, Cluster]]:
        """Pairs of clusters of which one reads what the other stores, or both read the same, the largest values
        first."""
        found: list[tuple[int, int, Cluster, Cluster]] = []
        for value, uses in self.fused.uses.items():
            if not self.fused.stored(value):
                continue
            here = [n for n in uses if isinstance(n, Cluster) and n in self.group]
            producer = self.level.producer.get(value)
            if isinstance(producer, Cluster):
                found += [(_bytes(value), 1, producer, n) for n in here if n is not producer]
            found += [(_bytes(value), 0, a, b) for a, b in pairwise(here)]
        found.sort(key=lambda e: (e[0], e[1]), reverse=True)
        return [(a, b) for _, _, a, b in found]

    def _merge(self, a: Group, b: Group) -> None:
        axes = [d for d in a.axes if d in b.axes]
        clusters = sorted((*a.clusters, *b.clusters), key=lambda c: c.order)
        if not axes or clusters[0].rounds != clusters[-1].rounds or self._around(a, b) or self._around(b, a):
            return
        merged = Group(list(clusters), axes)
        merged.dims = self._dims(merged)
        if merged.dims:
            for cluster in clusters:
                self.group[cluster] = merged

    def _around(self, a: Group, b: Group) -> bool:
        """Whether a path leads from `a` through other groups to `b`."""
        seen = {a}
        stack = [g for g in self._followers(a) if g is not b]
        while stack:
            group = stack.pop()
            if group is b:
                return True
            if group not in seen:
                seen.add(group)
                stack.extend(self._followers(group))
        return False

    def _followers(self, group: Group) -> set[Group]:
        """The groups that read what a group stores."""
        return {self.group[n] for member in group.nodes for n in self.level.after[member]}

    def _dims(self, group: Group) -> tuple[Dim, ...]:
        """The fewest axes over which one iteration fits; none if it would read too much anew."""
        for length in range(1, len(group.axes) + 1):
            dims = tuple(group.axes[:length])
            if self._live(group, dims) <= self.options.cache:
                return dims if self._again(group, dims) else ()
        return ()

    def _again(self, group: Group, dims: tuple[Dim, ...]) -> bool:
        """Whether contractions read little that is the same for several iterations."""
        names = [d.name for d in dims]
        for cluster in group.clusters:
            if cluster.anchor is not None and definition(cluster.anchor).shape == "contract":
                common = [v for v in self.leaves[cluster] if not all(v.type.has(n) for n in names)]
                if sum(_bytes(v, names) for v in common) > self.options.shared:
                    return False
        return True

    def _live(self, group: Group, dims: tuple[Dim, ...]) -> int:
        """The most bytes that are in use at a time in one iteration."""
        names = [d.name for d in dims]
        last: dict[Value, int] = {}
        for at, cluster in enumerate(group.clusters):
            last.update((v, at) for v in (*cluster.stores, *self.leaves[cluster]))
        live: set[Value] = set()
        most = 0
        for at, cluster in enumerate(group.clusters):
            live |= {*cluster.stores, *self.leaves[cluster]}
            most = max(most, sum(_bytes(v, names) for v in live))
            live -= {v for v in live if last[v] == at}
        return most

    # ------------------------------------------------------------------ is it worth it
    def _gain(self, group: Group) -> bool:
        """Whether a tile saves enough: a value read while it is in cache saves a trip through memory, one that nobody
        outside reads is not written either. Small ones would be in cache anyway."""
        members = set(group.clusters)
        produced = {v for c in group.clusters for v in c.stores}
        known: set[Value] = set()
        trips: list[Value] = []
        for cluster in group.clusters:
            trips += [v for v in self.leaves[cluster] if v in produced or v in known]
            known.update(self.leaves[cluster])
        results = set(self.level.block.results)
        trips += [v for v in produced if v not in results and all(n in members for n in self.fused.uses.get(v, {}))]
        saved = sum(_bytes(v) for v in trips if _bytes(v) >= 2 * self.options.cache)
        iterations = math.prod(d.size for d in group.dims)
        return saved >= max(self.options.gain, iterations * len(group.clusters) * self.options.launch)


def _physical(type_: TensorType) -> list[Dim]:
    """The axes as they lie in memory: the grain's outermost."""
    return sorted(type_.dims, key=lambda d: not d.shards)


def _bytes(value: Value, without: Sequence[str] = ()) -> int:
    """Bytes of a value at one index of some axes."""
    return value.type.without(*without).size * value.type.dtype.bytes


def cluster_ops(fused: Fused, cluster: Cluster) -> list[Op]:
    """The ops that a cluster evaluates, operands before their readers."""
    found: dict[Op, None] = {}
    own = set(cluster.stores)

    def visit(value: Value) -> None:
        op = value.op
        if op is None or op in found or (fused.stored(value) and value not in own):
            return
        for operand in op.operands:
            visit(operand)
        found[op] = None

    for value in cluster.stores:
        visit(value)
    return list(found)


# ---------------------------------------------------------------------- rewriting
@dataclass(eq=False)
class _Unit:
    """What is emitted at once: some ops of a block, those of a group as one tile. `outputs` are read elsewhere."""

    ops: list[Op]
    dims: tuple[Dim, ...]  # of a tile
    order: int
    outputs: dict[Value, None] = field(default_factory=dict[Value, None])

    def inputs(self) -> list[Value]:
        """What its ops read of others."""
        made = {v for op in self.ops for v in op.results}
        read = [v for op in self.ops for v in (*op.operands, *(c for b in op.blocks for c in captures(b)))]
        return [v for v in dict.fromkeys(read) if v not in made]


class _Rewriting:
    """Copies blocks with groups as tiles."""

    def __init__(self, fused: Fused, options: Tile) -> None:
        self.fused, self.options = fused, options
        self.mapping: ValueMap = {}
        self.position: dict[Op, tuple[int, int]] = {}

    def block(self, level: Level, depth: int = 0) -> Block:
        """A copy of a level's block."""
        old = level.block
        self.position |= {op: (depth, i) for i, op in enumerate(old.ops)}
        new = Block([fresh(a) for a in old.arguments])
        self.mapping.update(zip(old.arguments, new.arguments, strict=True))
        nests = {n.op: n.body for n in level.nodes if isinstance(n, Nest)}
        for unit in self._units(level):
            if unit.dims:
                self._tile(new, unit)
            else:
                (op,) = unit.ops
                inner = (self.block(nests[op], depth + 1),) if op in nests else None
                new.ops.append(clone_op(op, self.mapping, inner))
        new.results = remap(old.results, self.mapping)
        new.ops = live_ops(new)
        return new

    def _units(self, level: Level) -> list[_Unit]:
        """The units that a block needs, each after those whose results it reads, else as in the source."""
        grouping = Grouping(self.fused, level, self.options)
        owner: dict[Value, _Unit] = {}
        for group in grouping.groups():
            ops = sorted({o for c in group.clusters for o in grouping.ops[c]}, key=lambda o: self.position[o])
            unit = _Unit(ops, group.dims, group.clusters[0].order)
            owner |= {v: unit for c in group.clusters for v in c.stores}
        for order, op in enumerate(level.block.ops):
            unit = _Unit([op], (), order)
            owner = {**dict.fromkeys(op.results, unit), **owner}
        after: dict[_Unit, set[_Unit]] = {}
        before: dict[_Unit, int] = {}
        needed = [owner[v] for v in self._note(owner, level.block.results)]
        while needed:
            unit = needed.pop()
            if unit in before:
                continue
            makers = {owner[v] for v in self._note(owner, unit.inputs())}
            before[unit] = len(makers)
            for maker in makers:
                after.setdefault(maker, set()).add(unit)
            needed.extend(makers)
        return _in_order(before, after)

    def _note(self, owner: dict[Value, _Unit], values: Iterable[Value]) -> list[Value]:
        """Those of some values that units of this block make; they become outputs."""
        made = [v for v in values if v in owner]
        for value in made:
            owner[value].outputs[value] = None
        return made

    def _tile(self, into: Block, unit: _Unit) -> None:
        """Append a unit's tile."""
        names = [d.name for d in unit.dims]
        indices = {d.name: Value(TensorType(I64), d.name) for d in unit.dims}
        sliced = [v for v in unit.inputs() if any(v.type.has(n) for n in names)]
        arguments = {v: Value(v.type.without(*names), v.hint) for v in sliced}
        body = Block([*indices.values(), *arguments.values()])
        local = {**self.mapping, **arguments}
        for op in unit.ops:
            operands = [local.get(v, v) for v in op.operands]
            local[op.result] = build_sliced(Builder(body), op, operands, indices)
        body.results = tuple(local[v] for v in unit.outputs)
        to = tuple(v.type.dims for v in unit.outputs)
        op = Builder(into, unit.ops[0].span).build("tile", remap(sliced, self.mapping), [body], dims=unit.dims, to=to)
        for value, result in zip(unit.outputs, op.results, strict=True):
            result.hint = value.hint
            self.mapping[value] = result


def _in_order(before: dict[_Unit, int], after: dict[_Unit, set[_Unit]]) -> list[_Unit]:
    """Units by number of predecessors and followers, in an order that respects these."""
    waiting = dict(before)
    ready = [(u.order, i, u) for i, u in enumerate(before) if not waiting[u]]
    serial = count(len(before))
    heapify(ready)
    found: list[_Unit] = []
    while ready:
        _, _, unit = heappop(ready)
        found.append(unit)
        for follower in after.get(unit, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, (follower.order, next(serial), follower))
    if len(found) != len(before):
        raise InternalError("tiles wait for each other")
    return found
