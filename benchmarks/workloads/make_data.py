"""Makes the data of the reference workloads: the same bytes on every machine.

    python benchmarks/workloads/make_data.py [W1 … W6]

Writes data/wN.npz beside this file, for the workloads named (by number, or by their file) or for all. W1 learns
handwritten digits, rows in the order of examples/data/digits.npz; all others learn numbers that a formula makes from a
seed and their place, so that the workloads are an algorithm which any implementation can reproduce.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
HERE = Path(__file__).parent
DATA = HERE / "data"
DIGITS = HERE.parents[1] / "examples" / "data" / "digits.npz"
INPUTS, TARGETS = 900, 901  # added to 1,000 × the workload's number: a seed


def bits(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """64 random bits per index: SplitMix64's finalizer of the index, from a state of its own for each seed."""
    z = (np.arange(count, dtype=np.uint64) + np.uint64((seed << 32) + 1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def unit(seed: int, *shape: int) -> Array:
    """Float32s in [−1, 1), multiples of 2⁻²³: exact."""
    high = (bits(seed, math.prod(shape)) >> np.uint64(40)).astype(np.float32)
    return (high * np.float32(2.0**-23) - np.float32(1)).reshape(shape)


def below(seed: int, limit: int, *shape: int) -> Array:
    """Int32s from 0 to limit − 1."""
    return ((bits(seed, math.prod(shape)) >> np.uint64(33)) % np.uint64(limit)).astype(np.int32).reshape(shape)


def small_mlp(seed: int) -> dict[str, Array]:
    with np.load(DIGITS) as digits:
        images, labels = digits["images"][: 28 * 64], digits["labels"][: 28 * 64]
    return {"images": images.astype(np.float32) / np.float32(16), "labels": labels}


def mlp(seed: int) -> dict[str, Array]:
    return {"images": unit(seed + INPUTS, 8 * 128, 784), "labels": below(seed + TARGETS, 10, 8 * 128)}


def wide_mlp(seed: int) -> dict[str, Array]:
    return {"inputs": unit(seed + INPUTS, 4 * 256, 1024), "targets": unit(seed + TARGETS, 4 * 256, 1024)}


def cnn(seed: int) -> dict[str, Array]:
    return {"images": unit(seed + INPUTS, 8 * 64, 28, 28, 1), "labels": below(seed + TARGETS, 10, 8 * 64)}


def gpt(seed: int) -> dict[str, Array]:
    """Sequences of 129 tokens: all but the last, and all but the first."""
    drawn = below(seed + INPUTS, 96, 4 * 16, 129)
    return {"tokens": drawn[:, :-1], "next": drawn[:, 1:]}


def logistic(seed: int) -> dict[str, Array]:
    """Whether the first two features sum to more than 0."""
    x = unit(seed + INPUTS, 1_000_000, 32)
    return {"inputs": x, "targets": (x[:, 0].astype(np.float64) + x[:, 1] > 0).astype(np.float32)}


MAKERS: dict[str, Callable[[int], dict[str, Array]]] = {
    "W1": small_mlp,
    "W2": mlp,
    "W3": wide_mlp,
    "W4": cnn,
    "W5": gpt,
    "W6": logistic,
}


def make(name: str) -> Path:
    """Write one workload's file."""
    path = DATA / f"{name.lower()}.npz"
    DATA.mkdir(exist_ok=True)
    columns = {key: np.ascontiguousarray(array) for key, array in MAKERS[name](1000 * int(name[1:])).items()}
    np.savez(path, allow_pickle=False, **columns)
    return path


def main() -> None:
    names = [Path(word).stem.upper() for word in sys.argv[1:]] or list(MAKERS)
    unknown = [name for name in names if name not in MAKERS]
    if unknown:
        sys.exit(f"there is no workload {', '.join(unknown)}; there are {', '.join(MAKERS)}")
    for name in names:
        print(make(name))


if __name__ == "__main__":
    main()
