"""NVIDIA GPUs from sm_80 on: PTX, which the driver (or ptxas) turns into code.

PTX is written for the oldest version that knows the architecture, so that old drivers take it. Multiplications and
additions are `mul.rn` and `add.rn`, which ptxas never contracts; subnormal numbers are kept. Matrix instructions, of
`numeric fast` regions only, are `mma.sync`, which all of these architectures have.
"""

from __future__ import annotations

from alphac.backends.gpu import THREADS
from alphac.backends.gpu.matrix import Matrix, Sums
from alphac.backends.target import CAPABILITIES, MATRIX, KernelSource, Target, lower_for_a_grid

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
declare {{float, float, float, float}} @llvm.nvvm.mma.m16n8k16.row.col.bf16(
  i32, i32, i32, i32, i32, i32, float, float, float, float)
define <4 x float> @gpu_matrix(<4 x i32> %a, <2 x i32> %b, <4 x float> %c) convergent {{
  %a0 = extractelement <4 x i32> %a, i32 0
  %a1 = extractelement <4 x i32> %a, i32 1
  %a2 = extractelement <4 x i32> %a, i32 2
  %a3 = extractelement <4 x i32> %a, i32 3
  %b0 = extractelement <2 x i32> %b, i32 0
  %b1 = extractelement <2 x i32> %b, i32 1
  %c0 = extractelement <4 x float> %c, i32 0
  %c1 = extractelement <4 x float> %c, i32 1
  %c2 = extractelement <4 x float> %c, i32 2
  %c3 = extractelement <4 x float> %c, i32 3
  %d = call {{float, float, float, float}} @llvm.nvvm.mma.m16n8k16.row.col.bf16(
    i32 %a0, i32 %a1, i32 %a2, i32 %a3, i32 %b0, i32 %b1,
    float %c0, float %c1, float %c2, float %c3) nounwind willreturn
  %d0 = extractvalue {{float, float, float, float}} %d, 0
  %d1 = extractvalue {{float, float, float, float}} %d, 1
  %d2 = extractvalue {{float, float, float, float}} %d, 2
  %d3 = extractvalue {{float, float, float, float}} %d, 3
  %v0 = insertelement <4 x float> poison, float %d0, i32 0
  %v1 = insertelement <4 x float> %v0, float %d1, i32 1
  %v2 = insertelement <4 x float> %v1, float %d2, i32 2
  %v3 = insertelement <4 x float> %v2, float %d3, i32 3
  ret <4 x float> %v3
}}
define i32 @gpu_words(<2 x float> %x) {{
  %words = fptrunc <2 x float> %x to <2 x bfloat>
  %bits = bitcast <2 x bfloat> %words to i32
  ret i32 %bits
}}
"""

# mma.sync.m16n8k16, as "Matrix Fragments" of the PTX manual lays it out: a lane is at row lane / 4 of the first operand
# and 8 below, at column lane / 4 of the second, and has two neighbouring sums in each of two rows.
MMA = Matrix(
    name="mma_16x8x16",
    lanes=32,
    rows=16,
    columns=8,
    terms=16,
    lines=8,
    inner=True,
    blocks=4,
    each=1,
    halves=(0, 8),
    down=Sums(2, run=1, apart=8, line=1),
    across=Sums(2, run=2, apart=8, block=2),
)


def _entry(source: KernelSource) -> str:
    """Left to itself, ptxas makes room for more blocks than are to fit, and spills."""
    from alphac.backends.gpu.entry import exported

    attributes = f'"nvvm.maxntid"="{THREADS}" "nvvm.minctasm"="{source.fitting}"'
    return _LIBRARY.format(shared=max(source.shared, 16)) + exported(source, "ptx_kernel", attributes)


def _target(architecture: int, version: int) -> Target:
    return Target(
        name=f"cuda-sm{architecture}",
        triple=TRIPLE,
        cpu=f"sm_{architecture}",
        features=f"+ptx{version}",
        capabilities=CAPABILITIES | MATRIX | {f"scratch({SHARED[architecture] << 10})"},
        lowering=lower_for_a_grid,
        needs=(f"sm_{architecture}",),
        device="cuda",
        text=True,
        entry=_entry,
        matrix=MMA,
    )


TARGETS = tuple(_target(architecture, version) for architecture, version in PTX.items())
