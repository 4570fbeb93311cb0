"""How much work a program is: each kernel's multiply-adds, operations and bytes, and each exchange's bytes, as a role
that owns so many shards meets them. What a unit costs on an endpoint is in `Rates` (`ir/fleet.py`).

A contraction counts its multiply-adds (the last axis filled up to whole vectors), its result once per leaf, and its
operands, which are packed; what is computed while they are is counted apart, for it may be computed more than once. All
other ops count what their definitions say an element costs, times the elements that they make (or read, for
reductions): functions by themselves, as they have long chains of operations. Bytes are each buffer that a kernel
touches, once each way, but for a thread's scratch memory, which stays near; where they come from depends on how many
others were touched since the last time, in this step or the one before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from alphac.ir.core import Op
from alphac.ir.fleet import CACHED, SHARED, Rates
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.ops.define import definition
from alphac.ir.ops.reduce import is_short
from alphac.ir.schedule import Exchange, Kernel, Launch, Program, Repeat, Step, Tiles, View, strand_of
from alphac.ir.schedule_text import inlined_ops, operand_ops
from alphac.ir.typesys import SHARD, Dim, TensorType

LANES, LEAF = 16, 256
SIMPLE = 4  # operations of an op that is no function
SLOW = {"div": 20.0, "sqrt": 20.0, "rsqrt": 40.0}  # what these are like, in operations of functions


@dataclass(frozen=True)
class Amount:
    """Something that a role does: `fixed`, whatever it owns, and so much more for each of its shards."""

    fixed: float = 0.0
    shard: float = 0.0

    def at(self, shards: float) -> float:
        return self.fixed + self.shard * shards

    def times(self, factor: float) -> Amount:
        return Amount(self.fixed * factor, self.shard * factor)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.fixed + other.fixed, self.shard + other.shard)


@dataclass(frozen=True)
class KernelWork:
    """One kernel of a schedule: what one call does, `calls` of them in a run of the program (`launches` of which the
    threads meet behind).

    `inner` are operations in the operands of a contraction or reduction, `function` those of functions elsewhere,
    `cross` those of a reduction over more elements than are stored anywhere (distances between all pairs), `result`
    what reductions result in. `touches`: of every buffer its bytes, and those touched since it was touched before.
    `dtype` is that of its contraction, `leaves` into how many its terms are cut. `strand`: whose shards it
    works on, if on any; `round`: how many exchanges come before it."""

    name: str
    op: str
    calls: Amount
    launches: float
    dtype: str = ""
    leaves: int = 1
    fma: Amount = Amount()
    tile: Amount = Amount()
    operand: Amount = Amount()
    inner: Amount = Amount()
    flop: Amount = Amount()
    function: Amount = Amount()
    cross: Amount = Amount()
    result: Amount = Amount()
    bytes: Amount = Amount()
    touches: tuple[tuple[Amount, Amount], ...] = ()
    strand: int | None = None
    round: int = 0

    def seconds(self, rates: Rates, shards: int) -> float:
        """On an endpoint, for a role that owns so many shards."""
        one = self.flop.at(shards) * rates.flop + self.function.at(shards) * rates.function
        one += self.inner.at(shards) * rates.inner + self.cross.at(shards) * rates.cross
        one += self.result.at(shards) * rates.result
        near, middle, far = self.moved(shards)
        one += near * rates.near + middle * rates.middle + far * rates.far
        if self.dtype:
            one += self.fma.at(shards) * rates.fma.get(self.dtype, math.inf)
            one += self.tile.at(shards) * rates.tile + self.operand.at(shards) * rates.operand
        return self.launches * rates.launch + self.calls.at(shards) * one

    def moved(self, shards: int) -> tuple[float, float, float]:
        """Bytes that come from a core's own cache, from one that is shared, and from memory."""
        found = [0.0, 0.0, 0.0]
        for size, before in self.touches or ((self.bytes, self.bytes),):
            distance = before.at(shards)
            found[0 if distance <= CACHED else 1 if distance <= SHARED else 2] += size.at(shards)
        return found[0], found[1], found[2]

    @property
    def fixed(self) -> bool:
        """Whether every role does the same, whatever it owns: what updates replicated state."""
        parts = (self.calls, self.fma, self.flop, self.bytes)
        return all(part.shard == 0 for part in parts)


@dataclass(frozen=True)
class ExchangeWork:
    """One exchange: bytes of a whole value of it, how often it happens in a run of the program, and whose shards are
    put together."""

    bytes: int
    rounds: int
    strand: int = 0


@dataclass(frozen=True)
class Work:
    """A program: its kernels and exchanges in order."""

    kernels: tuple[KernelWork, ...]
    exchanges: tuple[ExchangeWork, ...]

    def seconds(self, rates: Rates, shards: int) -> float:
        """Of all kernels."""
        return sum(k.seconds(rates, shards) for k in self.kernels)


def work_of(program: Program) -> Work:
    """The work of a program."""
    exchanges = tuple(
        ExchangeWork(
            sum(b.type.size * b.type.dtype.bytes for b, _ in exchange.buffers), rounds, exchange.buffers[0][0].strand
        )
        for exchange, rounds in _exchanges(program.steps, 1)
    )
    return Work(tuple(_located(list(_works(program.steps, 1)))), exchanges)


def _located(works: list[tuple[KernelWork, Touched]]) -> Iterator[KernelWork]:
    """Kernels in order with how far behind each buffer was touched before, if step follows step."""
    sums = [Amount()]
    for _, touched in works:
        sums.append(sums[-1] + _sum(whole for _, whole in touched.values()))
    last = {buffer: k - len(works) for k, (_, touched) in enumerate(works) for buffer in touched}
    for k, (work, touched) in enumerate(works):
        found: list[tuple[Amount, Amount]] = []
        for buffer, (size, _) in touched.items():
            before, last[buffer] = last[buffer], k
            since = sums[k + 1] + sums[before + 1 + len(works) * (before < 0)].times(-1)
            found.append((size, since + sums[-1] if before < 0 else since))
        yield replace(work, touches=tuple(found))


def _sum(amounts: Iterable[Amount]) -> Amount:
    return reduce(Amount.__add__, amounts, Amount())


def _exchanges(steps: tuple[Step, ...], rounds: int) -> Iterator[tuple[Exchange, int]]:
    for step in steps:
        if isinstance(step, Exchange):
            yield step, rounds
        elif isinstance(step, Repeat):
            yield from _exchanges(step.steps, rounds * step.count)


def _works(steps: tuple[Step, ...], rounds: int, before: int = 0) -> Iterator[tuple[KernelWork, Touched]]:
    """Kernels, and what each touches; `before`: how many exchanges come before these steps."""
    for step in steps:
        strand = strand_of(step)
        if isinstance(step, Exchange):
            before += 1
        elif isinstance(step, Launch):
            made = kernel_work(step.kernel, Amount(rounds), rounds)
            yield replace(made, strand=strand, round=before), _touched(step.kernel)
        elif isinstance(step, Repeat):
            yield from _works(step.steps, rounds * step.count, before)
            before += sum(1 for _ in _exchanges(step.steps, 1))
        elif isinstance(step, Tiles):
            calls = _count(step.dims).times(rounds)
            for number, launch in enumerate(step.steps):
                made = kernel_work(launch.kernel, calls, rounds if number == 0 else 0)
                yield replace(made, strand=strand, round=before), _touched(launch.kernel, step.dims)


def kernel_work(kernel: Kernel, calls: Amount, launches: float) -> KernelWork:
    """What a call of a kernel does."""
    ops = inlined_ops(kernel)
    contraction = next((op for op in ops if definition(op).shape == "contract"), None)
    loops = [op for op in ops if definition(op).shape in ("contract", "special") or _reduces(op)]
    inside = {inner for op in loops for inner in operand_ops(kernel, op) if not _reduces(inner)}
    inner, cross, flop, function, result = (Amount() for _ in range(5))
    largest = max((value.type.size for value in kernel.reads), default=0)
    crossing = next((op for op in loops if _reduces(op) and op.operands[0].type.size > largest), None)
    for op in ops:
        count = _flops(op)
        if _reduces(op):
            result += _amount(op.result.type)
        if op in inside and crossing is not None:
            cross += count.times(_filled(crossing.result.type))
        elif op in inside:
            inner += count
        elif definition(op).cost.flops > SIMPLE or op.name in SLOW:
            function += count.times(SLOW.get(op.name, 1.0))
        else:
            flop += count
    main = contraction or kernel.anchor or kernel.stores[0][0].op
    made = {} if contraction is None else _contraction(contraction)
    touched = _sum(size for size, _ in _touched(kernel).values())
    work = KernelWork(kernel.name, main.name if main is not None else "copy", calls, launches, bytes=touched, **made)
    return replace(work, inner=inner, cross=cross, flop=flop, function=function, result=result)


def _reduces(op: Op) -> bool:
    return definition(op).shape == "reduce" and not is_short(op)


Place = tuple[int, tuple[str, ...]]  # a buffer, and along which axes one slice of it
Touched = dict[Place, tuple[Amount, Amount]]  # bytes of a call, and of all


def _touched(kernel: Kernel, tiled: tuple[Dim, ...] = ()) -> Touched:
    """What a kernel touches; `tiled`: calls of it are iterations of these axes."""
    names = {d.name for d in tiled}
    found: Touched = {}
    for view in (*(view for _, view in kernel.stores), *kernel.reads.values()):
        if view.buffer.role != "private":
            whole = View(view.buffer, tuple(s for s in view.slices if s[0] not in names))
            found[_place(whole)] = _view_bytes(view), _view_bytes(whole)
    return found


def _contraction(op: Op) -> dict[str, Any]:
    a, b = (v.type for v in op.operands)
    result, summed = op.result.type, contracted_axes(op)
    terms = math.prod(d.size // (d.shards or 1) for d in summed)  # of one shard, where the grain's axis is summed
    made = _amount(result).times(_filled(result))
    return {
        "dtype": result.dtype.name,
        "leaves": -(-terms // LEAF),
        "fma": made.times(terms),
        "tile": _amount(result).times(-(-terms // LEAF)),
        "operand": _amount(a) + _amount(b),
    }


def _filled(type: TensorType) -> float:
    """How much more is computed if the last axis is filled up to whole vectors."""
    last = type.dims[-1].size if type.dims and not type.dims[-1].shards else 1
    return -(-last // LANES) * LANES / last


def _flops(op: Op) -> Amount:
    made = definition(op)
    if made.shape == "elementwise":
        return _amount(op.results[0].type).times(made.cost.flops)
    if made.shape in ("reduce", "collective", "special"):
        return _amount(op.operands[-1].type).times(made.cost.flops)
    return Amount()


def _amount(type: TensorType) -> Amount:
    """Elements of a value that a role holds."""
    return _count(type.dims)


def _count(dims: tuple[Dim, ...]) -> Amount:
    size = float(math.prod(d.size for d in dims))
    for d in dims:
        if d.shards or d.name == SHARD:
            return Amount(0.0, size / (d.shards or d.size))
    return Amount(size)


def _place(view: View) -> Place:
    return id(view.buffer), tuple(name for name, _ in view.slices)


def _view_bytes(view: View) -> Amount:
    sliced = {name for name, _ in view.slices}
    kept = tuple(d for d in view.buffer.type.dims if d.name not in sliced)
    return _count(kept).times(view.buffer.type.dtype.bytes)
