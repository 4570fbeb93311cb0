"""Maps: every stored value at every index that this role owns.

Where what is read is found by dividing an index, the loops end there. If that is after a few elements (the windows of a
pooling, undone), these are computed together: what they share is computed once, and most of their arithmetic on indices
while compiling.

A padded value is stored in parts: its inside, as a map over what is padded, and its borders, which are constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from alphac.backends.evaluation import Frame, Index, named, owned, physical
from alphac.backends.indexing import Affine, Quotient, Symbol, number
from alphac.ir.core import Value
from alphac.ir.ops.rules import attribute, number_attribute
from alphac.ir.schedule import View
from alphac.ir.typesys import Dim

PERIOD = 4  # elements along one axis, at most, that are computed together
TOGETHER = 16  # and in all


def emit_map(frame: Frame) -> None:
    """Every stored value at every index."""
    stores = frame.kernel.stores
    framed = _Framed.of(stores[0][0])
    if len(stores) == 1 and framed is not None:
        framed.emit(frame, stores[0][1])
    else:
        _over_periods(frame, [v for v, _ in stores], physical(stores[0][0].type), frame.store_all)


@dataclass(frozen=True)
class _Cut:
    """An axis as loops, outermost first, whose innermost `period` turns are computed together."""

    dim: Dim
    loops: tuple[Dim, ...]
    period: int

    @staticmethod
    def of(dim: Dim, divisors: Iterable[int], room: int) -> _Cut:
        """Loops that end where an index is divided; `room`: how many elements may be computed together."""
        inner, found = 1, list[int]()
        for by in sorted(divisors):
            if by % inner == 0 and dim.size % by == 0 and inner < by < dim.size and not owned(dim):
                found.append(by // inner)
                inner = by
        period = found.pop(0) if found and found[0] <= min(PERIOD, room) else 1
        sizes = [dim.size // inner, *reversed(found)]
        return _Cut(
            dim, tuple(Dim(f"{dim.name} {i}" if i else dim.name, n, dim.shards) for i, n in enumerate(sizes)), period
        )

    def index(self, loops: Index, within: Affine) -> Affine:
        found = loops[self.loops[0].name]
        for d in self.loops[1:]:
            found = found * d.size + loops[d.name]
        return found * self.period + within


def _over_periods(frame: Frame, values: list[Value], axes: list[Dim], store: Callable[[Index], None]) -> None:
    """Run `store` for every owned index over axes; `values` are what it evaluates."""
    divisors = _divisors(frame, values, axes)
    cuts: list[_Cut] = []
    together = 1
    for d in axes:
        cuts.append(_Cut.of(d, divisors[d.name], TOGETHER // together))
        together *= cuts[-1].period

    def body(loops: Index, flat: Affine) -> None:
        for i in range(together):
            within = named([Dim(c.dim.name, c.period) for c in cuts], number(i))
            store({c.dim.name: c.index(loops, within[c.dim.name]) for c in cuts})

    frame.split([d for c in cuts for d in c.loops], body, together)


def _divisors(frame: Frame, values: list[Value], axes: list[Dim]) -> dict[str, set[int]]:
    """What the index along each axis is divided by where elements are loaded."""
    level = frame.source.level + 1
    symbols = {Symbol(f"x_{d.name}", level, 0, d.size - 1): d.name for d in axes}
    index = {n: Affine(((s, 1),)) for s, n in symbols.items()}
    found: dict[str, set[int]] = {d.name: set() for d in axes}
    for value in values:
        for _, flat in frame.loaded(value, index, level):
            for q in _quotients(flat):
                if len(q.of.terms) == 1:
                    ((atom, coefficient),) = q.of.terms
                    if isinstance(atom, Symbol) and atom in symbols:
                        found[symbols[atom]].add(q.by // math.gcd(q.by, coefficient))
    return found


def _quotients(form: Affine) -> Iterator[Quotient]:
    for q in form.quotients():
        yield q
        yield from _quotients(q.of)


# ---------------------------------------------------------------------- padded values
@dataclass(frozen=True)
class _Framed:
    """pad(… pad(inside)): the axes that are padded, in the result, with what is before and behind the inside."""

    value: Value
    inside: Value
    margins: dict[Dim, tuple[int, int]]
    border: float

    @staticmethod
    def of(value: Value) -> _Framed | None:
        """The value as a frame, if it is one, each axis padded once and all with one number."""
        margins: dict[Dim, tuple[int, int]] = {}
        borders: set[float] = set()
        inside, names = value, {d.name: d for d in value.type.dims}
        while inside.op is not None and inside.op.name == "pad":
            op = inside.op
            to = attribute(op.attributes, "to", Dim)
            if names.get(to.name) != to or to in margins:
                return None
            margins[to] = (attribute(op.attributes, "low", int), attribute(op.attributes, "high", int))
            borders.add(float(number_attribute(op.attributes, "value")))
            (inside,) = op.operands
        return _Framed(value, inside, margins, borders.pop()) if len(borders) == 1 else None

    def emit(self, frame: Frame, view: View) -> None:
        name, dtype = frame.names[id(view.buffer)], self.value.type.dtype
        outside = physical(self.value.type)
        inside = [self._core(d) for d in outside]
        lows = {d.name: self.margins.get(d, (0, 0))[0] for d in outside}
        to = {i.name: o.name for i, o in zip(inside, outside, strict=True)}

        def store(index: Index) -> None:
            at = {to[n]: i + lows[to[n]] for n, i in index.items()}
            frame.store(name, dtype, frame.flat(view, at), frame.value(self.inside, index))

        _over_periods(frame, [self.inside], inside, store)
        for axis in self.margins:
            for start, count in ((0, lows[axis.name]), (axis.size - self.margins[axis][1], self.margins[axis][1])):
                if count:
                    self._border(frame, view, axis, start, count)

    def _core(self, dim: Dim) -> Dim:
        """The axis of the inside that becomes `dim`."""
        if dim not in self.margins:
            return dim
        return self.inside.type.dims[self.value.type.dims.index(dim)]

    def _border(self, frame: Frame, view: View, axis: Dim, start: int, count: int) -> None:
        """Elements `start` … `start` + `count` along an axis: all of those further in, the inside's of those further
        out."""
        starts: dict[str, int] = {}
        axes: list[Dim] = []
        before = True
        for d in physical(self.value.type):
            low, high = self.margins.get(d, (0, 0))
            before = before and d != axis
            part = (start, count) if d == axis else (low, d.size - low - high) if before else (0, d.size)
            starts[d.name] = part[0]
            axes.append(Dim(d.name, part[1], d.shards))
        border = frame.k.const(self.border, self.value.type.dtype)
        name = frame.names[id(view.buffer)]

        def store(index: Index, flat: Affine) -> None:
            at = frame.flat(view, {n: i + starts[n] for n, i in index.items()})
            frame.store(name, self.value.type.dtype, at, border)

        frame.split(axes, store)
