"""Contractions at random, at every register tile: the exact oracle's bits."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from native import run
from scheduling import Draft, inputs

from alphac.backends.emit import lower_programs
from alphac.backends.registry import host_target
from alphac.backends.target import Target
from alphac.backends.tiling import shapes
from alphac.ir.core import Function
from alphac.ir.interpret import interpret
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import F32, I32, Dim, TensorType

SHARDS, SHARES = 5, (2, 3)
SHAPES = shapes(host_target().registers)
QUICK = {(12, 2), (8, 3), (16, 1), (5, 4), (1, 1)} & set(SHAPES)


def drawn(source: random.Random) -> Function:
    """Three contractions of one kind each: alone, in a batch, under a combine; sizes around tiles and leaves."""
    draft = Draft()
    for kind in ("alone", "batch", "combine"):
        m, n = (Dim(x, source.choice((1, 3, 16, 17, 33, 40, 70))) for x in "mn")
        k = Dim("k", source.choice((1, 7, 16, 255, 256, 300, 600)))
        if kind == "combine":
            k = Dim("k", SHARDS * source.choice((1, 3, 16, 70, 300)), SHARDS)
        batch = (Dim("b", 3),) if kind == "batch" else ()
        if kind == "alone":
            m = Dim("m", SHARDS * m.size, SHARDS)
        orders = [source.sample(dims, 2) for dims in ((m, k), (k, n))]
        operands = [
            draft.argument("column" if t.grain else "state", f"{kind}_{i}", t)
            for i, t in enumerate(TensorType(F32, (*batch, *order)) for order in orders)
        ]
        result = draft.b("contract", *operands, dims=(*batch, m, n))
        draft.result("output", kind, draft.b.combine(result) if kind == "combine" else result)
    return draft.function()


@pytest.mark.parametrize(
    "tile", [pytest.param(s, marks=() if s in QUICK else pytest.mark.slow, id=f"{s[0]}x{s[1]}") for s in SHAPES]
)
def test_every_register_tile_gives_the_same_bits(tile: tuple[int, int]):
    agrees(drawn(random.Random(str(tile))), replace(host_target(), tile=tile), threads=2)


def strips(layout: str, tiles: int, inlined: bool) -> Function:
    """Contractions with far more rows than terms, so that strips of columns are multiplied, some packed and some in
    place: alone, and under a combine."""
    draft = Draft()
    for kind, m, n, k in (("alone", 37, 70, 9), ("aligned", 200, 64, 16), ("combine", 201, 83, 4)):
        rows, columns = Dim("m", m * (tiles if kind == "alone" else 1)), Dim("n", n)
        terms = Dim("k", SHARDS * k, SHARDS) if kind == "combine" else Dim("k", k)
        if kind == "alone":
            rows = Dim("m", SHARDS * rows.size, SHARDS)
        left, right = (rows, terms) if layout[0] == "N" else (terms, rows), (terms, columns)
        types = (TensorType(F32, left), TensorType(F32, right if layout[1] == "N" else right[::-1]))
        operands = [draft.argument("column" if t.grain else "state", f"{kind}_{i}", t) for i, t in enumerate(types)]
        if inlined:
            operands = [draft.b("neg", x) for x in operands]
        result = draft.b("contract", *operands, dims=(rows, columns))
        if kind == "combine":
            draft.result("output", kind, draft.b.combine(result))
        else:
            draft.result("output", kind, draft.b("abs", result) if inlined else result)
    return draft.function()


@pytest.mark.parametrize("inlined", [False, True])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("bytes_", [4 << 10, 384 << 10])
def test_strips_of_columns(monkeypatch: pytest.MonkeyPatch, layout: str, inlined: bool, bytes_: int):
    monkeypatch.setattr("alphac.backends.tiling.STRIP_BYTES", bytes_)
    for threads in (1, 3):
        agrees(strips(layout, 2, inlined), replace(host_target(), tile=(6, 1)), threads)


def tall(terms: int) -> Function:
    """More rows than columns, which threads divide among them: in rows of examples, and under a combine."""
    draft = Draft()
    m, n, k = Dim("m", 320 * SHARDS, SHARDS), Dim("n", 20), Dim("k", terms)
    x = draft.argument("column", "x", TensorType(F32, (m, k)))
    w = draft.argument("state", "w", TensorType(F32, (k, n)))
    draft.result("output", "y", draft.b("contract", x, w, dims=(m, n)))
    rows, grain = Dim("r", 700), Dim("k", 7 * SHARDS, SHARDS)
    x, y = (draft.argument("column", c, TensorType(F32, (grain, d))) for c, d in (("u", rows), ("v", n)))
    draft.result("output", "g", draft.b.combine(draft.b("contract", x, y, dims=(rows, n))))
    return draft.function()


@pytest.mark.parametrize("terms", [70, pytest.param(4100, marks=pytest.mark.slow)])
def test_threads_with_rows_of_their_own_give_the_same_bits(terms: int):
    agrees(tall(terms), host_target(), threads=3)


COMPARED = [("le", True), ("lt", False), ("ge", True), ("gt", False)]


@pytest.mark.parametrize("op,rows_first", COMPARED, ids=[op for op, _ in COMPARED])
def test_masked_tiles_are_not_multiplied_and_change_nothing(op: str, rows_first: bool):
    """Sums beside the mask are infinite or no numbers."""
    draft = Draft()
    b = draft.b
    batch, m, n, k = Dim("b", SHARDS, SHARDS), Dim("m", 70), Dim("n", 100), Dim("k", 9)
    x = draft.argument("column", "x", TensorType(F32, (batch, m, k)))
    y = draft.argument("column", "y", TensorType(F32, (batch, n, k)))
    counters = [b.broadcast(b("iota", dim=d, dtype=I32), (m, n)) for d in ((m, n) if rows_first else (n, m))]
    mask = b.broadcast(b(op, *counters), (batch, m, n))
    product = b("contract", x, y, dims=(batch, m, n))
    masked = b("where", mask, b("mul", product, b.constant(3, F32, (batch, m, n))), b.constant(-1, F32, (batch, m, n)))
    draft.result("output", "masked", b("neg", masked))
    function = draft.function()
    arrays = inputs(function)
    arrays[0][:, ::7, 3] = np.inf
    arrays[1][:, ::5, 3] = 0
    agrees(function, host_target(), threads=2, arrays=arrays)
    program = schedule(function)
    source = next(iter(lower_programs([program], host_target()).sources.values())).source
    assert re.search(r"if \(.*[<>]=?.*\):\n +(if .*\n +)?multiply", source)


def agrees(function: Function, target: Target, threads: int, arrays: Sequence[np.ndarray] | None = None) -> None:
    arrays = inputs(function) if arrays is None else arrays
    program = schedule(function)
    code = lower_programs([program], target)
    roles, _ = run(program, code, arrays, SHARDS, SHARES, threads=threads)
    wanted = interpret(function, arrays, exact=True)
    for (_, buffer), value in zip(program.results, wanted, strict=True):
        for role in roles:
            expected = value if buffer.role == "nodes" else role.part(buffer, value)
            np.testing.assert_array_equal(role.read(buffer).reshape(expected.shape), expected, err_msg=buffer.name)
