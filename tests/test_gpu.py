"""Kernels for GPUs. Simulated: the very same ones, compiled for this machine and run block by block, give the oracle's
bits. Assembled: their PTX is taken by ptxas for every architecture, and contracts nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import simulated
from page import check_part
from shipped import EVERYWHERE
from test_kernels import (
    BATCH,
    CONTRACTIONS,
    REDUCTIONS,
    SPECIALS,
    C,
    Case,
    H,
    V,
    W,
    contracted,
    function_of,
    reduced,
    same_bits,
)  # fmt: skip

from alphac.backends.emit import lower_programs
from alphac.backends.gpu import THREADS
from alphac.backends.gpu.split import split
from alphac.backends.gpu.tiling import TERMS, tile
from alphac.backends.registry import target, targets
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import Program
from alphac.ir.typesys import BF16, F32, F64, I64, Dim, DType
from alphac.pipeline import differentiate, parse_and_elaborate, schedules, simplify
from alphac.runtime.devices.gpu import Launch

ORDER = ("cuda-sm80", "cuda-sm86", "cuda-sm90", "cuda-sm100")  # in tables
MEMORY = {"cuda-sm80": 164, "cuda-sm86": 100, "cuda-sm90": 228, "cuda-sm100": 228}  # KiB of a multiprocessor
EXAMPLES = Path(__file__).parents[1] / "examples"
CUDA = sorted(name for name in targets() if name.startswith("cuda-"))
simulates = pytest.mark.skipif(not simulated.can_simulate(), reason="the simulator switches stacks of x86-64 Linux")
assembles = pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas, of NVIDIA's CUDA toolkit, is not here")

# ptxas may contract a product and a sum that do not say how they round.
LOOSE = re.compile(r"\b(?:mul|add|sub)\.f(?:32|64)\b|\.ftz|\.approx|\bmad\.f|div\.full")


@simulates
@pytest.mark.parametrize("case", [*REDUCTIONS, *CONTRACTIONS, *SPECIALS], ids=str)
@pytest.mark.parametrize("shares", [pytest.param((8,), marks=pytest.mark.slow), (1, 2, 5)], ids=str)
def test_every_form_has_the_oracles_bits(case: Case, shares: tuple[int, ...]):
    same_bits(function_of([case]), shares, name=simulated.simulated())


FAR, OUTER = Dim("far", 300_000), Dim("outer", 19_000)
PARTED = [  # and how many launches each is
    (reduced(F32, (FAR,), ("far",)), 2),  # more leaves than a block folds at once
    (reduced(BF16, (OUTER, C), ("outer",), "max"), 2),
    (reduced(F64, (C, OUTER), ("outer",)), 2),
    (reduced(F32, (BATCH, OUTER), ("batch", "outer"), combine="sum"), 3),  # leaves, their trees, the shards
    (reduced(I64, (BATCH, OUTER, C), ("batch", "outer"), "min", "min"), 3),
    (reduced(BF16, (BATCH, H), ("batch", "h"), combine="sum"), 2),
    (contracted(F32, (BATCH, W), (BATCH, V), (W, V), combine=True), 2),
    (contracted(BF16, (BATCH, W), (BATCH, V), (W, V), combine=True), 2),
]


@simulates
@pytest.mark.parametrize(("case", "launches"), PARTED, ids=str)
def test_what_few_blocks_would_make_is_made_in_parts(case: Case, launches: int):
    program = schedule(function_of([case]), streams=False)
    (kernel,) = program.kernels()
    assert len(split(kernel, simulated.simulated())) == launches
    same_bits(function_of([case]), (1, 2, 5), name=simulated.simulated())


@simulates
def test_threads_that_do_not_all_reach_a_barrier_are_seen():
    source = lower_programs([schedule(function_of([REDUCTIONS[1]]), streams=False)], simulated.simulated())
    uneven = {n: s for n, s in source.sources.items() if "barrier()" in s.source}
    assert uneven, "a long reduction meets at barriers"
    for name, kernel in uneven.items():
        text = re.sub(r"^( *)barrier\(\)$", r"\1if own > 3:\n\1    barrier()", kernel.source, flags=re.MULTILINE)
        source.sources[name] = type(kernel)(**{**vars(kernel), "source": text, "name": name})
    device = simulated.Simulator(source.object().split(b"\n", 1)[1])
    memory = device.allocate(1 << 20)
    for name, kernel in uneven.items():
        arguments = [memory] * len(kernel.parameters) + [8, 0, memory]
        with pytest.raises(AssertionError, match="wait at a barrier"):
            device.launch(Launch(device.function(name), 1, 1, 256, tuple(arguments)))


# ---------------------------------------------------------------------- assembled
@dataclass(frozen=True)
class Resources:
    """What ptxas says of a kernel."""

    registers: int
    spills: int
    shared: int

    def blocks(self, name: str) -> int:
        """How many a multiprocessor has at a time, by registers (in eights, of a block's 256 threads) and memory (of
        which each block takes 1 KiB more)."""
        fitting = (1 << 16) // (-(-self.registers // 8) * 8 * THREADS)
        return min(fitting, (MEMORY[name] << 10) // (self.shared + 1024))


def ptx(programs: Iterable[Program], name: str) -> str:
    return lower_programs(programs, target(name)).object().split(b"\n", 1)[1].decode()


def assembled(text: str, name: str, directory: Path) -> dict[str, Resources]:
    """Every kernel's use of registers and memory, as assembled."""
    file = directory / f"{name}.ptx"
    file.write_text(text)
    command = ["ptxas", "-v", f"-arch={target(name).cpu}", str(file), "-o", str(directory / "out.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Resources] = {}
    for part in re.split(r"Compiling entry function '", done.stdout + done.stderr)[1:]:
        numbers = {word: int(n) for n, word in re.findall(r"(\d+) (bytes spill stores|registers|bytes smem)", part)}
        spills, shared = numbers.get("bytes spill stores", 0), numbers.get("bytes smem", 0)
        found[part.split("'")[0]] = Resources(numbers["registers"], spills, shared)
    return found


def programs_of(example: str) -> list[Program]:
    return list(
        schedules(simplify(differentiate(parse_and_elaborate(EXAMPLES / example / f"{example}.alpha", {})))).values()
    )


@assembles
@pytest.mark.parametrize("name", CUDA)
def test_kernels_of_a_system_assemble(name: str, tmp_path: Path):
    text = ptx(programs_of("digits_mlp"), name)
    assert not LOOSE.search(text)
    found = assembled(text, name, tmp_path)
    assert len(found) > 20
    assert all(r.spills == 0 and r.shared <= 48 << 10 for r in found.values())


@assembles
@pytest.mark.slow
@pytest.mark.parametrize("name", CUDA)
@pytest.mark.parametrize("example", EVERYWHERE)
def test_kernels_of_every_example_assemble(example: str, name: str, tmp_path: Path):
    text = ptx(programs_of(example), name)
    assert not LOOSE.search(text)
    assert assembled(text, name, tmp_path)


def programs_each(cases: Sequence[Case]) -> list[Program]:
    """A program for every case."""
    programs = [schedule(function_of([case]), streams=False) for case in cases]
    for number, program in enumerate(programs):
        program.name = f"f{number}"
    return programs


def large_contractions(dtype: DType, op: str = "contract") -> list[Case]:
    """Contractions whose sides are all 128 or more, operands lying every way."""
    cases: list[Case] = []
    for sizes in ((256, 1024, 384), (2048, 1024, 2048), (1000, 1000, 4000)):
        m, k, n = (Dim(name, size) for name, size in zip("mkn", sizes, strict=True))
        cases += [contracted(dtype, a, b, (m, n), op=op) for a in ((m, k), (k, m)) for b in ((k, n), (n, k))]
    batch, k, n = Dim("batch", 4096, 32), Dim("k", 1024), Dim("n", 512)
    cases.append(contracted(dtype, (batch, k), (k, n), (batch, n), inline=True, op=op))
    cases.append(contracted(dtype, (batch, k), (batch, n), (k, n), combine=True, op=op))
    return cases


@assembles
@pytest.mark.parametrize("name", CUDA)
@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
def test_contractions_fill_registers_and_spill_none(dtype: DType, name: str, tmp_path: Path):
    """At least 32 multiplications and additions for an element that is loaded, if no side is shorter than 128."""
    cases = large_contractions(dtype)
    found = assembled(ptx(programs_each(cases), name), name, tmp_path)
    tiled = [r for r in found.values() if r.shared]
    assert len(tiled) == len(cases)
    assert all(r.spills == 0 and r.registers <= (255 if dtype == F64 else 128) for r in tiled)


@pytest.mark.parametrize("element", [4, 8])
@pytest.mark.parametrize(("rows", "columns", "batch"), [(128, 128, 1), (4096, 128, 1), (1000, 4000, 1), (128, 128, 64)])
def test_tiles_reuse_what_they_load(rows: int, columns: int, batch: int, element: int):
    height, width = tile(rows, columns, batch, element, 48 << 10)
    assert height * width * TERMS / ((height + width) * TERMS) >= 32


@pytest.mark.parametrize("name", ["cuda-sm86", "metal", "opencl", "rocm-gfx90a"])
@pytest.mark.parametrize("dtype", [F32, F64, I64], ids=str)
def test_tiles_fit_into_the_memory_of_a_block(dtype: DType, name: str):
    """32 KiB are what every device of OpenCL's full profile and every GPU of Apple's have."""
    there = target(name)
    if str(dtype) in there.capabilities:
        sources = lower_programs(programs_each(large_contractions(dtype)), there).sources.values()
        assert 0 < max(source.shared for source in sources) <= there.scratch


# ---------------------------------------------------------------------- the page
def taken(cases: Sequence[Case], directory: Path) -> list[list[Resources]]:
    """What each contraction takes on each architecture, in the table's order."""
    found = [assembled(ptx(programs_each(cases), name), name, directory) for name in ORDER]
    names = [next(iter(lower_programs(programs_each([case]), target(ORDER[0])).sources)) for case in cases]
    return [[each[name] for each in found] for name in names]


def both(values: Iterable[object]) -> str:
    """Of all architectures, once if they are the same."""
    texts = [str(v) for v in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def need_ptxas_13() -> None:
    done = subprocess.run(["ptxas", "--version"], capture_output=True, text=True, check=False)
    if "release 13.0" not in done.stdout:
        pytest.skip("the page has what ptxas 13.0 makes")


@assembles
def test_the_page_has_todays_estimates(request: pytest.FixtureRequest, tmp_path: Path):
    need_ptxas_13()
    sizes = ((0, (256, 384)), (4, (2048, 2048)))
    rows = [(n, shape, dtype) for n, shape in sizes for dtype in (F32, BF16, F64)]
    cases = [large_contractions(dtype)[n] for n, _, dtype in rows]
    lines = ["| m × n | dtype | tile | registers | block's memory | blocks | fma per load |", "|---" * 7 + "|"]
    for (_, shape, dtype), found in zip(rows, taken(cases, tmp_path), strict=True):
        height, width = tile(*shape, 1, 8 if dtype == F64 else 4, 48 << 10)
        blocks = both(used.blocks(name) for name, used in zip(ORDER, found, strict=True))
        cells = (
            f"{shape[0]} × {shape[1]}", dtype, f"{height} × {width}", both(used.registers for used in found),
            f"{found[0].shared:,}", blocks, height * width // (height + width),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    check_part(request, "cuda", "\n".join(lines) + "\n")
