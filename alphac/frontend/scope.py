"""Names and what they stand for, and the function that is being built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from alphac.diagnostics import Diagnostics, fail, in_prelude
from alphac.frontend.values import Counter
from alphac.ir.builder import Builder
from alphac.ir.core import Attribute, Block, Function, Port, Value
from alphac.ir.ops.define import TypeRuleError
from alphac.ir.span import Span
from alphac.ir.typesys import I64, Dim, TensorType

if TYPE_CHECKING:
    from alphac.frontend.system import System

MAXIMAL_OPERATIONS = 100_000  # of one function
PORT_ORDER = ("state", "column", "sample", "input", "total", "step", "valid", "count", "loss", "metric", "output")


@dataclass(frozen=True, eq=False)
class Binding:
    """A value and the nesting level (of loops and gradients) at which it was bound."""

    value: Any
    depth: int


@dataclass(eq=False)
class Versions:
    """The states that a body may give a next version with `m' = …`, and those it has given one."""

    declared: dict[str, str] = field(default_factory=dict)  # name -> path
    types: dict[str, TensorType] = field(default_factory=dict)
    assigned: dict[str, Binding] = field(default_factory=dict)
    top: bool = False  # of a transition: every state of the top level may change


class Scope:
    """The names visible in a body. `path` names the place in the text: of block parameters and random streams."""

    def __init__(self, parent: Scope | None, path: str, order: int = 0, versions: Versions | None = None) -> None:
        self.parent = parent
        self.path = path
        self.order = order  # of the declaration whose body this is: states are kept in order of declaration
        self.versions: Versions | None = versions if versions is not None else (parent.versions if parent else None)
        self.names: dict[str, Binding] = {}
        self.owner = parent.owner if parent else ""  # the function whose body this is: local dims are named after it

    def bind(self, name: str, value: Any, depth: int) -> None:
        self.names[name] = Binding(value, depth)

    def find(self, name: str) -> Binding | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def all_names(self) -> Iterator[str]:
        scope: Scope | None = self
        while scope is not None:
            yield from scope.names
            scope = scope.parent

    def constants(self) -> Scope:
        """A copy that has only what holds in every function: no tensors."""
        copy = Scope(None, self.path, self.order)
        for name in dict.fromkeys(self.all_names()):
            binding = self.find(name)
            if binding is not None and not isinstance(binding.value, (Value, Counter)):
                copy.names[name] = Binding(binding.value, 0)
        return copy


@dataclass(eq=False)
class Level:
    """One block of the function being built: the function's own, that of a `grad`, or that of a `loop`."""

    block: Block
    dim: Dim | None = None  # of a loop
    stacked: bool = False  # a `repeat`
    index: Value | None = None
    slices: dict[Value, Value] = field(default_factory=dict)  # outer value -> this iteration's slice
    overrides: dict[str, Value] = field(default_factory=dict)  # states that are arguments of a `grad`
    updates: dict[str, Value] = field(default_factory=dict)  # next versions of block states made in here

    def slice(self, value: Value) -> Value:
        """The slice of an outer value that this iteration sees."""
        if self.dim is None or not value.type.has(self.dim.name):
            return value
        if value not in self.slices:
            self.slices[value] = Value(value.type.without(self.dim.name), value.hint)
        return self.slices[value]


class Context:
    """A function being built, and where in it we are. Everything is appended through `emit`."""

    def __init__(self, system: System, name: str, *, training: bool = False) -> None:
        self.system = system
        self.name = name
        self.training = training
        self.fast = False  # in a region with `numeric fast`
        self.levels: list[Level] = [Level(Block())]
        self.arguments: dict[Port, Value] = {}
        self.versions: dict[str, Value] = {}  # of states, on entry of the current statement
        self.columns: dict[tuple[str, str], Value] = {}
        self.applied: set[str] = set()  # block states that have got their next version in this step
        self.calls: list[tuple[str, Span | None]] = []  # functions being inlined
        self.initial: TensorType | None = None  # in an initializer: the type to make
        self.masked = False  # a batch may be ragged: `valid` says how many examples are real
        self.finish: Finish | None = None  # in an evaluate
        self.reading: set[str] = set()  # paths of the states that were read
        self.span: Span | None = None
        self.emitted = 0  # operations
        self.lockstep: list[tuple[Scope, dict[str, Binding]]] = []  # in an optimizer: one scope for each parameter
        self.totals_here: dict[Any, Any] = {}  # `total`s of the current statement
        self.totals: list[tuple[Port, Value]] = []  # in an evaluate: accumulators and their next values

    # ---------------------------------------------------------------------------------------------------- building
    @property
    def depth(self) -> int:
        return len(self.levels) - 1

    @property
    def builder(self) -> Builder:
        return Builder(self.levels[-1].block, self.span)

    @contextmanager
    def at(self, span: Span | None) -> Iterator[None]:
        """Give `span` to what is built inside; to what the prelude builds, the place from which it was called."""
        before = self.span
        if span is not None and (before is None or not in_prelude(span)):
            self.span = span
        try:
            yield
        except Diagnostics as error:
            if before is None or in_prelude(before):
                raise
            raise Diagnostics(d.called_from(before) for d in error.diagnostics) from None
        finally:
            self.span = before

    def place(self, span: Span) -> Span:
        """A place as the user sees it: of one in the prelude, from where it was called."""
        return self.span if self.span is not None and in_prelude(span) else span

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Build at the function's own level, before the loop or gradient that is being built."""
        before, self.levels = self.levels, self.levels[:1]
        try:
            yield
        finally:
            self.levels = before

    @contextmanager
    def inside(self, level: Level) -> Iterator[Level]:
        """Build in a new block."""
        self.levels.append(level)
        try:
            yield level
        finally:
            self.levels.pop()

    def emit(self, name: str, *operands: Value, hint: str = "", **attributes: Attribute) -> Value:
        """Append an op with one result. A type error is the user's."""
        self.emitted += 1
        if self.emitted > MAXIMAL_OPERATIONS:
            message = f"what is called here, and calls more, comes to over {MAXIMAL_OPERATIONS:,} operations"
            raise fail("E119", message, self.span, "write repetitions as a `repeat` or a `scan`")
        builder = self.builder
        if self.finish is not None and any(v in self.finish.values for v in operands):
            operands = tuple(self.finish.adopt(v, self.span) for v in operands)
            builder = Builder(self.finish.block, self.span)
        try:
            value = builder(name, *operands, hint=hint, **attributes)
        except TypeRuleError as error:
            raise fail("E111", str(error), self.span, "look at the types of the operands") from None
        if self.finish is not None and builder.block is self.finish.block:
            self.finish.values.add(value)
        return value

    def constant(self, value: float | int | bool, type: TensorType) -> Value:
        """A constant of this type."""
        scalar = self.emit("constant", value=value, dtype=type.dtype)
        return self.broadcast(scalar, type.dims)

    def broadcast(self, x: Value, dims: tuple[Dim, ...]) -> Value:
        """x with exactly these axes."""
        return x if x.type.dims == dims else self.emit("broadcast", x, dims=dims)

    def cast(self, x: Value, dtype: Any) -> Value:
        return x if x.type.dtype == dtype else self.emit("cast", x, dtype=dtype)

    # ----------------------------------------------------------------------------------------------------- ports
    def argument(self, port: Port, type: TensorType) -> Value:
        """The function's argument for a port, made on first use."""
        if port not in self.arguments:
            self.arguments[port] = Value(type, port.name.rpartition(".")[2])
        return self.arguments[port]

    def step(self) -> Value:
        """Steps finished before this one, i64[]."""
        return self.argument(Port("step"), TensorType(I64))

    def function(self, results: list[tuple[Port, Value]], inputs: tuple[Port, ...] = ()) -> Function:
        """The finished function. Arguments are in the order of PORT_ORDER, states in order of declaration."""
        states = {path: i for i, path in enumerate(self.system.state_order())}
        given = {port: i for i, port in enumerate(inputs)}

        def key(port: Port) -> tuple[int, int, str]:
            return PORT_ORDER.index(port.kind), states.get(port.name, given.get(port, 0)), port.name

        ports = tuple(sorted(self.arguments, key=key))
        block = self.levels[0].block
        block.arguments = [self.arguments[p] for p in ports]
        block.results = tuple(v for _, v in results)
        return Function(self.name, block, ports, tuple(p for p, _ in results))

    # ---------------------------------------------------------------------------------------------------- reading
    def sliced(self, value: Value, depth: int) -> Value:
        """A value bound at `depth` as it is seen here: each loop entered since then sees its slice."""
        for level in self.levels[depth + 1 :]:
            value = level.slice(value)
        return value

    def read_state(self, path: str, span: Span | None) -> Value:
        """The version of a state that is current here."""
        self.reading.add(path)
        for depth in range(self.depth, 0, -1):
            if path in self.levels[depth].overrides:
                return self.sliced(self.levels[depth].overrides[path], depth)
        if path not in self.versions:
            info = self.system.states[path]
            if self.name == "initialize":
                raise fail(
                    "E142",
                    f"`{path}` is read before it is initialized",
                    span,
                    "declare it above the place where it is read",
                )
            self.versions[path] = self.argument(Port("state", path), info.type)
        return self.sliced(self.versions[path], 0)

    def iteration(self) -> Value:
        """The indices of all loops around as one, i64[]: random streams take it."""
        found: Value | None = None
        for level in self.levels:
            if level.dim is None or level.index is None:
                continue
            if found is None:
                found = level.index
            else:
                size = self.constant(level.dim.size, TensorType(I64))
                found = self.emit("add", self.emit("mul", found, size), level.index)
        return found if found is not None else self.constant(0, TensorType(I64))


class Finish:
    """The second phase of an evaluate: what is computed from totals, once, after all batches of a split."""

    def __init__(self) -> None:
        self.block = Block()
        self.arguments: dict[Port, Value] = {}
        self.values: set[Value] = set()

    def argument(self, port: Port, type: TensorType) -> Value:
        if port not in self.arguments:
            self.arguments[port] = Value(type, port.name)
            self.values.add(self.arguments[port])
        return self.arguments[port]

    def adopt(self, value: Value, span: Span | None) -> Value:
        """A value for use in this phase: its own, or a constant made again."""
        if value in self.values:
            return value
        op = value.op
        if op is not None and op.name in ("constant", "iota", "broadcast", "cast"):
            operands = [self.adopt(v, span) for v in op.operands]
            copy = Builder(self.block, op.span)(op.name, *operands, hint=value.hint, **dict(op.attributes))
            self.values.add(copy)
            return copy
        raise fail(
            "E136",
            "a reduction over the whole split meets a value that is not one",
            span,
            "reduce over `batch` last: only numbers and other reductions can be combined with its result",
        )
