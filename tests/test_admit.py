"""Admission: what a region asks for, which targets have it, and what is said if they have not."""

from __future__ import annotations

from pathlib import Path

import pytest
import running

from alphac import pipeline
from alphac.backends.registry import capabilities
from alphac.diagnostics import Diagnostics, render
from alphac.ir.passes.admit import provides

FLEET = """
[[endpoint]]
name = "desk"
target = "x86-64-v4"
[[endpoint]]
name = "lap"
target = "x86-64-v3"
[[endpoint]]
name = "shelf"
target = "x86-64-v4"
"""


def compiled(tmp_path: Path, requires: str) -> Path:
    text = running.LINE.replace("-> f32[batch] {", f"-> f32[batch] requires {requires} {{")
    source = running.write_line(tmp_path, text)
    (tmp_path / "fleet.toml").write_text(FLEET)
    plan = pipeline.Plan.of(fleet=tmp_path / "fleet.toml")
    return pipeline.compile_file(source, out=tmp_path / "line.bundle", plan=plan).path


@pytest.mark.parametrize("requires", ["matrix(bf16)", "family(cuda)", "scratch(2 ** 31)", "atomics"])
def test_what_no_endpoint_has_is_refused_with_region_capability_and_endpoints(tmp_path: Path, requires: str) -> None:
    with pytest.raises(Diagnostics) as caught:
        compiled(tmp_path, requires)
    (found,) = caught.value.diagnostics
    needed = "scratch(2147483648)" if "scratch" in requires else requires
    who = "x86-64-v4 (desk, shelf) and x86-64-v3 (lap) lack"
    assert (found.code, found.message) == ("E204", f"region `guess` needs {needed}, which {who}")
    text = (tmp_path / "line.alpha").read_text()
    assert requires in render(found, text).splitlines()[1]
    assert not (tmp_path / "line.bundle").exists(), "refused before code is made: nothing runs elsewhere instead"


def test_what_all_endpoints_have_is_admitted(tmp_path: Path) -> None:
    text = running.LINE.replace(
        "-> f32[batch] {", '-> f32[batch] requires f32, family("x86-64"), scratch(64 * 1024), scan {'
    )
    assert pipeline.compile_file(running.write_line(tmp_path, text), out=tmp_path / "line.bundle").path.is_dir()


@pytest.mark.parametrize(
    ("requires", "code", "help"),
    [
        ("scratch", "E140", "write `scratch(48 * 1024)`"),
        ("scratch(0.5)", "E140", "write `scratch(48 * 1024)`"),
        ("scratch(batch, 2)", "E140", "write `scratch(48 * 1024)`"),
        ("family(3)", "E140", "write `family(cuda)`"),
        ("scan(f32)", "E140", "write `scan`"),
        ("matrix(f16)", "E115", "there are f32"),
        ("familly(cuda)", "E140", "did you mean `family`?"),
    ],
)
def test_a_requirement_that_is_none(tmp_path: Path, requires: str, code: str, help: str) -> None:
    with pytest.raises(Diagnostics) as caught:
        compiled(tmp_path, requires)
    (found,) = caught.value.diagnostics
    assert found.code == code and found.help.startswith(help)


def test_scratch_memory_is_enough_or_not() -> None:
    able = frozenset({"f32", "scratch(1024)"})
    assert provides(able, "scratch(1024)")
    assert not provides(able, "scratch(1025)")
    assert not provides({"f32"}, "scratch(1)")
    assert "family(x86-64)" in capabilities("x86-64-v3-128")
