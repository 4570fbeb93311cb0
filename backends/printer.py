"""Printing scalar code: an op's body becomes lines of Numba's Python, one per operation, each of exactly one meaning.

    t4 = f32(0.044715) * t3        Numba never promotes f32 by f32; integers narrower than 64 bits are wrapped back

A line stands at the outermost block in which its operands are known, so what does not depend on an inner loop is
computed before it; equal expressions are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from alphac.backends.indexing import UNBOUNDED, Affine, Quotient, Symbol, number, symbol
from alphac.ir.oracle import Oracle
from alphac.ir.typesys import BF16, BOOL, F32, F64, I64, U32, DType

WRAPPED = ("i32", "u8", "u32")  # Numba computes these in 64 bits


def register(dtype: DType) -> str:
    """The name, in a kernel's source, of the type a dtype has in registers."""
    return {"bf16": "f32", "bool": "boolean"}.get(dtype.name, dtype.name)


def stored(dtype: DType) -> str:
    """The name, in a kernel's source, of the type a dtype has in memory."""
    return {"bf16": "u16", "bool": "boolean"}.get(dtype.name, dtype.name)


@dataclass(frozen=True, slots=True)
class Handle:
    """A scalar: an expression of the source, known from block level `level` on. Indices have an affine form as well and
    `text` is then printed when it is needed. `value`: known while compiling (bool only)."""

    dtype: DType
    text: str
    level: int
    affine: Affine | None = None
    value: bool | None = None


class Source:
    """Lines of a function in nested blocks. Level 0 is the function's body; a line may be added to any open block,
    where it lands before the inner block that is still open."""

    def __init__(self) -> None:
        self.blocks: list[list[str]] = [[]]
        self.known: list[dict[Any, Any]] = [{}]
        self.names: dict[str, int] = {}
        self.quotients: list[int] = []  # levels at which an index was divided

    @property
    def level(self) -> int:
        """The level of the innermost open block."""
        return len(self.blocks) - 1

    def line(self, text: str, level: int | None = None) -> None:
        """Add a line to an open block, the innermost by default."""
        self.blocks[self.level if level is None else level].append(text)

    def name(self, prefix: str) -> str:
        """A variable's name that was not used yet."""
        count = self.names[prefix] = self.names.get(prefix, 0) + 1
        return f"{prefix}{count}"

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """An indented block under `header`."""
        self.blocks.append([])
        self.known.append({})
        yield
        self.known.pop()
        lines = self.blocks.pop()
        self.line(header)
        self.blocks[-1].extend("    " + line for line in lines or ["pass"])

    def recall(self, key: Any) -> Any:
        """What was remembered under `key` in an open block; None if nothing."""
        for known in self.known:
            if key in known:
                return known[key]
        return None

    def remember(self, key: Any, value: Any, level: int) -> None:
        """Remember something for as long as the block at `level` is open."""
        self.known[min(level, self.level)][key] = value

    def define(self, text: str, level: int, prefix: str = "t") -> str:
        """A variable that holds the value of a pure expression, at the given level."""
        known = self.recall(text)
        if known is None:
            known = self.name(prefix)
            self.line(f"{known} = {text}", level)
            self.remember(text, known, level)
        return known

    @contextmanager
    def trial(self, depth: int = 0) -> Iterator[Source]:
        """Lines added inside are thrown away. Blocks down to level `depth` are open, and no index was divided yet."""
        blocks, known = self.blocks, self.known
        names, quotients = dict(self.names), self.quotients
        missing = max(0, depth - self.level)
        self.blocks = [*(list(b) for b in blocks), *([] for _ in range(missing))]
        self.known = [*(dict(d) for d in known), *({} for _ in range(missing))]
        self.quotients = []
        yield self
        self.blocks, self.known, self.names, self.quotients = blocks, known, names, quotients

    def text(self) -> str:
        """All lines of the function's body."""
        return "\n".join(self.blocks[0])

    # ------------------------------------------------------------------ indices
    def index(self, form: Affine) -> str:
        """An expression for an affine form. Parts known further out are computed there."""
        parts: dict[int, list[str]] = {}
        for atom, coefficient in form.terms:
            parts.setdefault(atom.level, []).append(_term(self._atom(atom), coefficient, not parts.get(atom.level)))
        if not parts:
            return str(form.constant)
        levels = sorted(parts)
        text = ""
        for level in levels:
            own = "".join(parts[level])
            if text:
                own = f"{text} + {own}" if not own.startswith("-") else f"{text} - {own[1:]}"
            text = own if level == levels[-1] or _simple(own) else self.define(own, level, "n")
        if form.constant:
            text += f" + {form.constant}" if form.constant > 0 else f" - {-form.constant}"
        return text

    def _atom(self, atom: Symbol | Quotient) -> str:
        if isinstance(atom, Symbol):
            return atom.name
        self.quotients.append(atom.level)
        function = "div" if atom.of.low >= 0 else "floordiv"
        return self.define(f"{function}({self.index(atom.of)}, {atom.by})", atom.level, "q")


def _term(name: str, coefficient: int, first: bool) -> str:
    sign = ("" if first else " + ") if coefficient > 0 else ("-" if first else " - ")
    size = abs(coefficient)
    return f"{sign}{name}" if size == 1 else f"{sign}{size} * {name}"


def _simple(text: str) -> bool:
    return text.isidentifier()


@dataclass
class Printer:
    """`alphac.ir.scalar.Scalars` that prints. bf16 is held as an f32 that bf16 can represent."""

    source: Source
    oracle: Oracle = field(default_factory=Oracle)

    def dtype(self, x: Handle) -> DType:
        return x.dtype

    def const(self, value: float | int | bool, dtype: DType) -> Handle:
        lanes = self.oracle.const(value, dtype)
        exact = lanes.array.item()
        if dtype == BOOL:
            return Handle(dtype, str(bool(exact)), 0, value=bool(exact))
        if dtype == I64:
            return self.from_affine(number(int(exact)))
        if not dtype.is_float:
            return Handle(dtype, f"{dtype.name}({exact})", 0)
        text = repr(float(exact)) if np.isfinite(exact) else ("nan" if np.isnan(exact) else f"{'-' * (exact < 0)}inf")
        return Handle(dtype, f"{register(dtype)}({text})", 0)

    # ------------------------------------------------------------------ indices
    def from_affine(self, form: Affine) -> Handle:
        """An index as an i64 handle."""
        return Handle(I64, "", form.level, form)

    def affine(self, x: Handle) -> Affine:
        """The affine form of an i64 handle: its own, or a variable that may be anything."""
        return x.affine if x.affine is not None else symbol(x.text, x.level, -UNBOUNDED, UNBOUNDED - 1)

    def text(self, x: Handle | int) -> str:
        """An expression for a handle, safe as an operand."""
        if isinstance(x, int):
            return str(x)
        if x.affine is None:
            return x.text
        text = self.source.index(x.affine)
        return text if _simple(text) or x.affine.is_constant else f"({text})"

    def _indices(self, *operands: Handle) -> list[Affine] | None:
        """Affine forms of i64 operands if all of them are indices that cannot wrap."""
        if any(x.dtype != I64 or x.affine is None or not x.affine.exact for x in operands):
            return None
        return [x.affine for x in operands if x.affine is not None]

    # ------------------------------------------------------------------ printing
    def emit(self, dtype: DType, text: str, operands: Sequence[Handle], prefix: str = "t") -> Handle:
        """A variable of `dtype` that holds `text`, which reads `operands`."""
        level = max((x.level for x in operands), default=0)
        return Handle(dtype, self.source.define(text, level, prefix), level)

    def _same(self, *operands: Handle | float | int | bool) -> list[Handle]:
        dtype = next(x.dtype for x in operands if isinstance(x, Handle))
        handles = [x if isinstance(x, Handle) else self.const(x, dtype) for x in operands]
        if any(x.dtype != dtype for x in handles):
            raise TypeError(f"operands of one dtype expected, not {[str(x.dtype) for x in handles]}")
        return handles

    def _infix(self, sign: str, *operands: Handle | float | int | bool) -> Handle:
        handles = self._same(*operands)
        dtype = handles[0].dtype
        text = f" {sign} ".join(map(self.text, handles))
        if dtype == BF16:
            text = f"round_bf16({text})"
        elif dtype.name in WRAPPED:
            text = f"{dtype.name}({text})"
        return self.emit(dtype, text, handles)

    def _call(self, function: str, *operands: Handle | float | int | bool, dtype: DType | None = None) -> Handle:
        handles = self._same(*operands)
        return self.emit(dtype or handles[0].dtype, f"{function}({', '.join(map(self.text, handles))})", handles)

    # ------------------------------------------------------------------ arithmetic
    def add(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        forms = self._indices(x, y)
        return self.from_affine(forms[0] + forms[1]) if forms else self._infix("+", x, y)

    def sub(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        forms = self._indices(x, y)
        return self.from_affine(forms[0] - forms[1]) if forms else self._infix("-", x, y)

    def mul(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        forms = self._indices(x, y)
        if forms:
            a, b = forms
            if b.is_constant or a.is_constant:
                return self.from_affine(a * b.constant if b.is_constant else b * a.constant)
        return self._infix("*", x, y)

    def div(self, x: Any, y: Any) -> Handle:
        return self._infix("/", x, y)

    def floordiv(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        forms = self._indices(x, y)
        if forms and forms[1].is_constant and forms[1].constant > 0:
            return self.from_affine(forms[0] // forms[1].constant)
        return self._call("floordiv", x, y)

    def mod(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        forms = self._indices(x, y)
        if forms and forms[1].is_constant and forms[1].constant > 0:
            return self.from_affine(forms[0] % forms[1].constant)
        return self._call("mod", x, y)

    def neg(self, x: Handle) -> Handle:
        if x.dtype.is_float:
            return self._call("negate", x)
        return self.sub(self.const(0, x.dtype), x)

    def abs(self, x: Handle) -> Handle:
        if x.dtype.is_float:
            return self._call("fabs", x)
        return x if x.dtype.kind == "uint" else self.where(self.lt(x, 0), self.neg(x), x)

    def sqrt(self, x: Handle) -> Handle:
        return self._rounded(self._call("sqrt", x))

    def _rounded(self, x: Handle) -> Handle:
        return self.emit(BF16, f"round_bf16({x.text})", [x]) if x.dtype == BF16 else x

    def fma(self, x: Any, y: Any, z: Any) -> Handle:
        handles = self._same(x, y, z)
        if handles[0].dtype not in (F32, F64):
            raise TypeError(f"fma takes f32 or f64, not {handles[0].dtype}")
        return self._call("fma", *handles)

    def minimum(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        return self._extreme("minimum", x, y) if x.dtype == I64 else self._call("minimum", x, y)

    def maximum(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        return self._extreme("maximum", x, y) if x.dtype == I64 else self._call("maximum", x, y)

    def _extreme(self, function: str, x: Handle, y: Handle) -> Handle:
        """Of i64: settled by the bounds if they do not overlap; else a variable with the bounds of the result."""
        a, b = self.affine(x), self.affine(y)
        lesser, greater = (x, y) if function == "minimum" else (y, x)
        if a.high <= b.low:
            return lesser
        if b.high <= a.low:
            return greater
        pick = min if function == "minimum" else max
        return self._bounded(self._call(function, x, y), pick(a.low, b.low), pick(a.high, b.high))

    def _bounded(self, x: Handle, low: int, high: int) -> Handle:
        return self.from_affine(symbol(x.text, x.level, low, high))

    def floor(self, x: Handle) -> Handle:
        return self._call("floor", x)

    def ceil(self, x: Handle) -> Handle:
        return self._call("ceil", x)

    def rint(self, x: Handle) -> Handle:
        return self._call("rint", x)

    def trunc(self, x: Handle) -> Handle:
        return self._call("trunc", x)

    def copysign(self, magnitude: Any, sign: Any) -> Handle:
        return self._call("copysign", magnitude, sign)

    # ------------------------------------------------------------------ comparisons and logic
    def _compare(self, sign: str, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        if x.dtype == I64:
            settled = _settled(sign, self.affine(x), self.affine(y))
            if settled is not None:
                return self.const(settled, BOOL)
        return self.emit(BOOL, f"{self.text(x)} {sign} {self.text(y)}", [x, y])

    def eq(self, x: Any, y: Any) -> Handle:
        return self._compare("==", x, y)

    def ne(self, x: Any, y: Any) -> Handle:
        return self._compare("!=", x, y)

    def lt(self, x: Any, y: Any) -> Handle:
        return self._compare("<", x, y)

    def le(self, x: Any, y: Any) -> Handle:
        return self._compare("<=", x, y)

    def gt(self, x: Any, y: Any) -> Handle:
        return self._compare(">", x, y)

    def ge(self, x: Any, y: Any) -> Handle:
        return self._compare(">=", x, y)

    def and_(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        for a, b in ((x, y), (y, x)):
            if a.value is not None:
                return b if a.value else a
        return self._infix("&", x, y)

    def or_(self, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        for a, b in ((x, y), (y, x)):
            if a.value is not None:
                return a if a.value else b
        return self._infix("|", x, y)

    def xor(self, x: Any, y: Any) -> Handle:
        return self._infix("^", x, y)

    def not_(self, x: Handle) -> Handle:
        if x.dtype == BOOL:
            return self.const(not x.value, BOOL) if x.value is not None else self.emit(BOOL, f"not {x.text}", [x])
        return self.xor(x, -1 if x.dtype.kind == "int" else (1 << x.dtype.bits) - 1)

    def shl(self, x: Any, bits: Any) -> Handle:
        return self._call("shl", x, bits)

    def shr(self, x: Any, bits: Any) -> Handle:
        return self._call("shr", x, bits)

    # ------------------------------------------------------------------ selects and conversions
    def where(self, condition: Handle, x: Any, y: Any) -> Handle:
        x, y = self._same(x, y)
        if condition.value is not None:
            return x if condition.value else y
        if x == y:
            return x
        text = f"select({condition.text}, {self.text(x)}, {self.text(y)})"
        chosen = self.emit(x.dtype, text, [condition, x, y])
        if x.dtype != I64:
            return chosen
        a, b = self.affine(x), self.affine(y)
        return self._bounded(chosen, min(a.low, b.low), max(a.high, b.high))

    def cast(self, x: Handle, dtype: DType) -> Handle:
        if dtype == x.dtype:
            return x
        if x.value is not None:
            return self.const(x.value, dtype)
        if dtype == BF16:
            return self._to_bf16(x)
        if x.dtype == BF16 and dtype == F32:
            return Handle(F32, x.text, x.level)
        return self.emit(dtype, f"cast({self.text(x)}, {register(dtype)})", [x])

    def _to_bf16(self, x: Handle) -> Handle:
        """Rounded once: what f32 cannot hold is first rounded to odd, where dropped bits leave the last bit set."""
        if x.dtype.kind in ("int", "uint") and x.dtype.bits > 24:
            x = self._odd_f64(x)
        if x.dtype == F64:
            x = self._odd_f32(x)
        x = self.cast(x, F32)
        return self.emit(BF16, f"round_bf16({x.text})", [x])

    def _odd_f64(self, x: Handle) -> Handle:
        """An integer in f64, exact below 2**32, else its low 11 bits folded into the next: far below bf16's last
        bit."""
        if x.dtype.bits <= 32:
            return self.cast(x, F64)
        low = self.and_(x, 0x7FF)
        folded = self.or_(
            self.xor(x, low), self.where(self.ne(low, 0), self.const(0x800, x.dtype), self.const(0, x.dtype))
        )
        large = self.ne(self.shr(self.add(x, 1 << 32), 33), 0)
        return self.cast(self.where(large, folded, x), F64)

    def _odd_f32(self, x: Handle) -> Handle:
        nearest = self.cast(x, F32)
        back = self.cast(nearest, F64)
        bits = self.bitcast(nearest, U32)
        even = self.eq(self.and_(bits, 1), 0)
        finite = self.lt(self.abs(nearest), self.const(float("inf"), F32))
        inexact = self.and_(self.and_(self.ne(back, x), even), finite)
        grow = self.lt(self.abs(back), self.abs(x))
        step = self.where(grow, self.const(1, U32), self.const(-1, U32))
        return self.bitcast(self.where(inexact, self.add(bits, step), bits), F32)

    def bitcast(self, x: Handle, dtype: DType) -> Handle:
        if x.dtype.bits != dtype.bits:
            raise TypeError(f"bitcast from {x.dtype} to {dtype}, of another width")
        return self.emit(dtype, f"bitcast({self.text(x)}, {register(dtype)})", [x])


def _settled(sign: str, a: Affine, b: Affine) -> bool | None:
    """A comparison of indices that their bounds decide."""
    less, greater = a.high < b.low, a.low > b.high
    at_most, at_least = a.high <= b.low, a.low >= b.high
    if a.exact and b.exact:  # the bounds of a difference are tighter
        difference = a - b
        less, greater = difference.high < 0, difference.low > 0
        at_most, at_least = difference.high <= 0, difference.low >= 0
    if sign in ("==", "!="):
        equal = at_most and at_least
        return (sign == "==") == equal if equal or less or greater else None
    yes, no = {"<": (less, at_least), "<=": (at_most, greater), ">": (greater, at_most), ">=": (at_least, less)}[sign]
    return True if yes else False if no else None
