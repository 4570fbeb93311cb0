"""Kernels for AMD GPUs, which are those of every GPU target (simulated in test_gpu.py): their assembly contracts and
spills nothing, for each architecture; lld makes code objects of them that say what a driver must know."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from linking import need_lld
from page import check_part
from shipped import EVERYWHERE
from test_gpu import EXAMPLES, large_contractions, programs_each, programs_of
from test_kernels import Case, function_of, tensor

from alphac.backends import rocm
from alphac.backends.compile import assembly
from alphac.backends.emit import Code, lower_programs
from alphac.backends.gpu.entry import integers
from alphac.backends.gpu.tiling import TERMS, tile
from alphac.backends.registry import target, targets
from alphac.diagnostics import Diagnostics
from alphac.ir.builder import Builder
from alphac.ir.core import Value
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import Program
from alphac.ir.typesys import BF16, F32, F64, Dim, DType
from alphac.pipeline import Plan, compile_file
from alphac.runtime.bundle import read_bundle

ORDER = ("rocm-gfx90a", "rocm-gfx942", "rocm-gfx1100", "rocm-gfx1201")  # in tables
ROCM = sorted(name for name in targets() if name.startswith("rocm-"))

# Functions of which the hardware has an approximation only; a product and a sum in one, rounded twice or once.
LOOSE = re.compile(r"\bv_(?:exp|log|sin|cos)_f|\bv_rsq_f32|_legacy_f32|\bv_mad_mix")
TWICE = re.compile(r"\bv_(?:mac|mad|madmk|madak)_f")
FUSED = re.compile(r"\bv_(?:pk_|dual_)?(?:fma|fmac|mad|mac)[a-z]*_f(?:32|64)")
INTEGER = re.compile(r"(?:div|mod)\(")  # whose expansion has products and sums of small integers
WANTED = re.compile(rf"{INTEGER.pattern}|\bfma\(|tile_multiply\(|sqrt\(| / ")
# e_flags: which processor, as LLVM's AMDGPUUsage numbers them.
MACHINES = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx1100": 0x41, "gfx1201": 0x4E}


@dataclass(frozen=True)
class Limits:
    """Of one SIMD: registers of a lane, how they are dealt, waves; SIMDs and waves' lanes of a compute unit."""

    registers: int
    granule: int
    waves: int
    simds: int
    lanes: int


LIMITS = {
    "gfx90a": Limits(512, 8, 8, 4, 64),
    "gfx942": Limits(512, 8, 8, 4, 64),
    "gfx1100": Limits(1536, 24, 16, 2, 32),
    "gfx1201": Limits(1536, 24, 16, 2, 32),
}


@dataclass(frozen=True)
class Resources:
    """What a kernel uses, as its metadata says."""

    vector: int
    scalar: int
    spills: int
    shared: int
    private: int

    def waves(self, limits: Limits) -> int:
        """How many of a SIMD's waves there may be at a time, by registers and the block's memory."""
        each = rocm.THREADS // limits.lanes // limits.simds  # waves of a block
        taken = -(-max(self.vector, 1) // limits.granule) * limits.granule
        blocks = rocm.SHARED // max(self.shared, 1)
        return min(limits.waves, limits.registers // taken, blocks * each) // each * each


def lowered(programs: Iterable[Program], name: str) -> Code:
    return lower_programs(programs, target(name))


def text_of(code: Code) -> str:
    return assembly(code.sources.values(), code.segments, code.target)


def resources(text: str) -> dict[str, Resources]:
    """Of every kernel in an assembly."""
    found: dict[str, Resources] = {}
    for part in re.split(r"\n  - (?=\.)", text[text.index("amdhsa.kernels:") :])[1:]:
        numbers = {name: int(n) for name, n in re.findall(r"\.(\w+): +(\d+)$", part, re.MULTILINE)}
        (symbol,) = re.findall(r"^    \.name: +(k_\w+)$", part, re.MULTILINE)
        found[symbol] = Resources(
            numbers["vgpr_count"],
            numbers["sgpr_count"],
            numbers["vgpr_spill_count"] + numbers["sgpr_spill_count"],
            numbers["group_segment_fixed_size"],
            numbers["private_segment_fixed_size"],
        )
    return found


def bodies(text: str) -> dict[str, str]:
    """The instructions of every kernel."""
    parts = re.split(r"^(k_\w+):\n", text, flags=re.MULTILINE)
    return {name: body.split(".section", 1)[0] for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def check_exact(code: Code, text: str) -> None:
    """Nothing is contracted, flushed or approximated."""
    assert not LOOSE.search(text)
    modes = set(re.findall(r"\.amdhsa_float_(\w+) (\d)", text))
    assert modes == {
        ("round_mode_32", "0"),
        ("round_mode_16_64", "0"),
        ("denorm_mode_32", "3"),
        ("denorm_mode_16_64", "3"),
    }
    found = bodies(text)
    assert set(found) == set(code.sources)
    for pattern, reason in ((TWICE, INTEGER), (FUSED, WANTED)):
        without = [name for name, source in code.sources.items() if not reason.search(source.source)]
        loose = [name for name in without if pattern.search(found[name])]
        assert not loose, found[loose[0]]


def check_within(name: str, text: str) -> dict[str, Resources]:
    """Registers and the block's memory are those that the processor has, and nothing is spilled."""
    limits, found = LIMITS[target(name).cpu], resources(text)
    for symbol, used in found.items():
        assert used.spills == 0, symbol
        assert used.vector <= min(512, limits.registers // 3 * 2) and used.scalar <= 108, (symbol, used)
        assert used.shared <= rocm.SHARED, symbol
        assert used.waves(limits), (symbol, used)
    return found


# ---------------------------------------------------------------------- assembly
def test_kernels_are_those_that_are_simulated() -> None:
    programs = programs_of("digits_mlp")
    wanted = lowered(programs, "cuda-sm90").sources
    for name in ROCM:
        assert lowered(programs, name).sources == wanted


@pytest.mark.parametrize("name", ROCM)
def test_kernels_of_a_system_are_exact_and_spill_nothing(name: str) -> None:
    code = lowered(programs_of("digits_mlp"), name)
    text = text_of(code)
    check_exact(code, text)
    assert len(check_within(name, text)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ROCM)
@pytest.mark.parametrize("example", EVERYWHERE)
def test_kernels_of_every_example_are_exact_and_spill_nothing(example: str, name: str) -> None:
    code = lowered(programs_of(example), name)
    text = text_of(code)
    check_exact(code, text)
    assert check_within(name, text)


@pytest.mark.parametrize("name", ROCM)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_a_product_and_a_sum_stay_two(dtype: DType, name: str) -> None:
    n = Dim("n", 1000)

    def make(builder: Builder, x: Value, y: Value, z: Value) -> Value:
        return builder("add", builder("mul", x, y), z)

    program = schedule(function_of([Case("x y + z", (tensor(dtype, n),) * 3, make)]), streams=False)
    (body,) = bodies(text_of(lowered([program], name))).values()
    assert not FUSED.search(body)
    assert re.search(r"\bv_(?:pk_|dual_)?mul_f", body) and re.search(r"\bv_(?:pk_|dual_)?add_f", body)


@pytest.mark.parametrize("name", ROCM)
@pytest.mark.parametrize(
    "dtype", [F32, pytest.param(F64, marks=pytest.mark.slow), pytest.param(BF16, marks=pytest.mark.slow)], ids=str
)
def test_contractions_fill_registers_and_spill_none(dtype: DType, name: str) -> None:
    cases = large_contractions(dtype)
    code = lowered(programs_each(cases), name)
    text = text_of(code)
    tiled = [used for used in check_within(name, text).values() if used.shared > 16]
    assert len(tiled) == len(cases)
    least = 1 if dtype == F64 else 2
    assert all(used.waves(LIMITS[target(name).cpu]) >= least for used in tiled)
    wide = [len(re.findall(r"ds_(?:read|load)_b128", body)) for body in bodies(text).values()]
    assert min(wide) >= 2, "both operands are read 16 bytes at a time"


# ---------------------------------------------------------------------- code objects
def symbols(data: bytes) -> dict[str, int]:
    """What an ELF file exports, and where it lies."""
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + i * size) for i in range(count)]
    found: dict[str, int] = {}
    for section in sections:
        if section[1] == 11:  # symbols for the loader
            names, (offset, length) = sections[section[6]][4], section[4:6]
            for at in range(offset + 24, offset + length, 24):
                name, _, _, _, value = struct.unpack_from("<IBBHQ", data, at)
                start = names + name
                found[data[start : data.index(b"\0", start)].decode()] = value
    return found


def file_offset(data: bytes, address: int) -> int:
    """Where in a loadable ELF file an address is."""
    (headers_at,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, _, offset, start, _, length = struct.unpack_from("<IIQQQQ", data, headers_at + i * size)
        if kind == 1 and start <= address < start + length:
            return address - start + offset
    raise AssertionError(f"no segment has {address:#x}")


@pytest.mark.parametrize("name", ROCM)
def test_a_code_object_says_what_a_driver_must_know(name: str) -> None:
    need_lld()
    code = lowered(programs_each([*large_contractions(F32)[:2], *large_contractions(F32)[-1:]]), name)
    data = code.object().split(b"\n", 1)[1]
    assert data[:6] == b"\x7fELF\x02\x01" and data[7] == 64 and data[8] == 3, "for HSA, version 5"
    kind, machine = struct.unpack_from("<HH", data, 16)
    (flags,) = struct.unpack_from("<I", data, 48)
    assert (kind, machine, flags & 0xFF) == (3, 224, MACHINES[target(name).cpu])
    exported = symbols(data)
    assert set(exported) == {n for s in code.sources for n in (s, f"{s}.kd")}
    for symbol, source in code.sources.items():
        descriptor = exported[f"{symbol}.kd"]
        shared, private, arguments, _, entry = struct.unpack_from("<IIIIq", data, file_offset(data, descriptor))
        assert descriptor % 64 == 0 and descriptor + entry == exported[symbol]
        assert shared == max(source.shared, 16) and private < 1 << 12
        assert arguments == 8 * (len(source.parameters) + integers(source)), "and none that a driver fills in itself"


def test_without_lld_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocm, "find_lld", lambda: "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = EXAMPLES / "digits_mlp" / "digits_mlp.alpha"
    with pytest.raises(Diagnostics) as caught:
        compile_file(source, out=tmp_path / "b", plan=Plan.of(fleet=_fleet(tmp_path, "rocm-gfx942")))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E214" and "apt-get install lld-19" in (diagnostic.help or "")
    assert not (tmp_path / "b").exists()


def _fleet(directory: Path, *names: str) -> Path:
    """A fleet file with an endpoint for each of these targets."""
    path = directory / "fleet.toml"
    path.write_text("".join(f'[[endpoint]]\nname = "e{i}"\ntarget = "{n}"\nspeed = 1\n' for i, n in enumerate(names)))
    return path


def test_one_system_for_processors_and_gpus_of_two_makers(tmp_path: Path) -> None:
    need_lld()
    names = ("x86-64-v3", "cuda-sm90", "rocm-gfx942", "rocm-gfx1100")
    source = EXAMPLES / "digits_mlp" / "digits_mlp.alpha"
    path = compile_file(source, out=tmp_path / "b", plan=Plan.of(fleet=_fleet(tmp_path, *names))).path
    bundle = read_bundle(path)
    classes = [bundle.class_of(bundle.role(k).role_class) for k in range(4)]
    assert [(c.target, c.device, c.features[-1:]) for c in classes][2:] == [
        ("rocm-gfx942", "rocm", ("gfx942",)),
        ("rocm-gfx1100", "rocm", ("gfx1100",)),
    ]
    machines = [struct.unpack_from("<H", bundle.read(c.object).split(b"\n", 1)[1], 18)[0] for c in classes[2:]]
    assert machines == [224, 224]


# ---------------------------------------------------------------------- the page
def estimates() -> str:
    """What contractions use, by architecture."""
    lines = [
        "| m × n | dtype | tile | vector registers | block's memory | waves of a SIMD | fma per load |",
        "|---" * 7 + "|",
    ]
    for number, sizes in ((0, (256, 384)), (4, (2048, 2048))):
        for dtype in (F32, BF16, F64):
            case = large_contractions(dtype)[number]
            found: list[Resources] = []
            for name in ORDER:
                (used,) = resources(text_of(lowered(programs_each([case]), name))).values()
                found.append(used)
            height, width = tile(*sizes, 1, 8 if dtype == F64 else 4, rocm.SHARED)
            registers = " / ".join(str(used.vector) for used in found)
            waves = " / ".join(
                f"{used.waves(LIMITS[target(n).cpu])} of {LIMITS[target(n).cpu].waves}"
                for n, used in zip(ORDER, found, strict=True)
            )
            reuse = height * width * TERMS // ((height + width) * TERMS)
            cells = (
                f"{sizes[0]} × {sizes[1]}",
                dtype,
                f"{height} × {width}",
                registers,
                f"{found[0].shared:,}",
                waves,
                reuse,
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(llvm.llvm_version_info[:2] != (22, 1), reason="the page has what LLVM 22.1 makes")
def test_the_page_has_todays_estimates(request: pytest.FixtureRequest) -> None:
    check_part(request, "rocm", estimates())
