"""The bits of one op: its body by the exact oracle, its sums in the canonical order.

This is the definition that every target must meet (design §3): reductions in leaves of 1,024 elements and 16 lanes,
contractions and scattered sums in leaves of 256, leaves and shards in the tree of `alphac.ir.schedule.split`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alphac.ir.core import Op
from alphac.ir.errors import InternalError
from alphac.ir.ops.contract import contracted_axes
from alphac.ir.ops.define import definition
from alphac.ir.ops.index import along
from alphac.ir.ops.reduce import cut_grain, reduced_axes
from alphac.ir.ops.special import scattered_axes
from alphac.ir.oracle import Lanes, Oracle, evaluate, to_compute, to_storage
from alphac.ir.schedule import split
from alphac.ir.typesys import BF16, F32, I64, SHARD, Dim, DType, TensorType

Array = NDArray[Any]

REDUCE_LEAF = 1024
LANES = 16
CHAIN_LEAF = 256  # of contractions and of scatter_add

_oracle = Oracle()


def run_exactly(op: Op, arrays: Sequence[Array]) -> Array:
    """The result of an op of any shape but composite and structure. Arrays are in `dtype.compute`."""
    shape = definition(op).shape
    if shape == "elementwise":
        body = definition(op).body
        assert body is not None
        typed = [(a, v.type.dtype) for a, v in zip(arrays, op.operands, strict=True)]
        return evaluate(body, typed, **op.attributes)[0]
    by_name = {"cumsum": _cumsum, "scatter_add": _scatter_add}
    by_shape = {"index": _index, "reduce": _reduce, "contract": _contract, "collective": _collective, "special": _plain}
    run = by_name.get(op.name) or by_shape.get(shape)
    if run is None:
        raise InternalError(f"`{op.name}`, a {shape} op, has no bits of its own")
    return run(op, *arrays)


def _plain(op: Op, *arrays: Array) -> Array:
    """Ops that round nothing (argmax, argmin): the reference is exact."""
    return definition(op).reference(op, *arrays)


def _accumulator(dtype: DType) -> DType:
    return F32 if dtype == BF16 else dtype


def _rounded(x: Array, dtype: DType) -> Array:
    """A sum, rounded to the dtype of the result: only bf16 is not what it was summed in."""
    return to_compute(to_storage(x, dtype), dtype)


def tree(leaves: Sequence[Array], combine: Callable[[Array, Array], Array]) -> Array:
    """Leaves put together by the canonical tree: the left child holds the largest power of two below n."""
    if len(leaves) == 1:
        return leaves[0]
    middle = split(len(leaves))
    return combine(tree(leaves[:middle], combine), tree(leaves[middle:], combine))


def _combiner(body: Callable[..., Any], dtype: DType) -> Callable[[Array, Array], Array]:
    return lambda x, y: body(_oracle, Lanes(x, dtype), Lanes(y, dtype)).array


def _adder(dtype: DType) -> Callable[[Array, Array], Array]:
    return lambda x, y: _oracle.add(Lanes(x, dtype), Lanes(y, dtype)).array


def _arranged(x: Array, type_: TensorType, cut: bool, names: Sequence[str]) -> Array:
    """x with axes in the order of `names`, of size 1 where x lacks one. `cut`: the grain's axis as two, shard, rows."""
    own = list(type_.names)
    if cut and type_.grain is not None:
        x = cut_grain(x, type_)
        own.remove(type_.grain.name)
        own = [SHARD, type_.grain.name, *own]
    x = np.transpose(x, [own.index(n) for n in names if n in own])
    sizes = iter(x.shape)
    return x.reshape([next(sizes) if n in own else 1 for n in names])


def _summed_first(x: Array, type_: TensorType, cut: bool, summed: Sequence[Dim], kept: Sequence[str]) -> Array:
    """x as [summed axes as one, *kept]."""
    arranged = _arranged(x, type_, cut, [*(d.name for d in summed), *kept])
    return np.ascontiguousarray(arranged.reshape((-1, *arranged.shape[len(summed) :])))


# ---------------------------------------------------------------------- index
def _index(op: Op, *arrays: Array) -> Array:
    type_, body = op.result.type, definition(op).body
    assert body is not None
    index = {d.name: Lanes(along(type_, d.name).astype(np.int64), I64) for d in type_.dims}

    def read(i: int, at: Mapping[str, Lanes]) -> Lanes:
        source = op.operands[i].type
        return Lanes(np.asarray(arrays[i][tuple(at[n].array for n in source.names)]), source.dtype)

    return np.broadcast_to(body(_oracle, op, index, read).array, type_.shape)


# ---------------------------------------------------------------------- reduce, combine
def _reduce(op: Op, x: Array) -> Array:
    d, axes, type_ = definition(op), reduced_axes(op), op.operands[0].type
    assert d.body is not None and d.identity is not None
    dtype = _accumulator(type_.dtype)
    elements = _summed_first(x, type_, any(a.shards for a in axes), axes, op.result.type.names)
    identity = d.identity(_oracle, dtype).array
    combine = _combiner(d.body, dtype)

    def leaf(part: Array) -> Array:
        lanes = np.broadcast_to(identity, (LANES, *part.shape[1:])).copy()
        for start in range(0, len(part), LANES):
            row = part[start : start + LANES]
            lanes[: len(row)] = combine(lanes[: len(row)], row)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = combine(lanes[:half], lanes[half:])
        return lanes[0]

    parts = [elements[i : i + REDUCE_LEAF] for i in range(0, len(elements), REDUCE_LEAF)]
    return _rounded(tree([leaf(p) for p in parts], combine), type_.dtype)


def _collective(op: Op, x: Array) -> Array:
    type_, body = op.operands[0].type, definition(op).body
    assert body is not None

    def combine(a: Array, b: Array) -> Array:
        return evaluate(body, [(a, type_.dtype), (b, type_.dtype)])[0]

    return tree(list(np.moveaxis(x, type_.names.index(SHARD), 0)), combine)


# ---------------------------------------------------------------------- chains
def _multiply_add(dtype: DType) -> Callable[[Array, Array, Array], Array]:
    if dtype.is_float:
        return lambda x, y, z: _oracle.fma(Lanes(x, dtype), Lanes(y, dtype), Lanes(z, dtype)).array
    return lambda x, y, z: _oracle.add(_oracle.mul(Lanes(x, dtype), Lanes(y, dtype)), Lanes(z, dtype)).array


def _contract(op: Op, x: Array, y: Array) -> Array:
    summed, result = contracted_axes(op), op.result.type
    cut = any(d.shards for d in summed)
    a, b = (_summed_first(v, o.type, cut, summed, result.names) for v, o in zip((x, y), op.operands, strict=True))
    dtype = _accumulator(result.dtype)
    multiply_add = _multiply_add(dtype)

    def leaf(start: int) -> Array:
        chain = np.zeros(result.shape, dtype.compute)
        for i in range(start, min(start + CHAIN_LEAF, len(a))):
            chain = multiply_add(a[i], b[i], chain)
        return chain

    return _rounded(tree([leaf(i) for i in range(0, len(a), CHAIN_LEAF)], _adder(dtype)), result.dtype)


def _cumsum(op: Op, x: Array) -> Array:
    type_ = op.operands[0].type
    dtype = _accumulator(type_.dtype)
    at, add = type_.names.index(str(op.attributes["dim"])), _adder(dtype)
    front = np.moveaxis(x, at, 0)
    sums = np.empty_like(front)
    chain = np.zeros(front.shape[1:], dtype.compute)
    for i in reversed(range(len(front))) if op.attributes["reverse"] else range(len(front)):
        chain = add(chain, front[i])
        sums[i] = chain
    return _rounded(np.moveaxis(sums, 0, at), type_.dtype)


def _scatter_add(op: Op, index: Array, updates: Array) -> Array:
    summed, dim, result = scattered_axes(op), op.attributes["dim"], op.result.type
    assert isinstance(dim, Dim)
    index_type, type_ = (o.type for o in op.operands)
    cut = any(d.shards for d in summed)
    kept = [d for d in result.dims if d.name != dim.name]
    names = [d.name for d in kept]
    # The index may have an axis of its own called `dim`; it is summed, and so not among `names`.
    values = _summed_first(updates, type_, cut, summed, names)
    chosen = np.clip(_summed_first(index, index_type, cut, summed, names).astype(np.int64), 0, dim.size - 1)
    dtype = _accumulator(type_.dtype)
    add = _adder(dtype)
    grid = TensorType(I64, tuple(kept))

    def leaf(start: int) -> Array:
        sums = np.zeros(result.shape, dtype.compute)
        for i in range(start, min(start + CHAIN_LEAF, len(values))):
            at = tuple(chosen[i] if d.name == dim.name else along(grid, d.name) for d in result.dims)
            sums[at] = add(sums[at], values[i])
        return sums

    return _rounded(tree([leaf(i) for i in range(0, len(values), CHAIN_LEAF)], add), type_.dtype)
