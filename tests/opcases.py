"""Cases of single ops: what is built, on which types, and what NumPy written out by hand says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gradcheck import Array, Make, draw

from alphac.ir.typesys import F64, I32, I64, SHARD, Dim, DType, TensorType

BATCH, SHARDS = Dim("batch", 6, 3), Dim(SHARD, 3)
A, C, T = Dim("a", 4), Dim("c", 5), Dim("t", 7)
Types = tuple[TensorType, ...]


def tensor(*dims: Dim, dtype: DType = F64) -> TensorType:
    return TensorType(dtype, dims)


@dataclass(frozen=True)
class Case:
    """`expected` gets the inputs as arrays. `order`: how many derivatives are compared with differences."""

    op: str
    make: Make
    types: Types
    expected: Callable[..., Any]
    note: str = ""
    order: int = 2
    inputs: Sequence[Array] = field(default=())

    def __str__(self) -> str:
        return f"{self.op}-{self.note}" if self.note else self.op

    def arrays(self) -> list[Array]:
        return list(self.inputs) or [draw(t, seed=i) for i, t in enumerate(self.types)]


def rows(x: Array) -> Array:
    """Per-shard view of an array whose first axis is the batch: [shard, rows, …]."""
    return x.reshape((SHARDS.size, -1, *x.shape[1:]))


def window_of(x: Array, to: int, kernel: int, stride: int, low: int, dilation: int, value: float) -> Array:
    """Windows along axis 1 of [n, size, m]: [n, to, kernel, m]."""
    y = np.full((x.shape[0], to, kernel, x.shape[2]), value, x.dtype)
    for o in range(to):
        for k in range(kernel):
            i = o * stride + k * dilation - low
            if 0 <= i < x.shape[1]:
                y[:, o, k] = x[:, i]
    return y


def unwindow_of(x: Array, size: int, stride: int, low: int, dilation: int) -> Array:
    """[n, to, kernel, m] to [n, size, kernel, m], every element where it came from."""
    y = np.zeros((x.shape[0], size, *x.shape[2:]), x.dtype)
    for o in range(x.shape[1]):
        for k in range(x.shape[2]):
            i = o * stride + k * dilation - low
            if 0 <= i < size:
                y[:, i, k] = x[:, o, k]
    return y


def window_at_of(x: Array, to: int, stride: int, low: int, dilation: int) -> Array:
    """[n, size, kernel, m] to [n, to, kernel, m]."""
    y = np.zeros((x.shape[0], to, *x.shape[2:]), x.dtype)
    for o in range(to):
        for k in range(x.shape[2]):
            i = o * stride + k * dilation - low
            if 0 <= i < x.shape[1]:
                y[:, o, k] = x[:, i, k]
    return y


def _op(name: str, **attributes: Any) -> Make:
    return lambda b, *x: b(name, *x, **attributes)


def _first(x: Array, over: tuple[int, ...], best: Callable[..., Any]) -> Array:
    return best(x, axis=over)


PAIR = (tensor(BATCH, A), tensor(BATCH, A))
ONE = (tensor(BATCH, A),)
MASK = tensor(BATCH, A, dtype=DType("bool", "bool", 8))

ELEMENTWISE = [
    Case("add", _op("add"), PAIR, lambda x, y: x + y),
    Case("sub", _op("sub"), PAIR, lambda x, y: x - y),
    Case("mul", _op("mul"), PAIR, lambda x, y: x * y),
    Case("div", _op("div"), PAIR, lambda x, y: x / y),
    Case("minimum", _op("minimum"), PAIR, lambda x, y: np.where(x < y, x, y)),
    Case("maximum", _op("maximum"), PAIR, lambda x, y: np.where(x > y, x, y)),
    Case("neg", _op("neg"), ONE, lambda x: -x),
    Case("sign", _op("sign"), ONE, lambda x: (x > 0) * 1.0 - (x < 0)),
    Case("abs", _op("abs"), ONE, lambda x: np.where(x < 0, -x, x)),
    Case("floor", _op("floor"), ONE, np.floor),
    Case("ceil", _op("ceil"), ONE, np.ceil),
    Case("round", _op("round"), ONE, np.round),
    Case("relu", _op("relu"), ONE, lambda x: np.where(x > 0, x, 0)),
    Case("where", _op("where"), (MASK, *PAIR), np.where),
    Case("cast", _op("cast", dtype=F64), ONE, lambda x: x),
    Case("stop_gradient", lambda b, x: b("mul", x, b("stop_gradient", x)), ONE, lambda x: x * x, order=0),
]

IOTA = Dim("i", 6)
INDEX = [
    Case("constant", lambda b: b.constant(0.5, F64, (A,)), (), lambda: np.full(4, 0.5), order=0),
    Case("iota", _op("iota", dim=IOTA, dtype=I64), (), lambda: np.arange(6), order=0),
    Case("iota", _op("iota", dim=BATCH, dtype=F64), (), lambda: np.arange(6.0), "grain", order=0),
    Case(
        "broadcast", _op("broadcast", dims=(C, BATCH, A)), (tensor(A, C),), lambda x: np.stack([x.T] * 6, 1), "permutes"
    ),
    Case(
        "broadcast",
        _op("broadcast", dims=(A, BATCH)),
        (tensor(SHARDS, A),),
        lambda x: np.repeat(x, 2, axis=0).T,
        "shards meet the grain",
    ),
    Case(
        "broadcast", _op("broadcast", dims=(SHARDS, A)), (tensor(A),), lambda x: np.stack([x] * 3), "to shards", order=1
    ),
    Case("rename", _op("rename", dims=(BATCH, Dim("b", 4))), ONE, lambda x: x),
    Case(
        "reshape",
        _op("reshape", dims=(BATCH, Dim("p", 2), Dim("q", 6), Dim("r", 1))),
        (tensor(BATCH, A, Dim("z", 3)),),
        lambda x: x.reshape(6, 2, 6, 1),
    ),
    Case("reshape", _op("reshape", dims=(Dim("u", 1),)), (tensor(),), lambda x: x.reshape(1), "of a scalar"),
    Case("reshape", _op("reshape", dims=()), (tensor(Dim("u", 1)),), lambda x: x.reshape(()), "to a scalar"),
    Case("slice", _op("slice", dim="t", start=2, step=1, to=A), (tensor(BATCH, T),), lambda x: x[:, 2:6]),
    Case("slice", _op("slice", dim="t", start=6, step=-2, to=A), (tensor(BATCH, T, C),), lambda x: x[:, ::-2], "back"),
    Case("slice", _op("slice", dim="t", start=1, step=3, to=Dim("t", 2)), (tensor(T),), lambda x: x[1::3], "strided"),
    Case(
        "pad",
        _op("pad", dim="a", low=2, high=1, to=T, value=1.5),
        (tensor(BATCH, A, C),),
        lambda x: np.pad(x, ((0, 0), (2, 1), (0, 0)), constant_values=1.5),
    ),
    Case(
        "concat",
        _op("concat", dim="a", to=Dim("a", 9)),
        (tensor(BATCH, A), tensor(BATCH, Dim("a", 2)), tensor(BATCH, Dim("a", 3))),
        lambda *x: np.concatenate(x, 1),
    ),
    *(
        Case(
            "window",
            _op("window", dim="t", to=Dim("o", o), kernel=Dim("k", k), stride=s, low=low, dilation=d, value=v),
            (tensor(BATCH, T, A),),
            lambda x, o=o, k=k, s=s, low=low, d=d, v=v: window_of(x, o, k, s, low, d, v),
            f"{o} {k} {s} {low} {d}",
            order=1,
        )
        for o, k, s, low, d, v in ((5, 3, 1, 0, 1, 0), (4, 3, 2, 1, 1, -1.0), (3, 2, 2, 1, 3, 0.5), (2, 2, 5, -1, 1, 0))
    ),
    *(
        Case(
            "unwindow",
            _op("unwindow", to="o", kernel="k", dim=T, stride=s, low=low, dilation=d),
            (tensor(BATCH, Dim("o", 4), Dim("k", 3), A),),
            lambda x, s=s, low=low, d=d: unwindow_of(x, 7, s, low, d),
            f"{s} {low} {d}",
            order=1,
        )
        for s, low, d in ((1, 0, 1), (2, 1, 1), (2, 2, 2), (3, -1, 1))
    ),
    Case(
        "window_at",
        _op("window_at", dim="t", to=Dim("o", 4), kernel="k", stride=2, low=1, dilation=1),
        (tensor(BATCH, T, Dim("k", 3), A),),
        lambda x: window_at_of(x, 4, 2, 1, 1),
        order=1,
    ),
]


def _indices(*dims: Dim, below: int, dtype: DType = I32, seed: int = 5) -> Array:
    return draw(tensor(*dims, dtype=dtype), seed=seed, low=-1, high=below)  # two of them out of range


def _gather_shared(table: Array, index: Array) -> Array:
    clipped = np.clip(index, 0, 3)
    return np.stack([table[i][clipped[i]] for i in range(6)])


def _gather_shards(table: Array, index: Array) -> Array:
    clipped = np.clip(index, 0, 3)
    return np.stack([table[i // 2][clipped[i]] for i in range(6)])


def _scatter(index: Array, updates: Array) -> Array:
    result = np.zeros((3, 4, 5), updates.dtype)
    for i, j in np.ndindex(index.shape):
        result[i // 2, np.clip(index[i, j], 0, 3)] += updates[i, j]
    return result


def _scatter_kept(index: Array, updates: Array) -> Array:
    result = np.zeros((5, 4, 6), updates.dtype)
    for i, j in np.ndindex(index.shape):
        result[:, np.clip(index[i, j], 0, 3), i] += updates[:, i, j]
    return result


GATHER = [
    Case(
        "gather",
        _op("gather", dim="a"),
        (tensor(A, C), tensor(BATCH, T, dtype=I32)),
        lambda x, i: x[np.clip(i, 0, 3)],
        "embedding",
        inputs=(draw(tensor(A, C)), _indices(BATCH, T, below=4)),
    ),
    Case(
        "gather",
        _op("gather", dim="a"),
        (tensor(BATCH, A, C), tensor(BATCH, T, dtype=I64)),
        _gather_shared,
        "shared axis",
        inputs=(draw(tensor(BATCH, A, C)), _indices(BATCH, T, below=4, dtype=I64)),
    ),
    Case(
        "gather",
        _op("gather", dim="a"),
        (tensor(SHARDS, A, C), tensor(BATCH, T, dtype=I32)),
        _gather_shards,
        "per-shard table",
        inputs=(draw(tensor(SHARDS, A, C)), _indices(BATCH, T, below=4)),
    ),
    Case(
        "scatter_add",
        _op("scatter_add", dim=A, dims=(A, C)),
        (tensor(BATCH, T, dtype=I32), tensor(BATCH, T, C)),
        _scatter,
        "over the grain",
        inputs=(_indices(BATCH, T, below=4), draw(tensor(BATCH, T, C))),
    ),
    Case(
        "scatter_add",
        _op("scatter_add", dim=A, dims=(C, A, BATCH)),
        (tensor(BATCH, T, dtype=I32), tensor(C, BATCH, T)),
        _scatter_kept,
        "kept axis",
        inputs=(_indices(BATCH, T, below=4), draw(tensor(C, BATCH, T))),
    ),
]

BTA = (tensor(BATCH, T, A),)
REDUCE = [
    case
    for name, of in (("reduce_sum", np.sum), ("reduce_max", np.max), ("reduce_min", np.min))
    for case in (
        Case(name, _op(name, over=("t",)), BTA, lambda x, of=of: of(x, axis=1), "one axis"),
        Case(name, _op(name, over=("a", "t")), BTA, lambda x, of=of: of(x, axis=(1, 2)), "two axes", order=1),
        Case(name, _op(name, over=("batch",)), BTA, lambda x, of=of: of(rows(x), axis=1), "grain", order=1),
        Case(
            name,
            _op(name, over=("a", "batch")),
            (tensor(T, BATCH, A),),
            lambda x, of=of: of(rows(x.swapaxes(0, 1)), axis=(1, 3)),
            "grain and another",
            order=1,
        ),
    )
]

COLLECTIVE = [
    Case(name, _op(name), (tensor(SHARDS, A),), lambda x, of=of: of(x, axis=0), note, order=order)
    for name, of, order, note in (
        ("combine_sum", np.sum, 2, ""),
        ("combine_max", np.max, 1, ""),
        ("combine_min", np.min, 1, ""),
    )
]


def _rowwise(x: Array, y: Array) -> Array:
    return np.stack([rows(x)[s].T @ rows(y)[s] for s in range(3)])


CONTRACT = [
    Case("contract", _op("contract", dims=(BATCH, C)), (tensor(BATCH, A), tensor(A, C)), lambda x, y: x @ y),
    Case(
        "contract",
        _op("contract", dims=(C, BATCH, T)),
        (tensor(T, A, BATCH), tensor(BATCH, C, A)),
        lambda x, y: np.einsum("tab,bca->cbt", x, y),
        "batched",
    ),
    Case("contract", _op("contract", dims=(A, C)), (tensor(BATCH, A), tensor(BATCH, C)), _rowwise, "grain", order=2),
    Case(
        "contract",
        _op("contract", dims=(C,)),
        (tensor(A, T, C), tensor(T, A)),
        lambda x, y: np.einsum("atc,ta->c", x, y),
        "two axes",
    ),
    Case("contract", _op("contract", dims=(A, C)), (tensor(A), tensor(C)), np.outer, "outer"),
    Case("contract_fast", _op("contract_fast", dims=(BATCH, C)), (tensor(BATCH, A), tensor(A, C)), np.matmul, order=2),
    Case(
        "contract",
        _op("contract", dims=(SHARDS, C)),
        (tensor(A, C), tensor(SHARDS, A)),
        lambda x, y: y @ x,
        "per shard",
        order=1,
    ),
]

SPECIAL = [
    Case("argmax", _op("argmax", dim="t"), BTA, lambda x: x.argmax(1), order=0),
    Case("argmin", _op("argmin", dim="t"), BTA, lambda x: x.argmin(1), order=0),
    Case("cumsum", _op("cumsum", dim="t", reverse=False), BTA, lambda x: np.cumsum(x, 1)),
    Case("cumsum", _op("cumsum", dim="a", reverse=True), BTA, lambda x: np.cumsum(x[..., ::-1], 2)[..., ::-1], "down"),
]

CASES = [*ELEMENTWISE, *INDEX, *GATHER, *REDUCE, *COLLECTIVE, *CONTRACT, *SPECIAL]
