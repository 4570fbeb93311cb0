"""Makes the files of examples/data again, byte for byte, from their sources.

Nobody needs this to use alphac: the files are in the repository. It is here to say exactly how they were made.

    pip install scikit-learn                          # carries copies of the UCI data sets
    apt-get install bible-kjv bible-kjv-text          # Debian's King James Bible
    python scripts/make_data.py examples/data
"""

from __future__ import annotations

import csv
import hashlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np

BIBLE_BYTES = 1 << 20
RING_POINTS = 2048
RING_MODES = 8
RING_RADIUS = 2.0
RING_DEVIATION = 0.05


def digits(folder: Path) -> Path:
    """digits.npz: images u8[1797, 64] of values 0 to 16, labels i32[1797]. Stored, not compressed: it can be mapped."""
    from sklearn.datasets import load_digits

    source = load_digits()
    path = folder / "digits.npz"
    np.savez(path, images=source.data.astype(np.uint8), labels=source.target.astype(np.int32))
    return path


def table(folder: Path, name: str) -> Path:
    """NAME.csv: a header; then features, in shortest decimals that read back equal, and the label."""
    from sklearn import datasets

    source = getattr(datasets, f"load_{name}")()
    header = [feature.replace(" ", "_").replace("/", "_").lower() for feature in source.feature_names]
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*header, "label"])
        for row, label in zip(source.data, source.target, strict=True):
            writer.writerow([*(np.format_float_positional(value, trim="-") for value in row), label])
    return path


def bible(folder: Path) -> Path:
    """bible.txt: the King James Bible from Genesis on, one verse a line, cut after the last verse within 1 MiB."""
    text = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], check=True, capture_output=True).stdout
    verses = (line.split(b" ", 1)[1] + b"\n" for line in text.splitlines() if b" " in line)
    taken, size = [], 0
    for verse in verses:
        size += len(verse)
        if size > BIBLE_BYTES:
            break
        taken.append(verse)
    path = folder / "bible.txt"
    path.write_bytes(b"".join(taken).decode("ascii").encode())
    return path


def ring(folder: Path) -> Path:
    """ring.npy: f32[2048, 2], eight clusters evenly on a ring of radius 2, deviation 0.05, point i in cluster i mod 8.

    Only integers and IEEE arithmetic, so that every machine makes the same bytes: noise is the sum of twelve 32-bit
    uniforms (variance 1, near enough to a Gaussian), and the directions are multiples of 45 degrees.
    """
    diagonal = math.sqrt(0.5)
    directions = [(1, 0), (diagonal, diagonal), (0, 1), (-diagonal, diagonal)]
    directions += [(-x, -y) for x, y in directions]
    state = 0x9E3779B97F4A7C15

    def uniform() -> int:
        """32 random bits (SplitMix64)."""
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return (z ^ (z >> 31)) >> 32

    def noise() -> float:
        return (sum(uniform() for _ in range(12)) - 6 * (2**32 - 1)) / 2**32

    points = np.empty((RING_POINTS, 2), np.float32)
    for i in range(RING_POINTS):
        x, y = directions[i % RING_MODES]
        points[i] = (RING_RADIUS * x + RING_DEVIATION * noise(), RING_RADIUS * y + RING_DEVIATION * noise())
    path = folder / "ring.npy"
    np.save(path, points)
    return path


def main() -> None:
    folder = Path(sys.argv[1])
    for path in (digits(folder), table(folder, "breast_cancer"), table(folder, "wine"), bible(folder), ring(folder)):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size, path.name)


if __name__ == "__main__":
    main()
