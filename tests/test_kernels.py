"""Kernels: every shape of op, in every form that its lowering has, gives the oracle's bits; the source reads well."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import run
from scheduling import Draft

from alphac.backends.compile import assembly
from alphac.backends.emit import lower_programs
from alphac.backends.indexing import Affine, Quotient, Symbol, number, symbol, unflatten
from alphac.backends.registry import host_target, target, targets
from alphac.backends.target import Target
from alphac.backends.team import support
from alphac.backends.tiling import register_tile, tiling
from alphac.ir.builder import Builder
from alphac.ir.core import Function, Value
from alphac.ir.interpret import interpret
from alphac.ir.ops.define import DEFINITIONS, TypeRuleError
from alphac.ir.oracle import to_compute, to_storage
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import BF16, BOOL, F32, F64, I32, I64, SHARD, U8, Dim, DType, TensorType

BATCH, SHARDS = Dim("batch", 48, 8), 8
MANY = Dim("batch", 1600, 8)
H, W, C, V, D, LONG = (Dim(n, s) for n, s in (("h", 37), ("w", 64), ("c", 5), ("v", 30), ("d", 20), ("long", 2500)))
RUNNABLE = [name for name, t in sorted(targets().items()) if t.runs_here()]
Make = Callable[..., Value]


@dataclass(frozen=True)
class Case:
    """A kernel: what is built of arguments of these types."""

    name: str
    types: tuple[TensorType, ...]
    make: Make

    def __str__(self) -> str:
        return self.name


def tensor(dtype: DType, *dims: Dim) -> TensorType:
    return TensorType(dtype, dims)


def function_of(cases: Sequence[Case]) -> Function:
    """One function with the result of every case."""
    draft = Draft()
    for n, case in enumerate(cases):
        arguments = [draft.argument("column", f"x{n}_{i}", t) for i, t in enumerate(case.types)]
        draft.result("output", f"o{n}", case.make(draft.b, *arguments))
    return draft.function()


def drawn(type_: TensorType, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if type_.dtype.is_float:
        values = random.standard_normal(type_.shape) * random.choice([1, 1e-3, 100], type_.shape)
        return values.astype(type_.dtype.compute)
    return random.integers(0, 2 if type_.dtype == BOOL else 100, type_.shape).astype(type_.dtype.storage)


def same_bits(
    function: Function,
    shares: Sequence[int] = (3, 1, 4),
    threads: int = 2,
    name: str | Target = "",
    arrays: Sequence[np.ndarray] = (),
) -> None:
    """Every role's part of every result is the oracle's."""
    there = name if isinstance(name, Target) else target(name) if name else host_target()
    program = schedule(function, there.streams)
    code = lower_programs([program], there)
    arrays = arrays or [drawn(v.type, i) for i, v in enumerate(function.block.arguments)]
    wanted = interpret(function, arrays, exact=True)
    roles, _ = run(program, code, arrays, sum(shares), shares, threads)
    for (_, buffer), value in zip(program.results, wanted, strict=True):
        dtype = buffer.type.dtype
        for role in roles:
            whole = to_storage(value, dtype)
            expected = to_compute(whole if buffer.role == "nodes" else role.part(buffer, whole), dtype)
            found = role.read(buffer).reshape(expected.shape)
            np.testing.assert_array_equal(found, expected, err_msg=f"{buffer.name}: {buffer.type}")
            if dtype.is_float:
                zeros = expected == 0
                np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))


# ---------------------------------------------------------------------- reductions, contractions, special ops
def reduced(
    dtype: DType, dims: tuple[Dim, ...], over: tuple[str, ...], op: str = "sum", combine: str = "", plain: bool = False
) -> Case:
    def make(b: Builder, x: Value) -> Value:
        y = b(f"reduce_{op}", x if plain else b("mul", x, b("abs", x)), over=over)
        return b.combine(y, combine) if combine else b("neg", y)

    note = combine + (" plain" if plain else "")
    return Case(f"{op} {dtype} {dims} over {over} {note}", (tensor(dtype, *dims),), make)


REDUCTIONS = [
    reduced(F32, (BATCH, H), ("h",)),
    reduced(F32, (BATCH, LONG), ("long",)),
    reduced(F32, (LONG, H), ("long",)),
    reduced(F32, (LONG, W), ("long",), "max"),
    reduced(F32, (BATCH, H, C), ("h",)),
    reduced(F32, (BATCH, H), ("batch",)),
    reduced(F32, (BATCH, H), ("batch",), combine="sum"),
    reduced(F32, (BATCH, H), ("batch", "h"), combine="sum"),
    reduced(F32, (H, BATCH, C), ("batch", "c"), combine="max"),
    reduced(BF16, (BATCH, H, C), ("batch", "h"), combine="sum"),
    reduced(BF16, (BATCH, LONG), ("long",)),
    reduced(F64, (LONG, H), ("long", "h"), "min"),
    reduced(I32, (BATCH, LONG), ("long",)),
    reduced(U8, (BATCH, H), ("batch",), "max", "max"),
    reduced(I64, (BATCH, H), ("batch",), "min", "min"),
    reduced(F32, (BATCH, H), ("batch",), combine="sum", plain=True),
    reduced(F32, (Dim("batch", 12000, 8), H), ("batch",), combine="sum", plain=True),
    reduced(F32, (LONG, BATCH, C), ("long",), "max", plain=True),
    *(reduced(t, (LONG, C, H), ("long",), plain=True) for t in (F32, F64, U8, I64)),
]


def contracted(
    dtype: DType,
    a: tuple[Dim, ...],
    b: tuple[Dim, ...],
    dims: tuple[Dim, ...],
    combine: bool = False,
    inline: bool = False,
    op: str = "contract",
) -> Case:
    def make(builder: Builder, x: Value, y: Value) -> Value:
        if inline:
            x, y = builder("neg", x), builder("abs", y)
        z = builder(op, x, y, dims=dims)
        return builder.combine(z) if combine else builder("neg", z)

    note = ("combine" if combine else "") + (" inlined" if inline else "")
    return Case(f"{dtype} {a} by {b} to {dims} {note}", (tensor(dtype, *a), tensor(dtype, *b)), make)


CONTRACTIONS = [
    contracted(F32, (BATCH, H), (H, W), (BATCH, W)),
    contracted(F32, (BATCH, H), (H, D), (BATCH, D), inline=True),
    contracted(F32, (BATCH, H), (W, H), (BATCH, W)),
    contracted(F32, (W, LONG), (LONG, V), (W, V)),
    contracted(F32, (LONG, W), (LONG, V), (W, V), inline=True),
    contracted(F32, (BATCH, W), (BATCH, V), (W, V), combine=True),
    # Terms in runs: neither operand has one stride along all of them.
    contracted(F32, (BATCH, C, D, W), (BATCH, C, D, V), (C, W, V), combine=True),
    contracted(F32, (BATCH, C, W, D), (BATCH, C, V, D), (C, W, V)),
    contracted(F32, (H, C, D, W), (H, C, D, V), (C, W, V)),
    contracted(F32, (BATCH, W), (BATCH, V), (W, V), combine=True, inline=True),
    contracted(F32, (BATCH, W), (BATCH, V), (W, V)),
    contracted(F32, (BATCH, LONG, C), (BATCH, LONG), (C,), combine=True),
    contracted(F32, (BATCH, H), (H, C), (BATCH, C)),
    contracted(F32, (BATCH, H), (H,), (BATCH,)),
    contracted(F32, (H,), (H,), ()),
    contracted(F32, (BATCH, H, C), (BATCH, C, W), (BATCH, H, W)),
    contracted(F32, (BATCH, H, C), (BATCH, W, C), (H, BATCH, W)),
    contracted(F32, (BATCH, D, LONG, C), (LONG, C), (BATCH, D, C)),  # depthwise: chains
    contracted(BF16, (BATCH, H, C), (BATCH, H, C), (C,), combine=True),
    contracted(F32, (MANY, V), (V,), (MANY,)),  # rows with few columns
    contracted(F32, (C, LONG), (MANY, LONG), (C, MANY)),
    contracted(F32, (H, W, V), (V, Dim("two", 2)), (Dim("two", 2), H, W), inline=True),
    *(contracted(t, (MANY, LONG), (LONG, C), (MANY, C)) for t in (F64, I32)),
    *(contracted(t, (BATCH, H), (H, W), (BATCH, W)) for t in (F64, BF16, I32, I64, U8)),
    *(contracted(t, (BATCH, W), (BATCH, V), (W, V), combine=True) for t in (F64, BF16, I32)),
]


def special(op: str, dtype: DType, dims: tuple[Dim, ...], **attributes: bool | str) -> Case:
    return Case(
        f"{op} {dtype} {dims}", (tensor(dtype, *dims),), lambda b, x: b("neg", b(op, b("mul", x, x), **attributes))
    )


def scattered(
    dtype: DType,
    index: tuple[Dim, ...],
    updates: tuple[Dim, ...],
    dim: Dim,
    dims: tuple[Dim, ...],
    combine: bool = False,
) -> Case:
    def make(b: Builder, i: Value, x: Value) -> Value:
        y = b("scatter_add", i, b("neg", x), dim=dim, dims=dims)
        return b.combine(y) if combine else y

    return Case(f"scatter_add {dtype} {updates} to {dims}", (tensor(I32, *index), tensor(dtype, *updates)), make)


def combined(dtype: DType, kind: str, *dims: Dim) -> Case:
    types = (tensor(dtype, Dim(SHARD, SHARDS), *dims),)
    return Case(f"combine_{kind} {dtype} {dims}", types, lambda b, x: b.combine(b("neg", x), kind))


VOCABULARY = Dim("v", 20000)
SPECIALS = [
    special("argmax", F32, (BATCH, H), dim="h"),
    special("argmin", F32, (BATCH, H, C), dim="h"),
    special("argmax", I32, (BATCH, H, W), dim="h"),
    special("argmax", BF16, (BATCH, H, D), dim="h"),
    special("cumsum", F32, (BATCH, H), dim="h", reverse=False),
    special("cumsum", F32, (BATCH, H, C), dim="h", reverse=True),
    special("cumsum", BF16, (BATCH, H, D), dim="h", reverse=False),
    special("cumsum", I64, (BATCH, H), dim="h", reverse=False),
    scattered(F32, (BATCH, H), (BATCH, H, D), V, (V, D), combine=True),
    scattered(F32, (BATCH, H), (BATCH, H, D), V, (V, D)),
    scattered(BF16, (BATCH, H), (BATCH, H, D), V, (D, V), combine=True),
    scattered(F32, (BATCH, H), (BATCH, H, D), V, (BATCH, V, D)),
    scattered(F32, (LONG, C), (LONG, C, D), V, (C, V, D)),
    scattered(F32, (LONG,), (LONG,), V, (V,)),
    scattered(F32, (LONG,), (LONG, D), VOCABULARY, (VOCABULARY, D)),
    combined(F32, "sum", H, LONG),
    combined(F32, "max"),
    combined(BF16, "sum", H),
    combined(I32, "min", H),
]


@pytest.mark.parametrize("cases", [REDUCTIONS, CONTRACTIONS, SPECIALS], ids=["reductions", "contractions", "specials"])
def test_every_form_of_a_kernel(cases: Sequence[Case]):
    same_bits(function_of(cases))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*REDUCTIONS, *CONTRACTIONS, *SPECIALS], ids=str)
@pytest.mark.parametrize("shares", [(8,), (1, 2, 5), (5, 3)], ids=str)
def test_every_form_with_every_share(case: Case, shares: tuple[int, ...]):
    for threads in (1, 3):
        same_bits(function_of([case]), shares, threads)


@pytest.mark.parametrize("name", RUNNABLE)
def test_vector_widths_share_bits(name: str):
    cases = [
        *REDUCTIONS[1:3],
        *REDUCTIONS[-7:],
        CONTRACTIONS[1],
        CONTRACTIONS[2],
        CONTRACTIONS[5],
        *CONTRACTIONS[16:22],
    ]
    same_bits(function_of(cases), name=name)


@pytest.mark.parametrize("name", [n for n in RUNNABLE if n.startswith("x86")])
def test_kernels_use_the_registers_of_their_target(name: str):
    there = target(name)
    program = schedule(function_of([REDUCTIONS[1], CONTRACTIONS[0], CONTRACTIONS[2]]))
    text = assembly([there.lower(kernel) for kernel in program.kernels()], support(there), there)
    assert {r for r in ("zmm", "ymm", "xmm") if r in text} >= {{16: "zmm", 8: "ymm", 4: "xmm"}[there.lanes]}
    assert there.lanes == 16 or "zmm" not in text
    assert there.lanes > 4 or "ymm" not in text
    assert "vfmadd" in text


# ---------------------------------------------------------------------- scalar operations
NUMBERS = Dim("n", 1024)


def hard(dtype: DType, seed: int) -> np.ndarray:
    """Any bits, moderate numbers, and the edges."""
    random = np.random.default_rng(seed)
    if dtype == BOOL:
        return random.integers(0, 2, NUMBERS.size).astype(bool)
    bits = random.integers(0, 256, NUMBERS.size * dtype.compute.itemsize, dtype=np.uint8).view(dtype.compute)
    if dtype.is_float:
        bits[:500] = random.standard_normal(500) * 10.0 ** random.integers(-3, 12, 500)
        edges = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 1.5, 2.5, 2**31, 2**63, -(2**31), 1e-40]
    else:
        bits[300:] >>= random.integers(0, dtype.bits - 1, NUMBERS.size - 300).astype(dtype.storage)
        limits = np.iinfo(dtype.storage)
        edges = [limits.min, limits.max, 0, 1, limits.max - 1, 2, limits.min + 1, 7]
    bits[: len(edges)] = random.permutation(np.array(edges)) if dtype.is_float else random.permutation(edges)
    return bits


def test_every_cast():
    dtypes = (F32, F64, BF16, I32, I64, U8, BOOL)
    cases = [
        Case("cast", (tensor(a, NUMBERS),), lambda b, x, to=to: b("cast", x, dtype=to)) for a in dtypes for to in dtypes
    ]
    same_bits(function_of(cases), (1,), arrays=[hard(c.types[0].dtype, i) for i, c in enumerate(cases)])


@pytest.mark.parametrize(
    "dtype", [F32, I32, *(pytest.param(t, marks=pytest.mark.slow) for t in (F64, BF16, I64, U8, BOOL))], ids=str
)
def test_every_elementwise_op_on_hard_operands(dtype: DType):
    draft = Draft()
    x, y = (draft.argument("column", n, tensor(dtype, NUMBERS)) for n in "xy")
    for name, op in DEFINITIONS.items():
        if op.shape != "elementwise" or op.attributes or op.operands not in (1, 2):
            continue
        try:
            draft.result("output", name, draft.b(name, *(x, y)[: op.operands]))
        except TypeRuleError:
            continue
    same_bits(draft.function(), (1,), arrays=[hard(dtype, 0), hard(dtype, 1)])


# ---------------------------------------------------------------------- index arithmetic
def value_of(form: Affine, at: dict[str, int]) -> int:
    """What an affine form is where its symbols have these values."""

    def atom(a: Symbol | Quotient) -> int:
        return at[a.name] if isinstance(a, Symbol) else value_of(a.of, at) // a.by

    return form.constant + sum(c * atom(a) for a, c in form.terms)


STEPS = st.lists(st.tuples(st.sampled_from("+-*/%ij"), st.integers(-20, 20)), max_size=10)


@given(STEPS, st.integers(0, 11), st.integers(-3, 6))
@settings(max_examples=300, deadline=None)
def test_affine_arithmetic(steps: list[tuple[str, int]], i: int, j: int):
    form, expected = symbol("i", 1, 0, 11), i
    for sign, n in steps:
        if sign in "+-":
            form, expected = (form + n, expected + n) if sign == "+" else (form - n, expected - n)
        elif sign == "*":
            form, expected = form * n, expected * n
        elif sign in "/%":
            by = abs(n) + 1
            form, expected = (form // by, expected // by) if sign == "/" else (form % by, expected % by)
        else:
            other, value = (symbol("i", 1, 0, 11), i) if sign == "i" else (symbol("j", 2, -3, 6), j)
            form, expected = form + other * n, expected + value * n
        assert value_of(form, {"i": i, "j": j}) == expected
        assert form.low <= expected <= form.high


def test_a_reshape_there_and_back_is_nothing():
    b, i, j = (symbol(n, 1, 0, s - 1) for n, s in (("b", 8), ("i", 2), ("j", 3)))
    flat = (b * 2 + i) * 3 + j
    assert unflatten(flat, [8, 2, 3]) == [b, i, j]
    e = symbol("e", 1, 0, 47)
    p, q, r = unflatten(e, [8, 2, 3])
    assert (p * 2 + q) * 3 + r == e
    assert r.low == 0 and r.high == 2
    assert p // 4 == e // 24


# ---------------------------------------------------------------------- source
def source_of(case: Case, there: Target | None = None) -> str:
    (kernel,) = schedule(function_of([case])).kernels()
    return (there or host_target()).lower(kernel).source


def biased(b: Builder, x: Value, bias: Value) -> Value:
    y = b("add", x, b.broadcast(bias, x.type.dims))
    return b("maximum", y, b.like(0, y))


READABLE = {
    "map": Case("map", (tensor(F32, BATCH, W), tensor(F32, W)), biased),
    "reduce": reduced(F32, (BATCH, LONG), ("long",)),
    "contract": contracted(F32, (BATCH, H), (H, W), (BATCH, W), inline=True),
    "combine": contracted(F32, (BATCH, W), (BATCH, V), (W, V), combine=True),
}


@pytest.mark.parametrize("shape", READABLE)
def test_source_reads_like_what_it_computes(shape: str, golden: Callable[[str, str], None]):
    text = source_of(READABLE[shape], target("x86-64-v3"))
    golden(f"kernels/{shape}.txt", re.sub(r"def k_\w+", "def kernel", text))


def test_index_ops_vanish():
    a, b_ = Dim("a", 8), Dim("b", 8)

    def make(b: Builder, x: Value) -> Value:
        return b("neg", b("reshape", b("rename", x, dims=(BATCH, Dim("z", 64))), dims=(BATCH, a, b_)))

    text = source_of(Case("reshape", (tensor(F32, BATCH, W),), make))
    assert "div(" not in text.split("for ")[1]
    assert text.count("for ") == 1


def test_equal_kernels_have_one_name():
    cases = [REDUCTIONS[0], REDUCTIONS[0], CONTRACTIONS[0], CONTRACTIONS[0]]
    names = [host_target().lower(kernel).name for kernel in schedule(function_of(cases)).kernels()]
    assert len(names) == 4
    assert len(set(names)) == 2


@pytest.mark.parametrize("name", sorted(n for n, t in targets().items() if not t.is_gpu))
@pytest.mark.parametrize(("rows", "columns", "terms"), [(1, 1, 7), (128, 512, 784), (12, 10, 4), (5000, 3, 100_000)])
@pytest.mark.parametrize("packed", [(False, False), (True, True)])
def test_tilings_fit(name: str, rows: int, columns: int, terms: int, packed: tuple[bool, bool]):
    there = target(name)
    tile = register_tile(rows, columns, terms, rows, 4, there)
    assert tile.rows * tile.vectors + tile.vectors + 1 <= there.registers
    plan = tiling(rows, columns, terms, 9, 4, tile, packed)
    assert plan.rows % tile.rows == 0
    assert plan.terms % (16 if plan.whole else 256) == 0
    assert plan.strip <= -(-columns // tile.columns)
    assert plan.strip <= 1 or 4 * plan.strip * tile.columns * plan.terms <= 512 << 10
    assert 4 * plan.slots * plan.slot <= 512 << 10
    if any(packed):
        assert 4 * plan.terms * (plan.rows + tile.columns) <= 8 << 20


def test_clamps_that_hold_anyway_are_settled():
    case = Case("pad", (tensor(F32, W),), lambda b, x: b("slice", x, dim="w", start=3, step=2, to=Dim("to", 20)))
    text = source_of(case)
    assert "minimum" not in text
    assert number(3) + symbol("j", 1, 0, 19) * 2 == symbol("j", 1, 0, 19) * 2 + 3
