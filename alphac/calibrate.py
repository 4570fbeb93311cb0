"""`alphac calibrate`: what an endpoint of this machine takes for each unit of work, and its loopback for an exchange.

Generic systems (`generic.py`) are compiled for the endpoint's target, and each of their kernels is timed where it runs,
in the step. Rates are the non-negative solution of `seconds = work · rates` over all kernels (`ir/passes/work.py`
counts the work) with the least squares, what a kernel takes of its step being its weight, so that sums come out right.
Then two roles on this machine exchange values of several sizes over the transport that runs use, and train the smallest
system together. What is predicted later is never among what is measured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac import pipeline
from alphac.backends.registry import target
from alphac.bench.contest import ask_once, on_cores
from alphac.bench.instrument import instrument
from alphac.bench.worker import INSTRUMENTED, Spec
from alphac.generic import STEPS, SYSTEMS, write_system
from alphac.ir.fleet import Endpoint, Fleet, Host, Link, Rates
from alphac.ir.passes.plan import Pricer, System
from alphac.ir.passes.survey import shuffle_rounds, survey
from alphac.ir.passes.work import KernelWork, work_of
from alphac.ir.text_parse import parse_module
from alphac.loopback import Exchanges, measure_exchanges
from alphac.runtime.bundle import read_bundle
from alphac.runtime.events import Event, Step
from alphac.runtime.launch.local import run_local
from alphac.runtime.shuffle import permute

SMALL = 0.02  # of a step: kernels that take less say little


Timed = tuple[KernelWork, int, float, float]  # a kernel, the shards it ran on, seconds of it and of the whole step
Tell = Callable[[str], None]


def calibrate(endpoint: Endpoint, target_name: str, tell: Tell) -> tuple[Rates, Link, dict[str, Any]]:
    """Rates of an endpoint of this machine, its host's loopback, and how well they say what was measured. Raises
    Diagnostics, RuntimeFault."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        timed: list[Timed] = []
        for number, system in enumerate(SYSTEMS):
            tell(f"kernels {number + 1} of {len(SYSTEMS)}")
            timed += time_kernels(write_system(system, directory / str(number)), target_name, endpoint.threads)
        rates = fit(timed)
        tell("loopback")
        exchanges = measure_exchanges()
        rates = replace(rates, exchange=exchanges.overhead, fold=exchanges.fold, draw=measure_draws())
        link = Link((endpoint.host, endpoint.host), exchanges.rate, exchanges.latency)
        tell("two roles")
        rates = replace(rates, step=_step(rates, exchanges, write_system(SYSTEMS[0], directory / "two"), target_name))
    return rates, link, {"kernels": len(timed), "error": error(timed, rates)}


def time_kernels(source: Path, target_name: str, threads: int) -> list[Timed]:
    """Every kernel of a system's step, on one role that owns all shards."""
    directory = source.parent
    plan = replace(pipeline.Plan.of(), targets=(target_name,))
    bundle = read_bundle(pipeline.compile_file(source, out=directory / "one.bundle", plan=plan).path)
    programs = pipeline.schedules(parse_module(bundle.read("ir/compiled.ir").decode()))
    instrumented = instrument(programs, target(target_name))
    (directory / INSTRUMENTED).write_bytes(instrumented.code)
    kernels = work_of(programs["step"]).kernels
    spec = Spec("kernels", str(bundle.path), threads, str(directory), launches=len(kernels), stride=instrumented.stride)
    with on_cores(threads):
        seconds = ask_once(spec)["launches"]
    shards = bundle.manifest.shards
    return [(kernel, shards, taken, sum(seconds)) for kernel, taken in zip(kernels, seconds, strict=True)]


# ---------------------------------------------------------------------- rates
COLUMNS = ("launch", "fma", "tile", "operand", "inner", "flop", "function", "cross", "result", "near", "middle", "far")


def fit(timed: Sequence[Timed]) -> Rates:
    """Rates under which kernels take as long as they were measured to. Contractions of types that were not timed are
    taken to be as fast per byte."""
    optimize: Any = import_module("scipy.optimize")
    seconds = np.array([t for _, _, t, _ in timed])
    whole = np.array([of for *_, of in timed])
    weights = 1 / np.sqrt((seconds + SMALL * whole) * whole)
    found, _ = optimize.nnls(features(timed) * weights[:, None], seconds * weights)
    values = dict(zip(COLUMNS, map(float, found), strict=True))
    fma = values.pop("fma")
    types = {"f32": 1.0, "f64": 2.0, "bf16": 1.0, "i32": 1.0, "i64": 2.0, "u8": 1.0}
    return Rates(
        step=0.0, exchange=0.0, fold=0.0, draw=0.0, fma={t: fma * factor for t, factor in types.items()}, **values
    )


def features(timed: Sequence[Timed]) -> npt.NDArray[np.float64]:
    """What each kernel does in a step, in units of `COLUMNS`."""
    rows: list[list[float]] = []
    for kernel, shards, *_ in timed:
        each = (
            kernel.fma,
            kernel.tile,
            kernel.operand,
            kernel.inner,
            kernel.flop,
            kernel.function,
            kernel.cross,
            kernel.result,
        )
        units = [*(a.at(shards) for a in each), *kernel.moved(shards)]
        rows.append([kernel.launches, *(kernel.calls.at(shards) * u for u in units)])
    return np.array(rows)


def error(timed: Sequence[Timed], rates: Rates) -> float:
    """How far off the sum of all kernels is, as a fraction of it."""
    measured = sum(t for _, _, t, _ in timed)
    return sum(abs(kernel.seconds(rates, shards) - t) for kernel, shards, t, _ in timed) / measured


def measure_draws(count: int = 1024, size: int = 50_000) -> float:
    """Seconds of one round of the shuffle for one example."""
    positions, times = np.arange(count), list[float]()
    for turn in range(20):
        began = time.perf_counter()
        permute(positions, size, 1, 2, turn)
        times.append(time.perf_counter() - began)
    return statistics.median(times) / (count * shuffle_rounds(size))


# ---------------------------------------------------------------------- two roles
def _step(rates: Rates, exchanges: Exchanges, source: Path, target_name: str) -> float:
    """What the runtime itself takes in a step of a role that meets others: what the model leaves of the time that two
    roles take for a small system."""
    plan = replace(pipeline.Plan.of(roles=2), targets=(target_name,) * 2)
    bundle = read_bundle(pipeline.compile_file(source, out=source.parent / "two.bundle", plan=plan).path)
    module = parse_module(bundle.read("ir/compiled.ir").decode())
    system = survey(module, pipeline.schedules(module))
    measured = step_seconds(bundle.path, source.parent / "run")
    return max(0.0, measured - predicted(system, rates, exchanges))


def predicted(system: System, rates: Rates, exchanges: Exchanges) -> float:
    """A step of two equal roles on this machine."""
    ends = tuple(Endpoint(n, host="here", memory=1 << 62, domain="here", rates=rates) for n in ("one", "other"))
    link = Link(("here", "here"), exchanges.rate, exchanges.latency)
    half = system.shards // 2
    made: Any = Pricer(system, Fleet(ends, (Host("here", 1 << 62),), (link,))).data(
        [(ends[0], half), (ends[1], system.shards - half)]
    )
    return made.total


def step_seconds(bundle: Path, out: Path, steps: int = STEPS, threads: int = 1) -> float:
    """Seconds of a step of a bundle's roles on this machine, all of them training together: the median of what the
    root tells between two progress reports, the first ones left out."""
    told: list[tuple[int, float]] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Step):
            told.append((event.step, time.perf_counter()))

    run_local(bundle, steps=steps, threads=threads, out=out, on_event=on_event)
    spans = [(later[1] - t) / (later[0] - s) for (s, t), later in pairwise(told)]
    return statistics.median(spans[1:] or spans)
