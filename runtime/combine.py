"""Two subtrees' values into their parent's, elementwise: the same bits as the compiled `combine` ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Combine = Callable[[Array, Array], Array]
_SIGNED = {"f32": np.dtype(np.uint32), "f64": np.dtype(np.uint64)}


def combine(kind: str, dtype: str) -> Combine:
    """The function for a kind (sum, max, min) on arrays in a dtype's storage. Sums of floats round once, of integers
    wrap; max and min are IEEE-754-2019's maximum and minimum (NaN wins, −0 < +0)."""
    if dtype == "bf16":
        wide = combine(kind, "f32")
        return lambda a, b: narrow(wide(widen(a), widen(b)))
    if kind == "sum":
        return _add
    if dtype not in _SIGNED:
        return _larger if kind == "max" else _smaller
    return _maximum(_SIGNED[dtype]) if kind == "max" else _minimum(_SIGNED[dtype])


def _add(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.add(a, b), a.dtype)


def _larger(a: Array, b: Array) -> Array:
    return np.maximum(a, b)


def _smaller(a: Array, b: Array) -> Array:
    return np.minimum(a, b)


def _maximum(bits: np.dtype[Any]) -> Combine:
    def maximum(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            both = (a.view(bits) & b.view(bits)).view(a.dtype)  # where equal: the same bits, or the zero that is +0
            return np.where(a == b, both, np.where((a > b) | np.isnan(a), a, b))

    return maximum


def _minimum(bits: np.dtype[Any]) -> Combine:
    def minimum(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            both = (a.view(bits) | b.view(bits)).view(a.dtype)
            return np.where(a == b, both, np.where((a < b) | np.isnan(a), a, b))

    return minimum


def widen(x: Array) -> Array:
    """bf16 bits (u16) as f32: exact."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(x: Array) -> Array:
    """f32 as bf16 bits, rounded to nearest even; a NaN stays one."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)
