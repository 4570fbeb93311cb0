"""Kernels in the Metal Shading Language, and what loads them: with a double of Metal's framework, which runs their text
on this machine's processor. Nothing here has seen an Apple GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import simulated
from everyop_bits import check_bits
from everyop_cases import Case as OpCase
from everyop_native import Batch
from everyop_table import CASES as OP_CASES
from metal_double import Double, can_compile
from running import LINE, SHARDS, Run, assert_same_bits, run_roles, write_line
from session import Session
from test_kernels import CONTRACTIONS, REDUCTIONS, SPECIALS, Case, function_of, same_bits

from alphac import pipeline
from alphac.backends.emit import lower_programs
from alphac.backends.registry import host_target, target
from alphac.diagnostics import Diagnostics
from alphac.ir.core import Module, RegionContract
from alphac.ir.passes.admit import admit
from alphac.ir.passes.project import schedule
from alphac.ir.text import parse_module, print_module
from alphac.ir.typesys import F64
from alphac.pipeline import Plan, compile_file
from alphac.runtime.bundle import read_bundle
from alphac.runtime.devices.gpu import Launch
from alphac.runtime.devices.metal import MetalDriver
from alphac.runtime.errors import KernelFailed, OutOfMemory
from alphac.runtime.executor import Executor

runs = pytest.mark.skipif(
    not (simulated.can_simulate() and can_compile()), reason="the double of Metal needs g++ on x86-64 Linux"
)
CASES = [*REDUCTIONS, *CONTRACTIONS, *SPECIALS]
FAST_REGION = {"fast": RegionContract("fast", 1e-2)}


def is_admitted(case: OpCase) -> bool:
    module = Module("test", None, functions={"test": case.function}, regions=FAST_REGION)
    return not admit(module, {"metal": target("metal").capabilities}).refusals


OPS = [c for c in OP_CASES if is_admitted(c)]
assert {op.op for op in OPS} == {op.op for op in OP_CASES}, "no op is refused in every dtype"
EACH = 12
PARAMETERS = [c if n % EACH == 0 else pytest.param(c, marks=pytest.mark.slow) for n, c in enumerate(CASES)]
FAST = LINE.replace("-> f32[batch] {", "-> f32[batch] numeric fast(tolerance = 1e-2) {")


@pytest.fixture
def metal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Double:
    double = Double(tmp_path)
    monkeypatch.setitem(sys.modules, "Metal", double)
    return double


def compiled(tmp_path: Path, text: str, *names: str) -> Path:
    source = write_line(tmp_path / "line", text)
    out = tmp_path / f"{'-'.join(names)}.bundle"
    return compile_file(source, out=out, plan=Plan((Fraction(1),) * len(names), names)).path


# ---------------------------------------------------------------------- admission
def test_what_is_exact_is_refused_before_code_is_made(tmp_path: Path) -> None:
    with pytest.raises(Diagnostics) as caught:
        compiled(tmp_path, LINE, "metal")
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("E204", "region `guess` needs numeric exact, which metal lacks")
    assert found.help == "write `numeric fast(tolerance = …)` at the region, or leave metal out"
    assert found.span is not None and "region guess" in LINE.splitlines()[found.span.line - 1]


# ---------------------------------------------------------------------- kernels
@runs
@pytest.mark.parametrize("case", PARAMETERS, ids=str)
def test_every_form_has_the_oracles_bits(case: Case, metal: Double) -> None:
    """On a processor, which keeps subnormal numbers: what the text says is exact."""
    same_bits(function_of([case]), (1, 2, 5), name=target("metal"))


@pytest.fixture(scope="module")
def gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    """Every op, compiled together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "Metal", Double(tmp_path_factory.mktemp("metal")))
        with Batch({str(c): c.function for c in OPS}, target("metal")) as batch:
            yield batch


@runs
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_op_has_the_oracles_bits(op: OpCase, gpu: Batch) -> None:
    check_bits(gpu, str(op), op.given(0), op.bits, op.shards, threads=(1,))


@runs
@pytest.mark.parametrize("optimizer", ["momentum(rate)", "adam(cosine(rate, 30, warmup = 5))"])
def test_a_fast_system_learns_beside_a_processor(optimizer: str, tmp_path: Path, metal: Double) -> None:
    """Rates that change and Adam's corrections are f64, which Metal has not: they are made of integers."""
    host, text = host_target().name, FAST.replace("momentum(rate)", optimizer)
    paths = [compiled(tmp_path, text, name) for name in (host, "metal")]
    with Session(paths[0]) as cpu, Session(paths[1]) as gpu:
        assert gpu.train(20) == cpu.train(20)
        assert {n: s.tobytes() for n, s in gpu.states().items()} == {n: s.tobytes() for n, s in cpu.states().items()}


def test_kernels_are_shown_as_they_are_compiled(tmp_path: Path) -> None:
    source = write_line(tmp_path / "line", FAST)
    text = pipeline.emit(source, "kernels", plan=Plan((Fraction(1),), ("metal",)), overrides={})
    assert "#pragma METAL fp contract(off)" in text and "kernel void k_" in text
    assert "double" not in text and "__global" not in text


# ---------------------------------------------------------------------- the driver
TEXT = """#include <metal_stdlib>
using namespace metal;
kernel void twice(device uchar* memory [[buffer(0)]], constant long* given [[buffer(1)]],
    uint3 own [[thread_position_in_threadgroup]], uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]]) {
    device float* x = (device float*)(memory + given[0]);
    x[own.x] = 2 * x[own.x] + group.y;
}
"""


@runs
@pytest.mark.parametrize("old", [False, True], ids=["since macOS 15", "before"])
def test_memory_and_launches(old: bool, metal: Double) -> None:
    metal.old = old
    driver = MetalDriver(TEXT.encode(), "metal")
    first, second = driver.allocate(16), driver.allocate(1024)
    x = np.arange(4, dtype=np.float32)
    driver.write(second, x)
    found = np.ones(4, np.float32)
    driver.read(first, found)
    assert not found.any(), "memory starts as zeros"
    launch = Launch(driver.function("twice"), 1, 1, 4, (second,))
    driver.launch(launch)
    driver.read(second, found)
    assert found.tolist() == [0, 2, 4, 6]
    driver.record((launch, launch))()
    third = driver.allocate(1 << 16)
    driver.write(third, x)
    driver.read(second, found)
    assert found.tolist() == [0, 8, 16, 24], "larger memory holds what the smaller one did"
    assert driver.describe()["device"] == "Apple Double"
    driver.close()
    driver.close()


@runs
def test_what_metal_refuses(metal: Double, tmp_path: Path) -> None:
    with pytest.raises(KernelFailed, match="does not take the kernels"):
        MetalDriver(TEXT.replace("float*", "flaot*").encode(), "metal")
    driver = MetalDriver(TEXT.encode(), "metal")
    with pytest.raises(KernelFailed, match="no kernel `thrice`"):
        driver.function("thrice")
    launch = Launch(driver.function("twice"), 1, 1, 4, (0,))
    driver.allocate(64)
    driver.launch(launch)
    metal.status = 5
    with pytest.raises(KernelFailed, match="Hang"):
        driver.read(0, np.zeros(4, np.float32))
    metal.status, metal.most = 4, 2
    with pytest.raises(KernelFailed, match="no room for 256 threads"):
        MetalDriver(TEXT.encode(), "metal").function("twice")
    with pytest.raises(OutOfMemory):
        driver.allocate(1 << 41)
        driver.write(0, np.zeros(4, np.float32))
    metal.most = 0
    with pytest.raises(KernelFailed, match="finds no GPU"):
        MetalDriver(b"", "metal")


def test_a_role_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = read_bundle(compiled(tmp_path, FAST, "metal"))
    monkeypatch.setitem(sys.modules, "Metal", None)
    with pytest.raises(KernelFailed, match=r"(?s)metal needs pyobjc-framework-Metal.*alphac\[metal\]"):
        Executor(bundle, bundle.class_of(0), 0, 1)


def test_no_kernel_needs_f64(tmp_path: Path) -> None:
    """Integers in i64, random numbers and functions of f32 are made without it; and what has it, without `double`."""
    exact = {"f64", "bf16"}
    programs = [schedule(function_of([c]), streams=False) for c in CASES if not exact & {str(t.dtype) for t in c.types}]
    for number, program in enumerate(programs):
        program.name = f"f{number}"
    assert b"ouble" not in lower_programs(programs, target("metal")).object()
    wide = schedule(function_of([c for c in CASES if c.types[0].dtype == F64]), streams=False)
    text = lower_programs([wide], target("metal")).object()
    assert b"Double" in text and not re.search(rb"\bdouble\b", text)


# ---------------------------------------------------------------------- a system with exact parts and fast ones
PARTS = FAST.replace(
    "learn w, b",
    """param scale: f32[] = 1
state spread: f32[features] = 0
region width(y: f32[batch]) -> f32[batch] numeric exact { (abs(y) - scale) ** 2 }
transition { spread' = 0.5 * spread + mean(abs(x), batch) }
learn scale with momentum(rate) minimizing wide { mean(width(y)) }
learn w, b""",
)


@runs
def test_a_fast_part_runs_beside_exact_ones(tmp_path: Path, metal: Double) -> None:
    """Metal owns the shards of the fast region; what is exact, and what no region declares, is a processor's."""
    host = host_target().name
    mixed, alone = compiled(tmp_path, PARTS, "metal", host), compiled(tmp_path, PARTS, host)
    owned = {record.target: record.owned for record in (read_bundle(mixed).class_of(k) for k in (0, 1))}
    assert [bool(n) for n in owned["metal"]] == [True, False]
    assert owned[host][1] == SHARDS
    runs_: list[Run] = []
    for bundle in (mixed, alone):
        run_roles(bundle, out := tmp_path / bundle.stem, 20, {})
        runs_.append(Run(out))
    assert_same_bits(*runs_)


def test_an_exact_part_that_feeds_a_fast_one_is_refused(tmp_path: Path) -> None:
    text = PARTS.replace("guess(x) - y", "guess(x) - width(y)")
    with pytest.raises(Diagnostics, match=r"region `width` needs numeric exact, which metal lacks"):
        compiled(tmp_path, text, "metal")


def test_where_all_can_do_both_nothing_is_apart(tmp_path: Path) -> None:
    """The marks that tell exact regions from fast ones are gone: it is the same system, and as fast."""
    source = write_line(tmp_path / "line", PARTS)
    module = pipeline.simplify(pipeline.differentiate(pipeline.parse_and_elaborate(source, {})))
    text = print_module(module)
    assert "require" in text and print_module(parse_module(text)) == text
    found, strands, _ = pipeline.admitted(module, Plan.of(roles=1))
    assert len(strands) == 1 and "require" not in print_module(found)
