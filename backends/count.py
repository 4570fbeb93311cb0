"""What a kernel's code does, counted from its source without running it: vector and scalar operations, accesses, terms
of register tiles. A machine's price for each is what `alphac calibrate` finds.

    for e1 in range(40):                 2 whole vectors and 8 single elements: 2 of `moved`, 1 of `vector` for each
        y[e1] = x[e1] * f32(0.5)         vector; 2 of `element`, 1 of `scalar` for each of the rest

Sizes, shards and tables are known numbers, so loops have known numbers of turns. Of a loop whose turns differ only by
its index the first, the middle and the last one are read: the others are like the first two, or in between.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from numba.core import types

from alphac.backends.dialect import Reader, Value, represented, stored_type
from alphac.backends.routines import ROUTINE, done_by
from alphac.backends.target import KernelSource, Target
from alphac.backends.vector import Allocation, Memory
from alphac.ir.passes.touches import Amount
from alphac.ir.schedule import Kernel, merges

Counts = dict[str, float]

UNROLLED = 200  # statements that a loop with known turns is unrolled to, at most
HIDDEN = 24  # vector operations behind which a division hides
FEW, MANY = 2, 256  # turns of a loop that are all read in any case; that are read one by one if they carry numbers
# What operations count as, on vectors and one by one, that are not like others: extremes of floats are several
# instructions, for NaNs and signs of zeros.
KINDS: dict[str, tuple[str, str]] = {
    "/": ("slow", "root"),
    "sqrt": ("slow", "root"),
    "minimum": ("extreme", "scalar"),
    "maximum": ("extreme", "scalar"),
}
FREE = {"bitcast", "address", "merges_after", "popcount", "div"}


@dataclass(frozen=True)
class Quantity:
    """What is known of a value. `value`: a number, if it is known; `slopes`: by how much it grows with each turn of the
    loops around, by depth, None if that is not known; `depth` of the innermost loop that it varies in;
    `gap`, of `x < y`: y - x."""

    value: Any = None
    slopes: Mapping[int, float] | None = field(default_factory=dict[int, float])
    depth: int = 0
    table: Sequence[int] = ()
    gap: int = 0


UNKNOWN = Quantity()


def counter(targets: Iterable[Target], shards: int) -> Callable[[Kernel], Mapping[str, Mapping[str, Amount]]]:
    """What says of a kernel what its code does, by target and kind; of processors' code only. In between one shard
    and all of them, counts are taken to lie on a line."""
    made_for = [target for target in targets if not target.is_gpu]

    def of(kernel: Kernel, target: Target) -> Mapping[str, Amount]:
        source = target.lower(kernel)
        one, whole = (count(source, shards, owned, target.lanes) for owned in (1, shards))
        slope = {kind: (whole.get(kind, 0.0) - one.get(kind, 0.0)) / max(1, shards - 1) for kind in {*one, *whole}}
        return {kind: Amount(one.get(kind, 0.0) - each, each) for kind, each in slope.items()}

    return lambda kernel: {target.name: of(kernel, target) for target in made_for}


def count(source: KernelSource, shards: int, owned: int, lanes: int) -> Mapping[str, float]:
    """What a call does, on one thread, of a role that owns the first so many of `shards`; `lanes` of a vector."""
    reader = _Counting(source, lanes)
    pointers = len(source.parameters)
    table = merges(shards, 0, owned)
    given = [*[0] * source.loops, owned, 0, 0, 0, 0, 1]
    for i, name in enumerate(reader.parameters):
        if i < pointers:
            reader.values[name] = Value(Memory(stored_type(source.parameters[i]), 0, 1), UNKNOWN)
        else:
            known = Quantity(given[i - pointers], table=table if name == "merges" else ())
            reader.values[name] = Value(types.int64, known)
    reader.statements(reader.definition.body)
    return reader.counts


@dataclass(frozen=True)
class Cut:
    """How a loop is done by vectors: so many whole ones, the rest one by one; `apart`: unrolled, and the loop around it
    by vectors, whose elements are apart."""

    whole: float
    rest: int
    apart: bool = False


class _Counting(Reader):
    """Reads one function, and counts what it is asked to do."""

    def __init__(self, source: KernelSource, lanes: int) -> None:
        super().__init__(source)
        self.lanes, self.counts = lanes, Counts()
        self.depth = 0
        self.cut = Cut(0.0, 0)
        self.turns = 0  # of the vector loop that is read, if one is
        self._loops: dict[int, tuple[bool, bool]] = {}
        self._known: dict[tuple[int, int], Counts] = {}

    def add(self, what: str, amount: float) -> None:
        self.counts[what] = self.counts.get(what, 0.0) + amount

    @contextmanager
    def _apart(self, factor: float) -> Iterator[None]:
        """What is counted within counts so many times."""
        before, self.counts = self.counts, Counts()
        yield
        made, self.counts = self.counts, before
        for what, amount in made.items():
            self.add(what, factor * amount)

    # ------------------------------------------------------------------ operations
    def _operation(self, kind: str, of: Any, *operands: Quantity) -> Quantity:
        """One operation: in a vector loop on vectors, if it varies there."""
        depth = max((q.depth for q in operands), default=0)
        if kind not in FREE and of != types.int64:
            name = KINDS.get(kind, ("vector", "scalar"))
            width = max(32, getattr(of, "bitwidth", 32))
            if self.turns and depth == self.depth:
                self.add(name[0], self.cut.whole * width / 32)
                self.add(name[1], self.cut.rest)
            else:
                self.add(name[1], 1)
        return Quantity(None, None, depth)

    def _access(self, index: Quantity, of: Any) -> None:
        if self.turns and index.depth == self.depth:
            if _slopes(index).get(self.depth) == 1 and self.cut.apart:
                self.add("apart", self.turns)
            elif _slopes(index).get(self.depth) == 1:
                self.add("moved", self.cut.whole * max(32, getattr(of, "bitwidth", 32)) / 32)
                self.add("element", self.cut.rest)
            else:
                self.add("gathered", self.turns)
        else:
            self.add("element", 1)

    def constant(self, number: float | int, kind: Any) -> Quantity:
        if isinstance(kind, types.Float | types.Boolean) or kind != types.int64:
            return Quantity(represented(number, kind) if not isinstance(kind, types.Float) else None)
        return Quantity(int(number))

    def named(self, name: str, value: Value) -> Value:
        return value

    def place(self, name: str, kind: Any) -> list[Quantity]:
        return [UNKNOWN]

    def fetch(self, place: list[Quantity]) -> Quantity:
        return place[0]

    def keep(self, place: list[Quantity], code: Quantity) -> None:
        slopes = {**_slopes(code), self.depth: math.nan} if self.depth else code.slopes
        place[0] = Quantity(code.value, slopes, max(code.depth, self.depth))

    def load(self, memory: Value, index: Quantity) -> Quantity:
        if memory.code.table:
            assert index.value is not None
            return Quantity(memory.code.table[index.value])
        self._access(index, memory.type.dtype)
        return Quantity(None, None, index.depth)

    def store(self, memory: Value, index: Quantity, element: Quantity) -> None:
        self._access(index, memory.type.dtype)

    def arithmetic(self, sign: str, x: Value, y: Value) -> Quantity | None:
        if x.type == types.int64:
            return _joined(sign, x.code, y.code)
        return self._operation(sign, x.type, x.code, y.code)

    def compared(self, sign: str, x: Value, y: Value) -> Quantity:
        a, b = x.code, y.code
        if a.value is not None and b.value is not None:
            truth = {"==": a.value == b.value, "!=": a.value != b.value, "<": a.value < b.value,
                     "<=": a.value <= b.value, ">": a.value > b.value, ">=": a.value >= b.value}[sign]  # fmt: skip
            gap = int(b.value - a.value) if x.type == types.int64 else 0
            return Quantity(truth, None, max(a.depth, b.depth), gap=gap)
        return self._operation(sign, types.float32, a, b)

    def inverted(self, truth: Quantity) -> Quantity:
        return Quantity(None if truth.value is None else not truth.value, None, truth.depth)

    def chosen(self, test: Quantity, x: Value, y: Value) -> Quantity:
        if test.value is not None:
            return x.code if test.value else y.code
        return self._operation("select", x.type, test, x.code, y.code)

    def converted(self, value: Value, to: Any) -> Quantity:
        if isinstance(value.type, types.Integer) and isinstance(to, types.Integer):
            return value.code
        return self._operation("cast", to, value.code)

    def at(self, base: Value, kind: Memory) -> Quantity:
        return base.code

    def allocated(self, name: str, made: Allocation, kind: Memory, number: int) -> Quantity:
        return UNKNOWN

    def called(self, name: str, function: Any, given: list[Value]) -> Value:
        made = function._defn(None, *(a.type for a in given))[0].return_type
        codes = [UNKNOWN if a.code is None else a.code for a in given]
        if ROUTINE.fullmatch(name):
            bits = getattr(getattr(given[0].type, "dtype", None), "bitwidth", 32)
            for what, amount in done_by(name, [c.value for c in codes], self.lanes, bits).items():
                self.add(what, amount)
            return Value(made, Quantity(None, None, max(c.depth for c in codes)))
        known = _known(name, [c.value for c in codes]) if made == types.int64 else None
        if known is not None:
            return Value(made, Quantity(known, None, max(c.depth for c in codes)))
        if name == "cast" and made == types.int64:
            return Value(made, codes[0])
        operands = [c for c, a in zip(codes, given, strict=True) if not isinstance(a.type, types.NumberClass)]
        return Value(made, self._operation(name, made, *operands))

    # ------------------------------------------------------------------ branches and loops
    def branch(self, test: Quantity, body: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        if test.value is None:
            for one in (body, otherwise):
                with self._apart(0.5):
                    if one:
                        one()
        elif test.value:
            body()
        elif otherwise:
            otherwise()

    def repeat(self, test: Callable[[], Any], body: Callable[[], None]) -> None:
        """Turn by turn; but where two turns do the same, as many more are taken to do so as leave one for the end."""
        last: tuple[Counts, dict[str, Any]] | None = None
        while (ahead := test()).value:
            before, outer, self.counts = self._numbers(), self.counts, Counts()
            self.add("turns", 1)
            body()
            made, self.counts = self.counts, outer
            steps = {k: v - before[k] for k, v in self._numbers().items() if k in before}
            more = 1
            if (made, steps) == last:
                left = test()
                if left.value and ahead.gap > left.gap:
                    more += max(0, (left.gap - 1) // (ahead.gap - left.gap))
                    for name, step in steps.items():
                        (place,) = self.places[name][1]
                        self.places[name][1][0] = replace(place, value=place.value + (more - 1) * step)
            last = made, steps
            for what, amount in made.items():
                self.add(what, more * amount)

    def _numbers(self) -> dict[str, Any]:
        """The variables that hold known numbers."""
        held = {name: place[0].value for name, (kind, place) in self.places.items() if kind == types.int64}
        return {name: value for name, value in held.items() if value is not None}

    def loop(self, statement: ast.For, bounds: tuple[Any, Any, Any], body: Callable[[Any], None]) -> None:
        start, stop, step = (q.value for q in bounds)
        if start is None or stop is None or step is None:
            start, stop, step = 0, 16, 1
        turns = range(start, stop, step)
        if not turns:
            return
        simple, carries = self._shape(statement)
        outer, self.turns = self.turns, 0
        self.depth += 1

        def turn(index: int) -> None:
            body(Quantity(index, {self.depth: 1}, self.depth))

        if simple and not carries and step == 1:
            self._vectors(statement, len(turns), turn)
        else:
            self.add("turns", len(turns))
            self._turns(turns, turn, carries, simple)
        self.depth -= 1
        self.turns = outer

    def _vectors(self, statement: ast.For, turns: int, turn: Callable[[int], None]) -> None:
        """A loop that is done by whole vectors, and the rest one by one."""
        key = id(statement), turns
        if key not in self._known:
            before, self.counts, self.turns = self.counts, Counts(), turns
            self.cut = _cut(statement, turns, self.lanes)
            self.add("turns", self.cut.whole + self.cut.rest)
            turn(0)
            hidden = self.counts.get("vector", 0.0) + 4 * self.counts.get("extreme", 0.0)
            if "slow" in self.counts:
                self.counts["slow"] = max(0.0, self.counts["slow"] - hidden / HIDDEN)
            self._known[key], self.counts = self.counts, before
        for what, amount in self._known[key].items():
            self.add(what, amount)

    def _turns(self, turns: range, turn: Callable[[int], None], carries: bool, simple: bool) -> None:
        if simple:
            with self._apart(len(turns)):
                turn(turns[0])
        elif carries or len(turns) <= FEW:
            read = turns[:MANY]
            with self._apart(len(turns) / len(read)):
                for index in read:
                    turn(index)
        else:
            first, last = self._one(turn, turns[0]), self._one(turn, turns[-1])
            middle = first if first == last else self._one(turn, turns[len(turns) // 2])
            if first == middle:
                parts = ((len(turns) - 1, first), (1, last))
            else:
                parts = ((len(turns) / 2, first), (len(turns) / 2, last))
            for factor, part in parts:
                for what, amount in part.items():
                    self.add(what, factor * amount)

    def _one(self, turn: Callable[[int], None], index: int) -> Counts:
        """What one turn does."""
        before, self.counts = self.counts, Counts()
        turn(index)
        made, self.counts = self.counts, before
        return made

    def _shape(self, statement: ast.For) -> tuple[bool, bool]:
        """Whether a loop's body is a straight line without routines; whether it carries anything to the next turn."""
        key = id(statement)
        if key not in self._loops:
            nodes = [n for s in statement.body for n in ast.walk(s)]
            calls = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
            straight = not any(isinstance(n, ast.For | ast.While | ast.If) for n in nodes)
            simple = straight and not any(ROUTINE.fullmatch(name) for name in calls)
            if simple:
                stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
                carries = any(self.assigned[name] > 1 for name in stored)
            else:
                begun = {ast.unparse(t) for n in nodes if isinstance(n, ast.Assign) for t in n.targets}
                counted = {ast.unparse(n.target) for n in nodes if isinstance(n, ast.AugAssign)}
                carries = bool(counted - begun)
            self._loops[key] = simple, carries
        return self._loops[key]


def _cut(statement: ast.For, turns: int, lanes: int) -> Cut:
    assert isinstance(statement.iter, ast.Call)
    if not all(isinstance(a, ast.Constant) for a in statement.iter.args):
        return Cut(turns // lanes, turns % lanes)
    for width in (lanes, lanes // 2):
        if turns % width == 0 and width >= 8:
            return Cut(turns / width, 0)
    if turns * len(statement.body) <= UNROLLED:
        return Cut(turns / lanes, 0, apart=True)
    if turns % 4 == 0 and turns < 4 * lanes:
        return Cut(turns / 4, 0)
    return Cut(turns // lanes, turns % lanes)


def _known(name: str, given: Sequence[Any]) -> int | None:
    """The number that a function of known numbers gives."""
    if any(g is None for g in given):
        return None
    match name, given:
        case (("div" | "floordiv"), (x, y)):
            return x // y if y else 0
        case "mod", (x, y):
            return x % y if y else 0
        case "minimum", (x, y):
            return min(x, y)
        case "maximum", (x, y):
            return max(x, y)
        case "merges_after", (leaf, leaves):
            return leaf.bit_count() if leaf + 1 == leaves else (~leaf & leaf + 1).bit_length() - 1
        case "popcount", (leaf,):
            return leaf.bit_count()
        case "select", (test, x, y):
            return x if test else y
        case _:
            return None


def _joined(sign: str, x: Quantity, y: Quantity) -> Quantity:
    """A sum, difference or product of indices."""
    value = None
    if x.value is not None and y.value is not None:
        value = {"+": x.value + y.value, "-": x.value - y.value, "*": x.value * y.value}.get(sign)
    a, b = _slopes(x), _slopes(y)
    if sign in ("+", "-"):
        slopes = {d: a.get(d, 0) + (b.get(d, 0) if sign == "+" else -b.get(d, 0)) for d in {*a, *b}} if b else a
    elif not b and y.value is not None:
        slopes = {d: s * y.value for d, s in a.items()}
    elif not a and x.value is not None:
        slopes = {d: s * x.value for d, s in b.items()}
    else:
        slopes = dict.fromkeys((*a, *b), math.nan)
    return Quantity(value, slopes, max(x.depth, y.depth))


def _slopes(of: Quantity) -> Mapping[int, float]:
    if of.slopes is not None:
        return of.slopes
    return {of.depth: math.nan} if of.depth else {}
