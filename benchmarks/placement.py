"""Does the model of placement say how long steps take, and do its shares pay?

    python benchmarks/placement.py FLEET [--part predict|throttle]

FLEET describes this machine with one endpoint, calibrated for one thread; nothing that is predicted here was measured
for it. `predict`: the step times of examples on one role and on two roles of this machine, as predicted and as
measured. `throttle`: two roles of this machine, the second of which is stopped half of the time (a duty cycle of 8 ms);
with the grain's 32 shards dealt out equally, and as placement chooses for an endpoint that is half as fast. Writes
records/placement-PART-DATE.json. Run it alone on a machine with two cores.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from recording import write_record

from alphac import pipeline
from alphac.bench.contest import on_cores
from alphac.bench.ours import Contender
from alphac.calibrate import step_seconds
from alphac.fleet import Endpoint, Fleet, read_fleet
from alphac.ir.fleet import Rates
from alphac.ir.passes.plan import Misfit, Pricer, System
from alphac.ir.passes.solve import search
from alphac.ir.passes.survey import survey
from alphac.ir.text_parse import parse_module
from alphac.runtime.bundle import read_bundle

ROOT = Path(__file__).parents[1]
EXAMPLES = ("digits_mlp", "digits_cnn", "kmeans_digits", "char_gpt", "char_rnn")
THROTTLED = "char_gpt"
PERIOD = 0.008  # seconds of the duty cycle, half of which the slow role is stopped
SECONDS = 3.0  # of each measurement


def example(name: str) -> Path:
    return ROOT / "examples" / name / f"{name}.alpha"


def compiled(name: str, shares: tuple[int, ...], directory: Path, target: str) -> tuple[Path, System]:
    """A bundle of an example for roles with these shares, and what placement knows of it."""
    out = directory / f"{name}-{'-'.join(map(str, shares))}.bundle"
    plan = pipeline.Plan.of(shares=[Fraction(s) for s in shares])
    bundle = read_bundle(pipeline.compile_file(example(name), out=out, plan=plan).path)
    module = parse_module(bundle.read("ir/compiled.ir").decode())
    data = sum(bundle.file(d.path).stat().st_size for d in bundle.manifest.data.values())
    return bundle.path, survey(module, pipeline.schedules(module), data, pipeline.counted(module, {target}))


def pair(fleet: Fleet, slowdown: float = 1.0) -> Fleet:
    """The fleet's endpoint twice, the second one slower."""
    (one,) = fleet.endpoints
    assert one.rates is not None
    other = replace(one, name="other", rates=scaled(one.rates, slowdown))
    return replace(fleet, endpoints=(one, other))


def target_of(endpoint: Endpoint) -> str:
    """The target whose code an endpoint was calibrated with."""
    return endpoint.rates.target if endpoint.rates else ""


def scaled(rates: Rates, factor: float) -> Rates:
    made: dict[str, Any] = {}
    for field in fields(rates):
        value = getattr(rates, field.name)
        if isinstance(value, dict):
            made[field.name] = {k: factor * v for k, v in value.items()}
        else:
            made[field.name] = value if isinstance(value, str) else factor * value
    return Rates(**made)


def priced(system: System, fleet: Fleet, owners: list[tuple[Endpoint, int]]) -> float:
    made = Pricer(system, fleet).data(owners)
    assert not isinstance(made, Misfit), made.reason
    return made.total


# ---------------------------------------------------------------------- measuring
def alone(bundle: Path) -> float:
    """Seconds of a step of a role that owns all shards, on one core."""
    with on_cores(1):
        trainer = Contender(bundle, 1)
        try:
            trainer.first(3)
            count, spans = 1, list[float]()
            deadline = time.perf_counter() + SECONDS
            while time.perf_counter() < deadline:
                began = time.perf_counter()
                trainer.advance(count)
                spans.append((time.perf_counter() - began) / count)
                count = max(1, round(0.1 / spans[-1]))
            return statistics.median(spans[1:] or spans)
        finally:
            trainer.close()


def together(bundle: Path, out: Path, step: float, during: Callable[[], Any] | None = None) -> float:
    """Seconds of a step of all roles of a bundle on this machine; `step`: about how many."""
    if during is None:
        return step_seconds(bundle, out, max(20, round(SECONDS / step)))
    with during():
        return step_seconds(bundle, out, max(20, round(SECONDS / step)))


@contextmanager
def throttling() -> Iterator[None]:
    """Role 1, as soon as it is there, is stopped half of the time."""
    done = threading.Event()
    thread = threading.Thread(target=_throttle, args=(done,))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _throttle(done: threading.Event) -> None:
    process = None
    while process is None and not done.wait(0.01):
        process = _role_one()
    stopped = False
    while process is not None and not done.wait(PERIOD / 2):
        stopped = not stopped
        try:
            os.kill(process, signal.SIGSTOP if stopped else signal.SIGCONT)
        except ProcessLookupError:
            return
    if process is not None and stopped:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def _role_one() -> int | None:
    """This process's child that runs role 1."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    for pid in (int(word) for file in children for word in file.read_text().split()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--role" in words and words[words.index(b"--role") + 1] == b"1":
            return pid
    return None


# ---------------------------------------------------------------------- the two questions
def predict(fleet: Fleet, directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    both = pair(fleet)
    one, other = both.endpoints
    for name in EXAMPLES:
        bundle, system = compiled(name, (1,), directory, target_of(one))
        half = system.shards // 2
        two, _ = compiled(name, (1, 1), directory, target_of(one))
        guess = {1: priced(system, both, [(one, system.shards)]), 2: priced(system, both, [(one, half), (other, half)])}
        # A role alone runs its steps in native code: the model's share of the runtime is that of roles that meet.
        guess[1] -= one.rates.step if one.rates else 0.0
        measured = {1: alone(bundle), 2: together(two, directory / f"{name}-run", guess[2])}
        for roles in (1, 2):
            off = guess[roles] / measured[roles] - 1
            print(f"{name:<12} {roles} role(s): predicted {1e3 * guess[roles]:8.3f} ms, "
                  f"measured {1e3 * measured[roles]:8.3f} ms, off {off:+.1%}", flush=True)  # fmt: skip
            found[f"{name}, {roles}"] = {"predicted": guess[roles], "measured": measured[roles], "off": off}
    return found


def throttle(fleet: Fleet, directory: Path) -> dict[str, Any]:
    both = pair(fleet, 2.0)
    one, other = both.endpoints
    equal, system = compiled(THROTTLED, (1, 1), directory, target_of(one))
    best = search(system, both).executed
    assert best is not None
    owned = {part.endpoint: part.owns for part in best.parts}
    chosen, _ = compiled(THROTTLED, (owned[one.name], owned[other.name]), directory, target_of(one))
    half = system.shards // 2
    guess = {
        "equal": priced(system, both, [(one, half), (other, half)]),
        "chosen": priced(system, both, [(one, owned[one.name]), (other, owned[other.name])]),
    }
    measured = {
        "equal": together(equal, directory / "equal", guess["equal"], throttling),
        "chosen": together(chosen, directory / "chosen", guess["chosen"], throttling),
    }
    faster = measured["equal"] / measured["chosen"] - 1
    print(f"{THROTTLED}: shares {owned[one.name]} + {owned[other.name]}, predicted {guess}, measured {measured}: "
          f"{faster:.1%} faster than equal shares")  # fmt: skip
    return {"system": THROTTLED, "shares": list(owned.values()), "predicted": guess, "measured": measured,
            "saved": 1 - measured["chosen"] / measured["equal"], "faster": faster}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fleet", type=Path)
    parser.add_argument("--part", choices=("predict", "throttle"))
    options = parser.parse_args()
    fleet = read_fleet(options.fleet)
    with tempfile.TemporaryDirectory() as folder:
        parts = {"predict": predict, "throttle": throttle}
        chosen = [options.part] if options.part else list(parts)
        for name in chosen:
            print(f"wrote {write_record(f'placement-{name}', parts[name](fleet, Path(folder)))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
