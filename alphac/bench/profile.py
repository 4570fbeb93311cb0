"""Kernels and regions: how long each takes, beside what it must do and what the machine can do."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from alphac.backends.registry import target
from alphac.bench.contest import ask_once
from alphac.bench.costs import Cost
from alphac.bench.instrument import TICKS, instrument
from alphac.bench.report import Row
from alphac.bench.roofline import Roofline
from alphac.bench.worker import INSTRUMENTED, Spec
from alphac.diagnostics import fail
from alphac.ir.errors import InternalError
from alphac.ir.schedule import Program
from alphac.runtime.bundle import Bundle


def profile(
    bundle: Bundle, programs: Mapping[str, Program], made: Sequence[Cost], limits: Roofline, directory: Path
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Kernels in the order of the step, and regions. `directory` takes the instrumented code. Raises Diagnostics."""
    record = bundle.class_of(bundle.manifest.solo)
    made_for = target(record.target)
    if made_for.is_gpu or platform.machine() not in TICKS:
        raise fail("E504", f"kernels for {made_for.name} cannot be timed one by one here", None, "leave out --kernels")
    instrumented = instrument(programs, made_for, record.tiles)
    if [kernel.name for kernel in instrumented.launches] != [cost.kernel for cost in made]:
        raise InternalError("the launches in code are not those of the schedule")
    (directory / INSTRUMENTED).write_bytes(instrumented.code)
    spec = Spec("kernels", str(bundle.path), limits.threads, str(directory))
    timed = ask_once(replace(spec, launches=len(made), stride=instrumented.stride))
    seconds, whole = timed["launches"], timed["step"]
    kernels = [row(c.value, [c], s, whole, limits) for c, s in zip(made, seconds, strict=True)]
    regions: dict[str, tuple[list[Cost], float]] = {}
    for cost, taken in zip(made, seconds, strict=True):
        costs, before = regions.get(cost.region, ([], 0.0))
        regions[cost.region] = ([*costs, cost], before + taken)
    return tuple(kernels), tuple(row(name, costs, s, whole, limits) for name, (costs, s) in regions.items())


def row(name: str, costs: Sequence[Cost], seconds: float, whole: float, limits: Roofline) -> Row:
    """One kernel, or several together."""
    taken = max(seconds, 1e-9)
    limit = sum(c.calls * limits.limit(c.flops / c.calls, c.bytes / c.calls) for c in costs)
    return Row(
        name=name,
        region=costs[0].region,
        op=_joined(c.op for c in costs),
        span=costs[0].span if len(costs) == 1 else "",
        calls=sum(c.calls for c in costs),
        seconds=seconds,
        share=seconds / whole,
        gflops=sum(c.flops for c in costs) / taken / 1e9,
        gbytes=sum(c.bytes for c in costs) / taken / 1e9,
        percent=100 * limit / taken,
    )


def _joined(words: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(words))
