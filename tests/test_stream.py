"""Streams: what shares a kernel, that its bits are the oracle's, and which form its ops take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from scheduling import Draft, check
from test_kernels import RUNNABLE, same_bits

from alphac.backends.registry import host_target
from alphac.ir.core import Function
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import BLOCK, pieces, split
from alphac.ir.typesys import F32, F64, I32, Dim, DType, TensorType

SHARDS = 8
GRAIN = Dim("batch", 2600 * SHARDS, SHARDS)  # two whole blocks of a shard and a ragged one
X, C = Dim("x", 21), Dim("c", 5)


class Rows:
    """A function of a table's rows in the making."""

    def __init__(self, dtype: DType = F32, grain: Dim = GRAIN) -> None:
        self.d, self.dtype, self.grain = Draft(), dtype, grain
        self.b = self.d.b

    def column(self, name: str, *dims: Dim, dtype: DType | None = None):
        return self.d.argument("column", name, TensorType(dtype or self.dtype, (self.grain, *dims)))

    def state(self, name: str, *dims: Dim):
        return self.d.argument("state", name, TensorType(self.dtype, dims))

    def spread(self, value, *dims: Dim):
        return self.b.broadcast(value, (self.grain, *dims))

    def total(self, name: str, value, op: str = "sum") -> None:
        made = self.b(f"reduce_{op}", value, over=("batch",))
        self.d.result("output", name, self.b.combine(made, op))

    def product(self, name: str, x, y, *dims: Dim) -> None:
        self.d.result("output", name, self.b.combine(self.b("contract", x, y, dims=dims)))


def logistic(dtype: DType = F32, grain: Dim = GRAIN, stored: bool = False) -> Function:
    """The gradient of a logistic regression."""
    f = Rows(dtype, grain)
    b = f.b
    x, y, w, bias = f.column("data", X), f.column("y"), f.state("w", X), f.state("bias")
    z = b("add", b("contract", x, w, dims=(grain,)), f.spread(bias))
    g = b("sub", b("sigmoid", z), y, hint="g")
    f.total("loss", b("sub", b("softplus", z), b("mul", z, y)))
    f.total("d_bias", g)
    f.product("d_w", x, g, X)
    if stored:
        f.d.result("output", "g", g)
    return f.d.function()


def clusters() -> Function:
    """The sums of k-means: a row's products, its extreme, and sums of the rows of each cluster."""
    f = Rows()
    b = f.b
    x, centroid = f.column("data", X), f.state("centroid", C, X)
    near = b("contract", x, centroid, dims=(GRAIN, C))
    best = b("reduce_max", near, over=("c",))
    member = b("cast", b("eq", near, f.spread(best, C)), dtype=F32, hint="member")
    f.total("count", member)
    f.product("total", member, x, C, X)
    return f.d.function()


def softmax() -> Function:
    f = Rows()
    b = f.b
    x, w = f.column("data", X), f.state("w", X, C)
    z = b("contract", x, b("mul", w, b.like(0.5, w)), dims=(GRAIN, C))
    e = b("exp", b("sub", z, f.spread(b("reduce_max", z, over=("c",)), C)))
    p = b("div", e, f.spread(b("reduce_sum", e, over=("c",)), C))
    f.product("d_w", x, p, X, C)
    f.total("d_b", p)
    return f.d.function()


def moments(dtype: DType = F32) -> Function:
    """Sums, squares, products and extremes of a table's columns."""
    f = Rows(dtype)
    b = f.b
    x, y = f.column("data", X), f.column("y")
    f.total("sum", x)
    f.total("squares", b("mul", x, x))
    f.total("most", x, "max")
    f.total("least", b("abs", x), "min")
    f.product("pairs", x, y, X)
    return f.d.function()


def hidden() -> Function:
    """Two small layers: the second one's rows lie across."""
    f = Rows()
    b = f.b
    x, w, v = f.column("data", X), f.state("w", X, C), f.state("v", C)
    h = b("tanh", b("contract", x, w, dims=(GRAIN, C)))
    z = b("contract", h, v, dims=(GRAIN,))
    f.product("d_v", h, z, C)
    f.product("d_w", x, b("mul", h, f.spread(z, C)), X, C)
    return f.d.function()


FUNCTIONS: dict[str, Callable[[], Function]] = {
    "logistic": logistic,
    "logistic in f64": lambda: logistic(F64),
    "logistic, one shard": lambda: logistic(grain=Dim("batch", 20000, 1)),
    "logistic, rows stored": lambda: logistic(stored=True),
    "clusters": clusters,
    "softmax": softmax,
    "moments": moments,
    "moments of integers": lambda: moments(I32),
    "hidden": hidden,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sums_over_the_same_rows_are_one_kernel(name: str):
    program = schedule(FUNCTIONS[name]())
    check(program, 1)
    streams = [k for k in program.kernels() if k.stages]
    assert len(streams) == 1
    assert all(k in streams or not any(d.shards for v in k.reads for d in v.type.dims) for k in program.kernels())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_stream_has_the_bits_of_its_ops(name: str):
    one = "one shard" in name
    same_bits(FUNCTIONS[name](), (1,) if one else (3, 1, 4), threads=3)


@pytest.mark.parametrize("target", [n for n in RUNNABLE if n != host_target().name])
@pytest.mark.parametrize("name", ["clusters", "softmax", "moments", "hidden"])
def test_targets_share_the_bits_of_streams(name: str, target: str):
    same_bits(FUNCTIONS[name](), (8,), threads=2, name=target)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(8,), (1, 2, 5)], ids=str)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "one shard" not in n])
@pytest.mark.parametrize("target", RUNNABLE)
def test_every_stream_with_every_share(name: str, target: str, shares: Sequence[int]):
    for threads in (1, 2):
        same_bits(FUNCTIONS[name](), shares, threads, target)


def test_few_rows_stay_apart():
    program = schedule(logistic(grain=Dim("batch", 64, 8)))
    assert not any(k.stages for k in program.kernels())


@pytest.mark.parametrize("rows", [1, 1000, 1024, 1025, 2600, 9000, 125_000, 1_000_000])
def test_pieces_are_subtrees(rows: int):
    """Cutting the tree over blocks at the largest power of two never cuts a piece."""
    run, count = pieces(rows)
    blocks = -(-rows // BLOCK)
    assert count <= 8 and (count - 1) * run < blocks <= count * run

    def cuts(start: int, stop: int) -> None:
        if stop - start > 1 and (stop - start > run or start % run):
            middle = start + split(stop - start)
            assert middle % run == 0
            cuts(start, middle)
            cuts(middle, stop)

    cuts(0, blocks)
