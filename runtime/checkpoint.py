"""Checkpoints: immutable directories of safetensors and a JSON manifest, published by rename, behind an interface.

    checkpoints/HEAD                  name and identity of the newest, replaced by rename
    checkpoints/step-0000000100/      manifest.json, states.safetensors

A checkpoint's identity is the sha256 of its manifest, which holds the digest of every tensor. It says which learning
system it belongs to; the bundle that wrote it is provenance only. States are whole, so any number of roles may restore.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from alphac.runtime.coding import CodingError, canonical, decode, encode, parse_json
from alphac.runtime.errors import CheckpointRefused
from alphac.runtime.records import Manifest
from alphac.runtime.tensors import Tensor, read_tensors, write_tensors

Array = npt.NDArray[Any]
FORMAT = 1
MANIFEST, PAYLOAD, HEAD = "manifest.json", "states.safetensors", "HEAD"
MAX_MANIFEST = 64 << 20


class TensorRecord(NamedTuple):
    """One state: its whole shape, and the sha256 of its row-major little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


class CheckpointManifest(NamedTuple):
    """What a checkpoint is. `step` steps are finished: with `seed` it fixes the position in the data and in every
    random stream."""

    format: int
    system: str
    identity: str
    bundle: str
    seed: int
    step: int
    tensors: dict[str, TensorRecord]


@dataclass(frozen=True)
class Checkpoint:
    """A verified manifest and where its payload lies. `name` is the checkpoint's identity."""

    path: Path
    name: str
    manifest: CheckpointManifest


class Store(Protocol):
    """Where checkpoints live."""

    def publish(self, step: int, states: Mapping[str, Array]) -> Checkpoint:
        """Write a checkpoint and make it the newest, all or nothing. Raises CheckpointRefused if it cannot be
        written."""
        ...

    def latest(self) -> Checkpoint:
        """The newest. Raises CheckpointRefused if there is none."""
        ...


class DirectoryStore:
    """Checkpoints of one learning system in a local directory, which is made when the first is published."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory, self._system = directory, manifest

    def publish(self, step: int, states: Mapping[str, Array]) -> Checkpoint:
        target = self.directory / f"step-{step:010d}"
        tensors = {s.name: TensorRecord(s.dtype, s.shape, digest(states[s.name])) for s in self._system.states}
        system = self._system
        manifest = CheckpointManifest(FORMAT, system.system, system.identity, system.bundle, system.seed, step, tensors)
        content = canonical(encode(manifest)) + b"\n"
        made = Checkpoint(target, hashlib.sha256(content).hexdigest(), manifest)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not (target.exists() and _same(target, content)):
                self._write(target, content, states)
            _replace(self.directory / HEAD, canonical({"checkpoint": target.name, "sha256": made.name}) + b"\n")
        except OSError as error:
            raise CheckpointRefused(f"{target} cannot be written: {error.strerror or error}", step=step) from None
        return made

    def _write(self, target: Path, content: bytes, states: Mapping[str, Array]) -> None:
        work = Path(tempfile.mkdtemp(prefix=".writing-", dir=self.directory))
        try:
            save_states(work / PAYLOAD, self._system, states)
            (work / MANIFEST).write_bytes(content)
            for file in (work / MANIFEST, work):
                _sync(file)
            work.chmod(0o755)
            if target.exists():  # damaged, or of another run
                shutil.rmtree(target)
            work.rename(target)
            _sync(self.directory)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise

    def latest(self) -> Checkpoint:
        try:
            head: Any = parse_json((self.directory / HEAD).read_bytes(), HEAD)
            name, identity = head["checkpoint"], head["sha256"]
            if type(name) is not str or Path(name).name != name or name in ("", ".", ".."):
                raise CodingError("an odd name")
        except FileNotFoundError:
            raise CheckpointRefused(f"{self.directory} holds no checkpoint") from None
        except (OSError, CodingError, KeyError, TypeError) as error:
            raise CheckpointRefused(f"{self.directory / HEAD} is damaged: {error}") from None
        found = open_checkpoint(self.directory / name)
        if found.name != identity:
            raise CheckpointRefused(f"{found.path} is not the checkpoint that {HEAD} names")
        return found


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest. Raises CheckpointRefused for anything that is none."""
    try:
        if not path.is_dir():
            raise CheckpointRefused(f"there is no checkpoint {path}")
        file = path / MANIFEST
        if file.stat().st_size > MAX_MANIFEST:
            raise CheckpointRefused(f"{file} is absurdly large")
        content = file.read_bytes()
        manifest = decode(CheckpointManifest, parse_json(content, str(file)), "manifest")
    except OSError as error:
        raise CheckpointRefused(f"{path} is no checkpoint: {error.strerror or error}") from None
    except CodingError as error:
        raise CheckpointRefused(f"{path} is damaged: {error}") from None
    if manifest.format != FORMAT:
        raise CheckpointRefused(f"{path} has format {manifest.format}, this runtime reads {FORMAT}")
    if manifest.step < 0:
        raise CheckpointRefused(f"{path} is damaged: {manifest.step} steps")
    return Checkpoint(path, hashlib.sha256(content).hexdigest(), manifest)


def restore(checkpoint: Checkpoint, system: Manifest, into: Mapping[str, Array]) -> int:
    """Fill `into` with a checkpoint's states, verified first; its step. Raises CheckpointRefused, before anything is
    changed, if it is damaged or of another system."""
    manifest = checkpoint.manifest
    _require_system(checkpoint, system)
    tensors = load_states(checkpoint.path / PAYLOAD, system)
    for name, array in tensors.items():
        record = manifest.tensors.get(name)
        if record is None or record.sha256 != digest(array):
            raise CheckpointRefused(f"{checkpoint.path} is damaged: state `{name}` is not what its manifest says")
    for name, array in tensors.items():
        into[name][...] = array
    return manifest.step


def find_checkpoint(path: Path, system: Manifest) -> Checkpoint:
    """The checkpoint at a path: a checkpoint itself, or the newest of a run directory or a directory of checkpoints.

    Raises CheckpointRefused."""
    for directory in (path, path / "checkpoints"):
        if (directory / HEAD).is_file():
            return DirectoryStore(directory, system).latest()
    return open_checkpoint(path)


def find_start(path: Path | None, system: Manifest) -> Checkpoint:
    """The checkpoint to resume from, as `find_checkpoint` finds it; None: there was no run. Raises CheckpointRefused,
    if it is of another system, too."""
    if path is None:
        raise CheckpointRefused("there is no run to resume", help="give --out, or a checkpoint to --resume")
    found = find_checkpoint(path, system)
    _require_system(found, system)
    return found


def _require_system(checkpoint: Checkpoint, system: Manifest) -> None:
    manifest = checkpoint.manifest
    if (manifest.identity, manifest.seed) != (system.identity, system.seed):
        raise CheckpointRefused(
            f"{checkpoint.path} is of another system: {manifest.system} {manifest.identity[:12]}, "
            f"this is {system.system} {system.identity[:12]}",
            help="the source, a --set or the data changed: resume with a bundle of the same system",
        )


# ---------------------------------------------------------------------- tensors
def save_states(path: Path, system: Manifest, states: Mapping[str, Array]) -> None:
    """Write all states as one safetensors file, parameters first. Raises OSError."""
    order = sorted(system.states, key=lambda s: s.kind != "param")
    tensors = [Tensor(s.name, s.dtype, states[s.name].reshape(s.shape)) for s in order]
    write_tensors(path, tensors, {"system": system.system, "identity": system.identity})


def load_states(path: Path, system: Manifest) -> dict[str, Array]:
    """Read states from a safetensors file. Raises CheckpointRefused if it is damaged or does not hold exactly these."""
    try:
        tensors = read_tensors(path)
    except OSError as error:
        raise CheckpointRefused(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointRefused(f"{path} cannot be read: {error}") from None
    wanted = {record.name for record in system.states}
    if odd := wanted ^ set(tensors):
        name = min(odd)
        raise CheckpointRefused(f"{path} {'lacks' if name in wanted else 'has the unknown'} state `{name}`")
    for record in system.states:
        tensor = tensors[record.name]
        if (tensor.dtype, tensor.array.shape) != (record.dtype, record.shape):
            found, expected = f"{tensor.dtype}{list(tensor.array.shape)}", f"{record.dtype}{list(record.shape)}"
            raise CheckpointRefused(f"{path}: state `{record.name}` is {found}, not {expected}")
    return {name: tensor.array for name, tensor in tensors.items()}


def digest(array: Array) -> str:
    """sha256 of an array's row-major bytes. All NaNs count as one."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def states_digest(system: Manifest, states: Mapping[str, Array]) -> str:
    """One digest over all states: roles with the same one hold the same bits."""
    lines = [f"{s.name} {s.dtype} {list(s.shape)} {digest(states[s.name])}\n" for s in system.states]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# ---------------------------------------------------------------------- files
def _same(target: Path, content: bytes) -> bool:
    try:
        return (target / MANIFEST).read_bytes() == content and (target / PAYLOAD).is_file()
    except OSError:
        return False


def _replace(path: Path, content: bytes) -> None:
    work = path.with_name(f".{path.name}.writing")
    work.write_bytes(content)
    _sync(work)
    os.replace(work, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
