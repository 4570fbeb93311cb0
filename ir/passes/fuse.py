"""Fusion: which values are stored, and which ops share a kernel.

Before: a block of ops, each with a result.
After:  a `Level`: clusters (each will be one kernel) and nests (loops), in an order that respects what they read. Every
        other value is inlined: evaluated per element where it is read.

    h = contract(x, w)           cluster 1: anchor contract, stores h (epilogue: the add and the maximum)
    a = add(h, broadcast(b))
    r = relu(a)
    s = reduce_sum(exp(r))       cluster 2: anchor reduce_sum, stores s, exp inlined

A block is read backwards, so that all readers of a value are known when it is met. Values are stored when they must be
(an anchor's result, a function's result, what a loop takes or yields) or when evaluating them anew for every reader
would cost more than a trip through memory. A stored value joins the cluster that reads it at its own index if no cycle
arises; otherwise it starts a cluster. An anchor takes over the map that reads its result index by index: its epilogue.
What windows of a contraction slide over is stored, the windows never. A reduction of few elements is no anchor but
arithmetic. Bits never depend on any of this.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from alphac.ir.core import Block, Function, Op, Value
from alphac.ir.ops.define import definition
from alphac.ir.ops.reduce import is_short
from alphac.ir.ops.rules import attribute
from alphac.ir.ops.structure import iterations
from alphac.ir.ops.window import is_inside
from alphac.ir.schedule import Stage
from alphac.ir.typesys import Dim

ANCHORS = ("reduce", "contract", "special", "collective")
# By the `combine` that reads them:
ABSORBED = ("reduce_sum", "reduce_max", "reduce_min", "contract", "contract_fast", "scatter_add")
MAX_STORES = 16  # of one cluster: more would not fit into registers
TRAFFIC = 2.0  # cost of storing an element, in flops; loading one is 1
DIVISION = 8.0  # cost of a division or a square root
INDEXING = 0.5  # much of the arithmetic of index ops is hoisted out of the inner loops
PACKING = 4.0  # about how often a contraction would evaluate an element of an operand
POOLING = 16.0  # flops; a short reduction that takes no more is not stored for a few readers
MAX_WAYS = 8


@dataclass(eq=False)
class Cluster:
    """Ops that become one kernel. `dims` is its index space; `rounds` how many exchanges must come before it; `stages`
    what a stream computes one after the other (stream.py)."""

    stores: list[Value]
    anchor: Op | None
    dims: tuple[Dim, ...]
    order: int
    rounds: int
    stages: tuple[Stage, ...] = ()


@dataclass(eq=False)
class Nest:
    """A `loop` or `tile` and the level of its body."""

    op: Op
    order: int
    body: Level


Node = Cluster | Nest
N = TypeVar("N")


@dataclass(frozen=True)
class Use:
    """How a node reads a value: `aligned` if only at the node's own index; `ways`: how many elements in one run of it,
    by the ops that lead there. What several elementwise ops read at one index is evaluated once."""

    aligned: bool
    ways: Mapping[Hashable, float]

    @property
    def evaluations(self) -> float:
        return sum(self.ways.values())

    def merged(self, other: Use) -> Use:
        """What is read in either way."""
        ways = dict(self.ways)
        for way, count in other.ways.items():
            ways[way] = max(ways.get(way, 0), count)
        return Use(self.aligned and other.aligned, ways)


def reaches(after: Mapping[N, set[N]], start: N, goal: N) -> bool:
    """Whether `goal` is `start` or follows it, directly or through others."""
    seen, stack = {start}, [start]
    while stack:
        node = stack.pop()
        if node is goal:
            return True
        fresh = after.get(node, set()) - seen
        seen |= fresh
        stack.extend(fresh)
    return False


@dataclass(eq=False)
class Level:
    """One block's nodes. `after[n]` are the nodes that read what `n` stores. `producer` says which node stores a
    value."""

    block: Block
    nest: Nest | None = None
    parent: Level | None = None
    trips: float = 1
    nodes: list[Node] = field(default_factory=list[Node])
    after: dict[Node, set[Node]] = field(default_factory=dict[Node, set[Node]])
    producer: dict[Value, Node] = field(default_factory=dict[Value, Node])

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        self.after[node] = set()

    def reaches(self, start: Node, goal: Node) -> bool:
        """Whether `goal` must come after `start` (or is it)."""
        return reaches(self.after, start, goal)


@dataclass(eq=False)
class Fused:
    """A function with what is stored where. `uses[v]` are the nodes that read stored value (or block argument) `v`."""

    function: Function
    root: Level
    home: dict[Value, Level]  # the level whose block defines a value
    level_of: dict[Node, Level]
    uses: dict[Value, dict[Node, Use]]

    def stored(self, value: Value) -> bool:
        """Whether the value has memory of its own."""
        return value.op is None or value in self.home[value].producer

    def readers(self, value: Value, level: Level) -> dict[Node, Use]:
        """The nodes of `level` that read a value, themselves or in a loop inside them."""
        found: dict[Node, Use] = {}
        for node, use in self.uses.get(value, {}).items():
            top = self.ancestor(node, level)
            if top is not None:
                found[top] = use if top is node else Use(False, use.ways)
        return found

    def ancestor(self, node: Node, level: Level) -> Node | None:
        """The node of `level` that is `node` or holds it; None if `node` lies elsewhere."""
        current: Node | None = node
        while current is not None and self.level_of[current] is not level:
            current = self.level_of[current].nest
        return current

    def leaves(self, cluster: Cluster) -> list[Value]:
        """The values a cluster reads from memory, in the order met from its stores."""
        found: dict[Value, None] = {}
        seen: set[Value] = set()
        own = set(cluster.stores)

        def visit(value: Value) -> None:
            if value in seen:
                return
            seen.add(value)
            if self.stored(value) and value not in own:
                found[value] = None
            elif value.op is not None:
                for operand in value.op.operands:
                    visit(operand)

        for value in cluster.stores:
            visit(value)
        return list(found)


def _is_counter(value: Value) -> bool:
    """Whether a value is the index along one of its axes: a loop's counter."""
    while value.op is not None and value.op.name == "broadcast":
        (value,) = value.op.operands
    return value.op is not None and value.op.name == "iota"


def fuse(function: Function) -> Fused:
    """Choose stored values and clusters of a function without `grad` and composite ops."""
    return _Fusion(function).run()


class _Fusion:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.home: dict[Value, Level] = {}
        self.level_of: dict[Node, Level] = {}
        self.uses: dict[Value, dict[Node, Use]] = {}
        self.must: set[Value] = set()
        self.rounds: dict[Value, int] = {}
        self.single: dict[Value, int] = {}
        self.costs: dict[Value, float] = {}
        self.laid: set[Value] = set()
        self.kernels: set[str] = set()
        self.result: Fused | None = None

    def run(self) -> Fused:
        self._count(self.function.block)
        root = Level(self.function.block)
        self.result = Fused(self.function, root, self.home, self.level_of, self.uses)
        self._level(root)
        return self.result

    def _count(self, block: Block) -> None:
        """Uses per value, and the exchanges that come before it."""
        for value in block.arguments:
            self.rounds.setdefault(value, 0)
        for op in block.ops:
            before = max((self.rounds[v] for v in op.operands), default=0)
            if op.name == "window":
                self.kernels.add(attribute(op.attributes, "kernel", Dim).name)
            if op.name == "contract":
                self.laid.update(_laid(op))
            for inner in op.blocks:
                for value in inner.arguments:
                    self.rounds[value] = before
                self._count(inner)
                before = max(before, *(self.rounds[v] for v in inner.results), 0)
            for value in op.results:
                self.rounds[value] = before + (definition(op).shape == "collective")
            for value in op.operands:
                self.single[value] = self.single.get(value, 0) + 1
        for value in block.results:
            self.single[value] = self.single.get(value, 0) + 1

    def _level(self, level: Level) -> None:
        for value in level.block.arguments:
            self.home[value] = level
        for op in level.block.ops:
            for value in op.results:
                self.home[value] = level
        for value in level.block.results:
            self.must.add(value)
            if self.home[value] is not level and level.nest is not None:
                self._read(value, level.nest, Use(False, {}))
        for order in range(len(level.block.ops) - 1, -1, -1):
            op = level.block.ops[order]
            if op.blocks:
                self._nest(level, op, order)
            elif definition(op).shape in ANCHORS and not is_short(op):
                self._anchor(level, op, order)
            else:
                self._inline_or_store(level, op, order)

    # ------------------------------------------------------------------ one op
    def _nest(self, level: Level, op: Op, order: int) -> None:
        body = Level(op.blocks[0], parent=level, trips=level.trips * iterations(op))
        nest = Nest(op, order, body)
        body.nest = nest
        level.add(nest)
        self.level_of[nest] = level
        for value in op.results:
            self._store(level, value, nest)
        self._level(body)
        for value in op.operands:
            self.must.add(value)
            self._read(value, nest, Use(False, {}))

    def _anchor(self, level: Level, op: Op, order: int) -> None:
        value = op.result
        if value not in self.must and not self.uses.get(value):
            return  # nobody reads it
        combine = self._absorbing(level, op)
        if combine is not None:
            self._read_operands(op, combine, Use(False, {None: value.type.size}))
            return
        host = self._host(level, value) if definition(op).shape in ("reduce", "contract") else None
        if host is not None:
            host.anchor = op
            if value in self.must or len(self.uses[value]) > 1:
                host.stores.append(value)
                self._store(level, value, host)
        else:
            host = self._cluster(level, value, op, order)
        self._read_operands(op, host, Use(False, {None: value.type.size}))

    def _absorbing(self, level: Level, op: Op) -> Cluster | None:
        """The `combine` cluster that is the only reader of an anchor's result, if it may compute it itself."""
        if op.name not in ABSORBED or op.result in self.must or self.single.get(op.result, 0) != 1:
            return None
        if any(v.type.is_partial for v in op.operands):
            return None  # it works on partials and makes none
        node = next(iter(self.uses[op.result]))
        if (
            len(self.uses[op.result]) > 1
            or not isinstance(node, Cluster)
            or self.level_of[node] is not level
            or node.anchor is None
        ):
            return None
        takes = definition(node.anchor).shape == "collective" and node.anchor.operands == (op.result,)
        return node if takes else None

    def _inline_or_store(self, level: Level, op: Op, order: int) -> None:
        value = op.result
        users = self.uses.get(value, {})
        if value not in self.must and not self._worth_storing(level, value):
            for node, use in users.items():
                self._read_operands(op, node, use)
            return
        host = self._host(level, value)
        if host is not None:
            host.stores.append(value)
            host.rounds = max(host.rounds, self.rounds[value])
            self._store(level, value, host)
        else:
            host = self._cluster(level, value, None, order)
        self._read_operands(op, host, Use(True, {None: value.type.size}))

    # ------------------------------------------------------------------ policy
    def _worth_storing(self, level: Level, value: Value) -> bool:
        users = self.uses.get(value, {})
        if value in self.laid:
            return True
        if value.op is not None and value.op.name == "window" and is_inside(value.op):
            return False  # rather what it slides over, which is smaller
        combined = any(isinstance(n, Cluster) and n.anchor is not None and value in n.anchor.operands
                       and definition(n.anchor).shape == "collective" for n in users)  # fmt: skip
        if combined:
            return True
        evaluations = sum(u.evaluations * self.level_of[n].trips for n, u in users.items()) / level.trips
        size, cost = value.type.size, self._cost(value)
        if value.op is not None and is_short(value.op) and cost <= POOLING and evaluations <= PACKING * size:
            return False
        return cost * evaluations > (cost + TRAFFIC) * size + evaluations

    def _cost(self, value: Value) -> float:
        """Flops to evaluate one element, loads (1 each) included; values with several readers count as loaded."""
        known = self.costs.get(value)
        if known is not None:
            return known
        op = value.op
        short = op is not None and is_short(op)
        if _is_counter(value):
            cost = 0.0
        elif op is None or value in self.laid or not (short or definition(op).shape in ("elementwise", "index")):
            cost = 1.0
        else:
            cost = definition(op).cost.flops * (INDEXING if definition(op).shape == "index" else 1)
            if op.name in ("div", "sqrt"):
                cost = DIVISION
            if op.name == "window" and is_inside(op):
                cost = 0.0
            for operand in op.operands:
                inner = self._cost(operand)
                cost += min(inner, 1.0) if self.single.get(operand, 0) > 1 else inner
            if short:
                cost *= op.operands[0].type.size / value.type.size
        self.costs[value] = cost
        return cost

    def _host(self, level: Level, value: Value) -> Cluster | None:
        """A map of this level that reads `value` at its own index alone and may compute it."""
        users = self.uses.get(value, {})
        tops = {self._ancestor(node, level) for node in users}
        for node in reversed(level.nodes):
            if not isinstance(node, Cluster) or node.anchor is not None or node.dims != value.type.dims:
                continue
            use = users.get(node)
            if use is None or not use.aligned or len(node.stores) >= MAX_STORES:
                continue
            others = tops - {node}
            if (others or value in self.must) and node.rounds > self._before(value):
                continue
            if not any(level.reaches(other, node) for other in others):
                return node
        return None

    def _before(self, value: Value) -> int:
        """How many exchanges must come before `value` can be computed."""
        assert value.op is not None
        return max((self.rounds[v] for v in value.op.operands), default=0)

    # ------------------------------------------------------------------ bookkeeping
    def _cluster(self, level: Level, value: Value, anchor: Op | None, order: int) -> Cluster:
        cluster = Cluster([value], anchor, value.type.dims, order, self._before(value))
        level.add(cluster)
        self.level_of[cluster] = level
        self._store(level, value, cluster)
        return cluster

    def _store(self, level: Level, value: Value, node: Node) -> None:
        """`node` stores `value`: every other reader comes after it."""
        level.producer[value] = node
        for reader in self.uses.get(value, {}):
            top = self._ancestor(reader, level)
            if top is not node:
                level.after[node].add(top)

    def _ancestor(self, node: Node, level: Level) -> Node:
        assert self.result is not None
        found = self.result.ancestor(node, level)
        assert found is not None, "a value is read outside the block that defines it"
        return found

    def _read(self, value: Value, node: Node, use: Use) -> None:
        uses = self.uses.setdefault(value, {})
        uses[node] = uses[node].merged(use) if node in uses else use

    def _read_operands(self, op: Op, node: Node, use: Use) -> None:
        """`node` evaluates an op so often."""
        for operand in op.operands:
            if definition(op).shape == "elementwise":
                self._read(operand, node, use)
                continue
            ways: dict[Hashable, float] = {
                (op, way): self._evaluations(op, operand, count) for way, count in use.ways.items()
            }
            if len(ways) > MAX_WAYS:
                ways = {op: sum(ways.values())}
            self._read(operand, node, Use(False, ways))

    def _evaluations(self, op: Op, operand: Value, of_result: float) -> float:
        """How many elements of an operand are evaluated for so many of the result."""
        shape = definition(op).shape
        if shape == "contract":
            return PACKING * operand.type.size
        if is_short(op):
            return of_result * operand.type.size / op.result.type.size
        if shape in ANCHORS:
            return operand.type.size
        if op.name in ("concat", "pad"):  # each element of the result is one of theirs
            return of_result * operand.type.size / max(op.result.type.size, 1)
        if op.name == "broadcast":  # elements of one window are computed together
            added = (d for d in op.result.type.dims if not operand.type.has(d.name) and d.name in self.kernels)
            return of_result / math.prod(d.size for d in added)
        return of_result


def _laid(op: Op) -> Iterator[Value]:
    """What a contraction with windows reads where it lies: what they slide over, if they stay inside, and the other
    operand, if it was given other axes for that."""
    for value, other in (op.operands, op.operands[::-1]):
        slides = False
        while value.op is not None and value.op.name in ("window", "slice", "broadcast", "rename"):
            if value.op.name == "window" and not is_inside(value.op):
                break
            slides |= value.op.name == "window"
            (value,) = value.op.operands
        else:
            if slides:
                yield value
                if other.op is not None and other.op.name == "broadcast":
                    yield other
