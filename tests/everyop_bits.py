"""Native results against the exact oracle, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from everyop_runs import Runs, part
from numpy.typing import NDArray

Array = NDArray[Any]


def same_bits(found: Array, expected: Array) -> bool:
    """All NaNs are one; zeros are two."""
    if expected.dtype.kind != "f":
        return np.array_equal(found, expected)
    same = (found == expected) & (np.signbit(found) == np.signbit(expected))
    return bool((same | (np.isnan(found) & np.isnan(expected))).all())


def shares_of(shards: int) -> tuple[tuple[int, ...], ...]:
    """How shards are owned: by one role, and unequally by several."""
    several = {1: (1,), 3: (1, 2), 8: (1, 2, 5), 32: (3, 3, 26)}[shards]
    return ((shards,), several) if shards > 1 else (several,)


def check_bits(
    runs: Runs,
    name: str,
    inputs: Sequence[Array],
    expected: Sequence[Array],
    shards: int,
    threads: Iterable[int] = (1, 3),
) -> None:
    """The same bits whoever owns the shards, and with any number of threads."""
    for count in threads:
        for shares in shares_of(shards):
            for i, held in enumerate(runs.run(name, inputs, shards, shares, count)):
                for role, found in held:
                    where = f"{name}, result {i}, shares {shares}, role at {role.first}, {count} threads"
                    assert same_bits(found, part(role, i, expected[i])), where
