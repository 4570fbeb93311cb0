"""TOML with the places of its keys: `tomllib` reads the values, this file finds where they are written."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alphac.diagnostics import Diagnostics, fail
from alphac.ir.span import Span

Key = tuple[str | int, ...]

_PART = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
_SKIPPED = re.compile(r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL)
_AT = re.compile(r"\(at line (\d+), column (\d+)\)")


@dataclass(frozen=True)
class Toml:
    """A file's values, and where its keys and tables stand."""

    file: str
    content: dict[str, Any]
    places: dict[Key, Span]

    def span(self, *key: str | int) -> Span | None:
        """Where a key is written; of one that is not, where the table is that lacks it."""
        while key:
            if key in self.places:
                return self.places[key]
            key = key[:-1]
        return None


def read_toml(path: Path, *, missing: str, help: str) -> Toml:
    """Read a file. Raises Diagnostics (E207) with the line of a mistake; `missing` is what to do if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise fail("E207", f"there is no fleet file {path}", None, missing) from None
    except (UnicodeDecodeError, OSError) as error:
        raise fail("E207", f"{path} is no readable TOML: {error}", None, help) from error
    text = text.replace("\r\n", "\n")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, str(error), text, help) from error
    return Toml(str(path), content, _Scanner(text, str(path)).run())


def _syntax(path: Path, message: str, text: str, help: str) -> Diagnostics:
    found = _AT.search(message)
    line, column = (int(found[1]), int(found[2])) if found else (text.count("\n") + 1, 1)
    reason = message[: found.start()].strip() if found else message.removesuffix(" (at end of document)")
    return fail("E207", f"no TOML: {reason}", Span(str(path), line, column, line, column + 1), help)


class _Scanner:
    """Walks over the statements of a text that is known to be TOML."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file, self.at = text, file, 0
        self.places: dict[Key, Span] = {}
        self.counts: dict[Key, int] = {}  # tables of each array so far
        self.table: Key = ()

    def run(self) -> dict[Key, Span]:
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in " \t\n":
                self.at += 1
            elif character == "#":
                self.at = self._line_end()
            elif character == "[":
                self._header()
            else:
                self._note(self.at, (*self.table, *self._key()))
                self._value()
        return self.places

    def _header(self) -> None:
        start, array = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        parts = self._key()
        key: Key = ()
        for number, part in enumerate(parts):
            key = (*key, part)
            if array and number == len(parts) - 1:
                self.counts[key] = self.counts.get(key, 0) + 1
                self._note(start, key)
            if key in self.counts:
                key = (*key, self.counts[key] - 1)
        self.table = key
        self._note(start, key)
        self.at = self._line_end()

    def _key(self) -> list[str]:
        parts: list[str] = []
        while found := _PART.match(self.text, self.at):
            parts.append(found[1].strip("\"'"))
            self.at = found.end()
            if not self.text.startswith(".", self.at):
                break
            self.at += 1
        return parts

    def _value(self) -> None:
        """To the end of the line on which the value ends."""
        depth = 0
        while self.at < len(self.text):
            skipped = _SKIPPED.match(self.text, self.at)
            if skipped:
                self.at = skipped.end()
                continue
            character = self.text[self.at]
            if character == "\n" and depth == 0:
                return
            depth += (character in "[{") - (character in "]}")
            self.at += 1

    def _note(self, start: int, key: Key) -> None:
        line = self.text.count("\n", 0, start) + 1
        column = start - self.text.rfind("\n", 0, start)
        stop = column + len(self.text[start : self._line_end(start)].split("=", 1)[0].split("#", 1)[0].rstrip())
        self.places.setdefault(key, Span(self.file, line, column, line, max(stop, column + 1)))

    def _line_end(self, start: int | None = None) -> int:
        end = self.text.find("\n", self.at if start is None else start)
        return len(self.text) if end < 0 else end
