"""How much work a program is: each kernel's multiply-adds, operations and bytes, and each exchange's bytes, as a role
that owns so many shards meets them. What a unit costs on an endpoint is in `Rates` (`ir/fleet.py`).

A contraction counts its multiply-adds (the last axis filled up to whole vectors), its result once per leaf, and its
operands, which are packed. All other ops count what their definitions say an element costs, times the elements that
they make (or read, for reductions). Bytes are each buffer that a kernel touches, once each way,
but for a thread's scratch memory, which stays near.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from alphac.ir.core import Op
from alphac.ir.fleet import CACHED, Rates
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.ops.define import definition
from alphac.ir.schedule import Exchange, Kernel, Launch, Program, Repeat, Step, Tiles, View, strand_of
from alphac.ir.schedule_text import inlined_ops
from alphac.ir.typesys import SHARD, Dim, TensorType

LANES, LEAF = 16, 256


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
    threads meet behind). `dtype` is that of its contraction, `leaves` into how many its terms are cut. `strand`: whose
    shards it works on, if on any; `round`: how many exchanges come before it."""

    name: str
    op: str
    calls: Amount
    launches: float
    dtype: str = ""
    leaves: int = 1
    fma: Amount = Amount()
    tile: Amount = Amount()
    operand: Amount = Amount()
    flop: Amount = Amount()
    bytes: Amount = Amount()
    strand: int | None = None
    round: int = 0

    def seconds(self, rates: Rates, shards: int) -> float:
        """On an endpoint, for a role that owns so many shards."""
        touched = self.bytes.at(shards)
        one = self.flop.at(shards) * rates.flop + touched * (rates.near if touched <= CACHED else rates.far)
        if self.dtype:
            one += self.fma.at(shards) * rates.fma.get(self.dtype, math.inf)
            one += self.tile.at(shards) * rates.tile + self.operand.at(shards) * rates.operand
        return self.launches * rates.launch + self.calls.at(shards) * one

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
    return Work(tuple(_works(program.steps, 1)), exchanges)


def _exchanges(steps: tuple[Step, ...], rounds: int) -> Iterator[tuple[Exchange, int]]:
    for step in steps:
        if isinstance(step, Exchange):
            yield step, rounds
        elif isinstance(step, Repeat):
            yield from _exchanges(step.steps, rounds * step.count)


def _works(steps: tuple[Step, ...], rounds: int, before: int = 0) -> Iterator[KernelWork]:
    """`before`: how many exchanges come before these steps."""
    for step in steps:
        strand = strand_of(step)
        if isinstance(step, Exchange):
            before += 1
        elif isinstance(step, Launch):
            yield replace(kernel_work(step.kernel, Amount(rounds), rounds), strand=strand, round=before)
        elif isinstance(step, Repeat):
            yield from _works(step.steps, rounds * step.count, before)
            before += sum(1 for _ in _exchanges(step.steps, 1))
        elif isinstance(step, Tiles):
            calls = _count(step.dims).times(rounds)
            for number, launch in enumerate(step.steps):
                made = kernel_work(launch.kernel, calls, rounds if number == 0 else 0)
                yield replace(made, strand=strand, round=before)


def kernel_work(kernel: Kernel, calls: Amount, launches: float) -> KernelWork:
    """What a call of a kernel does."""
    ops = inlined_ops(kernel)
    contraction = next((op for op in ops if op.name == "contract"), None)
    flops = Amount()
    for op in ops:
        flops += _flops(op)
    touched = Amount()
    views = (*(view for _, view in kernel.stores), *kernel.reads.values())
    for view in {_place(v): v for v in views if v.buffer.role != "private"}.values():
        touched += _view_bytes(view)
    main = contraction or kernel.anchor or kernel.stores[0][0].op
    made = {} if contraction is None else _contraction(contraction)
    op = main.name if main is not None else "copy"
    return KernelWork(kernel.name, op, calls, launches, flop=flops, bytes=touched, **made)


def _contraction(op: Op) -> dict[str, Any]:
    a, b = (v.type for v in op.operands)
    result, summed = op.result.type, contracted_axes(op)
    terms = math.prod(d.size // (d.shards or 1) for d in summed)  # of one shard, where the grain's axis is summed
    last = result.dims[-1].size if result.dims and not result.dims[-1].shards else 1
    made = _amount(result).times(-(-last // LANES) * LANES / last)
    return {
        "dtype": result.dtype.name,
        "leaves": -(-terms // LEAF),
        "fma": made.times(terms),
        "tile": _amount(result).times(-(-terms // LEAF)),
        "operand": _amount(a) + _amount(b),
    }


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


def _place(view: View) -> tuple[int, tuple[str, ...]]:
    return id(view.buffer), tuple(name for name, _ in view.slices)


def _view_bytes(view: View) -> Amount:
    sliced = {name for name, _ in view.slices}
    kept = tuple(d for d in view.buffer.type.dims if d.name not in sliced)
    return _count(kept).times(view.buffer.type.dtype.bytes)
