"""`alphac bench`, read top to bottom."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from alphac import pipeline
from alphac.backends.registry import host_target, target, targets
from alphac.bench import costs, machine, peers, plot, startup, table
from alphac.bench.contest import TURN, Contestant, ask_once, hold
from alphac.bench.cores import HOLDS, NOTE
from alphac.bench.profile import profile
from alphac.bench.report import OURS, Compiling, Contest, Entry, Report, Spread
from alphac.bench.roofline import Roofline
from alphac.bench.worker import Spec
from alphac.diagnostics import fail
from alphac.frontend import tree
from alphac.frontend.parse import parse, read_source
from alphac.ir.core import Module
from alphac.ir.text_parse import parse_module
from alphac.runtime.bundle import Bundle, read_bundle

STEPS = 20  # whose losses are compared
APART = 5e-4  # how far, relative to ours, a peer's losses may be: roundings differ, and training amplifies them
PEERS, TARGETS = tuple(peers.FRAMEWORKS), tuple(targets())
MODES = ("advance", "native", "logged")
MAKER = "make_data.py"  # beside a source: makes the data files that it is given the paths of


@dataclass(frozen=True)
class Options:
    """What to measure. `source` is an .alpha file or a bundle; `targets` are those that it is compiled for, the first
    of which is compared with the peers; none: this host's best."""

    source: Path
    against: tuple[str, ...] = ()
    threads: tuple[int, ...] = (1,)
    targets: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None
    repeats: int = 7
    seconds: float = TURN
    starts: int = 5
    kernels: bool = False


@dataclass
class Bench:
    """One run; `directory` is its own for its time, `tell` is told what is going on.

    bundles    by the name of their contestant; `OURS` is the first, which counts
    files      of the peers, by their names
    compared   how many first losses must agree
    """

    options: Options
    directory: Path
    tell: Callable[[str], None]
    bundles: dict[str, Path] = field(default_factory=dict[str, Path])
    files: dict[str, Path] = field(default_factory=dict[str, Path])
    compared: int = 0

    def run(self) -> Report:
        """Measure everything. Raises Diagnostics, RuntimeFault."""
        options = self.options
        self.open()
        first = read_bundle(self.bundles[OURS])
        compiling = self._compiling()
        module = parse_module(first.read("ir/compiled.ir").decode())
        contests: list[Contest] = []
        for threads in options.threads:
            entries = self._contest(threads, again=not contests)
            contests.append(self._complete(first, module, threads, entries))
        made = costs.step_costs(module, pipeline.schedules(module)["step"])
        return Report(
            system=first.manifest.system,
            target=first.class_of(first.manifest.solo).target,
            settings=tuple(f"{name}={value}" for name, value in (options.settings or {}).items()),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine.describe(),
            versions={name: importlib.metadata.version(name) for name in ("alphac", "numpy", *options.against)},
            compiling=compiling,
            flops=sum(c.flops for c in made),
            bytes=sum(c.bytes for c in made),
            kernels=len(made),
            losses_compared=self.compared if options.against else 0,
            losses_apart=max((apart(c.entries, self.compared) for c in contests), default=0.0),
            contests=tuple(contests),
        )

    # ------------------------------------------------------------------ what is measured
    def open(self) -> None:
        """Find the peers, compile, and write down what everybody starts from. Raises Diagnostics, RuntimeFault."""
        self.files = {peer: self._peer(peer) for peer in self.options.against}
        self.bundles = self._bundles()
        self.tell("first values and batches")
        told = ask_once(Spec("export", str(self.bundles[OURS]), 1, str(self.directory), steps=STEPS))
        self.compared = min(STEPS, told["same"])

    def contestants(self, threads: int) -> tuple[list[Contestant], list[Contestant]]:
        """Ours, and the peers'."""
        folder = str(self.directory)
        ours = [
            Contestant(name, Spec("alphac", str(bundle), threads, folder, steps=STEPS), dict(os.environ), MODES)
            for name, bundle in self.bundles.items()
        ]
        theirs = [
            Contestant(f"{p} {v}", Spec(p, str(f), threads, folder, v, STEPS), self._environment(f"{p}-{v}", threads))
            for p, f in self.files.items()
            for v in peers.variants(p, f)
        ]
        return ours, theirs

    def _peer(self, peer: str) -> Path:
        """A peer's file. Raises Diagnostics if the peer cannot take part."""
        source = self.options.source
        if source.is_dir():
            raise fail("E501", f"{source} does not say where its peers are", None, "give the .alpha file")
        file = peers.peer_file(source, peer)
        if not file.exists():
            raise fail("E501", f"{source} has no peer in {peer}", None, f"it would be {file}")
        if not peers.installed(peer):
            extra = peers.FRAMEWORKS[peer].extra
            raise fail("E501", f"{peer} is not installed", None, f"pip install 'alphac[{extra}]'")
        return file

    def _bundles(self) -> dict[str, Path]:
        """Bundles by the name of their contestant, the first of which counts."""
        options = self.options
        if options.source.is_dir():
            if options.targets or options.settings:
                raise fail("E504", f"{options.source} is compiled already", None,
                           "give the .alpha file to choose targets or settings")  # fmt: skip
            return {OURS: options.source}
        self._make_data()
        bundles: dict[str, Path] = {}
        for name in options.targets or (host_target().name,):
            if not target(name).runs_here():
                raise fail(
                    "E504", f"this machine does not run {name}", None, f"its best target is {host_target().name}"
                )
            self.tell(f"compiling for {name}")
            plan = pipeline.Plan(pipeline.Plan.of().shares, (name,))
            out = self.directory / f"{name}.bundle"
            pipeline.compile_file(options.source, out=out, plan=plan, overrides=options.settings)
            bundles[OURS if not bundles else f"{OURS} {name}"] = out
        return bundles

    def _make_data(self) -> None:
        """Make data files that are missing, where there is a maker beside the source."""
        source = self.options.source
        maker = source.with_name(MAKER)
        if not maker.exists():
            return
        for path in data_files(source):
            if not path.exists():
                self.tell(f"making {path}")
                subprocess.run([sys.executable, str(maker), str(path)], check=True, stdout=subprocess.DEVNULL)

    def _compiling(self) -> Compiling | None:
        options = self.options
        if options.source.is_dir():
            return None
        self.tell("compile time")
        settings = [f"{name}={value}" for name, value in (options.settings or {}).items()]
        return Compiling(*startup.compile_times(options.source, settings))

    # ------------------------------------------------------------------ one number of threads
    def _contest(self, threads: int, again: bool) -> tuple[Entry, ...]:
        """Let ours and the peers train by turns. `again`: start the peers once more, their caches warm."""
        ours, theirs = self.contestants(threads)
        hold([*ours, *theirs], self.options.repeats, self.options.seconds, self.tell)
        for peer in theirs:
            same_work(ours[0], peer, self.compared)
        restarts: dict[str, float] = {}
        for peer in theirs if again else []:
            second = peer.again()
            hold([second], 0, 0, lambda _, name=peer.name: self.tell(f"starting {name} again"))
            restarts[peer.name] = second.cold
        return (
            *(entry(c, False, self._starts(c.spec), None) for c in ours),
            *(entry(c, True, [c.cold] if again else [], restarts.get(c.name)) for c in theirs),
        )

    def _environment(self, name: str, threads: int) -> dict[str, str]:
        """A peer's environment: so many threads, and compile caches of its own, empty at first."""
        cache = str(self.directory / "caches" / name)
        return {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TORCHINDUCTOR_CACHE_DIR": cache,
        }

    def _starts(self, spec: Spec) -> list[float]:
        """Starts of the bundle's role, if it has one role only."""
        bundle = Path(spec.path)
        if len(read_bundle(bundle, verify=False).manifest.roles) > 1:
            return []
        self.tell("cold start")
        return startup.starts(bundle, spec.threads, self.options.starts)

    def _complete(self, bundle: Bundle, module: Module, threads: int, entries: tuple[Entry, ...]) -> Contest:
        """The entries beside what the machine can do, and the kernels if they are asked for."""
        self.tell("roofline")
        measured = ask_once(Spec("roofline", threads=threads))
        bandwidth = {int(size): rate for size, rate in measured["bandwidth"].items()}
        limits = Roofline(threads, measured["flops"], bandwidth)
        programs = pipeline.schedules(module)
        made = costs.step_costs(module, programs["step"])
        kernels, regions = (), ()
        if self.options.kernels:
            self.tell("kernels")
            kernels, regions = profile(bundle, programs, made, limits, self.directory)
        return Contest(
            threads=threads,
            entries=entries,
            peak_gflops=limits.flops / 1e9,
            bandwidth_gbytes={size: rate / 1e9 for size, rate in bandwidth.items()},
            limit_seconds=sum(c.calls * limits.limit(c.flops / c.calls, c.bytes / c.calls) for c in made),
            kernels=kernels,
            regions=regions,
        )


def run(options: Options, out: Console, err: Console, json_file: Path | None, picture: Path | None) -> None:
    """Measure, show, and write what is asked for. Raises Diagnostics, RuntimeFault."""
    if picture is not None:
        plot.require()
    for file in filter(None, (json_file, picture)):
        if not file.parent.is_dir():
            raise fail("E402", f"{file} cannot be written: there is no {file.parent}", None, "name another file")
    if not HOLDS:
        err.print(f"note: {NOTE}")
    with err.status("") as status:
        report = bench(options, lambda text: status.update(escape(text)))
    table.show(report, out)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise fail("E402", f"{json_file} cannot be written: {reason}", None, "name another file") from error
    if picture is not None:
        plot.draw(report, picture)


def bench(options: Options, tell: Callable[[str], None]) -> Report:
    """Measure a system or a bundle. Raises Diagnostics, RuntimeFault."""
    with tempfile.TemporaryDirectory(prefix="alphac-bench-") as folder:
        return Bench(options, Path(folder), tell).run()


def data_files(source: Path) -> list[Path]:
    """The files that a source reads. Raises Diagnostics."""
    declared = parse(read_source(source), str(source)).declarations
    return [source.parent / d.path.value for d in declared if isinstance(d, tree.Data)]


def entry(contestant: Contestant, peer: bool, starts: Sequence[float], restart: float | None) -> Entry:
    """What is known of a contestant at the end."""
    times = contestant.times
    return Entry(
        name=contestant.name,
        peer=peer,
        step=Spread.of(times["advance"]),
        rounds=tuple(times["advance"]),
        native=Spread.of(times["native"]) if "native" in times else None,
        logged=Spread.of(times["logged"]) if "logged" in times else None,
        start=Spread.of(starts) if starts else None,
        restart=restart,
        loading=contestant.loading,
        peak=contestant.peak,
        losses=tuple(contestant.losses[:STEPS]),
    )


def distance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest distance of two losses of the same step, relative to ours."""
    apart = [abs(b - a) / abs(a) for a, b in zip(ours, theirs, strict=True)]
    return max(apart, default=0.0) if all(map(math.isfinite, apart)) else math.inf


def apart(entries: Sequence[Entry], steps: int) -> float:
    """How far the peers' first losses are from ours."""
    return max((distance(entries[0].losses[:steps], e.losses[:steps]) for e in entries if e.peer), default=0.0)


def same_work(ours: Contestant, peer: Contestant, steps: int) -> None:
    """Raises Diagnostics if a peer's first losses are not ours."""
    found = distance(ours.losses[:steps], peer.losses[:steps])
    if not found <= APART:
        raise fail("E502", f"{peer.name} does other work: its first losses are up to {found:.1e} from ours", None,
                   f"{peer.spec.path} must do what the .alpha file says; {APART:.0e} is allowed")  # fmt: skip
