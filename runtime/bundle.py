"""The bundle's format, owned by its reader: a directory with `manifest.json` and the files that it names.

The manifest's records are in `records.py`. Its identity, `bundle`, is a digest over the digests of its sections, one
per class and per role: so the manifest of an extracted role, which withholds the others' records, has the same
identity.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from alphac.runtime.check import check_manifest
from alphac.runtime.coding import CodingError, canonical, decode, encode, parse_json
from alphac.runtime.errors import BundleRefused, DataRefused
from alphac.runtime.records import (
    FORMAT,
    ITEM_BYTES,
    BufferRecord,
    ClassRecord,
    ColumnRecord,
    DataRecord,
    EvaluationRecord,
    FileRecord,
    GrainRecord,
    KernelRecord,
    LoopRecord,
    Manifest,
    PortRecord,
    ProgramPlan,
    ProgramRecord,
    RoleRecord,
    StateRecord,
    StepRecord,
    StrandRecord,
    TrainingRecord,
    Withheld,
)

__all__ = [
    "FORMAT",
    "ITEM_BYTES",
    "MANIFEST",
    "BufferRecord",
    "Bundle",
    "ClassRecord",
    "ColumnRecord",
    "DataRecord",
    "EvaluationRecord",
    "FileRecord",
    "GrainRecord",
    "KernelRecord",
    "LoopRecord",
    "Manifest",
    "PortRecord",
    "ProgramPlan",
    "ProgramRecord",
    "RoleRecord",
    "StateRecord",
    "StepRecord",
    "StrandRecord",
    "TrainingRecord",
    "Withheld",
    "bundle_identity",
    "file_digest",
    "read_bundle",
    "record_from",
    "safe_path",
    "write_bundle",
]

MANIFEST = "manifest.json"
MAIN = "__main__.py"
MAX_MANIFEST = 256 << 20
ENTRY = b'''"""Runs one role of this bundle, where alphac is installed: python BUNDLE --role K"""

import sys
from pathlib import Path

from alphac.runtime.main import main

sys.exit(main(["role", str(Path(__file__).resolve().parent), *sys.argv[1:]]))
'''


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its manifest is checked, and the files that were asked for are verified."""

    path: Path
    manifest: Manifest

    def role(self, number: int) -> RoleRecord:
        """A role's record. Raises BundleRefused if there is no such role here."""
        roles = self.manifest.roles
        if not 0 <= number < len(roles):
            raise BundleRefused(f"there is no role {number}: {self.path} has roles 0 to {len(roles) - 1}")
        record = roles[number]
        if isinstance(record, Withheld):
            raise BundleRefused(f"{self.path} was extracted for another role than {number}")
        return record

    def class_of(self, number: int) -> ClassRecord:
        """A class's record by its index. Raises BundleRefused if it is not here."""
        classes = self.manifest.classes
        record = classes[number] if 0 <= number < len(classes) else None
        if not isinstance(record, ClassRecord):
            raise BundleRefused(f"{self.path} does not hold class {number}")
        return record

    def all_roles(self) -> list[RoleRecord]:
        """Every role's record. Raises BundleRefused in an extracted role that is not the root."""
        return [self.role(k) for k in range(len(self.manifest.roles))]

    def file(self, name: str) -> Path:
        """The path of a file of the bundle. Raises BundleRefused if the manifest does not name it."""
        if name not in self.manifest.files:
            raise BundleRefused(f"{self.path} has no file `{name}`")
        return safe_path(self.path, name)

    def read(self, name: str) -> bytes:
        """A file's bytes, verified. Raises BundleRefused."""
        path, record = self.file(name), self.manifest.files[name]
        try:
            with path.open("rb") as stream:
                content = stream.read(record.bytes + 1)
        except OSError as error:
            raise BundleRefused(f"{path}: {error.strerror or error}") from None
        if len(content) != record.bytes or hashlib.sha256(content).hexdigest() != record.sha256:
            raise _edited(path)
        return content

    def verify(self, name: str) -> Path:
        """A file's path, after its digest was found right. Raises DataRefused for data, BundleRefused for others."""
        path, record = self.file(name), self.manifest.files[name]
        is_data = any(d.path == name for d in self.manifest.data.values())
        try:
            if path.stat().st_size == record.bytes and file_digest(path) == record.sha256:
                return path
        except OSError as error:
            message = f"{path}: {error.strerror or error}"
            raise DataRefused(message) if is_data else BundleRefused(message) from None
        if is_data:
            raise DataRefused(
                f"{path} is not the data that this bundle was compiled with", help="restore the file, or compile again"
            )
        raise _edited(path)


def _edited(path: Path) -> BundleRefused:
    return BundleRefused(f"{path} is not what the manifest says", help="bundles are not edited: compile again")


def read_bundle(path: Path | str, *, verify: bool = True) -> Bundle:
    """Open a bundle. With `verify` every file's digest is checked; without, a role's files are checked as it reads
    them.

    Raises BundleRefused for anything that is not a whole, unedited bundle of this format; DataRefused for its data."""
    root = Path(path)
    manifest = _read_manifest(root)
    bundle = Bundle(root, manifest)
    if verify:
        for name in manifest.files:
            bundle.verify(name)
    return bundle


def _read_manifest(root: Path) -> Manifest:
    file = root / MANIFEST
    try:
        if not root.is_dir():
            raise BundleRefused(f"there is no bundle {root}", help="`alphac compile` writes one")
        size = file.stat().st_size
        if size > MAX_MANIFEST:
            raise BundleRefused(f"{file} is absurdly large: {size} bytes")
        content = file.read_bytes()
    except FileNotFoundError:
        raise BundleRefused(f"{root} is no bundle: it has no {MANIFEST}") from None
    except OSError as error:
        raise BundleRefused(f"{file}: {error.strerror or error}") from None
    try:
        value = parse_json(content, str(file))
        version = cast("dict[str, Any]", value).get("format", FORMAT) if isinstance(value, dict) else None
        if version != FORMAT:
            raise BundleRefused(f"{file} has format {version!r}, this runtime reads {FORMAT}", help="compile again")
        manifest = decode(Manifest, value, "manifest")
        if _identity(cast("dict[str, Any]", value)) != manifest.bundle:
            raise _edited(file)
        check_manifest(manifest)
    except CodingError as error:
        raise BundleRefused(str(error), help="compile again") from None
    return manifest


def bundle_identity(manifest: Manifest) -> str:
    """sha256 over the digests of the manifest's sections; equal for a bundle and every role extracted from it."""
    return _identity(encode(manifest))


def _identity(manifest: Mapping[str, Any]) -> str:
    """The same of an encoded manifest."""
    apart = ("bundle", "classes", "roles", "files")
    sections = {
        "common": _digest({name: value for name, value in manifest.items() if name not in apart}),
        "classes": [_digest(record) for record in manifest["classes"]],
        "roles": [_digest(record) for record in manifest["roles"]],
        "files": {name: [f["sha256"], f["bytes"]] for name, f in manifest.get("files", {}).items()},
    }
    return hashlib.sha256(canonical(sections)).hexdigest()


def section_digest(record: Any) -> str:
    """sha256 of one record; of a withheld one, what it says."""
    return _digest(encode(record))


def _digest(section: Mapping[str, Any]) -> str:
    withheld: str | None = section.get("withheld")
    return hashlib.sha256(canonical(section)).hexdigest() if withheld is None else withheld


def write_bundle(
    directory: Path | str, manifest: Manifest, files: Mapping[str, bytes | Path], *, identity: str = ""
) -> Bundle:
    """Write a bundle: `files` by their names in it (bytes, or a path to copy). `manifest.files` and `manifest.bundle`
    are filled in. All or nothing: the directory appears whole. Raises FileExistsError if it is there already,
    ValueError for a manifest that a reader would refuse, BundleRefused if it would not have the `identity` asked for,
    OSError."""
    import shutil  # a role that starts has no use for these
    import tempfile

    directory = Path(directory)
    if directory.exists():
        raise FileExistsError(f"{directory} exists")
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        records: dict[str, FileRecord] = {}
        for name, content in {MAIN: ENTRY, **files}.items():
            path = safe_path(work, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, path)
            else:
                path.write_bytes(content)
            records[name] = FileRecord(file_digest(path), path.stat().st_size)
        made = manifest._replace(files=records, format=FORMAT, bundle="")
        made = made._replace(bundle=bundle_identity(made))
        if identity and made.bundle != identity:
            raise BundleRefused(f"{directory} would not be the bundle {identity}")
        check_manifest(made)
        (work / MANIFEST).write_bytes(canonical(encode(made)) + b"\n")
        work.chmod(0o755)
        work.rename(directory)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return Bundle(directory, made)


def record_from(kind: type[Any], value: Any) -> Any:
    """A record from the dict that a backend emitted. Raises CodingError."""
    return decode(kind, _lists(value), kind.__name__)


def _lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def safe_path(root: Path, name: str) -> Path:
    """`root / name` for a name that stays inside. Raises BundleRefused for absolute names, `..`, and links that
    leave."""
    pure = PurePosixPath(name)
    odd = (
        not pure.parts or "\\" in name or "\0" in name or pure.is_absolute() or str(pure) != name or ".." in pure.parts
    )
    if odd or len(name) > 1024 or name == MANIFEST:
        raise BundleRefused(f"`{name[:80]}` is no name of a file in a bundle")
    path = root / pure
    base, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([base, real]) != base:
        raise BundleRefused(f"`{name}` leads out of {root}")
    return path


def file_digest(path: Path) -> str:
    """sha256 of a file's content, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
