"""Checkpoints: what is published is restored, bit for bit, and nothing damaged or foreign is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from alphac.runtime import tensors
from alphac.runtime.arena import STORAGE
from alphac.runtime.checkpoint import DirectoryStore, digest, find_checkpoint, load_states, open_checkpoint, restore
from alphac.runtime.errors import CheckpointRefused
from alphac.runtime.records import StateRecord
from alphac.runtime.tensors import Tensor, read_tensors, write_tensors

SYSTEM = tiny.manifest()._replace(
    states=(
        StateRecord("n", "i64", (), "state"),
        StateRecord("h", "bf16", (2, 3), "optimizer"),
        StateRecord("w", "f32", (3,), "param"),
        StateRecord("mask", "bool", (5,), "state"),
    ),
)


def states() -> dict[str, np.ndarray]:
    return {
        "n": np.array(7),
        "h": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "w": np.array([0.1, np.nan, -0.0], np.float32),
        "mask": np.array([1, 0, 1, 1, 0], np.bool_),
    }


def empty() -> dict[str, np.ndarray]:
    return {name: np.zeros_like(array) for name, array in states().items()}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "checkpoints", SYSTEM)


def test_what_is_published_is_restored(store: DirectoryStore) -> None:
    published = store.publish(12, states())
    found, into = store.latest(), empty()
    assert found == published
    assert restore(found, SYSTEM, into) == 12
    for name, array in states().items():
        assert into[name].tobytes() == array.tobytes()
    assert sorted(path.name for path in store.directory.iterdir()) == ["HEAD", "step-0000000012"]


def test_the_newest_is_the_head_and_the_others_stay(store: DirectoryStore) -> None:
    first, second = (store.publish(step, states()) for step in (5, 10))
    assert store.latest() == second
    assert open_checkpoint(first.path) == first
    assert first.name != second.name


def test_publishing_the_same_again_changes_nothing(store: DirectoryStore) -> None:
    assert store.publish(3, states()) == store.publish(3, states())
    changed = {**states(), "n": np.array(8)}
    assert store.publish(3, changed).name != open_checkpoint(store.directory / "step-0000000003").path.name
    into = empty()
    restore(store.latest(), SYSTEM, into)
    assert into["n"] == 8


def test_states_say_the_same_to_the_safetensors_library(store: DirectoryStore) -> None:
    path = store.publish(1, {**states(), "h": np.zeros((2, 3), np.uint16)}).path / "states.safetensors"
    only = {"n": states()["n"], "w": states()["w"]}
    write_tensors(
        path.parent / "two.safetensors", [Tensor("w", "f32", only["w"]), Tensor("n", "i64", only["n"])], {"a": "b"}
    )
    for name, array in load_file(path.parent / "two.safetensors").items():
        assert array.tobytes() == only[name].tobytes()
    save_file(only, path.parent / "theirs.safetensors", {"a": "b"})
    for name, tensor in read_tensors(path.parent / "theirs.safetensors").items():
        assert tensor.array.tobytes() == only[name].tobytes()
    assert next(iter(read_tensors(path))) == "w"  # parameters come first


def test_where_a_user_may_point(store: DirectoryStore, tmp_path: Path) -> None:
    published = store.publish(1, states())
    for path in (tmp_path, store.directory, published.path):
        assert find_checkpoint(path, SYSTEM) == published
    with pytest.raises(CheckpointRefused, match="there is no checkpoint"):
        find_checkpoint(tmp_path / "nowhere", SYSTEM)


def test_an_interrupted_publication_leaves_the_old_head(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old = store.publish(1, states())
    for failing in (Path, os):
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(failing, "rename" if failing is Path else "replace", fail)
            with pytest.raises(CheckpointRefused, match="No space left") as caught:
                store.publish(2, states())
        assert (caught.value.exit_code, caught.value.step) == (15, 2)
        assert store.latest() == old
    assert [path.name for path in store.directory.iterdir() if path.name.startswith(".")] == []
    assert store.publish(2, states()) == store.latest()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit in the payload": lambda p: flip(p / "states.safetensors"),
    "a short payload": lambda p: (p / "states.safetensors").write_bytes((p / "states.safetensors").read_bytes()[:-1]),
    "no payload": lambda p: (p / "states.safetensors").unlink(),
    "an edited manifest": lambda p: (p / "manifest.json").write_text(
        (p / "manifest.json").read_text().replace('"step":4', '"step":5')
    ),
    "a cut manifest": lambda p: (p / "manifest.json").write_bytes((p / "manifest.json").read_bytes()[:-9]),
    "no manifest": lambda p: (p / "manifest.json").unlink(),
    "an odd head": lambda p: (p.parent / "HEAD").write_text('{"checkpoint": "..", "sha256": ""}'),
    "a head that is no JSON": lambda p: (p.parent / "HEAD").write_text("step"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_before_anything_is_changed(store: DirectoryStore, damage: str) -> None:
    DAMAGES[damage](store.publish(4, states()).path)
    into = empty()
    with pytest.raises(CheckpointRefused):
        restore(store.latest(), SYSTEM, into)
    assert all(not array.any() for array in into.values())


def test_another_system_is_refused(store: DirectoryStore) -> None:
    store.publish(4, states())
    with pytest.raises(CheckpointRefused, match="of another system"):
        restore(store.latest(), SYSTEM._replace(identity="cd" * 32), empty())
    with pytest.raises(CheckpointRefused, match="of another system"):
        restore(store.latest(), SYSTEM._replace(seed=1), empty())
    moved = SYSTEM._replace(states=(SYSTEM.states[0]._replace(name="m"), *SYSTEM.states[1:]))
    with pytest.raises(CheckpointRefused, match=r"unknown state `n`|lacks state `m`"):
        restore(store.latest(), moved, empty())
    with pytest.raises(CheckpointRefused, match=r"state `w` is f32\[3\], not f32\[4\]"):
        n, h, w, mask = SYSTEM.states
        wider = SYSTEM._replace(states=(n, h, w._replace(shape=(4,)), mask))
        load_states(store.latest().path / "states.safetensors", wider)


def test_another_bundle_of_the_same_system_may_restore(store: DirectoryStore) -> None:
    store.publish(4, states())
    assert restore(store.latest(), SYSTEM._replace(bundle="ef" * 32), empty()) == 4


def test_all_nans_count_as_one() -> None:
    quiet, other = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0xFFC12345))
    assert digest(quiet) == digest(other)
    assert digest(np.array([0.0], np.float32)) != digest(np.array([-0.0], np.float32))


# ---------------------------------------------------------------------- safetensors
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(STORAGE)), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 99)),
        max_size=5,
    )
)
@settings(deadline=None, max_examples=40)
def test_tensors_of_every_dtype_and_shape(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[str, list[int], int]]
) -> None:
    made = []
    for number, (dtype, shape, seed) in enumerate(given):
        size = int(np.prod(shape)) * STORAGE[dtype].itemsize
        raw = np.random.default_rng(seed).integers(0, 2, size, np.uint8)
        made.append(Tensor(f"t{number}", dtype, raw.view(STORAGE[dtype]).reshape(shape)))
    path = tmp_path_factory.mktemp("tensors") / "t.safetensors"
    write_tensors(path, made, {})
    found = read_tensors(path)
    assert list(found) == [t.name for t in made]
    for tensor in made:
        assert (found[tensor.name].dtype, found[tensor.name].array.shape) == (tensor.dtype, tensor.array.shape)
        assert found[tensor.name].array.tobytes() == tensor.array.tobytes()


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
ODD_HEADERS: dict[str, object] = {
    "no object": [],
    "described oddly": {"t": 3},
    "described oddly: ": {"t": {**ENTRY, "dtype": "F128"}},
    "no counts": {"t": {**ENTRY, "shape": [-2]}},
    "its shape needs": {"t": {**ENTRY, "shape": [1 << 62]}},
    "outside the file": {"t": {**ENTRY, "shape": [200], "data_offsets": [0, 800]}},
    "overlap": {"t": ENTRY, "u": ENTRY},
    "holes": {"t": {**ENTRY, "shape": [1], "data_offsets": [4, 8]}},
    "belong to no tensor": {"t": {**ENTRY, "shape": [1], "data_offsets": [0, 4]}},
}


@pytest.mark.parametrize("message", ODD_HEADERS)
def test_odd_safetensors_are_refused(tmp_path: Path, message: str) -> None:
    words = json.dumps(ODD_HEADERS[message]).encode()
    (tmp_path / "t").write_bytes(len(words).to_bytes(8, "little") + words + bytes(8))
    with pytest.raises(ValueError, match=message):
        read_tensors(tmp_path / "t")


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8 + b"{}", (1 << 40).to_bytes(8, "little") + b"{}"])
def test_what_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(ValueError, match="its header is longer"):
        tensors.read_tensors(tmp_path / "t")
