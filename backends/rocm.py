"""AMD GPUs: code objects made by LLVM's AMDGPU target, which lld links.

Where generations differ is LLVM's business: waves of 64 threads (gfx9) or of 32 (gfx11, gfx12), of which kernels know
nothing, counters to wait for, barriers. Multiplications and additions stay as written, subnormal numbers are kept;
divisions and roots are the correctly rounded ones, since nothing grants LLVM more error. Code objects are of version 5,
which every ROCm from 6.0 on takes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from alphac.backends.gpu import THREADS
from alphac.backends.gpu.matrix import Matrix, Sums
from alphac.backends.target import CAPABILITIES, MATRIX, KernelSource, Link, Target, lower_for_a_grid
from alphac.ir.errors import InternalError, ToolMissing

TRIPLE = "amdgcn-amd-amdhsa"
SHARED = 64 << 10  # bytes that a block may have
PRIVATE = 5  # the address space of a thread's own memory
LLD = 19  # the first that links what LLVM 20 and later emit
# In CU mode the threads of a block are on one compute unit, so that a barrier need not wait for global memory.
ARCHITECTURES = {"gfx90a": "", "gfx942": "", "gfx1100": "+cumode", "gfx1201": "+cumode"}

_LIBRARY = """
@shared_memory = internal addrspace(3) global [{shared} x i8] poison, align 16
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workgroup.id.y()
declare ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
declare void @llvm.amdgcn.s.barrier() convergent
define i64 @gpu_local() {{
  %n = call i32 @llvm.amdgcn.workitem.id.x()
  %wide = zext i32 %n to i64
  ret i64 %wide
}}
define i64 @gpu_block() {{
  %n = call i32 @llvm.amdgcn.workgroup.id.x()
  %wide = zext i32 %n to i64
  ret i64 %wide
}}
define i64 @gpu_blocks() {{
  %packet = call ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
  %place = getelementptr i8, ptr addrspace(4) %packet, i64 12
  %items = load i32, ptr addrspace(4) %place, align 4, !invariant.load !1
  %n = udiv i32 %items, {threads}
  %wide = zext i32 %n to i64
  ret i64 %wide
}}
define i64 @gpu_tile() {{
  %n = call i32 @llvm.amdgcn.workgroup.id.y()
  %wide = zext i32 %n to i64
  ret i64 %wide
}}
define void @gpu_barrier() convergent {{
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  ret void
}}
define ptr @gpu_shared(i64 %at) {{
  %place = getelementptr i8, ptr addrspace(3) @shared_memory, i64 %at
  %plain = addrspacecast ptr addrspace(3) %place to ptr
  ret ptr %plain
}}
{matrix}
define i32 @gpu_words(<2 x float> %x) {{
  %words = fptrunc <2 x float> %x to <2 x bfloat>
  %bits = bitcast <2 x bfloat> %words to i32
  ret i32 %bits
}}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 500}}
!1 = !{{}}
"""  # a dispatch packet has at byte 12 how many work items the grid has along x

_MFMA = """
declare <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(<4 x i16>, <4 x i16>, <4 x float>, i32, i32, i32)
define <4 x float> @gpu_matrix(<2 x i32> %a, <2 x i32> %b, <4 x float> %c) convergent {
  %x = bitcast <2 x i32> %a to <4 x i16>
  %y = bitcast <2 x i32> %b to <4 x i16>
  %d = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16bf16.1k(
    <4 x i16> %x, <4 x i16> %y, <4 x float> %c, i32 0, i32 0, i32 0)
  ret <4 x float> %d
}
"""
_WMMA = """
declare <8 x float> @llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v{n}i16(<{n} x i16>, <{n} x i16>, <8 x float>)
define <8 x float> @gpu_matrix(<{words} x i32> %a, <{words} x i32> %b, <8 x float> %c) convergent {{
  %x = bitcast <{words} x i32> %a to <{n} x i16>
  %y = bitcast <{words} x i32> %b to <{n} x i16>
  %d = call <8 x float> @llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v{n}i16(
    <{n} x i16> %x, <{n} x i16> %y, <8 x float> %c)
  ret <8 x float> %d
}}
"""

# As AMD's manuals of CDNA 2 and 3, RDNA 3 and RDNA 4 lay them out. A lane is at row (or column) lane % 16 of an operand
# and its sums are in column lane % 16.
MFMA = Matrix(
    name="mfma_16x16x16",
    lanes=64,
    rows=16,
    columns=16,
    terms=16,
    lines=16,
    inner=False,
    blocks=4,
    each=1,
    down=Sums(4, run=4, apart=16, block=4),
    across=Sums(1, run=1, apart=16, line=1),
)
WMMA_GFX11 = replace(  # both halves of a wave hold all of an operand
    MFMA, name="wmma_gfx11", lanes=32, blocks=1, each=2, down=Sums(8, run=1, apart=2, block=1)
)
WMMA_GFX12 = replace(MFMA, name="wmma_gfx12", lanes=32, blocks=2, each=1, down=Sums(8, run=8, apart=16, block=8))
_MATRIX = {
    "gfx90a": (MFMA, _MFMA),
    "gfx942": (MFMA, _MFMA),
    "gfx1100": (WMMA_GFX11, _WMMA.format(n=16, words=8)),
    "gfx1201": (WMMA_GFX12, _WMMA.format(n=8, words=4)),
}


def _entry(source: KernelSource, matrix: str) -> str:
    from alphac.backends.gpu.entry import exported

    library = _LIBRARY.format(shared=max(source.shared, 16), threads=THREADS, matrix=matrix)
    return library + exported(source, "amdgpu_kernel")


# ---------------------------------------------------------------------- lld
def linker() -> Link:
    """What makes a code object of an object. Raises ToolMissing."""
    found = find_lld()
    if not found:
        raise ToolMissing(
            f"rocm targets need LLVM's linker, ld.lld {LLD} or later, which is not here",
            f"on Debian and Ubuntu: apt-get install lld-{LLD}; ROCm has its own in /opt/rocm/llvm/bin",
        )
    return lambda data: _linked(found, data)


@cache
def find_lld() -> str:
    """The first ld.lld that is new enough: on the path, of any version's name, or ROCm's. "" if there is none."""
    names = ["ld.lld", *(f"ld.lld-{version}" for version in range(LLD, LLD + 10)), "/opt/rocm/llvm/bin/ld.lld"]
    for path in filter(None, map(shutil.which, names)):
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"LLD (\d+)", done.stdout)
        if version and int(version[1]) >= LLD:
            return path
    return ""


def _linked(lld: str, data: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        given, made = Path(directory, "kernels.o"), Path(directory, "kernels.hsaco")
        given.write_bytes(data)
        command = [lld, "-shared", "--no-undefined", str(given), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InternalError(f"{lld} does not link the kernels: {done.stderr.strip()}")
        return made.read_bytes()


def _target(architecture: str, features: str) -> Target:
    matrix, text = _MATRIX[architecture]
    return Target(
        name=f"rocm-{architecture}",
        triple=TRIPLE,
        cpu=architecture,
        features=features,
        capabilities=CAPABILITIES | MATRIX | {f"scratch({SHARED})"},
        lowering=lower_for_a_grid,
        needs=(architecture,),
        attributes=(
            ("amdgpu-flat-work-group-size", f"{THREADS},{THREADS}"),
            ("uniform-work-group-size", "true"),
            ("denormal-fp-math", "ieee,ieee"),
            ("denormal-fp-math-f32", "ieee,ieee"),
        ),
        device="rocm",
        entry=lambda source: _entry(source, text),
        matrix=matrix,
        private=PRIVATE,
        linker=linker,
    )


TARGETS = tuple(_target(architecture, features) for architecture, features in ARCHITECTURES.items())
