"""The vector loops by the names that source uses."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from alphac.backends.microkernel import multiply
from alphac.backends.pairs import interleave, multiply_pairs, narrow
from alphac.backends.simd import copy, fetch_lines, lanes, transpose
from alphac.backends.simd_columns import columns
from alphac.backends.simd_rows import chains, dots

NAME = re.compile(
    r"\b(?:(?:lanes|columns)_(?:add|minimum|maximum)|copy_\d+|transpose_\d+|(?:multiply|pairs)_\d+x\d+m?(?:p\d)?"
    r"|fetch_\d+|dots_\d+|chains_\d+x\d+|narrow_words|interleave_words)\b"
)


def vector_loops(source: str, lanes_: int) -> dict[str, Any]:
    """The loops that a source calls, for a vector width in f32 elements."""
    return {name: vector_loop(name, 4 * lanes_) for name in set(NAME.findall(source))}


@cache
def vector_loop(name: str, width: int) -> Callable[..., Any]:
    """One loop, for vectors of `width` bytes."""
    kind, _, shape = name.partition("_")
    if kind == "lanes":
        return lanes(shape, width)
    if kind == "columns":
        return columns(shape, width)
    if kind == "dots":
        return dots(int(shape), width)
    if kind == "chains":
        height, vectors = shape.split("x")
        return chains(int(height), int(vectors), width)
    if kind == "fetch":
        return fetch_lines(int(shape))
    if kind == "narrow":
        return narrow
    if kind == "interleave":
        return interleave
    if kind in ("multiply", "pairs"):
        tile, _, lines = shape.partition("p")
        height, vectors = tile.rstrip("m").split("x")
        make = multiply if kind == "multiply" else multiply_pairs
        return make(int(height), int(vectors), tile.endswith("m"), int(lines or 0), width)
    return (copy if kind == "copy" else transpose)(int(shape), width)
