"""Cases in the shapes that are hard for kernels: lengths around vectors and leaves, every layout of a contraction,
shards, convolutions, loops; and extreme values for ops that choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import everyop_points as points
import everyop_real as reals
import mpmath
import numpy as np
from everyop_cases import DTYPES, FLOATS, NUMBERS, Case, Real, Types, as_real, lifted, op, path, sums
from gradcheck import Make, draw, run
from numpy.typing import NDArray
from scheduling import build_loop

from alphac.ir.builder import Builder
from alphac.ir.core import Op, Value
from alphac.ir.ops import DEFINITIONS
from alphac.ir.typesys import BF16, F32, F64, I32, I64, U8, Dim, DType, TensorType

Array = NDArray[Any]
Expected = Callable[..., Any]
LENGTHS = (1, 15, 16, 17, 255, 256, 257, 1023, 1024, 1025)


def tensor(dtype: DType, *dims: Dim) -> TensorType:
    return TensorType(dtype, dims)


def drawn(types: Types) -> Callable[[int], Sequence[Array]]:
    """Floats in [-2, 2], integers over their whole range: they wrap."""

    def given(chunk: int) -> Sequence[Array]:
        rng = np.random.default_rng(chunk)
        return [
            points.random_bits(t.dtype, t.size, rng).reshape(t.shape) if t.dtype.is_integer else draw(t, i)
            for i, t in enumerate(types)
        ]

    return given


def plain(
    name: str,
    note: str,
    types: Types,
    make: Make,
    expected: Expected,
    roundings: int = 0,
    shards: int = 1,
    given: Callable[[int], Sequence[Array]] | None = None,
    unit: float | None = None,
) -> Case:
    """A case whose operands are all of the first one's dtype and whose real values `expected` computes with NumPy."""
    dtype = types[0].dtype

    def real(*x: Array) -> Sequence[Real]:
        with mpmath.workdps(reals.DIGITS):
            return [as_real(expected(*(lifted(a, dtype) for a in x)), dtype)]

    slack = sums(expected, [True] * len(types), dtype, roundings, unit) if roundings and dtype.is_float else None
    return Case(name, note, dtype, types, make, given or drawn(types), real, slack=slack, shards=shards)


# ---------------------------------------------------------------------- lengths
def lengths() -> list[Case]:
    cases: list[Case] = []
    for n in LENGTHS:
        d = Dim("n", n)
        for name, dtype in (("exp", F32), ("add", U8), ("mul", F64)):
            types = (tensor(dtype, d),) * (DEFINITIONS[name].operands or 0)
            real = lambda *x, name=name, dtype=dtype: [reals.elementwise(name, dtype, *x)]  # noqa: E731
            ulp = DEFINITIONS[name].ulp if dtype.is_float else None
            cases.append(Case(name, f"of_{n}", dtype, types, op(name), drawn(types), real, ulp=ulp))
        for dtype in (F32, BF16):
            cases.append(_sum(f"of_{n}", dtype, (d,), ("n",)))
        cases += [_sum(f"columns_of_{n}", F32, (d, Dim("m", 5)), ("n",)), _scan(F32, n)]
    cases += [_sum("of_5000", dtype, (Dim("n", 5000),), ("n",)) for dtype in (F32, F64, I64)]
    cases += [_scan(F64, 257), _scan(BF16, 300), _scan(I32, 257)]
    three = (Dim("a", 7), Dim("n", 130), Dim("b", 33))
    for over in (("a", "n"), ("n", "b"), ("a", "b"), ("b", "a", "n")):
        cases += [_sum("over_" + "".join(over), dtype, three, over) for dtype in (F32, U8)]
    return cases


def _sum(note: str, dtype: DType, dims: tuple[Dim, ...], over: tuple[str, ...]) -> Case:
    axes = tuple(i for i, d in enumerate(dims) if d.name in over)
    count = math.prod(dims[i].size for i in axes)
    return plain(
        "reduce_sum",
        note,
        (tensor(dtype, *dims),),
        op("reduce_sum", over=over),
        lambda x: np.sum(x, axis=axes),
        path(count, 1024, 16),
    )


def _scan(dtype: DType, n: int) -> Case:
    make = op("cumsum", dim="n", reverse=n % 2 == 0)
    turn = slice(None, None, -1 if n % 2 == 0 else 1)  # cumsum from the end
    return plain("cumsum", f"of_{n}", (tensor(dtype, Dim("n", n)),), make, lambda x: np.cumsum(x[turn])[turn], n)


# ---------------------------------------------------------------------- extremes
def extremes() -> list[Case]:
    """Infinities, NaN, zeros of both signs and ties, in rows where each comes first, last, and not at all."""
    cases: list[Case] = []
    for dtype in NUMBERS:
        for n, axis in ((17, 1), (1025, 1), (33, 0)):
            types = (tensor(dtype, *((Dim("m", 40), Dim("n", n)) if axis else (Dim("n", n), Dim("m", 40)))),)
            given = _rows(dtype, n, axis)
            for name, best in (("reduce_max", np.max), ("reduce_min", np.min)):
                cases.append(_chosen(name, types, op(name, over=("n",)), best, axis, given))
            for name, best in (("argmax", np.argmax), ("argmin", np.argmin)):
                cases.append(_chosen(name, types, op(name, dim="n"), best, axis, given))
    return cases


def _chosen(
    name: str, types: Types, make: Make, best: Expected, axis: int, given: Callable[[int], Sequence[Array]]
) -> Case:
    def real(x: Array) -> Sequence[Real]:
        found = best(x, axis=axis)  # exact in any precision
        return [lifted(np.asarray(found), types[0].dtype if name.startswith("reduce") else I32)]

    note = f"{types[0].dim('n').size}_{'rows' if axis else 'columns'}"
    return Case(name, note, types[0].dtype, types, make, given, real)


def _rows(dtype: DType, n: int, axis: int) -> Callable[[int], Sequence[Array]]:
    def given(chunk: int) -> Sequence[Array]:
        rng = np.random.default_rng([n, chunk])
        x = draw(tensor(dtype, Dim("m", 40), Dim("n", n)), n, *((-2, 2) if dtype.is_float else (-9, 9)))
        hard = points.hard(dtype)
        for row in range(5, 40):
            at = rng.integers(0, n, 4)
            x[row, at] = rng.choice(hard, 4) if row % 5 else np.resize(hard[[0, len(hard) // 2]], 4)
        x[0], x[1, 0], x[2, -1] = x[0, 0], hard[-1], hard[-1]
        return [x if axis else np.ascontiguousarray(x.T)]

    return given


# ---------------------------------------------------------------------- contractions
LAYOUTS = {"nn": ("mk", "kn"), "nt": ("mk", "nk"), "tn": ("km", "kn"), "tt": ("km", "nk")}
SIZES = ((17, 300, 33), (1, 257, 40), (40, 256, 1), (33, 1, 17), (1, 513, 1), (64, 64, 64), (5, 1025, 3))


def contractions() -> list[Case]:
    cases = [_product(layout, F32, *sizes) for layout in LAYOUTS for sizes in SIZES]
    cases += [_product(layout, dtype, 9, 270, 18) for layout in LAYOUTS for dtype in (BF16, I32, F64)]
    cases += [_product("nn", dtype, 9, 270, 18) for dtype in (I64, U8)]
    for dtype in (F32, F64):
        cases += [
            _einsum("batched", dtype, "btk", "bkn", "btn", {"b": 3, "t": 18, "k": 70, "n": 17}),
            _einsum("heads", dtype, "bthd", "bshd", "bhts", {"b": 2, "t": 9, "s": 11, "h": 3, "d": 20}),
            _einsum("two_summed", dtype, "akn", "nmk", "ma", {"a": 7, "k": 21, "n": 19, "m": 18}),
            _einsum("diagonal", dtype, "abk", "kab", "ab", {"a": 9, "b": 17, "k": 33}),
            _einsum("no_sum", dtype, "ab", "bc", "cab", {"a": 5, "b": 3, "c": 33}),
            _einsum("vector", dtype, "mk", "k", "m", {"m": 37, "k": 600}),
            _einsum("dot", dtype, "k", "k", "", {"k": 1300}),
        ]
    return cases


def _product(layout: str, dtype: DType, m: int, k: int, n: int) -> Case:
    a, b = LAYOUTS[layout]
    return _einsum(f"{layout}_{m}_{k}_{n}", dtype, a, b, "mn", {"m": m, "k": k, "n": n})


def _einsum(note: str, dtype: DType, a: str, b: str, to: str, sizes: dict[str, int]) -> Case:
    dims = {letter: Dim(letter, size) for letter, size in sizes.items()}
    terms = math.prod(size for letter, size in sizes.items() if letter not in to)
    types = tuple(tensor(dtype, *(dims[letter] for letter in letters)) for letters in (a, b))
    make = op("contract", dims=tuple(dims[letter] for letter in to))
    return plain("contract", note, types, make, lambda x, y: np.einsum(f"{a},{b}->{to}", x, y), path(terms, 256))


# ---------------------------------------------------------------------- shards
def sharded() -> list[Case]:
    """Sums, extremes and products over the grain's axis, finished by the tree; rows that owners hold alone."""
    cases: list[Case] = []
    w, k, n = Dim("w", 17), Dim("k", 20), Dim("n", 33)

    def product(b: Builder, x: Value, y: Value) -> Value:
        return b.combine(b("contract", x, y, dims=(w, n)))

    for shards in (1, 3, 32):
        batch = Dim("batch", 7 * shards, shards)
        for dtype in (F32, BF16, I32) if shards != 3 else NUMBERS:
            unit = 2.0**-8 if dtype == BF16 else None  # partials are rounded, and nodes
            note = f"{shards}_shards"
            for name, best in (("sum", np.sum), ("max", np.max), ("min", np.min)):
                make = lambda b, x, name=name: b.combine(b(f"reduce_{name}", x, over=("batch",)), name)  # noqa: E731
                depth = 20 if name == "sum" else 0
                expected = lambda x, best=best: best(x, axis=0)  # noqa: E731
                types = (tensor(dtype, batch, w),)
                cases.append(plain(f"combine_{name}", note, types, make, expected, depth, shards, unit=unit))
            types = (tensor(dtype, batch, w), tensor(dtype, batch, n))
            cases.append(plain("contract", note, types, product, lambda x, y: x.T @ y, 20, shards, unit=unit))
        rows = (tensor(F32, batch, k), tensor(F32, k, n))
        make = op("contract", dims=(batch, n))
        cases.append(plain("contract", f"rows_of_{shards}", rows, make, np.matmul, 25, shards))
        scattered = (tensor(I32, batch), tensor(F32, batch, n))
        cases.append(_scattered(f"{shards}_shards", scattered, Dim("to", 4), shards))
    return cases


def _scattered(note: str, types: Types, to: Dim, shards: int) -> Case:
    dims = (to, *types[1].dims[1:])

    def make(b: Builder, index: Value, updates: Value) -> Value:
        made = b("scatter_add", index, updates, dim=to, dims=dims)
        return b.combine(made) if made.type.is_partial else made

    def expected(index: Array, updates: Real) -> Real:
        sums = np.zeros([d.size for d in dims], updates.dtype)
        np.add.at(sums, np.clip(index, 0, to.size - 1), updates)
        return sums

    dtype = types[1].dtype

    def real(index: Array, updates: Array) -> Sequence[Real]:
        with mpmath.workdps(reals.DIGITS):
            return [expected(index, lifted(updates, dtype))]

    def given(chunk: int) -> Sequence[Array]:
        index = np.random.default_rng(chunk).integers(0, to.size, types[0].size)
        index[::7] = np.resize(points.hard(types[0].dtype), len(index[::7]))  # far outside
        index = index.astype(types[0].dtype.storage)
        return [index, draw(types[1], 1) if dtype.is_float else draw(types[1], 1, -90, 90)]

    slack = sums(expected, [False, True], dtype, path(types[0].size, 256) + 6) if dtype.is_float else None
    return Case("scatter_add", note, dtype, types, make, given, real, slack=slack, shards=shards)


# ---------------------------------------------------------------------- indices
def indexed() -> list[Case]:
    """Gathers and scatters at indices of every dtype, far outside too, with many equal ones."""
    cases: list[Case] = []
    n, to, w = Dim("n", 600), Dim("to", 5), Dim("w", 17)
    for index in (I32, I64, U8):
        for dtype in DTYPES if index == I32 else (F32,):
            types = (tensor(dtype, to, w), tensor(index, n))
            cases.append(_gathered(f"at_{index}", types))
            if dtype in NUMBERS:
                cases.append(_scattered(f"at_{index}", (tensor(index, n), tensor(dtype, n, w)), to, 1))
    cases.append(_scattered("few", (tensor(I32, Dim("n", 3)), tensor(F32, Dim("n", 3))), Dim("to", 40), 1))
    return cases


def _gathered(note: str, types: Types) -> Case:
    table, index = types

    def given(chunk: int) -> Sequence[Array]:
        rng = np.random.default_rng(chunk)
        at = np.where(rng.random(index.shape) < 0.5, rng.integers(0, 5, index.shape), -3).astype(index.dtype.storage)
        at[::5] = np.resize(points.hard(index.dtype), len(at[::5]))
        return [points.random_bits(table.dtype, table.size, rng).reshape(table.shape), at]

    def real(x: Array, at: Array) -> Sequence[Real]:
        return [lifted(x[np.clip(at, 0, table.shape[0] - 1)], table.dtype)]

    return Case("gather", note, table.dtype, types, op("gather", dim="to"), given, real)


# ---------------------------------------------------------------------- convolution
def convolutions() -> list[Case]:
    cases: list[Case] = []
    for stride, padding, dilation in ((1, 0, 1), (1, 1, 1), (2, 1, 1), (2, 2, 2), (3, 0, 1)):
        cases.append(_convolution(F32, stride, padding, dilation))
    return [*cases, *(_convolution(dtype, 2, 1, 1) for dtype in NUMBERS if dtype != F32)]


def _convolution(dtype: DType, stride: int, padding: int, dilation: int) -> Case:
    batch, into, out, y, x = Dim("batch", 6, 3), Dim("in", 3), Dim("out", 18), Dim("y", 7), Dim("x", 6)
    ky, kx = Dim("ky", 3), Dim("kx", 2)
    to_y, to_x = (
        Dim(d.name, (d.size + 2 * padding - dilation * (k.size - 1) - 1) // stride + 1) for d, k in ((y, ky), (x, kx))
    )
    types = (tensor(dtype, batch, into, y, x), tensor(dtype, out, into, ky, kx))
    make = op(
        "conv2d",
        rows="y",
        columns="x",
        kernel_rows="ky",
        kernel_columns="kx",
        to_rows=to_y,
        to_columns=to_x,
        stride=stride,
        padding=padding,
        dilation=dilation,
        dims=(batch, out, to_y, to_x),
    )

    def expected(image: Real, kernel: Real) -> Real:
        wide = np.zeros((*image.shape[:2], *(n + 2 * padding for n in image.shape[2:])), image.dtype)
        wide[:, :, padding : padding + y.size, padding : padding + x.size] = image
        result = np.zeros((batch.size, out.size, to_y.size, to_x.size), image.dtype)
        for i, j in np.ndindex(ky.size, kx.size):
            at = wide[:, :, i * dilation :: stride, j * dilation :: stride][:, :, : to_y.size, : to_x.size]
            result = result + np.einsum("bcyx,oc->boyx", at, kernel[:, :, i, j])
        return result

    note = f"{stride}_{padding}_{dilation}"
    return plain("conv2d", note, types, make, expected, path(18, 256), shards=3)


# ---------------------------------------------------------------------- loops
STEPS, STATE = Dim("step", 9), Dim("state", 17)


def loops() -> list[Case]:
    return [_recurrence(dtype, reverse) for dtype in NUMBERS for reverse in (False, True)]


def _recurrence(dtype: DType, reverse: bool) -> Case:
    """c' = a_i c + x_i over slices a_i of one operand and x_i of another, which has its steps in the middle; the index
    is added, and all c' are collected."""
    other = Dim("time", STEPS.size)
    types = (tensor(dtype, STATE), tensor(dtype, STEPS, STATE), tensor(dtype, STATE, other))

    def body(b: Builder, i: Value, carried: list[Value], slices: list[Value]) -> tuple[list[Value], list[Value]]:
        following = b("add", b("mul", slices[0], carried[0]), slices[1])
        counted = b("add", following, b.broadcast(b("cast", i, dtype=dtype), (STATE,)))
        return [following], [counted, carried[0]]

    def make(b: Builder, c: Value, a: Value, x: Value) -> Sequence[Value]:
        made: Op = build_loop(b, STEPS, [c], [(a, "step"), (x, "time")], body, reverse)
        return made.results

    def expected(c: Real, a: Real, x: Real) -> list[Real]:
        counted, before = np.empty(a.shape, a.dtype), np.empty(a.shape, a.dtype)
        for i in reversed(range(STEPS.size)) if reverse else range(STEPS.size):
            before[i] = c
            c = a[i] * c + x[:, i]
            counted[i] = c + i
        return [c, counted, before]

    def given(chunk: int) -> Sequence[Array]:
        return [draw(t, i, *((-1, 1) if dtype.is_float else (-9, 9))) for i, t in enumerate(types)]

    def real(*x: Array) -> Sequence[Real]:
        with mpmath.workdps(reals.DIGITS):
            return expected(*(lifted(v, dtype) for v in x))

    def slack(*x: Array) -> Sequence[Array]:
        unit = {F32: 2.0**-24, F64: 2.0**-53, BF16: 2.0**-8}[dtype] * (2 * STEPS.size + 1)
        return [unit / (1 - unit) * np.asarray(v) for v in expected(*(np.abs(v.astype(np.float64)) for v in x))]

    note = "down" if reverse else "up"
    return Case("loop", note, dtype, types, make, given, real, slack=slack if dtype.is_float else None)


# ---------------------------------------------------------------------- random numbers
COUNTERS = (TensorType(I64), TensorType(I64))
RANDOM = Dim("batch", 1056, 32)


def random() -> list[Case]:
    wide = (RANDOM, Dim("w", 3))
    cases = [_drawn(name, dtype, wide) for name in ("uniform", "normal") for dtype in FLOATS]
    return [*cases, *(_permuted(n) for n in (10, 7, 1))]


def _drawn(name: str, dtype: DType, dims: tuple[Dim, ...]) -> Case:
    make = op(name, dims=dims, dtype=dtype, seed=-1, stream=2**33 + 5)
    close = {F32: 2.0**-20, F64: 2.0**-47, BF16: 2.0**-7}[dtype] if name == "normal" else 0

    def real(*counters: Array) -> Sequence[Real]:
        return [_reference(make, counters)]

    def slack(*counters: Array) -> Sequence[Array]:
        return [close * np.maximum(1, np.abs(real(*counters)[0]))]

    return Case(name, "", dtype, COUNTERS, make, _counters, real, slack=slack, shards=RANDOM.shards)


def _permuted(n: int) -> Case:
    make = op("permutation", dim=Dim("n", n), seed=3, stream=4)
    return Case("permutation", f"of_{n}", I64, COUNTERS, make, _counters, lambda *c: [_reference(make, c)])


def _counters(chunk: int) -> Sequence[Array]:
    return [np.asarray(2**40 + 3 + chunk), np.asarray(17)]


def _reference(make: Make, counters: Sequence[Array]) -> Array:
    return run(make, COUNTERS, counters, precision="f64")[0]


def shapes() -> list[Case]:
    return [
        *lengths(),
        *extremes(),
        *contractions(),
        *sharded(),
        *indexed(),
        *convolutions(),
        *loops(),
        *random(),
    ]
