"""One role as one executable archive: the runtime's own sources, the role's records, its object and its data.

    python digits-1.pyz --join HOST:PORT

The archive needs Python with numpy and llvmlite, and nothing of alphac's: no compiler, no installed package. When run
it unpacks itself into a fresh temporary directory (code is linked and data is mapped from files) and removes it at the
end.
"""

from __future__ import annotations

import io
import stat
import zipfile
from contextlib import suppress
from pathlib import Path

from alphac.runtime.bundle import MAIN, MANIFEST, Bundle, read_bundle, section_digest
from alphac.runtime.coding import canonical, encode
from alphac.runtime.errors import InputRefused
from alphac.runtime.groups import ROOT
from alphac.runtime.records import Manifest, Withheld

SHEBANG = b"#!/usr/bin/env python3\n"
ENTRY = '''"""Role {role} of {system}: run with `python ARCHIVE [--join HOST:PORT] [--steps N] [--out RUNDIR] …`."""

import sys
import tempfile
import zipfile
from pathlib import Path

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="alphac-") as folder:
        with zipfile.ZipFile(Path(__file__).parent) as archive:
            archive.extractall(folder)
        sys.path.insert(0, folder)
        from alphac.runtime.main import main

        code = main(["role", str(Path(folder) / "bundle"), "--role", "{role}", *sys.argv[1:]])
    sys.exit(code)
'''
PACKAGE = '"""alphac, as far as a role needs it."""\n'


def extract(bundle_path: Path | str, role: int, output: Path | None = None) -> Path:
    """Write one role of a bundle as an executable archive; default NAME-K.pyz. Returns its path.

    Raises BundleRefused, DataRefused for a damaged bundle, InputRefused if the archive exists or cannot be written."""
    bundle = read_bundle(bundle_path)
    bundle.role(role)
    path = output or Path(f"{bundle.manifest.system}-{role}.pyz")
    if path.exists():
        raise InputRefused(f"{path} exists", help="give another -o")
    try:
        path.write_bytes(SHEBANG + _archive(bundle, role))
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise InputRefused(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def projected(manifest: Manifest, role: int) -> Manifest:
    """The manifest with only what one role needs; its identity is the same. The root keeps all roles' records, because
    it must know who contributes what."""
    mine = manifest.roles[role]
    own = -1 if isinstance(mine, Withheld) else mine.role_class
    return manifest._replace(
        classes=tuple(c if k == own else Withheld(section_digest(c)) for k, c in enumerate(manifest.classes)),
        roles=tuple(r if role in (ROOT, k) else Withheld(section_digest(r)) for k, r in enumerate(manifest.roles)),
    )


def _archive(bundle: Bundle, role: int) -> bytes:
    manifest = projected(bundle.manifest, role)
    record = bundle.class_of(bundle.role(role).role_class)
    names = [MAIN, record.object, *(data.path for data in manifest.data.values())]
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", ENTRY.format(role=role, system=manifest.system).encode())
        _add(archive, "alphac/__init__.py", PACKAGE.encode())
        source = Path(__file__).parent
        for file in sorted(source.rglob("*.py")):
            _add(archive, f"alphac/runtime/{file.relative_to(source).as_posix()}", file.read_bytes())
        _add(archive, f"bundle/{MANIFEST}", canonical(encode(manifest)) + b"\n")
        for name in dict.fromkeys(names):
            _add(archive, f"bundle/{name}", bundle.read(name))
    return written.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file with a fixed date, so that the same role gives the same archive."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.external_attr = (0o644 & 0o777) << 16
    archive.writestr(info, content)
