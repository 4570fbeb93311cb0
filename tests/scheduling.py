"""For the tests of schedules: functions built by hand, and a plain executor of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Op, Port, Value
from alphac.ir.exact import run_exactly
from alphac.ir.ops import definition
from alphac.ir.oracle import to_compute, to_storage
from alphac.ir.passes.plan_memory import MemoryPlan, buffer_bytes, place_states, plan_memory
from alphac.ir.schedule import Buffer, Exchange, Guard, Kernel, Launch, Program, Repeat, Step, Tiles, View
from alphac.ir.typesys import F32, I32, I64, SHARD, Dim, TensorType

BATCH = Dim("batch", 64, 32)


class Draft:
    """A function in the making: `argument` and `result` bind ports, `b` appends ops."""

    def __init__(self, name: str = "step") -> None:
        self.name = name
        self.block = Block()
        self.b = Builder(self.block)
        self.ports: list[Port] = []
        self.results: list[tuple[Port, Value]] = []

    def argument(self, kind: str, name: str, type: TensorType) -> Value:
        value = Value(type, name)
        self.block.arguments.append(value)
        self.ports.append(Port(kind, name))
        return value

    def state(self, name: str, *dims: Dim) -> Value:
        return self.argument("state", name, TensorType(F32, dims))

    def result(self, kind: str, name: str, value: Value) -> None:
        self.results.append((Port(kind, name), value))

    def loop(
        self,
        dim: Dim,
        carried: Sequence[Value],
        stacked: Sequence[tuple[Value, str]],
        body: Callable[[Builder, Value, list[Value], list[Value]], tuple[Sequence[Value], Sequence[Value]]],
        reverse: bool = False,
    ) -> Op:
        return build_loop(self.b, dim, carried, stacked, body, reverse)

    def function(self) -> Function:
        self.block.results = tuple(v for _, v in self.results)
        return Function(self.name, self.block, tuple(self.ports), tuple(p for p, _ in self.results))


def build_loop(
    b: Builder,
    dim: Dim,
    carried: Sequence[Value],
    stacked: Sequence[tuple[Value, str]],
    body: Callable[[Builder, Value, list[Value], list[Value]], tuple[Sequence[Value], Sequence[Value]]],
    reverse: bool = False,
) -> Op:
    """A loop whose body is `body(builder, index, carried, slices) -> (next carried, collected)`."""
    inner = Block()
    index = Value(TensorType(I64), "i")
    carries = [Value(v.type, f"c{i}") for i, v in enumerate(carried)]
    slices = [Value(v.type.without(n), f"s{i}") for i, (v, n) in enumerate(stacked)]
    inner.arguments = [index, *carries, *slices]
    following, collected = body(Builder(inner), index, carries, slices)
    inner.results = (*following, *collected)
    operands = [*carried, *(v for v, _ in stacked)]
    names = tuple(n for _, n in stacked)
    return b.build("loop", operands, [inner], dim=dim, carried=len(carried), reverse=reverse, slices=names)


def digits(batch: Dim = BATCH, pixels: int = 20, hidden: int = 12, classes: int = 5) -> Function:
    """One SGD step of a classifier with one hidden layer; its gradient is written out."""
    d = Draft()
    b = d.b
    p, h, c = Dim("pixels", pixels), Dim("hidden", hidden), Dim("classes", classes)
    w1, b1, w2, b2 = d.state("w1", p, h), d.state("b1", h), d.state("w2", h, c), d.state("b2", c)
    x = d.argument("column", "image", TensorType(F32, (batch, p)))
    label = d.argument("column", "label", TensorType(I32, (batch,)))
    a1 = b("add", b("contract", x, w1, dims=(batch, h)), b.broadcast(b1, (batch, h)))
    r = b("maximum", a1, b.like(0, a1), hint="r")
    z = b("add", b("contract", r, w2, dims=(batch, c)), b.broadcast(b2, (batch, c)), hint="z")
    m = b("reduce_max", z, over=("classes",), hint="m")
    shifted = b("sub", z, b.broadcast(m, (batch, c)))
    e = b("exp", shifted, hint="e")
    s = b("reduce_sum", e, over=("classes",), hint="s")
    hot = b("eq", b.broadcast(label, (batch, c)), b.broadcast(b("iota", dim=c, dtype=I32), (batch, c)))
    picked = b("reduce_sum", b("where", hot, shifted, b.like(0, shifted)), over=("classes",))
    losses = b("sub", b("log", s), picked)
    one = b.constant(1 / batch.size, F32)
    total = b.combine(b("reduce_sum", losses, over=("batch",)))
    d.result("loss", "loss", b("mul", total, one))
    scale = b.broadcast(one, (batch, c))
    probability = b("div", e, b.broadcast(s, (batch, c)))
    dz = b("mul", b("sub", probability, b("cast", hot, dtype=F32)), scale, hint="dz")
    dr = b("contract", dz, w2, dims=(batch, h))
    da = b("where", b("gt", a1, b.like(0, a1)), dr, b.like(0, dr), hint="da")
    gradients = {
        "w1": b("contract", x, da, dims=(p, h)),
        "b1": b("reduce_sum", da, over=("batch",)),
        "w2": b("contract", r, dz, dims=(h, c)),
        "b2": b("reduce_sum", dz, over=("batch",)),
    }
    rate = b.constant(0.1, F32)
    for name, state in (("w1", w1), ("b1", b1), ("w2", w2), ("b2", b2)):
        g = b.combine(gradients[name])
        d.result("state", name, b("sub", state, b("mul", b.broadcast(rate, state.type.dims), g)))
    return d.function()


def inputs(function: Function, seed: int = 0) -> list[np.ndarray]:
    """Random values for a function's arguments; integers are small."""
    random = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for value in function.block.arguments:
        if value.type.dtype.is_float:
            found.append((random.standard_normal(value.type.shape) * 0.3).astype(value.type.dtype.compute))
        else:
            found.append(random.integers(0, 5, value.type.shape).astype(value.type.dtype.compute))
    return found


class Machine:
    """Executes a program for a role that owns everything, in an arena laid out by `plan_memory`, op by op by the
    oracle."""

    def __init__(self, program: Program, shards: int) -> None:
        self.program, self.shards = program, shards
        states, base = place_states([program], shards)
        self.plan: MemoryPlan = plan_memory(program, shards, states, base, 0)
        self.arena = np.full(self.plan.arena, 0xA5, np.uint8)
        self.scratch = np.full(self.plan.scratch, 0xA5, np.uint8)
        self.offsets = dict(zip(map(id, program.buffers), self.plan.offsets, strict=True))
        self.indices: dict[Value, int] = {}
        self.stopped = False

    def run(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        for (_, buffer), value in zip(self.program.arguments, values, strict=True):
            self.write(View(buffer), buffer.type, value)
        self.steps(self.program.steps)
        return [self.read(View(buffer), buffer.type) for _, buffer in self.program.results]

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Launch):
                self.kernel(step.kernel)
            elif isinstance(step, Repeat):
                for i in reversed(range(step.count)) if step.reverse else range(step.count):
                    self.indices[step.index] = i
                    self.steps(step.steps)
            elif isinstance(step, Tiles):
                for index in np.ndindex(*(d.size for d in step.dims)):
                    self.indices.update(zip(step.indices, index, strict=True))
                    self.steps(step.steps)
            elif isinstance(step, Guard):
                self.stopped |= not all(np.isfinite(self.read(View(b), b.type)) for b in step.buffers)
            else:
                assert isinstance(step, Exchange)

    def kernel(self, kernel: Kernel) -> None:
        known = {v: self.read(view, v.type) for v, view in kernel.reads.items()}
        known |= {v: np.asarray(self.indices[v], np.int64) for v in kernel.loops}

        def value(v: Value) -> np.ndarray:
            if v not in known:
                assert v.op is not None, f"{kernel.name} reads {v.hint}, which is nowhere"
                known[v] = np.asarray(run_exactly(v.op, [value(o) for o in v.op.operands]))
            return known[v]

        made = [(value(v), v, view) for v, view in kernel.stores]
        for array, v, view in made:
            self.write(view, v.type, array)

    def memory(self, buffer: Buffer) -> np.ndarray:
        """All of a buffer (of nodes: slot 0), axes as in its type."""
        offset, elements = self.offsets[id(buffer)], buffer.type.size
        memory = self.scratch if buffer.role == "private" else self.arena
        flat = memory[offset : offset + elements * buffer.type.dtype.bytes].view(buffer.type.dtype.storage)
        names = [d.name for d in buffer.layout]
        return flat.reshape([d.size for d in buffer.layout]).transpose([names.index(n) for n in buffer.type.names])

    def place(self, view: View, type: TensorType) -> np.ndarray:
        at = {name: self.indices[index] for name, index in view.slices}
        whole = self.memory(view.buffer)[(*(at.get(n, slice(None)) for n in view.buffer.type.names), ...)]
        left = [n for n in view.buffer.type.names if n not in at]
        return whole.transpose([left.index(n) for n in type.names])

    def read(self, view: View, type: TensorType) -> np.ndarray:
        return to_compute(self.place(view, type).copy(), type.dtype)

    def write(self, view: View, type: TensorType, array: np.ndarray) -> None:
        self.place(view, type)[...] = to_storage(np.asarray(array), type.dtype)


def check(program: Program, shards: int) -> None:
    """What holds of every program: what is overwritten while it is read is read at that index alone; what is read
    after a combine has been exchanged; live buffers do not overlap."""
    for kernel in program.kernels():
        stored = {id(view.buffer): view for _, view in kernel.stores}
        assert len(stored) == len(kernel.stores), f"{kernel.name} stores twice into one buffer"
        aligned = elementwise_reads(kernel)
        for value, view in kernel.reads.items():
            if id(view.buffer) in stored:
                other = stored[id(view.buffer)]
                assert view.slices == other.slices and value in aligned, f"{kernel.name} overwrites what it still reads"
    check_exchanges(program.steps, {})
    assert all(buffer_bytes(b, shards) > 0 for b in program.buffers)


def elementwise_reads(kernel: Kernel) -> set[Value]:
    """Values of `reads` that are reached from the stores through elementwise ops alone."""
    found: set[Value] = set()
    elsewhere: set[Value] = set()
    seen: set[tuple[Value, bool]] = set()

    def visit(value: Value, aligned: bool) -> None:
        if (value, aligned) in seen:
            return
        seen.add((value, aligned))
        if value in kernel.reads:
            (found if aligned else elsewhere).add(value)
        elif value.op is not None:
            for operand in value.op.operands:
                visit(operand, aligned and definition(value.op).shape == "elementwise")

    for value, _ in kernel.stores:
        visit(value, True)
    return found - elsewhere


def check_exchanges(steps: Sequence[Step], open_: dict[int, str]) -> None:
    for step in steps:
        if isinstance(step, Launch):
            for view in step.kernel.reads.values():
                assert id(view.buffer) not in open_, f"{step.kernel.name} reads {view.buffer.name} before its exchange"
            anchor = step.kernel.anchor
            if anchor is not None and definition(anchor).shape == "collective":
                open_[id(step.kernel.stores[0][1].buffer)] = anchor.name
        elif isinstance(step, Exchange):
            for buffer, kind in step.buffers:
                assert open_.pop(id(buffer)) == f"combine_{kind}"
        elif isinstance(step, Repeat | Tiles):
            check_exchanges(step.steps, open_)
        else:
            assert not any(id(b) in open_ for b in step.buffers), "a guard looks at a value before its exchange"


def shard_axis(grain: Dim = BATCH) -> Dim:
    return Dim(SHARD, grain.shards)


class RandomFunction:
    """A function of random ops over few dims: maps, reductions, contractions, combines, index ops, loops, states."""

    DIMS = (Dim("a", 3), Dim("b", 4), Dim("c", 2))
    KINDS = ("map", "map", "map", "reduce", "broadcast", "flip", "contract", "loop")

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.draft = Draft()
        self.grain = Dim("batch", 8, 4)
        self.states = [self.draft.state(f"w{i}", *dims) for i, dims in enumerate([(), self.DIMS[:2], self.DIMS[:1]])]
        columns = [(self.grain,), (self.grain, self.DIMS[0]), (self.DIMS[1], self.grain)]
        self.pool = [*self.states]
        self.pool += [self.draft.argument("column", f"x{i}", TensorType(F32, d)) for i, d in enumerate(columns)]

    def make(self, ops: int = 14) -> Function:
        pool = self.pool
        for _ in range(ops):
            pool.append(self.step(self.draft.b, pool, loops=True))
        for state in self.states:
            fitting = [v for v in pool if v.type == state.type]
            self.draft.result("state", state.hint, fitting[-1 - self.random.integers(min(3, len(fitting)))])
        loss = next((v for v in reversed(pool) if not v.type.dims), pool[0])
        self.draft.result("loss", "loss", loss)
        for i, v in enumerate(pool[-3:]):
            self.draft.result("output", f"o{i}", v)
        return self.draft.function()

    def pick(self, pool: Sequence[Value]) -> Value:
        recent = pool[-6:] if self.random.random() < 0.6 else pool
        return recent[int(self.random.integers(len(recent)))]

    def step(self, b: Builder, pool: list[Value], loops: bool) -> Value:
        x, y = self.pick(pool), self.pick(pool)
        kind = self.random.choice(self.KINDS)
        if kind == "map":
            y = next((v for v in reversed(pool) if v.type == x.type and v is not x), x)
            name = str(self.random.choice(["add", "sub", "maximum", "minimum", "div"]))
            return b(name, x, b("mul", y, b.like(0.5, y)))
        if kind == "reduce" and x.type.dims:
            over = x.type.names[self.random.integers(len(x.type.names))]
            if over == SHARD:
                return b.combine(x)
            made = b("reduce_sum", x, over=(over,))
            return b.combine(made) if made.type.is_partial and self.random.random() < 0.8 else made
        if kind == "broadcast":
            free = [
                d for d in (*self.DIMS, self.grain) if not x.type.has(d.name) and not (d.shards and x.type.is_partial)
            ]
            if free and len(x.type.dims) < 3:
                at = self.random.integers(len(x.type.dims) + 1) if not x.type.is_partial else len(x.type.dims)
                new = free[self.random.integers(len(free))]
                return b.broadcast(x, (*x.type.dims[:at], new, *x.type.dims[at:]))
        local = [d for d in x.type.dims if not d.shards and d.name != SHARD]
        if kind == "flip" and local:
            d = local[0]
            return b("slice", x, dim=d.name, start=d.size - 1, step=-1, to=d)
        if kind == "contract" and local and not x.type.is_partial:
            return b("contract", x, x, dims=tuple(d for d in x.type.dims if d is not local[-1]))
        if kind == "loop" and loops and local and not x.type.is_partial:
            return self.loop(b, pool, x, local[0])
        return b("neg", x)

    def loop(self, b: Builder, pool: list[Value], x: Value, dim: Dim) -> Value:
        start = self.pick(pool)

        def body(inner: Builder, i: Value, carried: list[Value], slices: list[Value]):
            known = [*pool[-3:], *carried, *slices]
            for _ in range(4):
                known.append(self.step(inner, known, loops=False))
            again = [v for v in known if v.type == start.type]
            return [again[-1]], [v for v in known[-2:] if not v.type.has(dim.name)]

        op = build_loop(b, dim, [start], [(x, dim.name)], body, bool(self.random.integers(2)))
        pool.append(op.results[0])
        return op.results[-1]
