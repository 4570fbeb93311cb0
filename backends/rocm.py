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
from functools import cache
from pathlib import Path

from alphac.backends.gpu import THREADS
from alphac.backends.target import CAPABILITIES, KernelSource, Link, Target, lower_for_a_grid
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
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 500}}
!1 = !{{}}
"""  # a dispatch packet has at byte 12 how many work items the grid has along x


def _entry(source: KernelSource) -> str:
    from alphac.backends.gpu.entry import exported

    return _LIBRARY.format(shared=max(source.shared, 16), threads=THREADS) + exported(source, "amdgpu_kernel")


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
    return Target(
        name=f"rocm-{architecture}",
        triple=TRIPLE,
        cpu=architecture,
        features=features,
        capabilities=CAPABILITIES | {f"scratch({SHARED})"},
        lowering=lower_for_a_grid,
        needs=(architecture,),
        attributes=(
            ("amdgpu-flat-work-group-size", f"{THREADS},{THREADS}"),
            ("uniform-work-group-size", "true"),
            ("denormal-fp-math", "ieee,ieee"),
            ("denormal-fp-math-f32", "ieee,ieee"),
        ),
        device="rocm",
        entry=_entry,
        private=PRIVATE,
        linker=linker,
    )


TARGETS = tuple(_target(architecture, features) for architecture, features in ARCHITECTURES.items())
