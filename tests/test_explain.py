"""`alphac explain` and `alphac diff`: what they say, and that a bundle is made as they say."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import running
from conftest import Golden
from rich.console import Console
from running import call
from test_place import fleet_of, system_of

from alphac.explain import Explanation, differences, explanation, read_plan, show
from alphac.ir.passes.solve import search
from alphac.runtime.bundle import read_bundle

FLEET = """
[[host]]
name = "desk"
memory = "8 GB"

[[endpoint]]
name = "slow"
host = "desk"
target = "x86-64-v3"
compute = { f32 = 1e-5 }
bandwidth = 1e-5

[[endpoint]]
name = "fast"
host = "desk"
target = "x86-64-v3"
compute = { f32 = 3e-5 }
bandwidth = 3e-5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    running.write_line(tmp_path)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


def test_what_is_explained_is_what_is_compiled(here: Path) -> None:
    answer = call("explain", "line.alpha", "--fleet", "fleet.toml", "--json", "plan.json")
    assert answer.code == 0, answer.err
    made = read_plan(here / "plan.json")
    owned = {part.endpoint: part.owns for part in made.chosen.parts}
    assert owned["fast"] > owned["slow"] > 0
    assert call("compile", "line.alpha", "--fleet", "fleet.toml", "-o", "two.bundle").code == 0
    assert [r.shards for r in read_bundle(here / "two.bundle").all_roles()] == [p.owns for p in made.chosen.parts]
    assert read_plan(here / "two.bundle") == made
    assert call("diff", "plan.json", "two.bundle").out == "no difference\n"


def test_a_planned_fleet_learns_the_same_bits(here: Path) -> None:
    call("compile", "line.alpha", "--fleet", "fleet.toml", "-o", "two.bundle")
    call("compile", "line.alpha", "-o", "one.bundle")
    two, one = (running.train(here / f"{n}.bundle", here / n, 20).states for n in ("two", "one"))
    assert two == one


def explained(speeds: tuple[float, ...]) -> Explanation:
    """A system and a fleet that nobody's kernels change."""
    return explanation("made_up", search(system_of(32, compute=3e7, message=1 << 18), fleet_of(speeds)))


def test_an_explanation(golden: Golden) -> None:
    text = io.StringIO()
    show(explained((60, 20)), Console(file=text, width=100))
    golden("explain.txt", text.getvalue())


def test_a_difference(golden: Golden) -> None:
    found = differences(explained((60, 20)), explained((60, 60, 1)))
    golden("diff.txt", "\n".join(found) + "\n")


def test_an_endpoint_whose_target_lacks_something_is_left_out(here: Path) -> None:
    text = (here / "line.alpha").read_text().replace("-> f32[batch] {", "-> f32[batch] requires matrix(bf16) {")
    (here / "line.alpha").write_text(text)
    answer = call("explain", "line.alpha", "--fleet", "fleet.toml")
    assert answer.code == 1
    assert "region `guess` needs matrix(bf16), which x86-64-v3 (slow, fast) lacks" in answer.err


def test_a_fleet_without_room(here: Path) -> None:
    (here / "fleet.toml").write_text(FLEET.replace("8 GB", "9 kB"))
    answer = call("compile", "line.alpha", "--fleet", "fleet.toml")
    assert answer.code == 1
    needs = r"`\w+` would need [\d,]+ bytes of memory, it has 9,000"
    assert re.match(rf"error\[E211\]: no plan fits this fleet: {needs}\nhelp: ", answer.err), answer.err


def test_what_says_no_more_than_speeds_is_not_explained(here: Path) -> None:
    (here / "fleet.toml").write_text('[[endpoint]]\nname = "a"\n')
    answer = call("explain", "line.alpha", "--fleet", "fleet.toml")
    assert answer.code == 1 and answer.err.startswith("error[E202]: this fleet says no more than speeds")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}', json.dumps({"format": 1, "system": "x"})])
def test_what_is_no_plan(here: Path, content: str) -> None:
    (here / "plan.json").write_text(content)
    answer = call("diff", "plan.json", "plan.json")
    assert answer.code == 1 and answer.err.startswith("error[E213]: plan.json holds no plan: ")
