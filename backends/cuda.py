"""NVIDIA GPUs from sm_80 on: PTX, which the driver (or ptxas) turns into code.

PTX is written for the oldest version that knows the architecture, so that old drivers take it. Multiplications and
additions are `mul.rn` and `add.rn`, which ptxas never contracts; subnormal numbers are kept.
"""

from __future__ import annotations

from alphac.backends.gpu import THREADS
from alphac.backends.target import CAPABILITIES, KernelSource, Target, lower_for_a_grid
from alphac.ir.typesys import F64

TRIPLE = "nvptx64-nvidia-cuda"
SHARED = {80: 163, 86: 99, 90: 227, 100: 227}  # KiB that a block may have
PTX = {80: 70, 86: 71, 90: 78, 100: 86}  # architecture: the first version of PTX that has it

_LIBRARY = """
@shared_memory = internal addrspace(3) global [{shared} x i8] undef, align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent
define i64 @gpu_local() {{
  %n = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %wide = zext i32 %n to i64
  ret i64 %wide
}}
define i64 @gpu_block() {{
  %n = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %wide = zext i32 %n to i64
  ret i64 %wide
}}
define i64 @gpu_blocks() {{
  %n = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %wide = zext i32 %n to i64
  ret i64 %wide
}}
define i64 @gpu_tile() {{
  %n = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  %wide = zext i32 %n to i64
  ret i64 %wide
}}
define void @gpu_barrier() convergent {{
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  ret void
}}
define ptr @gpu_shared(i64 %at) {{
  %place = getelementptr i8, ptr addrspace(3) @shared_memory, i64 %at
  %plain = addrspacecast ptr addrspace(3) %place to ptr
  ret ptr %plain
}}
"""


def _entry(source: KernelSource) -> str:
    """Two blocks are to fit into a multiprocessor, one of f64: left to itself, ptxas makes room for more and spills."""
    from alphac.backends.gpu.entry import exported

    fitting = 1 if F64 in source.parameters else 2
    attributes = f'"nvvm.maxntid"="{THREADS}" "nvvm.minctasm"="{fitting}"'
    return _LIBRARY.format(shared=max(source.shared, 16)) + exported(source, "ptx_kernel", attributes)


def _target(architecture: int, version: int) -> Target:
    return Target(
        name=f"cuda-sm{architecture}",
        triple=TRIPLE,
        cpu=f"sm_{architecture}",
        features=f"+ptx{version}",
        capabilities=CAPABILITIES | {f"scratch({SHARED[architecture] << 10})"},
        lowering=lower_for_a_grid,
        needs=(f"sm_{architecture}",),
        device="cuda",
        text=True,
        entry=_entry,
    )


TARGETS = tuple(_target(architecture, version) for architecture, version in PTX.items())
