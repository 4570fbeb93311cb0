"""How much work a program is: each kernel's operations and bytes, and each exchange's bytes, as a role that owns so
many shards meets them. What a unit costs on an endpoint is in `Rates` (`ir/fleet.py`).

Kernels have two measures. From the ops' definitions: a contraction's multiply-adds (the last axis filled up to whole
vectors), operations of all other ops, bytes. And what its code for a target does, where somebody counts it (`Count`):
that is what calibrated endpoints are priced by, as definitions do not say what a compiler makes of them. Bytes are each
buffer that a kernel touches, once each way; where they come from depends on how many others were touched since the last
time, in this step or the one before (`touches.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from alphac.ir.core import Op
from alphac.ir.fleet import CACHES, Rates
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.ops.define import definition
from alphac.ir.passes.touches import NOTHING, Amount, Touch, count_of, touched, touches_of, view_bytes
from alphac.ir.schedule import Exchange, Kernel, Launch, Program, Repeat, Step, Tiles, strand_of
from alphac.ir.schedule_text import inlined_ops
from alphac.ir.typesys import TensorType

LANES, LEAF = 16, 256
SLOW = {"div": 10.0, "sqrt": 10.0, "rsqrt": 20.0}  # what these are like, in operations
Counts = Mapping[str, Mapping[str, Amount]]  # by target: what a call does, by kind
Count = Callable[[Kernel], Counts]


def uncounted(kernel: Kernel) -> Counts:
    """Nobody counts."""
    return {}


@dataclass(frozen=True)
class KernelWork:
    """One kernel of a schedule: what one call does, `calls` of them in a run of the program (`launches` of which the
    threads meet behind).

    `dtype` is that of its contraction, `leaves` into how many its terms are cut, `tile` its results. `counts`: what its
    code does, by target. `touches`: of every buffer its bytes, and those touched since it was touched before. `strand`:
    whose shards it works on, if on any; `round`: how many exchanges come before it."""

    name: str
    op: str
    calls: Amount
    launches: float
    dtype: str = ""
    leaves: int = 1
    fma: Amount = NOTHING
    tile: Amount = NOTHING
    flop: Amount = NOTHING
    bytes: Amount = NOTHING
    touches: tuple[Touch, ...] = ()
    strand: int | None = None
    round: int = 0
    counts: Counts = field(default_factory=dict[str, Mapping[str, Amount]])

    def seconds(self, rates: Rates, shards: int) -> float:
        """On an endpoint, for a role that owns so many shards."""
        if rates.target in self.counts:
            units = self.units(rates.target, shards)
            return max(0.0, sum(amount * rates.counted.get(kind, 0.0) for kind, amount in units.items()))
        one = self.flop.at(shards) * rates.flop
        for touch in self._touches():
            one += touch.bytes.at(shards) * rates.bytes[_level(touch, shards)]
        if self.dtype:
            one += self.fma.at(shards) * rates.fma.get(self.dtype, math.inf)
        return self.launches * rates.launch + self.calls.at(shards) * one

    def units(self, target: str, shards: int) -> dict[str, float]:
        """What its code for a target does in a run of the program: its counts, and bytes by direction and by where they
        come from, those apart that go by while register tiles are multiplied."""
        counts, calls = self.counts[target], self.calls.at(shards)
        found = {kind: calls * amount.at(shards) for kind, amount in counts.items()}
        found["launch"] = self.launches
        beside = "tiles" if counts.get("terms", NOTHING).at(shards) > 0 else "plain"
        for touch in self._touches():
            kind = f"{'store' if touch.stored else 'read'} {_level(touch, shards)} {beside}"
            found[kind] = found.get(kind, 0.0) + calls * touch.bytes.at(shards)
        return found

    def _touches(self) -> tuple[Touch, ...]:
        return self.touches or (Touch(self.bytes, self.bytes, True),)

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


def work_of(program: Program, count: Count = uncounted) -> Work:
    """The work of a program. `count` says what a kernel's code does."""
    exchanges = tuple(
        ExchangeWork(sum(b.type.bytes for b, _ in exchange.buffers), rounds, exchange.buffers[0][0].strand)
        for exchange, rounds in _exchanges(program.steps, 1)
    )
    touches = touches_of(program)
    works = tuple(replace(w, touches=touches[k]) for k, w in _works(program.steps, 1, count))
    return Work(works, exchanges)


def _level(touch: Touch, shards: int) -> str:
    """Where bytes come from."""
    since = touch.since.at(shards)
    return next((level for level, most in CACHES.items() if since <= most), "memory")


def _sum(amounts: Iterable[Amount]) -> Amount:
    return reduce(Amount.__add__, amounts, Amount())


def _exchanges(steps: tuple[Step, ...], rounds: int) -> Iterator[tuple[Exchange, int]]:
    for step in steps:
        if isinstance(step, Exchange):
            yield step, rounds
        elif isinstance(step, Repeat):
            yield from _exchanges(step.steps, rounds * step.count)


def _works(steps: tuple[Step, ...], rounds: int, count: Count, before: int = 0) -> Iterator[tuple[Kernel, KernelWork]]:
    """Kernels and their work; `before`: how many exchanges come before these steps."""
    for step in steps:
        strand = strand_of(step)
        if isinstance(step, Exchange):
            before += 1
        elif isinstance(step, Launch):
            made = kernel_work(step.kernel, Amount(rounds), rounds, count)
            yield step.kernel, replace(made, strand=strand, round=before)
        elif isinstance(step, Repeat):
            yield from _works(step.steps, rounds * step.count, count, before)
            before += sum(1 for _ in _exchanges(step.steps, 1))
        elif isinstance(step, Tiles):
            calls = count_of(step.dims).times(rounds)
            for number, launch in enumerate(step.steps):
                made = kernel_work(launch.kernel, calls, rounds if number == 0 else 0, count)
                yield launch.kernel, replace(made, strand=strand, round=before)


def kernel_work(kernel: Kernel, calls: Amount, launches: float, count: Count = uncounted) -> KernelWork:
    """What a call of a kernel does."""
    ops = inlined_ops(kernel)
    contraction = next((op for op in ops if definition(op).shape == "contract"), None)
    main = contraction or kernel.anchor or kernel.stores[0][0].op
    views = {id(view.buffer): view for view, _ in touched(kernel) if view.buffer.role != "private"}
    return KernelWork(
        kernel.name,
        main.name if main is not None else "copy",
        calls,
        launches,
        flop=_sum(_flops(op).times(SLOW.get(op.name, 1.0)) for op in ops),
        bytes=_sum(view_bytes(view) for view in views.values()),
        counts=count(kernel),
        **({} if contraction is None else _contraction(contraction)),
    )


def _contraction(op: Op) -> dict[str, Any]:
    result, summed = op.result.type, contracted_axes(op)
    terms = math.prod(d.size // (d.shards or 1) for d in summed)  # of one shard, where the grain's axis is summed
    made = _amount(result).times(_filled(result))
    return {
        "dtype": result.dtype.name,
        "leaves": -(-terms // LEAF),
        "fma": made.times(terms),
        "tile": _amount(result).times(-(-terms // LEAF)),
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
    return count_of(type.dims)
