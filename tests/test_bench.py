"""`alphac bench`: what it reports of a small system, and what it answers when it cannot measure."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import running
from rich.console import Console
from running import call
from scheduling import Draft

from alphac import pipeline
from alphac.backends.registry import host_target
from alphac.bench import command, cores, costs, plot, table
from alphac.bench.command import Options, bench, distance, same_work
from alphac.bench.contest import Contestant, ask_once
from alphac.bench.instrument import instrument
from alphac.bench.report import Contest, Entry, Report, Spread
from alphac.bench.worker import Spec
from alphac.diagnostics import Diagnostics
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import F32, Dim, TensorType
from alphac.runtime.errors import BundleRefused

ROOT = Path(__file__).parents[1]
TARGETS = tuple(dict.fromkeys((host_target().name, "x86-64-v3")))  # the host's comes first
WORKLOADS = ROOT / "benchmarks" / "workloads"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return running.write_line(tmp_path_factory.mktemp("line"))


@pytest.fixture(scope="module")
def report(source: Path) -> Report:
    options = Options(source, (), (2, 1), TARGETS, repeats=2, seconds=0.005, starts=1, kernels=True)
    return bench(options, lambda _: None)


def refusal(options: Options) -> str:
    with pytest.raises(Diagnostics) as caught:
        bench(options, lambda _: None)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.help
    return diagnostic.code


# ---------------------------------------------------------------------- what it reports
def test_everything_of_ours_is_measured(report: Report) -> None:
    assert (report.system, report.losses_compared) == ("line", 0)
    assert report.compiling is not None
    assert report.compiling.cold > 0
    assert [c.threads for c in report.contests] == [2, 1]
    for contest in report.contests:
        assert [e.name for e in contest.entries] == ["alphac", *(f"alphac {name}" for name in TARGETS[1:])]
        ours = contest.ours
        assert contest.best_peer is contest.leanest_peer is None
        assert len(ours.rounds) == 2
        assert ours.step.least <= ours.step.median <= ours.step.most
        assert ours.native is not None
        assert ours.logged is not None
        assert ours.start is not None
        assert ours.peak > 1 << 20
        assert len(ours.losses) == command.STEPS
        assert ours.losses[-1] < ours.losses[0]


def test_kernels_are_those_of_the_step(report: Report) -> None:
    for contest in report.contests:
        assert len(contest.kernels) == report.kernels > 0
        assert all(row.seconds > 0 for row in contest.kernels)
        assert 0 < sum(row.share for row in contest.kernels) <= 1
        assert sum(row.seconds for row in contest.regions) == pytest.approx(sum(r.seconds for r in contest.kernels))
        assert {row.name for row in contest.regions} == {row.region for row in contest.kernels}
        assert "guess" in {row.region for row in contest.kernels}
        assert contest.limit_seconds > 0


def test_a_bundle_is_measured_as_it_is(source: Path, tmp_path: Path) -> None:
    bundle = pipeline.compile_file(source, out=tmp_path / "line.bundle", plan=pipeline.Plan.of(roles=2)).path
    found = bench(Options(bundle, repeats=1, seconds=0.005), lambda _: None)
    assert found.compiling is None
    assert found.contests[0].ours.start is None  # of one role among several
    assert found.contests[0].ours.losses[-1] < found.contests[0].ours.losses[0]


def test_json_is_the_report(report: Report) -> None:
    assert json.loads(json.dumps(report.as_dict()))["contests"][0]["entries"][0]["name"] == "alphac"


def test_a_plot_is_drawn(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    plot.draw(report, tmp_path / "bench.svg")
    assert "<svg" in (tmp_path / "bench.svg").read_text(encoding="utf-8")
    with pytest.raises(Diagnostics) as caught:
        plot.draw(report, tmp_path / "bench.text")
    assert caught.value.diagnostics[0].code == "E402"


def test_tables_are_whole_on_a_narrow_terminal(report: Report) -> None:
    out = io.StringIO()
    table.show(report, Console(file=out, width=40))
    shown = out.getvalue()
    assert "…" not in shown
    assert all(row.name in shown for row in report.contests[0].kernels if row.share >= table.SMALL)


def test_a_ratio_is_their_time_over_ours() -> None:
    def entry(name: str, rounds: tuple[float, ...], peak: int) -> Entry:
        return Entry(name, name != "alphac", Spread.of(rounds), rounds, None, None, None, None, 0.0, peak, ())

    entries = (entry("alphac", (1.0, 2.0), 50), entry("a", (3.0, 3.0), 200), entry("b", (4.0, 4.0), 100))
    contest = Contest(1, entries, 1.0, {1: 1.0}, 1.0, (), ())
    found = contest.as_dict()
    assert (found["best_peer"], found["leanest_peer"]) == ("a", "b")
    assert found["ratio_to_best_peer"] == 2.0
    assert found["ratio_spread"] == [1.5, 3.0]
    assert found["memory_to_leanest_peer"] == 0.5


# ---------------------------------------------------------------------- costs
def costs_of(source: Path) -> list[costs.Cost]:
    module = pipeline.simplify(pipeline.differentiate(pipeline.parse_and_elaborate(source, {})))
    return costs.step_costs(module, pipeline.schedules(module)["step"])


PRODUCTS = """system products
dim n = 24, m = 40, k = 56
dim batch = 16
let shards = 2
grain shards of batch

data rows from "rows.npz" {
    x: f32[k] = x
}

param w: f32[k, m] = uniform(-1, 1)
param v: f32[m, n] = uniform(-1, 1)

region out(x: f32[batch, k]) -> f32[batch, n] {
    (x @ w) @ v
}

learn out.* with sgd(0.1) minimizing {
    mean(out(x) * out(x))
}

train on rows for 1 epochs
"""


def test_costs_are_those_of_the_products(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((16, 56), np.float32))
    source = tmp_path / "products.alpha"
    source.write_text(PRODUCTS, encoding="utf-8")
    products = [c for c in costs_of(source) if c.op == "contract"]
    alone = sorted(2 * 16 * size for size in (56 * 40, 40 * 24, 40 * 24, 40 * 24, 56 * 40))
    for found, least in zip(sorted(c.flops for c in products), alone, strict=True):
        assert least <= found <= 1.1 * least  # what is fused into a product counts too
    assert {c.region for c in products} == {"out"}
    forward = products[0]
    assert forward.bytes == 4 * (16 * 56 + 56 * 40 + 16 * 40)


# ---------------------------------------------------------------------- refusals
def test_a_peer_needs_a_file(source: Path) -> None:
    assert refusal(Options(source, against=("torch",))) == "E501"


def test_a_peer_must_be_installed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "line.alpha"
    copied.write_bytes(source.read_bytes())
    copied.with_name("line_torch.py").write_text("", encoding="utf-8")
    monkeypatch.setattr("alphac.bench.peers.installed", lambda peer: False)
    assert refusal(Options(copied, against=("torch",))) == "E501"


def test_a_bundle_has_no_peers_and_no_settings(source: Path, tmp_path: Path) -> None:
    bundle = pipeline.compile_file(source, out=tmp_path / "line.bundle").path
    assert refusal(Options(bundle, against=("jax",))) == "E501"
    assert refusal(Options(bundle, settings={"rate": "1"})) == "E504"


def test_other_work_is_refused() -> None:
    ours, peer = (Contestant(n, Spec("alphac"), {}) for n in ("alphac", "torch eager"))
    ours.losses, peer.losses = [2.0, 1.0], [2.0, 1.1]
    assert distance(ours.losses, peer.losses) == pytest.approx(0.1)
    same_work(ours, peer, 1)
    with pytest.raises(Diagnostics) as caught:
        same_work(ours, peer, 2)
    assert caught.value.diagnostics[0].code == "E502"
    peer.losses = [2.0, float("nan")]
    with pytest.raises(Diagnostics):
        same_work(ours, peer, 2)


def test_a_fault_in_a_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleRefused, match="there is no bundle"):
        ask_once(Spec("export", str(tmp_path / "nothing.bundle"), directory=str(tmp_path)))


def test_the_end_of_a_process_is_told() -> None:
    contestant = Contestant("broken", Spec("roofline", threads=0), dict(os.environ))
    try:
        with pytest.raises(Diagnostics) as caught:
            contestant.start()
    finally:
        contestant.close()
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E503"
    assert "ended with code 1" in diagnostic.message


@pytest.mark.parametrize(
    "arguments", [["--threads", "0"], ["--threads", "two"], ["--against", "numpy"], ["--targets", "abacus"]]
)
def test_wrong_options_are_usage_errors(source: Path, arguments: list[str]) -> None:
    answer = call("bench", source, *arguments)
    assert answer.code == 2
    assert arguments[0] in answer.err


def test_an_output_that_cannot_be_written_is_told_at_once(source: Path, tmp_path: Path) -> None:
    answer = call("bench", source, "--json", tmp_path / "nowhere" / "bench.json")
    assert answer.code == 1
    assert "error[E402]" in answer.err


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    answer = call("bench", tmp_path / "nothing.alpha")
    assert answer.code == 1
    assert "error[E100]" in answer.err


# ---------------------------------------------------------------------- the workloads' data
def test_data_are_made_beside_the_workloads(tmp_path: Path) -> None:
    """The formulas of the reference definition, at a few indices."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_data", WORKLOADS / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)

    def number(seed: int, index: int) -> int:
        z = (seed * 2**32 + index + 1) * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    made = maker.MAKERS["W2"](2000)
    for index in (0, 1, 784, 800_000):
        assert made["images"].reshape(-1)[index] == (number(2900, index) >> 40) * 2**-23 - 1
    assert [int(label) for label in made["labels"][:5]] == [(number(2901, i) >> 33) % 10 for i in range(5)]
    tokens = maker.MAKERS["W5"](5000)
    assert np.array_equal(tokens["tokens"][:, 1:], tokens["next"][:, :-1])


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("w*.alpha")), ids=lambda path: path.stem)
def test_every_workload_has_its_peers(path: Path) -> None:
    for peer in command.PEERS:
        assert path.with_name(f"{path.stem}_{peer}.py").exists()
    assert re.search(r'^data \w+ from "data/w\d\.npz"', path.read_text(encoding="utf-8"), re.MULTILINE)


def test_where_processes_cannot_be_held_to_cores_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(cores, "HOLDS", False)
    monkeypatch.delattr(os, "sched_setaffinity")
    with cores.on_cores(1):
        cores.hold_thread(0)
        assert os.sched_getaffinity(0) == before


def test_kernels_are_timed_with_the_tiles_that_measuring_chose() -> None:
    draft = Draft()
    x = draft.argument("column", "x", TensorType(F32, (Dim("batch", 64, 2), Dim("k", 64))))
    w = draft.state("w", Dim("k", 64), Dim("n", 64))
    draft.result("output", "y", draft.b("contract", x, w, dims=(Dim("batch", 64, 2), Dim("n", 64))))
    program = schedule(draft.function())
    (kernel,) = program.kernels()
    plain, tuned = (t.lower(kernel).name for t in (host_target(), replace(host_target(), tile=(3, 1))))
    made = instrument({"step": program}, host_target(), {tuned: "3x1"})
    assert (tuned.encode() in made.code, plain.encode() in made.code) == (True, False)
