"""The keyed permutation and its random numbers in NumPy: bit for bit those of `ir/ops/philox.py`."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ONE, S30, S27, S63 = np.uint64(1), np.uint64(30), np.uint64(27), np.uint64(63)
SIZE_LIMIT = 1 << 56


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four random 32-bit words for a key of two and a counter of four."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(ROUNDS):
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD, (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def stream(path: str) -> int:
    """The number of a random stream from its declaration's path: the first 4 bytes of the path's sha256, big-endian."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big")


def permute(positions: Positions, size: int, seed: int, stream: int, step: int = 0) -> Positions:
    """Where the permutation of 0 … size − 1 for (seed, stream, step) puts each position: its key is the first two words
    of Philox with key (seed, stream) and counter (0, 0, step, 0)."""
    low, high, *_ = philox((seed & WORD, stream), (0, 0, step & WORD, 0))
    return thorp(positions, size, low, high)


def thorp(positions: Positions, size: int, low: int, high: int) -> Positions:
    """The Thorp shuffle of 0 … size − 1 with a key of two words: `feistel` of `ir/ops/philox.py`. 1 <= size < 2^56."""
    if not 1 <= size < SIZE_LIMIT:
        raise ValueError(f"a permutation of {size}")
    rounds = 4 * max(size - 1, 1).bit_length() + 8
    half, odd, last = np.uint64(size // 2), size % 2, np.uint64(size)
    key, stride = np.uint64(high << 32 | low), np.uint64(rounds)
    x = positions.astype(np.uint64)
    for turn in range(rounds):
        upper = x >= half
        position = x - half * upper
        moved = position + position
        moved += (_first_bit((position * stride + np.uint64(turn + 1)) * GOLDEN + key)) ^ upper
        if odd:
            moved = np.where(x < half + half, moved, x) + ONE
            moved[moved == last] = 0
        x = moved
    return x.astype(np.int64)


def _first_bit(z: Words) -> Words:
    """The first bit of splitmix64's finalizer."""
    z = (z ^ (z >> S30)) * MIX[0]
    z = (z ^ (z >> S27)) * MIX[1]
    return z >> S63  # its last step, z ^ (z >> 31), leaves this bit alone
