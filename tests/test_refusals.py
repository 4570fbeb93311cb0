"""Bad bundles, data, checkpoints, run directories and inputs: each is refused with a typed error and a message.

`tests/errors/runtime/NAME.txt` holds what the user sees: the command, its exit code, its words.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import running
from running import Run, call, train
from safetensors.numpy import load_file, save_file

from alphac.runtime.bundle import Manifest, bundle_identity, read_bundle
from alphac.runtime.coding import canonical, decode, encode

Bundle = Callable[..., Path]
Golden = Callable[[Path | str, str], None]
Damage = Callable[[Path], object]
MESSAGES = Path(__file__).parent / "errors" / "runtime"
OVERCOMMITS = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "1"
RUN = ("run", "line.bundle", "--out", "new", "--steps", "30")
RESUME = ("run", "line.bundle", "--out", "run", "--steps", "30", "--resume", "latest")
EVAL = ("eval", "line.bundle", "--parameters", "run")
PREDICT = ("predict", "line.bundle", "inputs.npz", "--parameters", "run")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return running.write_line(tmp_path_factory.mktemp("line"))


@pytest.fixture(scope="module")
def whole(bundle: Bundle, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle, a bundle of another system, and a run of each."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(bundle(source, roles=2), folder / "line.bundle")
    shutil.copytree(bundle(source, overrides={"rate": "0.01"}), folder / "other.bundle")
    train(folder / "line.bundle", folder / "run", 20)
    train(folder / "other.bundle", folder / "other", 20)
    np.savez(folder / "inputs.npz", x=np.ones((5, 3), np.float32))
    return folder


@pytest.fixture
def here(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with copies of all that, for a test to damage."""
    folder = tmp_path / "here"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    return folder


def plain(text: str) -> str:
    """Without what changes with the host and the compiler."""
    for pattern, word in (
        (r"\b[0-9a-f]{12}\b", "DIGEST"),
        (r"is no JSON: .*", "is no JSON: WHY"),
        (r"\d[\d,]{12,} bytes", "N bytes"),
        (r"\b\d+\.\d s\b", "N s"),
        (r"(x86-64|aarch64)[\w-]*", "TARGET"),
    ):
        text = re.sub(pattern, word, text)
    return text


def refused(name: str, arguments: tuple[str, ...], golden: Golden, codes: set[int]) -> None:
    answer = call(*arguments)
    said = plain(answer.out + answer.err).strip()
    assert "Traceback" not in said
    golden(MESSAGES / f"{name}.txt", f"$ alphac {' '.join(arguments)}\nexit {answer.code}\n{said}\n")
    assert answer.code in codes


# ---------------------------------------------------------------------- damage
def edit(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Edit the manifest as a user with an editor would."""

    def damage(here: Path) -> None:
        file = here / "line.bundle/manifest.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    return damage


def forge(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Edit the manifest and give it the identity that fits, as somebody with bad intentions would."""

    def damage(here: Path) -> None:
        edit(change)(here)
        file = here / "line.bundle/manifest.json"
        content = json.loads(file.read_text())
        content["bundle"] = bundle_identity(decode(Manifest, content, "manifest"))
        file.write_bytes(canonical(content))

    return damage


def write(name: str, content: bytes) -> Damage:
    return lambda here: (here / name).write_bytes(content)


def flip(pattern: str) -> Damage:
    """Flip a bit in the middle of a file."""

    def damage(here: Path) -> None:
        (path,) = here.glob(pattern)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return damage


def cut(pattern: str, size: int) -> Damage:
    def damage(here: Path) -> None:
        (path,) = here.glob(pattern)
        path.write_bytes(path.read_bytes()[:size])

    return damage


def remove(pattern: str) -> Damage:
    def damage(here: Path) -> None:
        (path,) = here.glob(pattern)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    return damage


def other_points(here: Path) -> None:
    points = dict(np.load(here / "line.bundle/data/points.npz"))
    points["y"] = points["y"] + 1
    np.savez(here / "line.bundle/data/points.npz", **points)


def link_out(here: Path) -> None:
    shutil.move(here / "line.bundle/data", here / "outside")
    (here / "line.bundle/data").symlink_to(here / "outside")


def rename_file(manifest: dict[str, Any]) -> None:
    manifest["files"]["../outside.npz"] = manifest["files"].pop("data/points.npz")
    manifest["data"]["points"]["path"] = "../outside.npz"


BUNDLES: dict[str, Damage] = {
    "bundle_missing": remove("line.bundle"),
    "bundle_is_a_file": lambda here: (shutil.rmtree(here / "line.bundle"), (here / "line.bundle").write_text("x")),
    "bundle_without_manifest": remove("line.bundle/manifest.json"),
    "manifest_empty": cut("line.bundle/manifest.json", 0),
    "manifest_truncated": cut("line.bundle/manifest.json", 200),
    "manifest_wrong_encoding": write("line.bundle/manifest.json", b"\xff\xfe{}"),
    "manifest_too_deep": write("line.bundle/manifest.json", b"[" * 100_000),
    "manifest_no_object": write("line.bundle/manifest.json", b"[1]"),
    "manifest_doubled_key": write("line.bundle/manifest.json", b'{"format": 1, "format": 1}'),
    "manifest_other_format": edit(lambda m: m.update(format=99)),
    "manifest_edited_seed": edit(lambda m: m.update(seed=7)),
    "manifest_edited_share": edit(lambda m: m["roles"][0].update(shards=2)),
    "manifest_edited_digest": edit(lambda m: m["files"]["data/points.npz"].update(sha256="0" * 64)),
    "manifest_edited_identity": edit(lambda m: m.update(bundle="0" * 64)),
    "manifest_missing_field": edit(lambda m: m.pop("states")),
    "manifest_unknown_field": edit(lambda m: m.update(colour="red")),
    "manifest_wrong_type": edit(lambda m: m.update(seed="7")),
    "forged_absurd_arena": forge(lambda m: m["classes"][0].update(arena=1 << 60)),
    "forged_absurd_scratch": forge(lambda m: m["classes"][0].update(scratch=1 << 60)),
    "forged_absurd_state": forge(lambda m: m["states"][0].update(shape=[1 << 62])),
    "forged_absurd_grain": forge(lambda m: m["grain"].update(size=1 << 40, shards=1 << 40)),
    "forged_absurd_file": forge(lambda m: m["files"]["protocol.json"].update(bytes=1 << 60)),
    "forged_offset": forge(lambda m: m["classes"][0]["plans"]["step"]["offsets"].__setitem__(0, 1 << 30)),
    "forged_negative_extent": forge(lambda m: m["states"][0].update(shape=[-3])),
    "forged_shards_of_nobody": forge(lambda m: m["roles"].pop()),
    "forged_shards_of_two": forge(lambda m: m["roles"][1].update(first=3)),
    "forged_way_out": forge(rename_file),
    "object_edited": flip("line.bundle/objects/*.o"),
    "object_truncated": cut("line.bundle/objects/*.o", 100),
    "object_missing": remove("line.bundle/objects/*.o"),
    "kernels_edited": flip("line.bundle/kernels/*.py"),
    "ir_edited": flip("line.bundle/ir/system.ir"),
    "schedule_edited": flip("line.bundle/ir/schedule.txt"),
    "protocol_edited": flip("line.bundle/protocol.json"),
    "protocol_missing": remove("line.bundle/protocol.json"),
    "entry_edited": flip("line.bundle/__main__.py"),
    "data_changed": other_points,
    "data_edited": flip("line.bundle/data/points.npz"),
    "data_missing": remove("line.bundle/data/points.npz"),
    "data_elsewhere": link_out,
}


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_that_is_not_as_it_was_written(name: str, here: Path, golden: Golden) -> None:
    BUNDLES[name](here)
    refused(name, RUN, golden, {1})
    assert not (here / "new").exists(), "nothing is begun"
    for command in (EVAL, PREDICT, ("inspect", "line.bundle"), ("extract", "line.bundle", "--role", "0")):
        answer = call(*command)
        assert answer.code == 1 and answer.err.startswith("error: ")


@pytest.mark.skipif(OVERCOMMITS, reason="this host promises memory that it lacks")
def test_memory_that_the_host_lacks(here: Path, golden: Golden) -> None:
    forge(lambda m: [c.update(arena=1 << 45) for c in m["classes"]])(here)
    refused("memory", RUN, golden, {3})


# ---------------------------------------------------------------------- checkpoints and parameters
HEAD, LAST = "run/checkpoints/HEAD", "run/checkpoints/step-0000000020"


def change_checkpoint(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(here: Path) -> None:
        file = here / LAST / "manifest.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_bytes(canonical(content) + b"\n")
        (here / HEAD).unlink()

    return damage


def change_states(change: Callable[[dict[str, np.ndarray[Any, Any]]], object]) -> Damage:
    def damage(here: Path) -> None:
        states = {name: array.copy() for name, array in load_file(here / LAST / "states.safetensors").items()}
        change(states)
        save_file(states, here / LAST / "states.safetensors")

    return damage


AT_LAST = (*RESUME[:-1], LAST)
CHECKPOINTS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "resume_nothing": (lambda here: None, ("run", "line.bundle", "--resume", "latest")),
    "resume_empty_run": (remove("run/checkpoints"), RESUME),
    "resume_missing": (lambda here: None, (*RESUME[:-1], "nowhere")),
    "resume_a_file": (lambda here: None, (*RESUME[:-1], "inputs.npz")),
    "resume_a_bundle": (lambda here: None, (*RESUME[:-1], "line.bundle")),
    "resume_another_system": (lambda here: None, (*RESUME[:-1], "other")),
    "head_damaged": (write(HEAD, b"{"), RESUME),
    "head_leads_out": (write(HEAD, b'{"checkpoint": "../other", "sha256": ""}'), RESUME),
    "head_of_a_lost_checkpoint": (remove(LAST), RESUME),
    "head_of_a_changed_checkpoint": (
        lambda here: (
            change_checkpoint(lambda m: m.update(step=19))(here) or shutil.copy("other/checkpoints/HEAD", HEAD)
        ),
        RESUME,
    ),
    "checkpoint_truncated": (cut(f"{LAST}/manifest.json", 100), RESUME),
    "checkpoint_other_format": (change_checkpoint(lambda m: m.update(format=99)), AT_LAST),
    "checkpoint_negative_step": (change_checkpoint(lambda m: m.update(step=-1)), AT_LAST),
    "checkpoint_wrong_type": (change_checkpoint(lambda m: m.update(step="20")), AT_LAST),
    "states_edited": (flip(f"{LAST}/states.safetensors"), RESUME),
    "states_truncated": (cut(f"{LAST}/states.safetensors", 200), RESUME),
    "states_missing": (remove(f"{LAST}/states.safetensors"), RESUME),
    "states_other_values": (change_states(lambda s: s["w"].fill(1)), RESUME),
    "states_lack_one": (change_states(lambda s: s.pop("b")), RESUME),
    "states_have_one_more": (change_states(lambda s: s.update(c=s["b"])), RESUME),
    "states_other_shape": (change_states(lambda s: s.update(w=np.ones(4, np.float32))), RESUME),
    "states_other_dtype": (change_states(lambda s: s.update(w=np.ones(3))), RESUME),
    "parameters_missing": (lambda here: None, (*EVAL[:-1], "nowhere")),
    "parameters_no_safetensors": (lambda here: None, (*EVAL[:-1], "inputs.npz")),
    "parameters_empty_directory": (lambda here: (here / "empty").mkdir(), (*EVAL[:-1], "empty")),
    "parameters_absurd_header": (write("p.safetensors", b"\xff" * 8 + b"{}"), (*EVAL[:-1], "p.safetensors")),
    "parameters_truncated": (cut("run/parameters.safetensors", 300), EVAL),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_used(name: str, here: Path, golden: Golden) -> None:
    damage, arguments = CHECKPOINTS[name]
    damage(here)
    refused(name, arguments, golden, {1, 3})
    assert not (here / "runs").exists()


def test_an_older_checkpoint_serves_when_the_newest_is_damaged(here: Path) -> None:
    flip(f"{LAST}/states.safetensors")(here)
    train(here / "line.bundle", here / "before", 10)
    shutil.copytree(here / "before/checkpoints/step-0000000010", here / "run/checkpoints/step-0000000010")
    run = train(here / "line.bundle", here / "run", 20, resume="run/checkpoints/step-0000000010")
    assert run.states == train(here / "line.bundle", here / "again", 20).states
    assert [line["step"] for line in Run(here / "run").steps()] == list(range(1, 21))


# ---------------------------------------------------------------------- runs
RUNS: dict[str, tuple[Damage, tuple[str, ...], int]] = {
    "run_directory_exists": (lambda here: None, (*RUN[:3], "run"), 1),
    "run_directory_is_a_file": (lambda here: None, (*RUN[:3], "inputs.npz"), 1),
    "run_directory_under_a_file": (lambda here: None, (*RUN[:3], "inputs.npz/run"), 1),
    "run_threads": (lambda here: None, (*RUN, "--threads", "0"), 2),
    "run_many_threads": (lambda here: None, (*RUN, "--threads", "100000"), 2),
    "run_steps": (lambda here: None, (*RUN[:-1], "-1"), 2),
    "run_steps_no_number": (lambda here: None, (*RUN[:-1], "ten"), 2),
    "role_that_is_not_there": (lambda here: None, ("role", "line.bundle", "--role", "2"), 10),
    "role_without_join": (lambda here: None, ("role", "line.bundle", "--role", "1"), 12),
    "role_join_nonsense": (lambda here: None, ("role", "line.bundle", "--role", "1", "--join", "here"), 2),
    "role_huge_number": (lambda here: None, ("role", "line.bundle", "--role", "9" * 18), 10),
    "inspect_role": (lambda here: None, ("inspect", "line.bundle", "--role", "2"), 1),
    "extract_role": (lambda here: None, ("extract", "line.bundle", "--role", "2"), 1),
    "extract_over_something": (lambda here: None, ("extract", "line.bundle", "--role", "1", "-o", "run"), 1),
    "extract_nowhere": (lambda here: None, ("extract", "line.bundle", "--role", "1", "-o", "no/where.pyz"), 1),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_cannot_be_begun(name: str, here: Path, golden: Golden) -> None:
    damage, arguments, code = RUNS[name]
    damage(here)
    before = sorted(here.rglob("*"))
    refused(name, arguments, golden, {code})
    assert sorted(here.rglob("*")) == before, "nothing is left behind"


# ---------------------------------------------------------------------- inputs
def arrays(**named: Any) -> Damage:
    return lambda here: np.savez(here / "inputs.npz", **named)


def float32(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def with_nan(here: Path) -> None:
    x = float32(5, 3)
    x[3, 1] = np.nan
    np.savez(here / "inputs.npz", x=x)


INPUTS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "inputs_missing": (remove("inputs.npz"), PREDICT),
    "inputs_no_archive": (write("inputs.npz", b"not a zip"), PREDICT),
    "inputs_truncated": (cut("inputs.npz", 150), PREDICT),
    "inputs_no_safetensors": (write("i.safetensors", b"{}"), (*PREDICT[:2], "i.safetensors", *PREDICT[3:])),
    "inputs_unknown_name": (arrays(x=float32(5, 3), z=float32(5)), PREDICT),
    "inputs_lacking_name": (arrays(z=float32(5, 3)), PREDICT),
    "inputs_none": (arrays(), PREDICT),
    "inputs_wrong_shape": (arrays(x=float32(5, 4)), PREDICT),
    "inputs_wrong_rank": (arrays(x=float32(3)), PREDICT),
    "inputs_scalar": (arrays(x=float32()), PREDICT),
    "inputs_complex": (arrays(x=np.ones((5, 3), np.complex64)), PREDICT),
    "inputs_words": (arrays(x=np.full((5, 3), "one")), PREDICT),
    "inputs_objects": (arrays(x=np.array([[None] * 3] * 5, object)), PREDICT),
    "inputs_empty": (arrays(x=float32(0, 3)), PREDICT),
    "inputs_nan": (with_nan, PREDICT),
    "region_unknown": (lambda here: None, (*PREDICT, "--region", "gess")),
    "predictions_nowhere": (lambda here: None, (*PREDICT, "--out", "no/where.npz")),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_do_not_fit(name: str, here: Path, golden: Golden) -> None:
    damage, arguments = INPUTS[name]
    damage(here)
    refused(name, arguments, golden, {1})
    assert not (here / "predictions.npz").exists()


def test_what_fits_is_converted(here: Path) -> None:
    for dtype in (np.float64, np.int64, np.uint8, np.float16):
        np.savez(here / "inputs.npz", x=np.ones((5, 3), dtype))
        assert call(*PREDICT).code == 0


# ---------------------------------------------------------------------- golden messages
def test_every_message_belongs_to_a_test_and_says_something() -> None:
    names = {*BUNDLES, *CHECKPOINTS, *RUNS, *INPUTS, "memory"}
    assert {p.stem for p in MESSAGES.glob("*.txt")} == names
    for path in MESSAGES.glob("*.txt"):
        command, code, *words = path.read_text(encoding="utf-8").splitlines()
        assert command.startswith("$ alphac ") and re.fullmatch(r"exit (1|2|3|1\d)", code) and words


def test_damage_does_damage(here: Path) -> None:
    """Undamaged, everything above goes well."""
    for arguments in (RUN, RESUME, EVAL, PREDICT, ("inspect", "line.bundle")):
        assert call(*arguments).code == 0
    assert read_bundle("line.bundle").manifest.system == "line"
    assert encode(read_bundle("line.bundle").manifest)["system"] == "line"
