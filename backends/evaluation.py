"""Pulling a kernel's values: an element of a value is loaded if the kernel reads the value, taken from the anchor if
it is the anchor's result, and else computed by its op's body from elements of the operands, at the indices that the
body asks for. So fusing costs nothing but what is computed, and an index op is arithmetic on indices that mostly
vanishes.

`Frame` is the kernel being written: its source, its names, and the loops that all kinds of kernel share.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from alphac.backends.indexing import Affine, number, symbol, unflatten
from alphac.backends.loops import NAME
from alphac.backends.printer import Handle, Printer, Source
from alphac.backends.target import Target
from alphac.backends.vector import SCALARS
from alphac.ir.core import Op, Value
from alphac.ir.errors import InternalError
from alphac.ir.ops.define import definition
from alphac.ir.ops.reduce import LANES, is_short, reduced_axes
from alphac.ir.schedule import Kernel, View
from alphac.ir.typesys import BF16, F32, SHARD, Dim, DType, TensorType

Index = Mapping[str, Affine]
Axes = Sequence[Dim]
Body = Callable[[Index, Affine], None]

SMALL = 2048  # elements; below, one thread does it all
ALIGNED = 16  # threads' shares of a flat range start at multiples of so many elements
PARAMETERS = ("shards", "first", "merges", "scratch", "thread", "threads")
VARIABLES = ("range", "merge", "lo", "hi", "top", "packed")
CONSTANTS = ("f32", "f64", "i32", "i64", "u8", "u16", "u32", "u64", "boolean", "inf", "nan")
RESERVED = frozenset((*PARAMETERS, *CONSTANTS, *SCALARS))


@dataclass(frozen=True)
class Array:
    """Memory in this thread's scratch."""

    name: str
    dtype: DType
    elements: int


def size(axes: Axes) -> int:
    """How many elements axes span."""
    n = 1
    for d in axes:
        n *= d.size
    return n


def physical(type_: TensorType) -> list[Dim]:
    """The dims as they lie in memory: the grain's axis, or `shard`, outermost."""
    return sorted(type_.dims, key=lambda d: not owned(d))


def owned(dim: Dim) -> bool:
    """Whether a role holds its own shards only, along this axis."""
    return dim.shards > 0 or dim.name == SHARD


class Frame:
    """One kernel in the making. `functions`: what its source may call beside `SCALARS` and the
    vector loops."""

    widest = 1 << 31  # elements that one task may work on together
    variables = VARIABLES  # of the source, which no buffer's name may be

    def __init__(self, kernel: Kernel, target: Target, functions: Mapping[str, object] | None = None) -> None:
        self.kernel, self.target = kernel, target
        self.source = Source()
        self.k = Printer(self.source)
        self.buffers = kernel.buffers()
        self.arrays: list[Array] = []
        self.alone = False  # thread 0 does it all
        self.results: dict[Value, Callable[[Index], Handle]] = {}
        self.loads: list[tuple[Value, Affine]] = []
        self.names: dict[int, str] = {}
        self.functions = {} if functions is None else functions
        self.intrinsics: dict[str, object] = {}  # made for this kernel, by the names its source uses
        self.reserved = RESERVED | {*self.variables, *self.functions}
        taken = set(self.reserved)
        for buffer in self.buffers:
            self.names[id(buffer)] = _identifier(buffer.name, taken)
        self.loops = {value: f"i{n}" for n, value in enumerate(kernel.loops)}
        self.stored_buffers = {id(view.buffer) for _, view in kernel.stores}
        self.first = symbol("first", 0, 0, 1 << 31)
        self.shards = symbol("shards", 0, 1, 1 << 31)

    def array(self, name: str, dtype: DType, elements: int) -> Array:
        """Scratch memory of so many elements, in registers' type."""
        taken = {a.name for a in self.arrays} | set(self.names.values()) | self.reserved
        made = Array(_identifier(name, taken), F32 if dtype == BF16 else dtype, elements)
        self.arrays.append(made)
        return made

    def words(self, name: str, elements: int) -> Array:
        """Scratch memory of so many bf16, as they are stored."""
        made = Array(name, BF16, elements)
        self.arrays.append(made)
        return made

    # ------------------------------------------------------------------ elements
    def value(self, value: Value, index: Index) -> Handle:
        """The element of a value at an index."""
        key = (value, tuple(sorted(index.items())))
        known = self.source.recall(key)
        if known is None:
            known = self._compute(value, index)
            self.source.remember(key, known, known.level)
        return known

    def _compute(self, value: Value, index: Index) -> Handle:
        if value in self.results:
            return self.results[value](index)
        if value in self.kernel.reads:
            return self._load(value, self.kernel.reads[value], index)
        if value in self.loops:
            return self.k.from_affine(symbol(self.loops[value], 0, 0, 1 << 31))
        op = value.op
        if op is None:
            raise InternalError(f"kernel `{self.kernel.name}` has no place for {value.hint or 'a value'}: {value.type}")
        shape = definition(op)
        if shape.shape == "elementwise":
            assert shape.body is not None
            operands = [
                self.k.cast(x, F32) if x.dtype == BF16 else x for x in (self.value(o, index) for o in op.operands)
            ]
            result = shape.body(self.k, *operands, **op.attributes)
            return self.k.cast(result, BF16) if value.type.dtype == BF16 else result
        if shape.shape == "index":
            assert shape.body is not None

            def read(i: int, at: Mapping[str, Handle]) -> Handle:
                return self.value(op.operands[i], {n: self.k.affine(h) for n, h in at.items()})

            return shape.body(self.k, op, {n: self.k.from_affine(i) for n, i in index.items()}, read)
        if is_short(op):
            return self._folded(op, index)
        raise InternalError(f"kernel `{self.kernel.name}` inlines `{op.name}`, which needs a loop of its own")

    def _folded(self, op: Op, index: Index) -> Handle:
        """A reduction with at most one element to a lane. Lanes that none went to would change nothing."""
        (x,), axes, k = op.operands, reduced_axes(op), self.k
        accumulator = F32 if x.type.dtype == BF16 else x.type.dtype
        body = definition(op).body
        assert body is not None
        lanes = [k.cast(self.value(x, {**index, **named(axes, number(i))}), accumulator) for i in range(size(axes))]
        if op.name == "reduce_sum":  # extremes of their identity and x are x
            lanes = [body(k, k.const(0, accumulator), lane) for lane in lanes]
        half = LANES // 2
        while half:
            pairs = [body(k, lane, other) for lane, other in zip(lanes, lanes[half : 2 * half], strict=False)]
            lanes = [*pairs, *lanes[len(pairs) : half]]
            half //= 2
        return k.cast(lanes[0], op.result.type.dtype)

    def _load(self, value: Value, view: View, index: Index) -> Handle:
        flat = self.flat(view, index)
        self.loads.append((value, flat))
        # What this kernel also stores is read where it stands: before the store, at the same index.
        level = self.source.level if id(view.buffer) in self.stored_buffers else flat.level
        return self.element(self.names[id(view.buffer)], value.type.dtype, flat, level)

    def element(self, name: str, dtype: DType, flat: Affine, level: int | None = None) -> Handle:
        """An element of named memory, loaded at a level (the innermost by default)."""
        level = self.source.level if level is None else level
        text = f"{name}[{self.source.index(flat)}]"
        text = f"widen({text})" if dtype == BF16 else text
        return Handle(dtype, self.source.define(text, level), level)

    def scratch_element(self, array: Array, flat: Affine) -> Handle:
        """An element of scratch memory, as it is now."""
        name = self.source.name("t")
        self.source.line(f"{name} = {array.name}[{self.source.index(flat)}]")
        return Handle(array.dtype, name, self.source.level)

    def store(self, name: str, dtype: DType, flat: Affine, value: Handle) -> None:
        """Store into named memory."""
        text = self.k.text(value)
        self.source.line(f"{name}[{self.source.index(flat)}] = {f'narrow({text})' if dtype == BF16 else text}")

    def put(self, array: Array, flat: Affine, value: Handle) -> None:
        """Store into scratch memory."""
        self.source.line(f"{array.name}[{self.source.index(flat)}] = {self.k.text(value)}")

    def store_all(self, index: Index) -> None:
        """Compute the kernel's stored values at an index, then store them."""
        values = [(view, self.value(value, index), value.type.dtype) for value, view in self.kernel.stores]
        for view, value, dtype in values:
            self.store(self.names[id(view.buffer)], dtype, self.flat(view, index), value)

    # ------------------------------------------------------------------ indices
    def flat(self, view: View, index: Index) -> Affine:
        """Where an element lies in a buffer: owned shards only, the grain's axis outermost."""
        at = {**index, **{name: symbol(self.loops[loop], 0, 0, 1 << 31) for name, loop in view.slices}}
        flat = number(0)
        for d in view.buffer.layout:
            flat = flat * d.size + (at[d.name] - self.start(d))
            flat = flat * view.buffer.pieces if d.name == SHARD else flat
        return flat

    def start(self, dim: Dim) -> Affine:
        """The first index along an axis that this role owns."""
        if not owned(dim):
            return number(0)
        return self.first * (dim.size // dim.shards if dim.shards else 1)

    def owned_range(self, axes: Axes) -> tuple[Affine, Affine]:
        """The flat indices over axes that this role owns; the grain's axis or `shard`, if any, is the first."""
        if not axes or not owned(axes[0]):
            return number(0), number(size(axes))
        unit = size(axes) // axes[0].size * (axes[0].size // axes[0].shards if axes[0].shards else 1)
        return self.first * unit, (self.first + self.shards) * unit

    def place(self, value: Value, index: Index) -> tuple[View, Affine] | None:
        """Where an element lies if it is just loaded."""
        found = self.located(value, index)
        if found is None:
            return None
        view = self.kernel.reads[found[0]]
        return view, self.flat(view, found[1])

    def located(self, value: Value, index: Index) -> tuple[Value, Index] | None:
        """Which element of a value that is read an element is: if it is one, maybe moved."""
        if value in self.results:
            return None
        if value in self.kernel.reads:
            return value, index
        op = value.op
        if op is None or definition(op).shape != "index":
            return None
        body, asked = definition(op).body, {}

        def read(i: int, at: Mapping[str, Handle]) -> Handle:
            mark = Handle(op.operands[i].type.dtype, f"element {len(asked)}", 0)
            asked[mark] = (op.operands[i], {n: self.k.affine(h) for n, h in at.items()})
            return mark

        assert body is not None
        with self.source.trial(max((i.level for i in index.values()), default=0)) as source:
            before = sum(map(len, source.blocks))
            moved = body(self.k, op, {n: self.k.from_affine(i) for n, i in index.items()}, read)
            computed = sum(map(len, source.blocks)) > before
        return None if computed or moved not in asked else self.located(*asked[moved])

    def loaded(self, value: Value, index: Index, level: int) -> list[tuple[Value, Affine]]:
        """What is loaded from where to evaluate an element whose index is known from `level` on."""
        before = len(self.loads)
        with self.source.trial(level):
            self.value(value, index)
        found = self.loads[before:]
        del self.loads[before:]
        return found

    # ------------------------------------------------------------------ loops
    def tasks(self, axes: Axes, weight: int, body: Callable[[Index], None]) -> None:
        """Run `body` for every owned index of `axes`, shared among the threads; on thread 0 alone if that is little
        work. `weight`: of one index, in elements of a plain map."""
        low, high = self.owned_range(axes)
        total = size(axes)
        small = self.alone = total * weight <= SMALL or total == 1
        with self.source.block("if thread == 0:") if small else nullcontext():
            if total == 1 and low == number(0):
                body({d.name: number(0) for d in axes})
                return
            if not small:
                low, high = self.share(low, high, total)
            with self.loop("e", low, high, total) as e:
                body(named(axes, e))

    def loop(self, name: str, low: Affine, high: Affine, bound: int) -> _Loop:
        """A loop over [low, high), whose index is below `bound`. Use as a context: `with frame.loop(...) as i`."""
        return _Loop(self, name, low, high, bound)

    def flat_loop(self, axes: Axes, low: Affine, high: Affine, body: Body, run: int | None = None) -> None:
        """Run `body(index, flat)` for flat indices [low, high) over row-major axes: one loop if all that `body` reads
        is simple in the flat index, else an outer loop and an inner one over the last axes, `run` elements
        together."""
        axes_ = [d for d in axes if d.size > 1 or owned(d)]
        ones = {d.name: number(0) for d in axes if d not in axes_}
        run = self.contiguous(axes, body) if run is None else run
        total = size(axes_)
        if run >= total:
            with self.loop("e", low, high, total) as e:
                body({**ones, **named(axes_, e)}, e)
            return
        split = next(s for s in range(len(axes_)) if size(axes_[s:]) == run)
        whole = (low % run) == number(0) and (high % run) == number(0)
        with self.loop("o", low // run, (high + (run - 1)) // run, total // run) as o:
            outer = named(axes_[:split], o)
            start, stop = number(0), number(run)
            if not whole:
                start = self._clamp(low - o * run, "maximum", 0, run)
                stop = self._clamp(high - o * run, "minimum", run, run)
            with self.loop("j", start, stop, run) as j:
                body({**ones, **outer, **named(axes_[split:], j)}, o * run + j)

    def _clamp(self, form: Affine, function: str, by: int, run: int) -> Affine:
        name = self.source.define(f"{function}({self.source.index(form)}, {by})", self.source.level, "n")
        return symbol(name, self.source.level, 0, run)

    def over(self, axes: Axes, start: Affine, count: Affine, body: Body, run: int | None = None) -> None:
        """`flat_loop` over `count` elements from `start` on; without axes there is one element."""
        if axes:
            self.flat_loop(axes, start, start + count, body, run)
        else:
            body({}, number(0))

    def least(self, form: Affine, limit: int) -> Affine:
        """min(form, limit), as a variable unless it is known which."""
        return self.k.affine(self.k.minimum(self.k.from_affine(form), limit))

    def contiguous(self, axes: Axes, body: Body) -> int:
        """How many of the last axes' elements one loop can run over without dividing its index: tried, all axes
        first."""
        axes_ = [d for d in axes if d.size > 1 or owned(d)]
        ones = {d.name: number(0) for d in axes if d not in axes_}
        for split in range(len(axes_)):
            run = size(axes_[split:])
            outer, inner = self.source.level + 1, self.source.level + 2
            with self.source.trial(inner) as source:
                o, j = symbol("o0", outer, 0, size(axes_) // run - 1), symbol("j0", inner, 0, run - 1)
                index = {**ones, **named(axes_[:split], o), **named(axes_[split:], j)}
                body(index, o * run + j if split else j)
                hard = any(level >= inner for level in source.quotients)
            if not hard:
                return run
        return axes_[-1].size if axes_ else 1

    def split(self, axes: Axes, body: Body, weight: int = 1) -> None:
        """`flat_loop` over all owned elements, shared among the threads; on thread 0 alone if they are few.
        `weight`: work per element, in elements of a plain map."""
        low, high = self.owned_range(axes)
        total = size(axes)
        if total * weight <= SMALL:
            self.alone = True
            with self.source.block("if thread == 0:"):
                if total == 1 and low == number(0):
                    body(dict.fromkeys([d.name for d in axes], number(0)), number(0))
                else:
                    self.flat_loop(axes, low, high, body)
            return
        run = self.contiguous(axes, body)
        coarse = run < total and total // run >= 16
        unit = run if coarse else 1 if run < ALIGNED else ALIGNED
        low, high = self.share(low, high, total, unit)
        self.flat_loop(axes, low, high, body, run)

    def share(self, low: Affine, high: Affine, bound: int, unit: int = 1) -> tuple[Affine, Affine]:
        """This thread's part of [low, high), in multiples of `unit`."""
        if self.kernel.alone:
            return low, high
        source = self.source
        steps = source.index((high - low + (unit - 1)) // unit)
        steps = source.define(steps, source.level, "steps")
        parts: list[Affine] = []
        exact = (high - low) % unit == number(0) and low % unit == number(0)
        for name, thread in (("lo", "thread"), ("hi", "(thread + 1)")):
            if exact:
                start = source.index(low // unit)
                prefix = "" if start == "0" else f"{start} + "
                source.line(f"{name} = {prefix}div({steps} * {thread}, threads)")
                parts.append(symbol(name, source.level, 0, bound // unit) * unit)
            else:
                start = source.index(low)
                text = f"{'' if start == '0' else start + ' + '}{unit} * div({steps} * {thread}, threads)"
                source.line(f"{name} = minimum({text}, {source.index(high)})")
                parts.append(symbol(name, source.level, 0, bound))
        return parts[0], parts[1]


class _Loop:
    """A `for` statement, or nothing at all if there is exactly one turn; entering gives its index."""

    def __init__(self, frame: Frame, name: str, low: Affine, high: Affine, bound: int) -> None:
        self.source, self.name = frame.source, name
        self.low, self.high, self.bound = low, high, bound
        self.context: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> Affine:
        if self.high - self.low == number(1):
            return self.low
        name = self.source.name(self.name)
        low, high = self.source.index(self.low), self.source.index(self.high)
        self.context = self.source.block(f"for {name} in range({high if low == '0' else f'{low}, {high}'}):")
        self.context.__enter__()
        return symbol(name, self.source.level, max(0, self.low.low), max(self.bound - 1, 0))

    def __exit__(self, *details: object) -> None:
        self.context.__exit__(None, None, None)


def named(axes: Axes, flat: Affine) -> dict[str, Affine]:
    """The index along every axis, of a flat row-major index."""
    found = unflatten(flat, [d.size for d in axes])
    return dict(zip((d.name for d in axes), found, strict=True))


def _identifier(name: str, taken: set[str]) -> str:
    """A readable Python name, added to `taken`, that no variable of the source has: those are one letter and a
    number."""
    base = re.sub(r"\W+", "_", name).strip("_") or "buffer"
    if base[0].isdigit() or keyword.iskeyword(base) or re.fullmatch(r"[a-z]\d+", base) or NAME.fullmatch(base):
        base = f"{base}_"
    while base in taken:
        base += "_"
    taken.add(base)
    return base
