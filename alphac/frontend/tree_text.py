"""The syntax tree as text, for `--emit tree`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from alphac.frontend import tree


def tree_text(node: tree.Node) -> str:
    """One node per line, children indented; places as LINE:COLUMN."""
    return "\n".join(_lines(node, "")) + "\n"


def _lines(node: tree.Node, label: str) -> Iterator[str]:
    parts = [(f.name, getattr(node, f.name)) for f in fields(node) if f.name not in ("span", "source")]
    inner = [(name, child) for name, value in parts for child in _children(value)]
    plain = " ".join(f"{name}={value!r}" for name, value in parts if not _children(value) and value not in ((), None))
    yield f"{label}{type(node).__name__} {plain} @{node.span.line}:{node.span.column}".replace("  ", " ")
    for name, child in inner:
        yield from (f"  {line}" for line in _lines(child, f"{name}: "))


def _children(value: Any) -> list[tree.Node]:
    if isinstance(value, tree.Node):
        return [value]
    return [child for item in value for child in _children(item)] if isinstance(value, tuple) else []
