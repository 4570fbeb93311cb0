"""Bundles that were compiled before: written again without compiling, unless anything is different."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from alphac import compiled, pipeline
from alphac.backends.cache import cache_directory
from alphac.diagnostics import Diagnostics
from alphac.runtime.bundle import read_bundle

SYSTEM = """
system line
dim batch = 4
grain 2 of batch
let rate = 0.5
data points from "points.npz" { x: f32[] = x  y: f32[] = y }
param a: f32[] = 0
learn a with sgd(rate) minimizing { mean((a * x - y) ** 2) }
train on points for 2 epochs
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_points(tmp_path, 1)
    path = tmp_path / "line.alpha"
    path.write_text(SYSTEM)
    return path


def write_points(folder: Path, first: float) -> None:
    x = np.arange(8, dtype=np.float32) + np.float32(first)
    np.savez(folder / "points.npz", x=x, y=2 * x)


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were compiled stage by stage."""
    made: list[Path] = []
    real = pipeline._drafted

    def drafted(path: Path, *rest: object) -> object:
        made.append(path)
        return real(path, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(pipeline, "_drafted", drafted)
    return made


def test_the_same_again_is_the_same_bundle(source: Path, tmp_path: Path, drafts: list[Path]):
    first = pipeline.compile_file(source, out=tmp_path / "first")
    again = pipeline.compile_file(source, out=tmp_path / "again")
    assert len(drafts) == 1 and first.summary == again.summary
    files = {str(p.relative_to(first.path)): p.read_bytes() for p in first.path.rglob("*") if p.is_file()}
    assert files == {str(p.relative_to(again.path)): p.read_bytes() for p in again.path.rglob("*") if p.is_file()}
    assert read_bundle(again.path).manifest == read_bundle(first.path).manifest


def test_whatever_differs_is_compiled(source: Path, tmp_path: Path, drafts: list[Path]):
    def compiles(name: str, **options: object) -> str:
        return read_bundle(pipeline.compile_file(source, out=tmp_path / name, **options).path).manifest.bundle  # pyright: ignore[reportArgumentType]

    identities = [compiles("a")]
    identities.append(compiles("b", overrides={"rate": "0.25"}))
    identities.append(compiles("c", plan=pipeline.Plan.of(roles=2)))
    source.write_text(SYSTEM.replace("2 epochs", "3 epochs"))
    identities.append(compiles("d"))
    assert len(drafts) == len(set(identities)) == 4


def test_other_data_make_another_bundle(source: Path, tmp_path: Path, drafts: list[Path]):
    before = pipeline.compile_file(source, out=tmp_path / "before").path
    write_points(tmp_path, 5)
    after = pipeline.compile_file(source, out=tmp_path / "after").path
    assert len(drafts) == 2
    assert read_bundle(before).manifest.identity != read_bundle(after).manifest.identity
    (tmp_path / "points.npz").unlink()
    with pytest.raises(Diagnostics, match=r"points\.npz"):
        pipeline.compile_file(source, out=tmp_path / "without")
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_entry_counts_as_absent(source: Path, tmp_path: Path, drafts: list[Path]):
    pipeline.compile_file(source, out=tmp_path / "first")
    for entry in cache_directory().glob("??/*"):
        entry.write_bytes(entry.read_bytes()[:-1])
    pipeline.compile_file(source, out=tmp_path / "second")
    assert len(drafts) == 2


def test_an_existing_directory_is_refused_either_way(source: Path, tmp_path: Path):
    pipeline.compile_file(source, out=tmp_path / "first")
    for _ in range(2):
        with pytest.raises(Diagnostics, match="exists already"):
            pipeline.compile_file(source, out=tmp_path / "first")


def test_another_compiler_does_not_recall(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    key = compiled.key(source, SYSTEM, {}, "plan")
    monkeypatch.setattr(compiled, "_compiler", lambda: "another")
    assert compiled.key(source, SYSTEM, {}, "plan") != key
