"""Index arithmetic: affine forms over loop variables, so that index ops cost nothing where they only rename elements.

    reshape [batch, 6] → [batch, 2, 3] read at (b, i, j): flat = 3 i + j, and (flat // 3, flat % 3) is (i, j) again

An `Affine` is a sum of integer multiples of atoms and a constant. An atom is a variable of the emitted source
(`Symbol`), or the floor of an affine form by a constant (`Quotient`), which is printed only if it is still there when
the index is used. A remainder is `x - c * (x // c)`: with `c * (x // c)` added back it vanishes. All forms have bounds,
which settle most clamps and comparisons while compiling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

UNBOUNDED = 1 << 63
EXACT = 1 << 62  # forms that stay below cannot wrap


@dataclass(frozen=True)
class Symbol:
    """An i64 variable of the source, known from block level `level` on, within [low, high]."""

    name: str
    level: int
    low: int
    high: int


@dataclass(frozen=True)
class Quotient:
    """floor(of / by), by > 1."""

    of: Affine
    by: int

    @cached_property
    def level(self) -> int:
        return self.of.level

    @cached_property
    def low(self) -> int:
        return self.of.low // self.by

    @cached_property
    def high(self) -> int:
        return self.of.high // self.by


Atom = Symbol | Quotient


@dataclass(frozen=True)
class Affine:
    """sum of coefficient * atom, plus constant. Terms have no zeros and are in a canonical order."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0
    _hash: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.terms, self.constant)))

    def __hash__(self) -> int:
        return self._hash

    # ------------------------------------------------------------------ what is known
    @cached_property
    def level(self) -> int:
        """The deepest block level of its atoms."""
        return max((atom.level for atom, _ in self.terms), default=0)

    @property
    def low(self) -> int:
        return self._bounds[0]

    @property
    def high(self) -> int:
        return self._bounds[1]

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        low = high = self.constant
        rest = dict(self.terms)
        for atom, coefficient in self.terms:
            times, whole = _remainder(atom, coefficient, rest)
            if times and isinstance(atom, Quotient):
                for a in (atom, *(a for a, _ in whole.terms)):
                    del rest[a]
                size = times * (-coefficient // times - 1)
                low += min(0, size) - times * whole.constant
                high += max(0, size) - times * whole.constant
        for atom, coefficient in rest.items():
            ends = (coefficient * atom.low, coefficient * atom.high)
            low += min(ends)
            high += max(ends)
        return low, high

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def exact(self) -> bool:
        """Whether it cannot have wrapped."""
        return self.low > -EXACT and self.high < EXACT

    def coefficient(self, symbol: Symbol) -> int | None:
        """The coefficient of a symbol; None if the symbol is also inside a quotient."""
        found = 0
        for atom, coefficient in self.terms:
            if atom == symbol:
                found = coefficient
            elif isinstance(atom, Quotient) and symbol in atom.of.symbols():
                return None
        return found

    def symbols(self) -> set[Symbol]:
        """All variables it depends on."""
        found: set[Symbol] = set()
        for atom, _ in self.terms:
            found |= {atom} if isinstance(atom, Symbol) else atom.of.symbols()
        return found

    def quotients(self) -> Iterator[Quotient]:
        """The quotients among its atoms."""
        for atom, _ in self.terms:
            if isinstance(atom, Quotient):
                yield atom

    # ------------------------------------------------------------------ arithmetic
    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
        return _affine(terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Affine:
        return _affine({a: c * factor for a, c in self.terms}, self.constant * factor)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (-other if isinstance(other, int) else other * -1)

    def __floordiv__(self, by: int) -> Affine:
        """Floor by a positive constant."""
        if by == 1:
            return self
        whole = _affine({a: c // by for a, c in self.terms if c % by == 0}, self.constant // by)
        rest = _affine({a: c for a, c in self.terms if c % by}, self.constant % by)
        if rest.low >= 0 and rest.high < by:
            return whole
        for common in sorted({abs(c) for _, c in rest.terms}, reverse=True):
            if common > 1 and by % common == 0:
                small = _affine({a: c for a, c in rest.terms if c % common}, rest.constant % common)
                if small.low >= 0 and small.high < common:
                    large = {a: c // common for a, c in rest.terms if c % common == 0}
                    return whole + _affine(large, rest.constant // common) // (by // common)
        if len(rest.terms) == 1 and rest.constant == 0:
            atom, coefficient = rest.terms[0]
            if isinstance(atom, Quotient) and coefficient == 1:
                return whole + atom.of // (atom.by * by)
        return whole + Affine(((Quotient(rest, by), 1),))

    def __mod__(self, by: int) -> Affine:
        """Remainder by a positive constant, in [0, by)."""
        return self - (self // by) * by


def _remainder(atom: Atom, coefficient: int, terms: Mapping[Atom, int]) -> tuple[int, Affine]:
    """If `coefficient * atom` is the second half of times * (whole - c * (whole // c)), a remainder in times * [0, c),
    whose first half is among `terms`: times and whole; else 0."""
    if atom not in terms or not isinstance(atom, Quotient):
        return 0, Affine()
    # whole // c itself, or a quotient q of which it is a further quotient
    finer = [a for a in terms if isinstance(a, Quotient) and a.of == atom.of and a.by < atom.by and atom.by % a.by == 0]
    for whole, c in ((atom.of, atom.by), *((Affine(((a, 1),)), atom.by // a.by) for a in finer)):
        times = -coefficient // c
        if coefficient % c == 0 and all(terms.get(a, 0) == times * n for a, n in whole.terms):
            return times, whole
    return 0, Affine()


def _affine(terms: Mapping[Atom, int], constant: int) -> Affine:
    kept = [(a, c) for a, c in terms.items() if c]
    kept.sort(key=_order)
    return Affine(tuple(kept), constant)


def _order(term: tuple[Atom, int]) -> tuple[int, int, str]:
    atom, coefficient = term
    return atom.level, -abs(coefficient), atom.name if isinstance(atom, Symbol) else repr(atom)


def symbol(name: str, level: int, low: int, high: int) -> Affine:
    """A variable as an affine form."""
    return Affine(((Symbol(name, level, low, high), 1),))


def number(value: int) -> Affine:
    """A constant as an affine form."""
    return Affine((), value)


def unflatten(flat: Affine, sizes: list[int]) -> list[Affine]:
    """The row-major index that `flat` stands for; the first one is not reduced (it may start anywhere)."""
    found: list[Affine] = []
    for size in reversed(sizes[1:]):
        found.append(flat % size)
        flat = flat // size
    return [flat, *reversed(found)] if sizes else []
