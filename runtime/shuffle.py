"""The keyed permutation and its random numbers, in NumPy: what docs/numerics.md defines, bit for bit."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
FEISTEL_ROUNDS = 6


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 on arrays of 32-bit words (as u64): the four output words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ np.uint64(k0), p1 & LOW, (p0 >> HALF) ^ c3 ^ np.uint64(k1), p0 & LOW
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def stream(path: str) -> int:
    """The number of a random stream from a declaration's path: the first 4 bytes of its sha256, big-endian."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big")


def permute(positions: npt.NDArray[np.int64], size: int, seed: int, stream: int, step: int = 0) -> npt.NDArray[np.int64]:
    """Where each position goes under the keyed permutation of 0 … size − 1.

    A balanced Feistel network on the least even number of bits that holds size, walked along its cycle until the
    result lies below size."""
    if size <= 1:
        return np.zeros_like(positions)
    bits = max(2, (size - 1).bit_length() + ((size - 1).bit_length() & 1))
    half = np.uint64(bits // 2)
    mask = np.uint64((1 << (bits // 2)) - 1)

    def encrypt(x: Words) -> Words:
        left, right = x >> half, x & mask
        for turn in range(FEISTEL_ROUNDS):
            zero = np.zeros_like(right)
            counter = (right, zero + np.uint64(turn), zero + np.uint64(step & 0xFFFFFFFF), zero + np.uint64(step >> 32))
            left, right = right, left ^ (philox(counter, (seed & 0xFFFFFFFF, stream))[0] & mask)
        return (left << half) | right

    value = encrypt(positions.astype(np.uint64))
    while (outside := value >= size).any():
        value[outside] = encrypt(value[outside])
    return value.astype(np.int64)
