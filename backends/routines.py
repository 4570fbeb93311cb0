"""What the vector routines do that kernels' source calls (loops.py, simd_windows.py), for `count.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from alphac.backends import loops, simd_windows

ROUTINE = re.compile(rf"(?:{loops.NAME.pattern})|(?:{simd_windows.NAME.pattern})")
UNKNOWN = 16  # turns that are taken for a number that is not known
LANES = 16  # of a reduction


def done_by(name: str, given: Sequence[Any], lanes: int, bits: int) -> dict[str, float]:
    """What a call does. `given`: its arguments, as far as they are numbers that are known; `lanes`: f32 elements of a
    vector; `bits` of an element."""
    count = max(1, lanes * 32 // bits)
    at = [UNKNOWN if g is None else int(g) for g in given]
    kind, _, shape = name.partition("_")
    numbers = [int(n) for n in re.findall(r"\d+", shape)]
    match kind:
        case "multiply" | "pairs":
            return _tile(numbers[0], numbers[1], at[1], at[10])
        case "windows":
            return _tile(numbers[0] * numbers[2], numbers[4], at[1], at[9])
        case "lanes":
            turns = -(-at[2] // LANES)
            if shape == "add":
                return {"folds": 1, "chain": turns, "moved": turns * LANES / count}
            return {"folds": 4, "chain": 4 * turns, "moved": turns * LANES / count}
        case "columns":
            vectors = -(-at[5] // count)
            return {"calls": 1, "vector": vectors * (at[4] + LANES - 1), "moved": vectors * at[4]}
        case "copy":
            return {"calls": 1, "moved": 2 * at[5] * -(-numbers[0] // count)}
        case "transpose":
            squares = numbers[0] * -(-at[5] // count)
            return {"calls": 1, "shuffled": squares * count}
        case "dots":
            rows, terms = at[5], at[6]
            return {"calls": 1, "shuffled": -(-rows // count) * terms, "tile": -(-rows // count) * terms * numbers[0]}
        case "chains":
            terms = at[9] * numbers[0] * numbers[1]
            return {"calls": 1, "tile": terms, "feed": at[9] * (numbers[0] + numbers[1])}
        case "fetch":
            return {"element": numbers[0]}
        case _:  # narrow_words, interleave_words
            return {"calls": 1, "moved": 2 * at[-1] / count}


def _tile(height: int, vectors: int, terms: int, merges: int) -> dict[str, float]:
    """One leaf of a register tile."""
    return {
        "calls": 1,
        "tile": terms * height * vectors,
        "feed": terms * (height + vectors),
        "sums": height * vectors * (1 + merges),
        "terms": terms,
    }
