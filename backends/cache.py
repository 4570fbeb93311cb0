"""A cache of compiled code by content, in the user's cache directory.

An entry is a file: the SHA-256 of its payload, then the payload. It is written under another name and moved into
place, so that a reader never sees half of one; an entry that does not match its digest counts as absent. A directory
that cannot be used means no cache, not an error.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KEPT = 30 * 24 * 3600  # seconds after its last use that an entry is kept


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/alphac`, or `~/.cache/alphac`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "alphac"


@dataclass(frozen=True)
class Cache:
    """Payloads by key (a hexadecimal digest of everything that determines the payload)."""

    directory: Path

    def get(self, key: str) -> bytes | None:
        """The payload, or None if it is absent or damaged."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            if len(data) < 32 or hashlib.sha256(data[32:]).digest() != data[:32]:
                return None
            os.utime(path)
            return data[32:]
        except OSError:
            return None

    def put(self, key: str, payload: bytes) -> None:
        """Store a payload; silently nothing if the directory cannot be written."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(payload).digest() + payload)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError:
            return

    def prune(self) -> None:
        """Remove entries not used for `KEPT` seconds."""
        oldest = time.time() - KEPT
        try:
            for path in self.directory.glob("??/*"):
                if path.stat().st_mtime < oldest:
                    path.unlink()
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / key[2:]


@cache
def code_version() -> str:
    """A digest of what turns a kernel's source into code: the files of this folder and below, Numba and llvmlite."""
    import llvmlite
    import numba

    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
