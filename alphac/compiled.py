"""Bundles compiled before, by content: the same source, overrides, plan and compiler give the same bundle, so its files
are kept in the user's cache. Data are not kept; they must be what they were."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from alphac.backends.cache import Cache, cache_directory
from alphac.ir.core import Module
from alphac.runtime.bundle import MANIFEST, Bundle, Manifest, write_bundle
from alphac.runtime.coding import decode, parse_json
from alphac.runtime.errors import BundleRefused

_SOURCES = (".py", ".lark", ".alpha")
_ENTRY = "entry.json"  # beside the bundle's files: what a bundle's manifest does not say


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A written bundle."""

    path: Path
    summary: str


def key(path: Path, text: str, overrides: Mapping[str, str], plan: str) -> str:
    """What identifies a compilation, but for its data. `path` is part of it: messages at run time name it."""
    settings = json.dumps([str(path), text, sorted(overrides.items()), plan])
    return hashlib.sha256(f"{_compiler()}\0{settings}".encode()).hexdigest()


class DataChanged(Exception):
    """A bundle compiled before had other data."""


@dataclasses.dataclass(frozen=True)
class Known:
    """A bundle compiled before, ready to be written again."""

    manifest: Manifest
    files: Mapping[str, bytes | Path]
    summary: str

    @property
    def system(self) -> str:
        """The system's name."""
        return self.manifest.system

    def write(self, directory: Path) -> Compiled:
        """Write it. Raises DataChanged, FileExistsError, OSError."""
        try:
            bundle = write_bundle(directory, self.manifest, self.files, identity=self.manifest.bundle)
        except BundleRefused as error:
            raise DataChanged from error
        return Compiled(bundle.path, self.summary)


def recall(key: str, sources: Path) -> Known | None:
    """The bundle compiled before under a key, if there is one and its data are there; their paths are relative to
    `sources`."""
    payload = Cache(cache_directory()).get(key)
    if payload is None:
        return None
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    entry = json.loads(contents.pop(_ENTRY))
    manifest: Manifest = decode(Manifest, parse_json(contents.pop(MANIFEST), key), "manifest")
    files: dict[str, bytes | Path] = dict(contents)
    files |= {name: sources / path for name, path in entry["data"].items()}
    if not all(content.is_file() for content in files.values() if isinstance(content, Path)):
        return None
    return Known(manifest, files, entry["summary"])


def remember(key: str, bundle: Bundle, module: Module, summary: str) -> Compiled:
    """Keep a bundle that was just written."""
    manifest = bundle.manifest
    data = {manifest.data[name].path: declared.path for name, declared in module.data.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(_ENTRY, json.dumps({"summary": summary, "data": data}))
        for name in [MANIFEST, *(n for n in manifest.files if n not in data)]:
            archive.write(bundle.path / name, name)
    store = Cache(cache_directory())
    store.put(key, buffer.getvalue())
    store.prune()
    return Compiled(bundle.path, summary)


@cache
def _compiler() -> str:
    """A digest of the compiler: its own files, and the packages that decide what it makes."""
    packages = [f"{name} {version(name)}" for name in ("llvmlite", "numba", "numpy", "lark")]
    digest = hashlib.sha256("\n".join(packages).encode())
    root = Path(__file__).parent
    folders = os.walk(root, followlinks=True)
    files = [Path(folder, name) for folder, _, names in folders for name in names if name.endswith(_SOURCES)]
    for file in sorted(files):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
