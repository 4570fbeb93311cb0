"""Strands: parts of a system that are admitted, and owned, apart. Roles run as processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import running
from running import Run, assert_same_bits, call, train

from alphac import pipeline
from alphac.backends import registry
from alphac.backends.registry import capabilities, target, targets_here
from alphac.diagnostics import Diagnostics
from alphac.explain import read_plan
from alphac.ir.passes.admit import admit
from alphac.ir.passes.place import PlacementError, deal
from alphac.ir.text import print_module
from alphac.ir.text_parse import parse_module
from alphac.ir.verify import verify
from alphac.runtime.bundle import read_bundle
from alphac.runtime.errors import InputRefused, NonFiniteLoss
from alphac.runtime.inference import evaluate, predictions

ROOT = Path(__file__).parents[1]
THREE = ROOT / "examples" / "three_parts"
BF16 = "x86-64-v4-bf16"
OLD = "x86-64-v3-128"
here = pytest.mark.skipif(OLD not in targets_here(), reason="for x86-64 processors")

# A mill learns a line by gradient, a clock keeps its mean without one, and what is left corrects both.
SYSTEM = """
system parts
dim features = 3, batch = 16
grain 8 of batch
data points from "points.npz" { x: f32[features] = x  y: f32[] = y  hold out test 10%, seed 1  shuffle seed 1 }
param w: f32[features] = normal(0.1)
param scale: f32[] = 1
state middle: f32[] = 0
region line(x: f32[batch, features]) -> f32[batch] requires family(mill) { x @ w + middle }
region off(x: f32[batch, features], y: f32[batch]) -> f32[batch] requires family(clock) { y - x @ w }
transition { middle' = 0.9 * middle + 0.1 * mean(off(x, y)) }
learn w with momentum(0.05) minimizing slope { mean((line(x) - y) ** 2) }
learn scale with sgd(0.01) minimizing size { mean((scale * sum(x * w, features) - y) ** 2) }
evaluate error on test = mean(abs(line(x) - y))
evaluate width on test = mean(abs(scale * y - 1))
train on points for 1000000 steps, checkpoint every 100 steps
"""


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets of families of their own: `mill`, `clock`, and `both`, which has all that these two have."""
    for name, words in (("mill", ()), ("clock", ()), ("both", ("family(mill)", "family(clock)"))):
        made = replace(target(OLD), name=name)
        made = replace(made, capabilities=made.capabilities | frozenset(words))
        monkeypatch.setitem(registry._scanned(), name, (made, name))


def compiled(directory: Path, names: Sequence[str], text: str = SYSTEM, speeds: Sequence[int] = ()) -> Path:
    if not (directory / "parts.alpha").exists():
        running.write_line(directory).unlink()
        (directory / "parts.alpha").write_text(text)
    speeds = speeds or (1,) * len(names)
    plan = pipeline.Plan(tuple(map(Fraction, speeds)), tuple(names), tuple(f"the {n}" for n in names))
    return pipeline.compile_file(directory / "parts.alpha", out=directory / "-".join(names), plan=plan).path


def work(run: Run) -> list[list[int]]:
    """By role, the shards that it computed in a step, by strand."""
    steps = run.record["steps"]
    return [[strand["shards_computed"] // steps for strand in role["strands"]] for role in run.record["roles"]]


@here
def test_each_part_runs_where_it_is_admitted_with_the_bits_of_one_role(tmp_path: Path, families: None) -> None:
    alone = train(compiled(tmp_path, ["both"]), tmp_path / "alone", 30)
    assert "strands" not in alone.record["roles"][0]
    three = train(compiled(tmp_path, [OLD, "clock", "mill"]), tmp_path / "three", 30)
    anybodys, mills, clocks = zip(*work(three), strict=True)
    assert (sum(anybodys), anybodys[0] > 0, mills, clocks) == (8, True, (0, 0, 8), (0, 8, 0))
    assert_same_bits(three, alone)
    five = train(compiled(tmp_path, ["mill", "both", "clock", OLD, "mill"]), tmp_path / "five", 30)
    assert all(map(any, work(five)))
    assert [sum(column) for column in zip(*work(five), strict=True)] == [8, 8, 8]
    assert_same_bits(five, alone)
    owners = [set(strand.targets) for strand in read_bundle(tmp_path / f"{OLD}-clock-mill").manifest.strands]
    assert owners == [{OLD, "clock", "mill"}, {"mill"}, {"clock"}]


@here
def test_a_role_holds_only_the_code_that_it_runs(tmp_path: Path, families: None) -> None:
    bundle = read_bundle(compiled(tmp_path, [OLD, "clock", "mill"]))
    one = read_bundle(compiled(tmp_path, ["both"]))
    records = [bundle.class_of(role.role_class) for role in bundle.all_roles()]
    sizes = {record.target: bundle.manifest.files[record.object].bytes for record in records}
    whole = one.manifest.files["objects/both.o"].bytes
    assert all(size < whole for size in sizes.values())
    assert bundle.manifest.solo == -1
    assert one.manifest.solo >= 0


@here
def test_a_checkpoint_resumes_on_other_owners(tmp_path: Path, families: None) -> None:
    whole = train(compiled(tmp_path, ["both"]), tmp_path / "whole", 30)
    train(compiled(tmp_path, [OLD, "clock", "mill"]), tmp_path / "run", 12)
    again = train(compiled(tmp_path, ["mill", "both"]), tmp_path / "run", 30, resume="latest")
    assert again.parameters.keys() == whole.parameters.keys()
    assert all(again.parameters[n].tobytes() == v.tobytes() for n, v in whole.parameters.items())


@here
def test_what_was_learned_apart_is_used_by_who_can_run_it(tmp_path: Path, families: None) -> None:
    """No role's target has both families: every evaluation and region is run by one that has all that it needs."""
    alone = train(compiled(tmp_path, ["both"]), tmp_path / "alone", 30)
    three = read_bundle(compiled(tmp_path, [OLD, "clock", "mill"]))
    records = [three.class_of(number) for number in three.manifest.apart]
    assert [(r.target, r.owned) for r in records] == [("clock", (8, 0, 8)), ("mill", (8, 8, 0))]
    assert evaluate(three.path, tmp_path / "alone") == evaluate(tmp_path / "both", tmp_path / "alone")
    assert evaluate(three.path, tmp_path / "alone") == alone.record["values"]
    inputs = {"x": np.ones((20, 3), np.float32)}
    for region, given in (("line", inputs), ("off", inputs | {"y": np.ones(20, np.float32)})):
        one, other = (predictions(p, region, given, tmp_path / "alone") for p in (three.path, tmp_path / "both"))
        assert one.keys() == other.keys() and all(one[k].tobytes() == v.tobytes() for k, v in other.items())


@here
def test_an_evaluation_across_families_says_who_would_have_to_run_it(tmp_path: Path, families: None) -> None:
    text = SYSTEM + "evaluate across on test = mean(line(x)) - mean(off(x, y))\n"
    bundle = compiled(tmp_path, [OLD, "clock", "mill"], text)
    run = train(bundle, tmp_path / "run", 3)
    assert run.record["values"].keys() == {"error", "width", "across"}
    with pytest.raises(InputRefused, match=r"`evaluate across` has parts for mill and clock, and no role of .* runs"):
        evaluate(bundle, tmp_path / "run")


@here
def test_a_loss_that_is_not_finite_is_explained_by_its_owner(tmp_path: Path, families: None) -> None:
    text = SYSTEM.replace("mean((line(x) - y) ** 2)", "mean(log(line(x) - 1e9))")
    bundle = compiled(tmp_path, [OLD, "clock", "mill"], text)
    from alphac.runtime.launch.local import run_local

    result = run_local(bundle, steps=5, threads=1, out=tmp_path / "run")
    assert result.exit_code != 0
    assert result.error is not None
    assert NonFiniteLoss.__name__ in str(result.error) or "not finite" in str(result.error)


@here
def test_whoever_can_run_nothing_is_refused_with_the_reasons(tmp_path: Path, families: None) -> None:
    others = ("learn scale", "evaluate width", "param scale")
    text = "\n".join(line for line in SYSTEM.splitlines() if not line.startswith(others))
    with pytest.raises(Diagnostics) as caught:
        compiled(tmp_path, ["clock", OLD, "mill"], text)
    messages = [d.message for d in caught.value.diagnostics]
    assert messages == [
        f"region `line` needs family(mill), which {OLD} (the {OLD}) lacks",
        f"region `off` needs family(clock), which {OLD} (the {OLD}) lacks",
    ]
    with pytest.raises(Diagnostics, match=r"region `line` needs family\(mill\), which clock .the clock. lacks"):
        compiled(tmp_path, ["clock"], text)


@here
def test_parts_that_hand_on_examples_are_one_endpoints(tmp_path: Path, families: None) -> None:
    """The message names both regions, what each asks for, every endpoint, and the plan that would do it."""
    text = SYSTEM.replace("y - x @ w", "y - line(x)")
    with pytest.raises(Diagnostics) as caught:
        compiled(tmp_path, [OLD, "clock", "mill"], text)
    (found,) = caught.value.diagnostics
    assert (found.code, found.span and found.span.line) == ("E204", 9)
    assert found.message == (
        "region `line` and region `off` hand on values of examples, so one must have family(mill) and family(clock): "
        f"{OLD} (the {OLD}) lacks family(mill) and family(clock), clock (the clock) lacks family(mill), "
        "mill (the mill) lacks family(clock)"
    )
    assert "`pipeline` plan" in found.help
    assert compiled(tmp_path, ["both"]).is_dir()


@here
def test_strands_of_the_ir(tmp_path: Path, families: None) -> None:
    compiled(tmp_path, ["both"])
    source = pipeline.parse_and_elaborate(tmp_path / "parts.alpha", {})
    module = pipeline.simplify(pipeline.differentiate(source))
    names = [OLD, "clock", "mill"]
    found = admit(module, {name: capabilities(name) for name in names})
    assert [s.regions for s in found.strands] == [(), ("line",), ("off",)]
    text = print_module(found.module)
    assert "require" in print_module(module)
    assert "require" not in text
    assert "batch:16/8/1" in text and "batch:16/8/2" in text and "shard:8/0/2" in text
    assert print_module(parse_module(text)) == text
    verify(found.module, differentiated=True)
    everywhere = admit(module, {"both": capabilities("both")})
    assert len(everywhere.strands) == 1 and "require" not in print_module(everywhere.module)


@here
def test_a_described_fleet_is_dealt_out_by_time(
    tmp_path: Path, families: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(tmp_path, ["both"])
    ends = "".join(
        f'[[endpoint]]\nname = "e{k}"\nhost = "h"\ntarget = "{name}"\ncompute = {{ f32 = {speed} }}\n'
        for k, (name, speed) in enumerate([("mill", 1e-4), ("clock", 1e-4), (OLD, 1e-4), ("clock", 1e-9)])
    )
    (tmp_path / "fleet.toml").write_text(f'[[host]]\nname = "h"\nmemory = "8 GB"\n{ends}')
    monkeypatch.chdir(tmp_path)
    answer = call("explain", "parts.alpha", "--fleet", "fleet.toml", "--json", "plan.json")
    assert answer.code == 0, answer.err
    chosen = read_plan(tmp_path / "plan.json").chosen
    assert chosen.kind == "regions"
    assert {part.endpoint for part in chosen.parts} <= {"e0", "e1", "e2"}, "who would only slow it down is left out"
    assert call("compile", "parts.alpha", "--fleet", "fleet.toml", "-o", "made").code == 0
    owned = [tuple(n for _, n in role.ranges) for role in read_bundle(tmp_path / "made").all_roles()]
    assert owned == [part.owned for part in chosen.parts]
    assert "regions on" in answer.out


# ---------------------------------------------------------------------- the seed's own case
@pytest.mark.skipif(BF16 not in targets_here(), reason="this processor lacks AVX512-BF16")
def test_matrix_instructions_a_checked_region_and_a_transition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = THREE / "three_parts.alpha"
    answer = call("compile", source, "--fleet", THREE / "fleet.toml", "-o", "three")
    assert answer.code == 0, answer.err
    three = train(tmp_path / "three", tmp_path / "run", 33)
    assert work(three) == [[0, 32], [16, 0], [16, 0]]
    assert [role["target"] for role in three.record["roles"]] == [BF16, "x86-64-v3", OLD]
    answer = call("eval", "three", "--parameters", "run")
    assert answer.code == 0 and answer.out.split()[::2] == ["nearest", "accuracy"], answer.err
    plan = pipeline.Plan((Fraction(1),), (BF16,))
    alone = train(pipeline.compile_file(source, out=tmp_path / "one", plan=plan).path, tmp_path / "alone", 33)
    assert_same_bits(three, alone)


def test_the_seeds_case_is_refused_without_matrix_instructions(tmp_path: Path) -> None:
    fleet = (THREE / "fleet.toml").read_text().replace(BF16, "x86-64-v4")
    (tmp_path / "fleet.toml").write_text(fleet)
    with pytest.raises(Diagnostics) as caught:
        pipeline.compile_file(
            THREE / "three_parts.alpha", out=tmp_path / "out", plan=pipeline.Plan.of(fleet=tmp_path / "fleet.toml")
        )
    (found,) = caught.value.diagnostics
    who = "x86-64-v4 (matrix) and x86-64-v3 (wide) and x86-64-v3-128 (narrow) lack"
    assert found.message == f"region `logits` needs matrix(bf16), which {who}"
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- dealing
def test_shards_go_to_who_is_done_first() -> None:
    def owned(shards: int, seconds: list[list[float | None]]) -> list[list[int]]:
        return [[share.shards for share in shares] for shares in deal(shards, seconds)]

    assert owned(8, [[1, 1], [None, 1]]) == [[8, 0], [0, 8]]
    assert owned(8, [[1, 1], [None, 0.5]]) == [[6, 0], [2, 8]]
    assert owned(8, [[1, 3]]) == [[6], [2]]
    assert owned(4, [[1, 1, None], [None, None, 5]]) == [[2, 0], [2, 0], [0, 4]]
    assert [[s.first for s in shares] for shares in deal(8, [[1, 3]])] == [[0], [6]]
    with pytest.raises(PlacementError, match="3 roles cannot share 1 shard"):
        deal(1, [[1, 1, 1]])
