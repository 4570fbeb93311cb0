"""Projection: a fused function becomes a Program, what one role does, in order.

Before: levels of clusters and nests (`fuse`).
After:  buffers, kernels, exchanges, guards, repeats (`ir/schedule.py`).

* A `combine` is finished by an Exchange, put off until something reads the combined value, so that several share one.
  What a loop merely collects is exchanged once after the loop, the whole stack of it.
* A state is overwritten in place where its old version is read at the written index alone or beforehand; otherwise the
  new version is kept aside and copied at the end. The same goes for what a loop carries.
* A Guard on the losses comes before the first write to a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from alphac.ir.core import Function, Op, Port, Value
from alphac.ir.ops.define import definition
from alphac.ir.ops.structure import tiled_axes
from alphac.ir.passes.fuse import Cluster, Fused, Level, Nest, fuse, reaches
from alphac.ir.passes.meetings import keeps_to_shards
from alphac.ir.passes.partials import part
from alphac.ir.passes.stream import stream
from alphac.ir.schedule import Buffer, Exchange, Guard, Kernel, Launch, Program, Repeat, Step, Tiles, View, pieces
from alphac.ir.typesys import Dim, TensorType

SMALL = 64 << 10  # bytes that a node may store to be put forward


@dataclass(eq=False)
class Copy:
    """A node that copies a value to where it must end up."""

    value: Value
    to: View
    order: int


@dataclass(eq=False)
class Stop:
    """The node of a Guard."""

    buffers: tuple[Buffer, ...]
    order: int


Node = Cluster | Nest | Copy | Stop


@dataclass(frozen=True, eq=False)
class _Body:
    """A loop's body in order, the buffers it touches, and the combines it leaves open: kind, and in how many further
    enclosing loops the result is stacked."""

    steps: tuple[Step, ...]
    reads: frozenset[Buffer]
    opened: dict[Buffer, tuple[str, int]]


@dataclass(eq=False)
class _Graph:
    """One level's nodes and what must come before what.

    `readers[v]`: which nodes read a block argument, and whether at their own index alone. `loops`: the indices of the
    enclosing loops, outermost first. `producer`: the node that makes a value stored in this level.
    """

    level: Level
    loops: tuple[Value, ...]
    nodes: list[Node]
    after: dict[Node, set[Node]]
    readers: dict[Value, dict[Node, bool]]
    producer: dict[Value, Node]
    bodies: dict[Nest, _Body] = field(default_factory=dict[Nest, _Body])

    @property
    def tiled(self) -> bool:
        """Whether this is the body of a `tile`, which a thread runs alone."""
        nest = self.level.nest
        return nest is not None and nest.op.name == "tile"

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        self.after[node] = set()

    def reaches(self, start: Node, goal: Node) -> bool:
        """Whether `goal` must come after `start` (or is it)."""
        return reaches(self.after, start, goal)

    def order(self, firsts: Iterable[Node], last: Node) -> None:
        """All of `firsts` run before `last`."""
        for node in firsts:
            if node is not last:
                self.after[node].add(last)


def schedule(function: Function, streams: bool = True) -> Program:
    """Fuse and project one function, with `streams`, and sums that threads share by shards, or without."""
    fused = fuse(function)
    return project(part(stream(fused)) if streams else fused)


def project(fused: Fused) -> Program:
    """The program of a fused function. Each result's port has a buffer of exactly its value."""
    return _Projection(fused).run()


class _Projection:
    def __init__(self, fused: Fused) -> None:
        self.fused = fused
        self.program = Program(fused.function.name)
        self.views: dict[Value, View] = {}
        self.names: dict[str, int] = {}
        self.readings: dict[Value, int] = {}
        self._count(fused.root)

    def _count(self, level: Level) -> None:
        for value in (*(v for op in level.block.ops for v in op.operands), *level.block.results):
            self.readings[value] = self.readings.get(value, 0) + 1
        for node in level.nodes:
            if isinstance(node, Nest):
                self._count(node.body)

    def run(self) -> Program:
        function, block = self.fused.function, self.fused.root.block
        old: dict[str, Value] = {}
        for port, value in zip(function.arguments, block.arguments, strict=True):
            buffer = self._buffer(
                port.name or port.kind, value.type, "state" if port.kind == "state" else "argument", port
            )
            self.views[value] = View(buffer)
            self.program.arguments.append((port, buffer))
            if port.kind == "state":
                old[port.name] = value
        graph = self._graph(self.fused.root, ())
        losses: list[Buffer] = []
        changed: list[tuple[Value | None, Value, View]] = []
        for port, value in zip(function.results, block.results, strict=True):
            if port.kind == "state":
                before = old.get(port.name)
                buffer = (
                    self._buffer(port.name, value.type, "state", port) if before is None else self.views[before].buffer
                )
                if value is not before:
                    changed.append((before, value, View(buffer)))
            else:
                buffer = self._kept(graph, port, value)
                if port.kind == "loss":
                    losses.append(buffer)
            self.program.results.append((port, buffer))
        self._arrange(graph, changed, losses)
        self.program.steps = self._body(graph).steps
        return self.program

    # ------------------------------------------------------------------ one level
    def _graph(self, level: Level, loops: tuple[Value, ...]) -> _Graph:
        readers: dict[Value, dict[Node, bool]] = {
            v: {n: u.aligned for n, u in self.fused.readers(v, level).items()} for v in level.block.arguments
        }
        after: dict[Node, set[Node]] = {n: set(a) for n, a in level.after.items()}
        return _Graph(level, loops, list(level.nodes), after, readers, dict(level.producer))

    def _arrange(self, graph: _Graph, changed: list[tuple[Value | None, Value, View]], losses: list[Buffer]) -> None:
        """Give every stored value of a level a place, then those of its loops. `changed`: (old, new, place) of values
        to be overwritten; guarded by `losses`."""
        nests = [n for n in graph.level.nodes if isinstance(n, Nest)]
        for nest in nests:
            if nest.op.name == "loop":
                self._start(graph, nest)
        stop = self._stop(graph, losses) if losses and changed else None
        self._overwrite(graph, changed, stop)
        for value, node in graph.level.producer.items():
            if isinstance(node, Cluster) and node.stages:
                self._place_parts(value)
            self._place(value, private=graph.tiled)
        for nest in nests:
            graph.bodies[nest] = self._tile(graph, nest) if nest.op.name == "tile" else self._loop(graph, nest)

    def _start(self, graph: _Graph, nest: Nest) -> None:
        """Places of what a `loop` yields; its carried values start there."""
        for value in nest.op.results:
            self._place(value)
        for value, result in zip(nest.op.operands, nest.op.results[: _carried(nest.op)], strict=False):
            if self._free(graph, value) and self.readings[value] == 1 and not self._is_nodes(value):
                self.views[value] = self.views[result]
            else:
                graph.order([self._copy(graph, value, self.views[result])], nest)

    def _loop(self, outer: _Graph, nest: Nest) -> _Body:
        op, block = nest.op, nest.op.blocks[0]
        carried, index, dim = _carried(op), block.arguments[0], op.attributes["dim"]
        names = op.attributes["slices"]
        assert isinstance(dim, Dim) and isinstance(names, tuple)
        places = [self.views[v] for v in op.results]
        for argument, place in zip(block.arguments[1:], places[:carried], strict=False):
            self.views[argument] = place
        for argument, operand, name in zip(block.arguments[1 + carried :], op.operands[carried:], names, strict=True):
            whole = self.views[operand]
            self.views[argument] = View(whole.buffer, (*whole.slices, (str(name), index)))
        graph = self._graph(nest.body, (*outer.loops, index))
        for value, stack in zip(block.results[carried:], places[carried:], strict=True):
            to = View(stack.buffer, (*stack.slices, (dim.name, index)))
            if self._free(graph, value) and self._is_nodes(value) == (stack.buffer.role == "nodes"):
                self.views[value] = to
            else:
                self._copy(graph, value, to)
        changed: list[tuple[Value | None, Value, View]] = [
            (old, new, place)
            for old, new, place in zip(block.arguments[1:], block.results, places[:carried], strict=False)
            if new is not old
        ]
        self._arrange(graph, changed, [])
        return self._body(graph)

    def _tile(self, outer: _Graph, nest: Nest) -> _Body:
        op, block, dims = nest.op, nest.op.blocks[0], tiled_axes(nest.op)
        indices = tuple(block.arguments[: len(dims)])
        along = tuple(zip((d.name for d in dims), indices, strict=True))
        for argument, operand in zip(block.arguments[len(dims) :], op.operands, strict=True):
            whole = self.views[operand]
            taken = tuple((name, index) for name, index in along if operand.type.has(name))
            self.views[argument] = View(whole.buffer, (*whole.slices, *taken))
        graph = self._graph(nest.body, (*outer.loops, *indices))
        for value, result in zip(block.results, op.results, strict=True):
            whole = self.views[result]
            to = View(whole.buffer, (*whole.slices, *along))
            if self._free(graph, value):
                self.views[value] = to
            else:
                self._copy(graph, value, to)
        self._arrange(graph, [], [])
        return self._body(graph)

    # ------------------------------------------------------------------ places
    def _buffer(self, name: str, type: TensorType, role: str, port: Port | None = None, strand: int = 0) -> Buffer:
        number = self.names[name] = self.names.get(name, 0) + 1
        strand = type.cut.strand if type.cut is not None else strand
        buffer = Buffer(name if number == 1 else f"{name}.{number}", type, role, port, strand=strand)
        self.program.buffers.append(buffer)
        return buffer

    def _place(self, value: Value, private: bool = False) -> None:
        if value not in self.views:
            role = "private" if private else "nodes" if self._is_nodes(value) else "temporary"
            self.views[value] = View(self._buffer(_label(value), value.type, role, strand=self._strand(value)))

    def _place_parts(self, value: Value) -> None:
        """A stream leaves the parts of its sums to who combines them."""
        op = value.op
        assert op is not None
        if value.type.is_partial:
            grain = op.operands[0].type.grain
            assert grain is not None
            buffer = self._buffer(_label(value), value.type, "temporary")
            buffer.pieces = pieces(grain.size // grain.shards)[1]
            self.views[value] = View(buffer)

    def _kept(self, graph: _Graph, port: Port, value: Value) -> Buffer:
        """The buffer of a result that is no state."""
        free = self._free(graph, value)
        role = "nodes" if free and self._is_nodes(value) else "temporary"
        buffer = self._buffer(port.name or port.kind, value.type, role, port, self._strand(value))
        if free:
            self.views[value] = View(buffer)
        else:
            self._copy(graph, value, View(buffer))
        return buffer

    def _free(self, graph: _Graph, value: Value) -> bool:
        """Whether a value is made in this level and may be stored anywhere."""
        return value not in self.views and value in graph.level.producer

    def _is_nodes(self, value: Value) -> bool:
        """Whether a value lies as subtrees until an exchange: a `combine`, or a stack of them that is only
        collected."""
        op = value.op
        if op is None:
            return False
        if op.name != "loop":
            return definition(op).shape == "collective"
        if value.index < _carried(op):
            return False
        inner, block = op.blocks[0].results[value.index], op.blocks[0]
        return self.fused.home[inner].block is block and self.readings[inner] == 1 and self._is_nodes(inner)

    def _strand(self, value: Value) -> int:
        """Whose subtrees a value is, if it lies as such."""
        if not self._is_nodes(value):
            return 0
        assert value.op is not None
        if value.op.name == "loop":
            return self._strand(value.op.blocks[0].results[value.index])
        cut = value.op.operands[0].type.cut
        return cut.strand if cut is not None else 0

    def _copy(self, graph: _Graph, value: Value, to: View) -> Copy:
        """Add a copy of a value to a place that nobody writes or reads otherwise."""
        node = Copy(value, to, len(graph.level.block.ops))
        graph.add(node)
        if value in graph.producer:
            graph.order([graph.producer[value]], node)
        if value in graph.readers:
            graph.readers[value][node] = False
        return node

    # ------------------------------------------------------------------ overwriting
    def _stop(self, graph: _Graph, losses: list[Buffer]) -> Stop:
        stop = Stop(tuple(losses), len(graph.level.block.ops))
        writers = [n for n in graph.nodes if isinstance(n, Copy) and n.to.buffer in losses]
        writers += [
            graph.producer[v] for v, view in self.views.items() if view.buffer in losses and v in graph.producer
        ]
        graph.add(stop)
        graph.order(writers, stop)
        return stop

    def _overwrite(self, graph: _Graph, changed: list[tuple[Value | None, Value, View]], stop: Stop | None) -> None:
        """Let each new value take the place of its old one, as if all at once."""
        moves: list[tuple[Value | None, Value, View]] = []
        for old, new, place in changed:
            if new in graph.readers and new not in graph.loops:
                # Another's old value, which may be overwritten first: it is put aside before anything else.
                aside = Value(new.type, new.hint)
                self.views[aside] = View(self._buffer(f"{_label(new)}.aside", new.type, "temporary"))
                early = self._copy(graph, new, self.views[aside])
                early.order = -1
                graph.producer[aside] = early
                new = aside
            moves.append((old, new, place))
        for old, new, place in moves:
            readers = graph.readers.get(old, {}) if old is not None else {}
            before: list[Node] = [*readers, *([stop] if stop is not None else [])]
            writer = self._writer(graph, new)
            early = writer is not None and any(graph.reaches(writer, n) for n in before if n is not writer)
            if writer is not None and readers.get(writer, True) and not early:
                self.views[new] = place
                graph.order(before, writer)
            else:
                graph.order(before, self._copy(graph, new, place))

    def _writer(self, graph: _Graph, value: Value) -> Node | None:
        """The kernel, or tile of kernels, that makes a value, if it may store it anywhere."""
        writer = graph.producer.get(value)
        able = isinstance(writer, Cluster) or (isinstance(writer, Nest) and writer.op.name == "tile")
        return writer if able and self._free(graph, value) and not self._is_nodes(value) else None

    # ------------------------------------------------------------------ order and steps
    def _body(self, graph: _Graph) -> _Body:
        """The steps of a level, with its exchanges as late as they may come."""
        steps: list[Step] = []
        pending: dict[Buffer, str] = {}
        reads: set[Buffer] = set()
        left: dict[Buffer, tuple[str, int]] = {}
        for node in self._sorted(graph):
            needed = self._needed(graph, node)
            if pending.keys() & needed:
                steps += _exchanges(pending)
                pending.clear()
            steps.append(self._step(graph, node))
            reads |= needed
            for buffer, (kind, stacked) in self._opened(graph, node).items():
                if stacked:
                    left[buffer] = (kind, stacked - 1)
                else:
                    pending[buffer] = kind
        steps += _exchanges(pending)
        return _Body(tuple(steps), frozenset(reads), left)

    def _step(self, graph: _Graph, node: Node) -> Step:
        if isinstance(node, Stop):
            return Guard(node.buffers)
        if isinstance(node, Nest):
            return self._nested(node.op, graph.bodies[node].steps)
        reads = {v: self.views[v] for v in self._leaves(node) if v not in graph.loops}
        if isinstance(node, Copy):
            kernel = Kernel(self._kernel_name(node), ((node.value, node.to),), reads, None, graph.loops, graph.tiled)
        else:
            stores = tuple((v, self.views[v]) for v in node.stores)
            kernel = Kernel(self._kernel_name(node), stores, reads, node.anchor, graph.loops, graph.tiled, node.stages)
        return Launch(kernel)

    def _nested(self, op: Op, steps: tuple[Step, ...]) -> Step:
        indices = op.blocks[0].arguments
        if op.name == "tile":
            dims = tiled_axes(op)
            return Tiles(dims, tuple(indices[: len(dims)]), tuple(s for s in steps if isinstance(s, Launch)))
        dim = op.attributes["dim"]
        assert isinstance(dim, Dim)
        return Repeat(dim.size, indices[0], bool(op.attributes["reverse"]), steps)

    def _leaves(self, node: Cluster | Copy) -> list[Value]:
        return [node.value] if isinstance(node, Copy) else self.fused.leaves(node)

    def _needed(self, graph: _Graph, node: Node) -> set[Buffer]:
        """The buffers that a node reads."""
        if isinstance(node, Stop):
            return set(node.buffers)
        if isinstance(node, Nest):
            return set(graph.bodies[node].reads)
        return {self.views[v].buffer for v in self._leaves(node) if v not in graph.loops}

    def _opened(self, graph: _Graph, node: Node) -> dict[Buffer, tuple[str, int]]:
        """The combines that a node leaves open: kind, and in how many enclosing loops the result is stacked."""
        if isinstance(node, Nest):
            return graph.bodies[node].opened
        if not isinstance(node, Cluster) or node.anchor is None or definition(node.anchor).shape != "collective":
            return {}
        view = self.views[node.anchor.result]
        return {view.buffer: (node.anchor.name.removeprefix("combine_"), len(view.slices))}

    def _kernel_name(self, node: Cluster | Copy) -> str:
        if isinstance(node, Copy):
            label = f"copy.{_label(node.value)}"
        else:
            kind = "stream" if node.stages else node.anchor.name if node.anchor is not None else ""
            label = f"{kind}.{_label(node.stores[0])}".lstrip(".")
        number = self.names[f"kernel {label}"] = self.names.get(f"kernel {label}", 0) + 1
        return f"{self.program.name}.{label}" + (f".{number}" if number > 1 else "")

    def _sorted(self, graph: _Graph) -> list[Node]:
        """The nodes in a legal order: what needs fewer exchanges first, else as in the source. Nodes that take little
        memory, or go on with a chain of shards, come early if that saves a meeting (`meetings.py`)."""
        before: dict[Node, set[Node]] = {n: set() for n in graph.nodes}
        for node, followers in graph.after.items():
            for follower in followers:
                before[follower].add(node)
        waiting = {n: len(b) for n, b in before.items()}
        rounds = dict.fromkeys(graph.nodes, 0)
        serial = {n: i for i, n in enumerate(graph.nodes)}
        opened = {n: {b for b, (_, stacked) in self._opened(graph, n).items() if not stacked} for n in graph.nodes}
        needed = {n: self._needed(graph, n) for n in graph.nodes}
        own = {n for n in graph.nodes if self._keeps_to_shards(n, needed[n])}
        found: list[Node] = []
        together: set[Node] = set()  # since the last meeting

        def meets(node: Node) -> bool:
            last = before[node] & together
            return bool(last - own if node in own else last)

        def place(node: Node) -> tuple[int, int]:
            return node.order, serial[node]

        ready = {n for n in graph.nodes if not waiting[n]}
        while ready:
            node = min(ready, key=lambda n: (rounds[n], *place(n)))
            alike = {n for n in ready if rounds[n] == rounds[node]}
            light = {n for n in alike if self._light(n)}
            if node in own and not together & own:  # first what a chain of shards needs that has none
                node = min((n for n in light - own if graph.after[n] & own), key=place, default=node)
                if node in own and any(graph.after[n] & own for n in together):
                    together.clear()
            if meets(node):
                others = [n for n in light | alike & own if not meets(n)]
                if others:
                    node = min(others, key=place)
                else:
                    together.clear()
            ready.remove(node)
            found.append(node)
            together.add(node)
            for follower in graph.after[node]:
                exchanged = opened[node] & needed[follower]
                rounds[follower] = max(rounds[follower], rounds[node] + bool(exchanged))
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.add(follower)
        assert len(found) == len(graph.nodes), "a schedule has a cycle"
        return found

    def _light(self, node: Node) -> bool:
        """Whether a node stores nothing but states and what is small."""
        return isinstance(node, Copy | Cluster) and all(
            buffer.role == "state" or buffer.type.bytes <= SMALL for buffer in self._stored(node)
        )

    def _keeps_to_shards(self, node: Node, reads: set[Buffer]) -> bool:
        return isinstance(node, Copy | Cluster) and keeps_to_shards(self._stored(node), reads)

    def _stored(self, node: Cluster | Copy) -> list[Buffer]:
        """The buffers that a node writes."""
        return [node.to.buffer] if isinstance(node, Copy) else [self.views[v].buffer for v in node.stores]


def _exchanges(pending: Mapping[Buffer, str]) -> list[Step]:
    """What is to be exchanged, strand by strand."""
    strands = sorted({buffer.strand for buffer in pending})
    return [Exchange(tuple((b, kind) for b, kind in pending.items() if b.strand == s)) for s in strands]


def _carried(op: Op) -> int:
    carried = op.attributes["carried"] if op.name == "loop" else 0
    assert isinstance(carried, int)
    return carried


def _label(value: Value) -> str:
    return value.hint or (value.op.name if value.op is not None else "value")
