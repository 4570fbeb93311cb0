"""exp, log and tanh at every f32 there is, as native code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from everyop_native import Batch
from gradcheck import function
from numpy.typing import NDArray

from alphac.backends.registry import host_target
from alphac.ir.ops import DEFINITIONS
from alphac.ir.typesys import F32, Dim, TensorType

Array = NDArray[Any]
CHUNK = Dim("n", 1 << 16)  # fits into the cache with all that is made of it
EVERY = range(0, 1 << 32, CHUNK.size)
SAMPLE = EVERY[::251]  # of all exponents and both signs
EXPONENT = np.int64(0x7FF << 52)
SMALLEST = np.int64((1023 - 126) << 52)  # of the smallest normal f32, as a float64's exponent
MANTISSA = np.int64(23 << 52)
HAIR = 1e-6  # NumPy's own error in float64, and more

REAL: dict[str, Callable[[Array], Array]] = {"exp": np.exp, "log": np.log, "tanh": np.tanh}


def largest_error(found: Array, real: Array) -> float:
    """In units of the last place that the real value, a float64, has in f32. Infinite where one is NaN and the other is
    not, or where zeros differ in sign. Overflow counts as 2^128."""
    bounded, clipped = np.clip(found.astype(np.float64), -(2.0**128), 2.0**128), np.clip(real, -(2.0**128), 2.0**128)
    units = (np.maximum(clipped.view(np.int64) & EXPONENT, SMALLEST) - MANTISSA).view(np.float64)
    distances = np.abs(bounded - clipped) / units
    numbers = ~np.isnan(clipped)
    zeros = clipped == 0
    if (np.isnan(found) == numbers).any() or (np.signbit(found[zeros]) != np.signbit(clipped[zeros])).any():
        return np.inf
    return float(distances.max(where=numbers, initial=0.0))


@pytest.mark.parametrize(
    "chunks", [pytest.param(SAMPLE, id="sample"), pytest.param(EVERY, marks=pytest.mark.slow, id="every")]
)
@pytest.mark.parametrize("op", REAL)
def test_every_float(op: str, chunks: range, record_property: Callable[[str, object], None]) -> None:
    made = function([TensorType(F32, (CHUNK,))], lambda b, x: b(op, x))
    places = np.arange(CHUNK.size, dtype=np.uint32)
    worst, at = 0.0, 0
    with Batch({op: made}, host_target()) as native, np.errstate(all="ignore"):
        for start in chunks:
            x = (places + np.uint32(start)).view(np.float32)
            error = largest_error(native.whole(op, [x])[0], REAL[op](x.astype(np.float64)))
            if not error <= worst:
                worst, at = error, start
    record_property("largest error in ulp", worst)
    assert worst <= DEFINITIONS[op].ulp + HAIR, f"{worst} ulp among the floats from bits {at:#010x}"
