"""The bundle's format: what is written is read back, and nothing else is taken for a bundle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from alphac.runtime.archive import extract, projected
from alphac.runtime.bundle import (
    Manifest,
    ProgramRecord,
    RoleRecord,
    Withheld,
    bundle_identity,
    read_bundle,
    record_from,
    safe_path,
    write_bundle,
)
from alphac.runtime.check import check_manifest
from alphac.runtime.coding import CodingError, decode, encode, parse_json
from alphac.runtime.errors import BundleRefused, DataRefused, InputRefused


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("bundle") / "tiny.bundle", (1, 3))


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(made, tmp_path / "own.bundle"))


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    file = path / "manifest.json"
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def test_what_is_written_is_read_back(made: Path) -> None:
    bundle = read_bundle(made)
    expected = tiny.manifest((1, 3))
    assert bundle.manifest._replace(files={}, bundle="") == expected
    assert bundle.role(1) == RoleRecord(1, 1, 1, 3)
    assert bundle.class_of(1).shards == 3
    assert set(bundle.manifest.files) == {"__main__.py", tiny.OBJECT, "data/points.npz"}


def test_the_same_content_has_the_same_identity(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "data/points.npz", tmp_path / "points.npz")
    manifest = tiny.manifest((1, 3))
    files = {tiny.OBJECT: tiny.code(), "data/points.npz": tmp_path / "points.npz"}
    again = write_bundle(tmp_path / "again.bundle", manifest, files)
    assert again.manifest.bundle == read_bundle(made).manifest.bundle
    other = write_bundle(tmp_path / "other.bundle", manifest._replace(seed=1), files)
    assert other.manifest.bundle != again.manifest.bundle


def test_an_existing_directory_is_left_alone(made: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        write_bundle(tmp_path / "there", tiny.manifest(), {})
    assert list((tmp_path / "there").iterdir()) == []


def test_a_manifest_that_would_be_refused_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file in the bundle"):
        write_bundle(tmp_path / "x.bundle", tiny.manifest(), {})
    assert list(tmp_path.iterdir()) == []


def test_edited_files_are_refused(own: Path) -> None:
    target = own / read_bundle(own).class_of(0).object
    content = bytearray(target.read_bytes())
    content[len(content) // 2] ^= 1
    target.write_bytes(content)
    with pytest.raises(BundleRefused, match="not what the manifest says"):
        read_bundle(own)
    with pytest.raises(BundleRefused):
        read_bundle(own, verify=False).read(str(target.relative_to(own)))


def test_a_file_that_grew_or_is_missing_is_refused(own: Path) -> None:
    with (own / "__main__.py").open("ab") as stream:
        stream.write(b"\n")
    with pytest.raises(BundleRefused):
        read_bundle(own)
    (own / "__main__.py").unlink()
    with pytest.raises(BundleRefused, match="No such file"):
        read_bundle(own)


def test_other_data_is_refused_as_data(own: Path) -> None:
    tiny.save(own / "data/points.npz", tiny.points(seed=6))
    with pytest.raises(DataRefused, match="not the data that this bundle was compiled with"):
        read_bundle(own)
    (own / "data/points.npz").unlink()
    with pytest.raises(DataRefused):
        read_bundle(own)


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another value": lambda m: m.update(seed=7),
    "another share": lambda m: m["roles"][0].update(shards=2),
    "another arena": lambda m: m["classes"][0].update(arena=1 << 40),
    "a file that it does not have": lambda m: m["files"].update({"x": {"sha256": "0" * 64, "bytes": 1}}),
    "a missing field": lambda m: m.pop("states"),
    "an unknown field": lambda m: m.update(extra=1),
    "another type": lambda m: m.update(seed="0"),
    "a bool for a number": lambda m: m.update(seed=True),
    "a list for an object": lambda m: m.update(programs=[]),
    "no identity": lambda m: m.update(bundle=""),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_is_refused(own: Path, name: str) -> None:
    change(own, EDITS[name])
    with pytest.raises(BundleRefused) as caught:
        read_bundle(own)
    assert caught.value.exit_code == 10
    assert not caught.value.is_role_failure


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b"null",
        b'{"format": 1, "format": 1}',
        b'{"seed": NaN}',
        b"[" * 100_000,
        b"1" * 9999,
    ],
)
def test_what_is_no_manifest_is_refused(own: Path, content: bytes) -> None:
    (own / "manifest.json").write_bytes(content)
    with pytest.raises(BundleRefused):
        read_bundle(own)


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1), flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=3))
def test_a_damaged_manifest_is_refused_or_the_same(made: Path, cut: float, flips: list[tuple[float, int]]) -> None:
    content = bytearray((made / "manifest.json").read_bytes())
    for place, bits in flips:
        content[int(place * (len(content) - 1))] ^= bits
    del content[int(cut * len(content)) + 1 :]
    try:
        manifest = decode(Manifest, parse_json(bytes(content), "manifest"), "manifest")
    except CodingError:
        return
    assert bundle_identity(manifest) != manifest.bundle or manifest == read_bundle(made, verify=False).manifest


def test_another_format_is_named(own: Path) -> None:
    change(own, lambda m: m.update(format=99))
    with pytest.raises(BundleRefused, match="has format 99, this runtime reads 1"):
        read_bundle(own)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleRefused, match="there is no bundle"):
        read_bundle(tmp_path / "nowhere")
    with pytest.raises(BundleRefused, match="no manifest"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a\\b", "", ".", "a//b", "a/./b", "x\0", "manifest.json"]
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleRefused):
        safe_path(tmp_path, name)


def test_links_that_lead_out_are_refused(own: Path) -> None:
    outside = own.parent / "outside"
    shutil.move(own / "data", outside)
    (own / "data").symlink_to(outside)
    with pytest.raises(BundleRefused, match="leads out"):
        read_bundle(own)


def refusals() -> dict[str, Manifest]:
    """Manifests whose numbers would lead a role astray."""
    good = tiny.manifest((1, 3))._replace(files=FILES)
    step, first = good.programs["step"], good.classes[0]
    assert not isinstance(first, Withheld) and good.grain is not None
    far = first.plans["step"]._replace(offsets=(*first.plans["step"].offsets[:-1], first.arena))
    moved = first.plans["step"]._replace(offsets=(64, *first.plans["step"].offsets[1:]))

    def program(**changes: Any) -> Manifest:
        return good._replace(programs={**good.programs, "step": step._replace(**changes)})

    def planned(plan: Any) -> Manifest:
        return good._replace(classes=(first._replace(plans={**first.plans, "step": plan}), *good.classes[1:]))

    def named(symbols: Any) -> Manifest:
        return good._replace(classes=(first._replace(symbols=symbols), *good.classes[1:]))

    exchange, last = step.steps[1], step.steps[2]
    return {
        "outside the arena": planned(far),
        "in two places": planned(moved),
        "lacks the symbols of a program": named({}),
        "step: odd symbols of kernels": named({**first.symbols, "step": first.symbols["step"][1:]}),
        "finish.mean: odd symbols": named({**first.symbols, "finish.mean": ("no such",)}),
        "lacks offsets": planned(far._replace(offsets=())),
        "does not own the shards": good._replace(roles=(good.roles[0], good.roles[1]._replace(first=2))),
        "do not own all shards": good._replace(roles=good.roles[:1]),
        "an exchange is odd": program(steps=(step.steps[0], exchange._replace(buffers=(0, 4)), last)),
        "odd symbol": program(steps=(last._replace(symbol="no such"),)),
        "unknown kind": program(steps=(last._replace(kind="launch"),)),
        "a guard has no buffer": program(steps=(last._replace(guards=((99,),)),)),
        "has no buffer": program(results=(step.results[0]._replace(buffer=-1),)),
        "must be a scalar": program(results=(step.results[2]._replace(buffer=2),)),
        "absurdly large": program(buffers=(*step.buffers[:-1], step.buffers[-1]._replace(shape=(1 << 62,)))),
        "is not the declared state": program(buffers=(step.buffers[0]._replace(shape=(4,)), *step.buffers[1:])),
        "negative extent": good._replace(states=(good.states[0]._replace(shape=(-1,)), *good.states[1:])),
        "does not cut": good._replace(grain=good.grain._replace(shards=3)),
        "unknown split": good._replace(evaluations=(good.evaluations[0]._replace(split="all"),)),
        "sha256": good._replace(identity="me"),
    }


FILES = {"objects/x": tiny.b.FileRecord("0" * 64, 1)}
FILES |= dict.fromkeys(("data/points.npz", tiny.OBJECT), FILES["objects/x"])


@pytest.mark.parametrize("message", refusals())
def test_numbers_that_lead_astray_are_refused(message: str) -> None:
    with pytest.raises(CodingError, match=message):
        check_manifest(refusals()[message])


def test_records_from_dicts() -> None:
    step = tiny.programs()["step"]
    assert record_from(ProgramRecord, encode(step)) == step
    port = record_from(
        tiny.b.PortRecord, {"kind": "total", "name": "t", "buffer": 0, "attributes": {"start": float("-inf")}}
    )
    assert port.attributes == {"start": "-inf"}
    with pytest.raises(CodingError, match=r"ProgramRecord lacks `name`"):
        record_from(ProgramRecord, {})


# ---------------------------------------------------------------------- extraction
def test_an_extracted_role_holds_only_its_own_and_has_the_same_identity(made: Path) -> None:
    manifest = read_bundle(made).manifest
    root, member = projected(manifest, 0), projected(manifest, 1)
    assert bundle_identity(root) == bundle_identity(member) == manifest.bundle
    assert root.roles == manifest.roles
    assert isinstance(member.roles[0], Withheld)
    assert [isinstance(c, Withheld) for c in member.classes] == [True, False, True]
    check_manifest(member)


def test_an_extracted_role_runs_without_alphac(tmp_path: Path) -> None:
    made = tiny.write(tmp_path / "solo.bundle")
    archive = extract(made, 0, tmp_path / "solo.pyz")
    (tmp_path / "alphac").mkdir()
    (tmp_path / "alphac" / "__init__.py").write_text("raise ImportError('not the archive')")
    command = [sys.executable, str(archive), "--steps", "3", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["steps"], record["bundle"]) == (3, read_bundle(made).manifest.bundle)
    with pytest.raises(InputRefused, match="exists"):
        extract(made, 0, archive)
    with pytest.raises(BundleRefused, match="no role 1"):
        extract(made, 1, tmp_path / "other.pyz")


def test_the_same_role_gives_the_same_archive(made: Path, tmp_path: Path) -> None:
    first, second = extract(made, 1, tmp_path / "a.pyz"), extract(made, 1, tmp_path / "b.pyz")
    assert first.read_bytes() == second.read_bytes()
