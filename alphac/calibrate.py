"""`alphac calibrate`: what an endpoint of this machine takes for each unit of work, and its loopback for an exchange.

Generic systems (`generic.py`) are compiled for the endpoint's target, and each of their kernels is timed where it runs,
in the step. Rates are the non-negative solution of `seconds = units · rates` over all kernels (units of what their code
does: `backends/count.py`, `ir/passes/work.py`) with the least squares, what a kernel takes of its step being its
weight, and of the sums of each system's kernels.
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
from alphac.backends.target import Target
from alphac.bench.contest import ask_once, on_cores
from alphac.bench.instrument import instrument
from alphac.bench.worker import INSTRUMENTED, Spec
from alphac.generic import STEPS, SYSTEMS, write_system
from alphac.ir.fleet import CACHES, Endpoint, Fleet, Host, Link, Rates
from alphac.ir.passes.plan import Pricer, System
from alphac.ir.passes.survey import shuffle_rounds, survey
from alphac.ir.passes.work import work_of
from alphac.ir.text_parse import parse_module
from alphac.loopback import Exchanges, measure_exchanges
from alphac.runtime.bundle import read_bundle
from alphac.runtime.events import Event, Step
from alphac.runtime.launch.local import run_local
from alphac.runtime.shuffle import permute

SMALL = 0.02  # of a step: kernels that take less say little


Timed = tuple[dict[str, float], float]  # units of what a kernel does in a step, and seconds of it
Tell = Callable[[str], None]


def calibrate(endpoint: Endpoint, target_name: str, tell: Tell) -> tuple[Rates, Link, dict[str, Any]]:
    """Rates of an endpoint of this machine, its host's loopback, and how well they say what was measured. Raises
    Diagnostics, RuntimeFault."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        timed: list[list[Timed]] = []
        for number, system in enumerate(SYSTEMS):
            tell(f"kernels {number + 1} of {len(SYSTEMS)}")
            source = write_system(system, directory / str(number))
            timed.append(time_kernels(source, target_name, endpoint.threads))
        rates = fit(timed, target(target_name))
        tell("loopback")
        exchanges = measure_exchanges()
        rates = replace(rates, exchange=exchanges.overhead, fold=exchanges.fold, draw=measure_draws())
        link = Link((endpoint.host, endpoint.host), exchanges.rate, exchanges.latency)
        tell("two roles")
        rates = replace(rates, step=_step(rates, exchanges, write_system(SYSTEMS[0], directory / "two"), target_name))
    return rates, link, {"kernels": sum(map(len, timed)), "error": error(timed, rates)}


def time_kernels(source: Path, target_name: str, threads: int) -> list[Timed]:
    """Every kernel of a system's step, on one role that owns all shards: threads share what one would do."""
    directory = source.parent
    plan = replace(pipeline.Plan.of(), targets=(target_name,))
    bundle = read_bundle(pipeline.compile_file(source, out=directory / "one.bundle", plan=plan).path)
    module = parse_module(bundle.read("ir/compiled.ir").decode())
    programs = pipeline.schedules(module)
    instrumented = instrument(programs, target(target_name), {})
    (directory / INSTRUMENTED).write_bytes(instrumented.code)
    kernels = work_of(programs["step"], pipeline.counted(module, {target_name})).kernels
    spec = Spec("kernels", str(bundle.path), threads, str(directory), launches=len(kernels), stride=instrumented.stride)
    with on_cores(threads):
        seconds = ask_once(spec)["launches"]
    shards = bundle.manifest.shards
    return [(kernel.units(target_name, shards), taken) for kernel, taken in zip(kernels, seconds, strict=True)]


# ---------------------------------------------------------------------- rates
def fit(systems: Sequence[Sequence[Timed]], made_for: Target) -> Rates:
    """Rates under which kernels take as long as they were measured to. Element types that were not timed are taken to
    be as fast per byte, and what nobody counted to be done by whole vectors."""
    optimize: Any = import_module("scipy.optimize")
    kinds = sorted({kind for timed in systems for units, _ in timed for kind in units})
    rows, sides = list[npt.NDArray[np.float64]](), list[npt.NDArray[np.float64]]()
    for timed in systems:
        units = np.array([[did.get(kind, 0.0) for kind in kinds] for did, _ in timed])
        seconds = np.array([taken for _, taken in timed])
        weights = 1 / np.sqrt((seconds + SMALL * seconds.sum()) * seconds.sum())
        rows += [units * weights[:, None], units.sum(axis=0, keepdims=True) / seconds.sum()]
        sides += [seconds * weights, np.ones(1)]
    found, _ = optimize.nnls(np.concatenate(rows), np.concatenate(sides))
    counted = dict(zip(kinds, map(float, found), strict=True))
    types = {"f32": 1.0, "f64": 2.0, "bf16": 1.0, "i32": 1.0, "i64": 2.0, "u8": 1.0}
    return Rates(
        step=0.0,
        exchange=0.0,
        launch=counted["launch"],
        fma={name: counted["tile"] / made_for.lanes * factor for name, factor in types.items()},
        flop=counted["vector"] / made_for.lanes,
        bytes={level: counted.get(f"read {level} plain", 0.0) for level in (*CACHES, "memory")},
        fold=0.0,
        draw=0.0,
        counted=counted,
        target=made_for.name,
    )


def error(systems: Sequence[Sequence[Timed]], rates: Rates) -> float:
    """How far off kernels are, as a fraction of what all take."""
    every = [one for timed in systems for one in timed]
    off = (abs(sum(n * rates.counted[kind] for kind, n in units.items()) - taken) for units, taken in every)
    return sum(off) / sum(taken for _, taken in every)


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
    system = survey(module, pipeline.schedules(module), count=pipeline.counted(module, {target_name}))
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
