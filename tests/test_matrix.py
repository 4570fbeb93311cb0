"""Contractions by matrix instructions. Simulated: the kernels of every instruction, which a double plays as its maker's
manual defines it, give the product of operands rounded to bf16, as a processor's AVX512-BF16 does. Assembled: ptxas and
LLVM take them for every architecture and spill nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
import simulated
import test_gpu
import test_rocm
from matrix_double import LAYOUTS
from native import run
from page import check_part
from test_fast import BF16, SHAPES, contraction, expected
from test_gpu import CUDA, assembled, assembles, both, large_contractions, need_ptxas_13, programs_each, ptx, simulates
from test_kernels import contracted, same_bits
from test_rocm import LIMITS, ROCM, bodies, check_within, lowered, resources, text_of

from alphac.backends.emit import lower_programs
from alphac.backends.gpu.matrix import Matrix
from alphac.backends.gpu.matrix_contraction import FEW
from alphac.backends.gpu.tiling import matrix_tile
from alphac.backends.registry import target, targets, targets_here
from alphac.backends.target import Target
from alphac.ir.oracle import to_compute
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import F32, Dim

FEW_COLUMNS = [s for s in SHAPES if min(d.size for d in s[2]) < FEW]
MATRICES = {t.matrix.name: t.matrix for t in targets().values() if t.matrix is not None}
BATCH, WIDE = Dim("batch", 280, 8), Dim("wide", 150)
HEADS = Dim("heads", 32)
M, N, K, ODD, LINES = Dim("m", 260), Dim("n", 200), Dim("k", 96), Dim("odd", 1101), Dim("lines", 133)
LARGE = [
    ((M, K), (K, N), (M, N), False, False),  # tiles are not whole
    ((ODD, M), (N, ODD), (M, N), False, True),  # sums that wait, terms that are no multiple of anything
    ((BATCH, M), (BATCH, WIDE), (M, WIDE), True, False),  # shard by shard
    ((BATCH, WIDE), (WIDE, N), (BATCH, N), False, True),
    ((HEADS, WIDE, K), (HEADS, K, LINES), (HEADS, WIDE, LINES), False, False),  # tiles of 128 by 128
]
PRODUCTS = [*(s for s in SHAPES if s not in FEW_COLUMNS), *LARGE]


def some(every: Iterable[Any], each: int = 4) -> list[Any]:
    """Of parameters, one of so many, and the others where slow tests run."""
    return [p if n % each == 0 else pytest.param(p, marks=pytest.mark.slow) for n, p in enumerate(every)]


def found(shape: tuple, there: Target, shares: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Every role's part of the result, of what it should be, and of what the terms' sizes add up to."""
    random = np.random.default_rng(3)
    x, y = (random.standard_normal([d.size for d in axes]).astype(np.float32) for axes in shape[:2])
    program = schedule(contraction(shape), there.streams)
    code = lower_programs([program], there)
    if there.matrix is not None:
        assert any(there.matrix.name in source.source for source in code.sources.values())
    roles, _ = run(program, code, [x, y], 8, shares, 1)
    wanted, size = expected(shape, x, y)
    ((_, buffer),) = program.results
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for role in roles:
        whole = buffer.role == "nodes" or buffer.per_shard == 0
        part, bound = (wanted, size) if whole else (role.part(buffer, wanted), role.part(buffer, size))
        parts.append((to_compute(role.read(buffer), F32).reshape(part.shape), part, bound))
    return parts


def test_the_double_knows_every_instruction() -> None:
    assert set(LAYOUTS) == set(MATRICES)


@simulates
@pytest.mark.parametrize("matrix", MATRICES.values(), ids=lambda m: m.name)
@pytest.mark.parametrize("shape", some(PRODUCTS, 5), ids=str)
def test_products_of_bf16_are_added_up_in_f32(shape: tuple, matrix: Matrix) -> None:
    for part, wanted, size in found(shape, simulated.simulated(matrix), (3, 5)):
        assert np.all(np.abs(part - wanted) <= size * 2.0**-20)


@simulates
@pytest.mark.parametrize("shape", FEW_COLUMNS, ids=str)
def test_few_columns_are_summed_exactly(shape: tuple) -> None:
    same_bits(contraction(shape), (3, 5), name=simulated.simulated(target("cuda-sm80").matrix))


@simulates
@pytest.mark.skipif(BF16 not in targets_here(), reason="this processor has no AVX512-BF16")
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_processor_rounds_as_a_gpu_does(shape: tuple) -> None:
    """What is left between them is the order of sums in f32."""
    matrix = target("cuda-sm80").matrix
    both = (found(shape, there, (8,)) for there in (target(BF16), simulated.simulated(matrix)))
    for (ours, _, size), (theirs, _, _) in zip(*both, strict=True):
        assert np.all(np.abs(ours - theirs) <= size * 2.0**-20)


def test_epilogues_are_fused() -> None:
    """What follows a contraction is in its kernel, as it is in exact ones: `contraction` ends in a negation."""
    programs = programs_each([contracted(F32, (M, K), (K, N), (M, N), op="contract_fast")])
    (source,) = lower_programs(programs, target("cuda-sm80")).sources.values()
    assert "multiply_mma" in source.source and "negate" in source.source


# ---------------------------------------------------------------------- assembled
CASES = large_contractions(F32, "contract_fast")


@assembles
@pytest.mark.parametrize("name", some(CUDA))
def test_kernels_for_nvidia_spill_nothing(name: str, tmp_path: Path) -> None:
    text = ptx(programs_each(CASES), name)
    assert not test_gpu.LOOSE.search(text)
    found = assembled(text, name, tmp_path)
    tiled = {symbol: used for symbol, used in found.items() if used.shared}
    assert len(tiled) == len(CASES)
    assert all(used.spills == 0 and used.blocks(name) >= 1 for used in tiled.values())
    for body in re.split(r"\.entry ", text)[1:]:
        if "mma.sync" in body:
            assert len(re.findall(r"ld\.shared\.v(?:4\.b32|2\.b64)", body)) >= 6, "operands are read 16 bytes at a time"
    assert text.count("mma.sync") >= 8 * len(CASES)


@pytest.mark.parametrize("name", some(ROCM))
def test_kernels_for_amd_spill_nothing(name: str) -> None:
    text = text_of(lowered(programs_each(CASES), name))
    tiled = [used for used in check_within(name, text).values() if used.shared > 16]
    assert len(tiled) == len(CASES)
    instruction = r"v_wmma_f32_16x16x16_bf16" if name.startswith("rocm-gfx1") else r"v_mfma_f32_16x16x16_?bf16"
    with_it = [body for body in bodies(text).values() if re.search(instruction, body)]
    assert len(with_it) == len(CASES)
    assert all(re.search(r"ds_(?:read|load)_b128", body) for body in with_it)


def test_tiles_reuse_what_they_load() -> None:
    """At least 32 multiplications and additions for an element that is loaded, if no side is shorter than 128."""
    for least in (1024, 2048):
        for rows, columns, batch in ((128, 128, 1), (4096, 128, 1), (1000, 4000, 1), (128, 128, 64)):
            height, width = matrix_tile(rows, columns, batch, least)
            assert height * width // (height + width) >= 32


@assembles
@pytest.mark.skipif(llvm.llvm_version_info[:2] != (22, 1), reason="the page has what LLVM 22.1 makes")
def test_the_page_has_todays_estimates(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    need_ptxas_13()
    lines = [
        "| instruction | m × n | tile | registers | block's memory | blocks, waves | fma per load | a KiB |",
        "|---" * 8 + "|",
    ]
    rows = [(n, sizes) for n, sizes in ((0, (256, 384)), (4, (2048, 2048)))]
    nvidia = test_gpu.taken([CASES[n] for n, _ in rows], tmp_path)
    for (_, sizes), found in zip(rows, nvidia, strict=True):
        blocks = [used.blocks(name) for name, used in zip(test_gpu.ORDER, found, strict=True)]
        lines.append(_line("mma_16x8x16", sizes, [u.registers for u in found], found[0].shared, both(blocks)))
    for name in test_rocm.ORDER:
        for n, sizes in rows:
            (used,) = resources(text_of(lowered(programs_each([CASES[n]]), name))).values()
            limits, matrix = LIMITS[target(name).cpu], target(name).matrix
            assert matrix is not None
            waves = f"{used.waves(limits)} of {limits.waves}"
            lines.append(_line(f"{matrix.name}, {target(name).cpu}", sizes, [used.vector], used.shared, waves))
    check_part(request, "matrix", "\n".join(lines) + "\n")


def _line(name: str, sizes: tuple[int, int], registers: list[int], shared: int, room: str) -> str:
    matrix = MATRICES[name.partition(",")[0]]
    height, width = matrix_tile(*sizes, 1, 256 // matrix.lanes * matrix.rows * matrix.columns)
    each = height * width / (height + width)
    cells = (
        name, f"{sizes[0]} × {sizes[1]}", f"{height} × {width}", both(registers), f"{shared:,}", room, int(each),
        f"{256 * each / (matrix.rows * matrix.columns * matrix.terms):.1f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"
