"""One table of a fleet file: its values by key, each checked for its kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alphac.diagnostics import Diagnostics, fail, nearest
from alphac.ir.typesys import LANGUAGE_DTYPES
from alphac.toml_text import Key, Toml

UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
MOST = 1e15  # of anything: beyond, a number is a mistake


@dataclass(frozen=True)
class Table:
    """A table at `key`; `what` it is, for messages."""

    toml: Toml
    key: Key
    content: dict[str, Any]
    what: str

    def refuse(self, code: str, message: str, help: str, *key: str) -> Diagnostics:
        """What to raise for a mistake at one of its keys, or of the whole table."""
        return fail(code, message, self.toml.span(*self.key, *key), help)

    def only(self, keys: Sequence[str]) -> None:
        """Raises Diagnostics for any other key."""
        for key in self.content:
            if key not in keys:
                near = nearest(key, keys)
                help = f"did you mean `{near}`?" if near else f"{self.what} has {', '.join(keys)}"
                raise self.refuse("E202", f"unknown key `{key}`", help, key)

    def name(self) -> str:
        """Its `name`, which it must have."""
        found = self.word("name")
        if not found:
            raise self.refuse("E202", f"{self.what} needs a name", 'write name = "…"', "name")
        return found

    def word(self, key: str) -> str:
        """A text; "" if it is not there."""
        found = self.content.get(key, "")
        if not isinstance(found, str) or (key in self.content and not found):
            raise self.refuse("E202", f"`{key}` is no text", f'write {key} = "…"', key)
        return found

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty if it is not there."""
        found = self.content.get(key, [])
        if not isinstance(found, list) or not all(isinstance(w, str) and w for w in found):
            raise self.refuse("E202", f"`{key}` is no list of texts", f'write {key} = ["…", "…"]', key)
        return tuple(found)

    def flag(self, key: str) -> bool:
        found = self.content.get(key, False)
        if not isinstance(found, bool):
            raise self.refuse("E202", f"`{key}` is neither true nor false", f"write {key} = true", key)
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number. Raises Diagnostics if it is not there and has no default."""
        if key not in self.content:
            if default is None:
                raise self.refuse("E202", f"{self.what} needs `{key}`", f"write {key} = 1", key)
            return default
        return self._positive(self.content[key], key)

    def _positive(self, found: Any, key: str) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < MOST:
            raise self.refuse("E202", f"`{key}` must be a positive number", f"write {key} = 1", key)
        return float(found)

    def whole(self, key: str, default: int) -> int:
        """A whole number from 1 on."""
        found = self.number(key, float(default))
        if found != int(found):
            raise self.refuse("E202", f"`{key}` must be a whole number", f"write {key} = 2", key)
        return int(found)

    def numbers(self, key: str) -> dict[str, float]:
        """Positive numbers by element type: `{ f32 = 115, bf16 = 230 }`; empty if it is not there."""
        found = self.content.get(key, {})
        if not isinstance(found, dict):
            raise self.refuse("E202", f"`{key}` is no table by element type", f"write {key} = {{ f32 = 100 }}", key)
        for dtype in found:
            if dtype not in LANGUAGE_DTYPES:
                help = f"there are {', '.join(LANGUAGE_DTYPES)}"
                raise self.refuse("E202", f"`{key}`: `{dtype}` is no element type", help, key, dtype)
        return {dtype: self._positive(rate, key) for dtype, rate in found.items()}

    def size(self, key: str) -> int:
        """Bytes, written `"64 GB"`; 0 if it is not there."""
        if key not in self.content:
            return 0
        found = self.content[key]
        match = _SIZE.fullmatch(found.strip()) if isinstance(found, str) else None
        size = int(float(match[1]) * UNITS.get(match[2], 0)) if match else 0
        if not 0 < size < MOST * 1000:
            raise self.refuse(
                "E202", f"`{key}` must be a size", f'write {key} = "64 GB"; units: {", ".join(UNITS)}', key
            )
        return size
