"""Random bits as a function of (key, counter), and a keyed permutation: integer code that every target runs alike.

Philox4x32-10: Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3 (SC 2011). The permutation is a
maximally unbalanced Feistel network: Morris, Rogaway, Stegers, How to encipher messages on a small domain (CRYPTO
2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from alphac.ir.ops.approximations_log import log_positive
from alphac.ir.ops.approximations_trig import cos_turns
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import BF16, F32, F64, I64, U32, U64, DType

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(
    k: Scalars, key0: Handle, key1: Handle, c0: Handle, c1: Handle, c2: Handle, c3: Handle
) -> tuple[Handle, Handle, Handle, Handle]:
    """Philox4x32-10: four random u32 for a key of two and a counter of four u32."""
    for round_ in range(ROUNDS):
        if round_:
            key0, key1 = k.add(key0, WEYL[0]), k.add(key1, WEYL[1])
        high0, low0 = _wide_product(k, c0, MULTIPLIERS[0])
        high1, low1 = _wide_product(k, c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = k.xor(k.xor(high1, c1), key0), low1, k.xor(k.xor(high0, c3), key1), low0
    return c0, c1, c2, c3


def _wide_product(k: Scalars, x: Handle, multiplier: int) -> tuple[Handle, Handle]:
    """The upper and the lower half of a product of two u32."""
    product = k.mul(k.cast(x, U64), multiplier)
    return k.cast(k.shr(product, 32), U32), k.cast(product, U32)


# ---------------------------------------------------------------------- distributions
def uniform_from_bits(k: Scalars, words: Sequence[Handle], dtype: DType) -> Handle:
    """Uniform on [0, 1): multiples of 2^-24 (f32, of one word) or 2^-53 (f64, of two). bf16: multiples of 2^-8, so
    that 1 is never reached; the handle is f32, its value one that bf16 has."""
    if dtype == F64:
        bits = k.or_(k.shl(k.cast(k.shr(words[0], 5), U64), 26), k.cast(k.shr(words[1], 6), U64))
        return k.mul(k.cast(k.bitcast(bits, I64), F64), 2.0**-53)
    kept = 8 if dtype == BF16 else 24
    return k.mul(k.cast(k.shr(words[0], 32 - kept), F32), 2.0**-kept)


def normal_from_bits(k: Scalars, words: Sequence[Handle], dtype: DType) -> Handle:
    """Standard normal by Box and Muller (1958): sqrt(-2 log u) cos(2 pi v). Two words (f32) or four (f64): all bits of
    the first half make u, in (0, 1], so that the tail reaches 6.7 (f32) or 9.4 (f64) deviations. bf16 is f32 to be
    rounded: the handle is f32."""
    if dtype == F64:
        low = k.fma(k.cast(words[1], F64), k.const(2.0**-64, F64), 2.0**-65)
        u = k.fma(k.cast(words[0], F64), 2.0**-32, low)
        v = uniform_from_bits(k, words[2:4], F64)
    else:
        u = k.fma(k.cast(words[0], F32), k.const(2.0**-32, F32), 2.0**-33)
        v = uniform_from_bits(k, words[1:2], F32)
    return k.mul(k.sqrt(k.mul(log_positive(k, u), -2.0)), cos_turns(k, v))


# ---------------------------------------------------------------------- permutation
MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # the finalizer of splitmix64 (Steele, Lea, Flood, 2014)
GOLDEN = 0x9E3779B97F4A7C15


def feistel_rounds(size: int) -> int:
    """Rounds of the permutation of 0 … size - 1. A round deals size / 2 random bits, and a permutation has size · log2
    size of them less a little: twice log2 size is the least that could do, four times and 8 more is what we take."""
    return 4 * max(size - 1, 1).bit_length() + 8


def feistel(k: Scalars, index: Handle, size: int, key0: Handle, key1: Handle) -> Handle:
    """Where the permutation of 0 … size - 1 with this key (two u32) puts `index` (i64); i64. 1 <= size < 2^56.

    Straight-line and exact for every size. A balanced Feistel network permutes powers of four only, and walking its
    cycles until they come back into range takes a number of steps that nothing bounds. The Thorp shuffle is the Feistel
    network with one bit on one side, and that bit may be cut from any even size: with h = size / 2, an index side · h +
    position goes to 2 · position + (side xor random bit of (key, round, position)). Of an odd size the last index
    stays; then all move on by one, cyclically, so that it is mixed next. The random bit is the first one of
    splitmix64's output number position · rounds + round.
    """
    half = size // 2
    rounds = feistel_rounds(size)
    key = k.or_(k.shl(k.cast(key1, U64), 32), k.cast(key0, U64))
    x = k.bitcast(index, U64)
    for round_ in range(rounds):
        upper = k.ge(x, half)
        position = k.where(upper, k.sub(x, half), x)
        z = k.add(k.mul(k.add(k.mul(position, rounds), round_ + 1), GOLDEN), key)
        z = k.mul(k.xor(z, k.shr(z, 30)), MIX[0])
        z = k.mul(k.xor(z, k.shr(z, 27)), MIX[1])
        side = k.xor(k.shr(z, 63), k.where(upper, k.const(1, U64), k.const(0, U64)))
        moved = k.add(k.add(position, position), side)
        if size % 2:
            moved = k.add(k.where(k.lt(x, 2 * half), moved, x), 1)
            moved = k.where(k.eq(moved, size), k.const(0, U64), moved)
        x = moved
    return k.bitcast(x, I64)
