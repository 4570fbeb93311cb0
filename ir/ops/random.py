"""Counter-based random numbers: functions of (seed, stream, step, iteration, logical index), never of who draws them.

Philox4x32-10 with key (seed, stream) and counter (flat index low, high, step, iteration), all modulo 2^32; the flat
index is row-major over the dims as declared. What is made of its words is in philox.py. A permutation is keyed by the
first two words at flat index 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alphac.ir.core import Block, Op, Value
from alphac.ir.ops.define import Attributes, Cost, define
from alphac.ir.ops.index import NEEDS, Array, Cotangents, Index, Read, Result, Types
from alphac.ir.ops.philox import (
    GOLDEN,
    MIX,
    MULTIPLIERS,
    ROUNDS,
    WEYL,
    feistel,
    feistel_rounds,
    normal_from_bits,
    philox,
    uniform_from_bits,
)
from alphac.ir.ops.rules import attribute, check_dtype, check_local, dims_attribute, floats, made, refuse, shown
from alphac.ir.scalar import Handle, Scalars
from alphac.ir.typesys import BF16, F64, I64, U32, Dim, DType, TensorType

if TYPE_CHECKING:
    from alphac.ir.builder import Builder

MASK = 0xFFFFFFFF
Words = NDArray[np.uint64]


def _check_counters(name: str, types: Types, attributes: Attributes) -> None:
    for n in ("seed", "stream"):
        attribute(attributes, n, int)
    for t in types:
        if t != TensorType(I64):
            refuse(f"`{name}` takes the step and the iteration, each an i64[], not {shown(t)}")


def _fixed(b: Builder, op: Op, dy: Value) -> Cotangents:
    """Random numbers depend on nothing that is learned."""
    return None, None


def _words(k: Scalars, op: Op, read: Read, low: Handle, high: Handle) -> tuple[Handle, Handle, Handle, Handle]:
    seed, stream = (k.const(attribute(op.attributes, n, int) & MASK, U32) for n in ("seed", "stream"))
    return philox(k, seed, stream, low, high, k.cast(read(0, {}), U32), k.cast(read(1, {}), U32))


def _reference_words(op: Op, flat: NDArray[np.int64], step: Array, iteration: Array) -> list[Words]:
    """Philox once more, in NumPy's u64."""
    low, half = np.uint64(MASK), np.uint64(32)
    k0, k1 = (attribute(op.attributes, n, int) & MASK for n in ("seed", "stream"))
    index = flat.astype(np.uint64)
    zero = np.zeros_like(index)
    c = [index & low, index >> half, zero + np.uint64(int(step) & MASK), zero + np.uint64(int(iteration) & MASK)]
    for _ in range(ROUNDS):
        p, q = c[0] * np.uint64(MULTIPLIERS[0]), c[2] * np.uint64(MULTIPLIERS[1])
        c = [(q >> half) ^ c[1] ^ np.uint64(k0), q & low, (p >> half) ^ c[3] ^ np.uint64(k1), p & low]
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c


# ---------------------------------------------------------------------- uniform, normal
def _drawn(name: str) -> Any:
    def result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
        _check_counters(name, types, attributes)
        drawn = made(attribute(attributes, "dtype", DType), dims_attribute(attributes))
        check_dtype(name, floats, drawn)
        return (drawn,)

    return result


def _flat(k: Scalars, type_: TensorType, index: Index) -> Handle:
    flat = k.const(0, I64)
    for i, d in enumerate(type_.dims):
        flat = index[d.name] if i == 0 else k.add(k.mul(flat, d.size), index[d.name])
    return flat


def _draw_body(made_of: Any) -> Any:
    def body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
        type_ = op.result.type
        flat = _flat(k, type_, index)
        words = _words(k, op, read, k.cast(flat, U32), k.cast(k.shr(flat, 32), U32))
        return k.cast(made_of(k, words, type_.dtype), type_.dtype)

    return body


def _uniform_of(words: Sequence[Words], dtype: DType) -> Array:
    if dtype == F64:
        return ((words[0] >> np.uint64(5)) * np.uint64(2**26) + (words[1] >> np.uint64(6))) * 2.0**-53
    bits = 8 if dtype == BF16 else 24
    return (words[0] >> np.uint64(32 - bits)) * 2.0**-bits


def _normal_of(words: Sequence[Words], dtype: DType) -> Array:
    if dtype == F64:
        u = words[0] * 2.0**-32 + (words[1] * 2.0**-64 + 2.0**-65)
        v = _uniform_of(words[2:], F64)
    else:
        u = words[0].astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
        v = (words[1] >> np.uint64(8)) * 2.0**-24
    return np.sqrt(-2 * np.log(u.astype(np.float64))) * np.cos(2 * np.pi * v)


def _draw_reference(made_of: Any) -> Any:
    def reference(op: Op, step: Array, iteration: Array) -> Array:
        """In float64: whoever asks rounds to the precision it works in."""
        type_ = op.result.type
        flat = np.arange(type_.size).reshape(type_.shape)
        return made_of(_reference_words(op, flat, step, iteration), type_.dtype)

    return reference


for _name, _bits, _of, _flops in (
    ("uniform", uniform_from_bits, _uniform_of, 60),
    ("normal", normal_from_bits, _normal_of, 110),
):
    define(
        _name,
        shape="index",
        operands=2,
        attributes=("dims", "dtype", "seed", "stream"),
        result=_drawn(_name),
        reference=_draw_reference(_of),
        gradient=_fixed,
        cost=Cost(_flops),
        needs=NEEDS,
        body=_draw_body(_bits),
    )


# ---------------------------------------------------------------------- permutation
def _permutation_result(types: Types, attributes: Attributes, blocks: Sequence[Block]) -> Result:
    _check_counters("permutation", types, attributes)
    dim = check_local("permutation", attribute(attributes, "dim", Dim))
    return (made(I64, (dim,)),)


def _permutation_body(k: Scalars, op: Op, index: Index, read: Read) -> Handle:
    dim = attribute(op.attributes, "dim", Dim)
    zero = k.const(0, U32)
    key0, key1, _, _ = _words(k, op, read, zero, zero)
    return feistel(k, index[dim.name], dim.size, key0, key1)


def _permutation_reference(op: Op, step: Array, iteration: Array) -> Array:
    """The Thorp shuffle of philox.py, in Python's integers."""
    size, wrap = attribute(op.attributes, "dim", Dim).size, 2**64 - 1
    words = _reference_words(op, np.zeros(1, np.int64), step, iteration)
    key = int(words[1][0]) << 32 | int(words[0][0])
    half, rounds = size // 2, feistel_rounds(size)
    places = list(range(size))
    for round_ in range(rounds):
        for at, x in enumerate(places):
            side, position = divmod(x, half) if half and x < 2 * half else (0, 0)
            z = ((position * rounds + round_ + 1) * GOLDEN + key) & wrap
            z = ((z ^ z >> 30) * MIX[0]) & wrap
            z = ((z ^ z >> 27) * MIX[1]) & wrap
            moved = 2 * position + (side ^ z >> 63) if x < 2 * half else x
            places[at] = (moved + size % 2) % size
    return np.array(places)


define(
    "permutation",
    shape="index",
    operands=2,
    attributes=("dim", "seed", "stream"),
    result=_permutation_result,
    reference=_permutation_reference,
    gradient=_fixed,
    cost=Cost(500),
    needs=NEEDS,
    body=_permutation_body,
)
