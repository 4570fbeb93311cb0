"""For tests: matrix instructions on this machine's processor, as their makers' manuals define them: which element of
which matrix each lane of a wave holds. Lanes put what they hold into memory that all see, meet, and compute their sums
from what the others hold; so a kernel that hands a lane something else gets another product.

NVIDIA: Parallel Thread Execution ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
AMD: the instruction set manuals of CDNA 2 and 3 (V_MFMA_F32_16X16X16_BF16), of RDNA 3 and RDNA 4
(V_WMMA_F32_16X16X16_BF16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alphac.backends.gpu import THREADS
from alphac.backends.gpu.matrix import Matrix

Holds = Callable[[int, int], tuple[int, int]]  # of a lane and the number of an element: its row and column


@dataclass(frozen=True)
class Layout:
    """D = A B + C: sizes, elements of each that a lane holds, and which."""

    shape: tuple[int, int, int]
    lanes: int
    counts: tuple[int, int, int]
    a: Holds
    b: Holds
    c: Holds


LAYOUTS = {
    "mma_16x8x16": Layout(
        (16, 8, 16),
        32,
        (8, 4, 4),
        lambda lane, i: (lane // 4 + (0 if i < 2 or 4 <= i < 6 else 8), lane % 4 * 2 + i % 2 + (8 if i >= 4 else 0)),
        lambda lane, i: (lane % 4 * 2 + i % 2 + (8 if i >= 2 else 0), lane // 4),
        lambda lane, i: (lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2),
    ),
    "mfma_16x16x16": Layout(
        (16, 16, 16),
        64,
        (4, 4, 4),
        lambda lane, i: (lane % 16, lane // 16 * 4 + i),
        lambda lane, i: (lane // 16 * 4 + i, lane % 16),
        lambda lane, i: (lane // 16 * 4 + i, lane % 16),
    ),
    "wmma_gfx11": Layout(
        (16, 16, 16),
        32,
        (16, 16, 8),
        lambda lane, i: (lane % 16, i),
        lambda lane, i: (i, lane % 16),
        lambda lane, i: (2 * i + lane // 16, lane % 16),
    ),
    "wmma_gfx12": Layout(
        (16, 16, 16),
        32,
        (8, 8, 8),
        lambda lane, i: (lane % 16, lane // 16 * 8 + i),
        lambda lane, i: (lane // 16 * 8 + i, lane % 16),
        lambda lane, i: (lane // 16 * 8 + i, lane % 16),
    ),
}

_WORDS = """
define i32 @gpu_words(<2 x float> %x) {
  %bits = bitcast <2 x float> %x to <2 x i32>
  %high = lshr <2 x i32> %bits, splat (i32 16)
  %odd = and <2 x i32> %high, splat (i32 1)
  %half = add <2 x i32> %bits, splat (i32 32767)
  %up = add <2 x i32> %half, %odd
  %nan = fcmp uno <2 x float> %x, %x
  %rounded = select <2 x i1> %nan, <2 x i32> splat (i32 2143289344), <2 x i32> %up
  %words = lshr <2 x i32> %rounded, splat (i32 16)
  %first = extractelement <2 x i32> %words, i32 0
  %second = extractelement <2 x i32> %words, i32 1
  %shifted = shl i32 %second, 16
  %both = or i32 %shifted, %first
  ret i32 %both
}
"""

_MATRIX = """
@held_a = internal global [{threads} x <{aw} x i32>] zeroinitializer, align 64
@held_b = internal global [{threads} x <{bw} x i32>] zeroinitializer, align 64
@held_c = internal global [{threads} x <{ce} x float>] zeroinitializer, align 64
@places_a = internal constant [{am} x i64] [{places_a}]
@places_b = internal constant [{bm} x i64] [{places_b}]
@rows_c = internal constant [{cm} x i64] [{rows_c}]
@columns_c = internal constant [{cm} x i64] [{columns_c}]

define float @held(ptr %all, i64 %at) {{
  %place = getelementptr i16, ptr %all, i64 %at
  %word = load i16, ptr %place
  %wide = zext i16 %word to i32
  %bits = shl i32 %wide, 16
  %value = bitcast i32 %bits to float
  ret float %value
}}

define <{ce} x float> @gpu_matrix(<{aw} x i32> %a, <{bw} x i32> %b, <{ce} x float> %c) noinline {{
entry:
  %s = load ptr, ptr @state
  %n = load i64, ptr %s
  %mine_a = getelementptr <{aw} x i32>, ptr @held_a, i64 %n
  %mine_b = getelementptr <{bw} x i32>, ptr @held_b, i64 %n
  %mine_c = getelementptr <{ce} x float>, ptr @held_c, i64 %n
  store <{aw} x i32> %a, ptr %mine_a, align 4
  store <{bw} x i32> %b, ptr %mine_b, align 4
  store <{ce} x float> %c, ptr %mine_c, align 4
  call void @gpu_barrier()
  %lane = urem i64 %n, {lanes}
  %wave = sub i64 %n, %lane
  %wave_a = mul i64 %wave, {ae}
  %wave_b = mul i64 %wave, {be}
  %first = mul i64 %lane, {ce}
  br label %element
element:
  %e = phi i64 [ 0, %entry ], [ %after, %done ]
  %at = add i64 %first, %e
  %row_place = getelementptr i64, ptr @rows_c, i64 %at
  %row = load i64, ptr %row_place
  %column_place = getelementptr i64, ptr @columns_c, i64 %at
  %column = load i64, ptr %column_place
  %sum_place = getelementptr float, ptr %mine_c, i64 %e
  %start = load float, ptr %sum_place
  br label %term
term:
  %k = phi i64 [ 0, %element ], [ %next, %term ]
  %sum = phi float [ %start, %element ], [ %more, %term ]
  %row_k = mul i64 %row, {k}
  %ik = add i64 %row_k, %k
  %ia = getelementptr i64, ptr @places_a, i64 %ik
  %ea = load i64, ptr %ia
  %wa = add i64 %wave_a, %ea
  %x = call float @held(ptr @held_a, i64 %wa)
  %k_row = mul i64 %k, {n}
  %kj = add i64 %k_row, %column
  %ib = getelementptr i64, ptr @places_b, i64 %kj
  %eb = load i64, ptr %ib
  %wb = add i64 %wave_b, %eb
  %y = call float @held(ptr @held_b, i64 %wb)
  %product = fmul float %x, %y
  %more = fadd float %sum, %product
  %next = add i64 %k, 1
  %last = icmp eq i64 %next, {k}
  br i1 %last, label %done, label %term
done:
  store float %more, ptr %sum_place
  %after = add i64 %e, 1
  %over = icmp eq i64 %after, {ce}
  br i1 %over, label %leave, label %element
leave:
  call void @gpu_barrier()
  %d = load <{ce} x float>, ptr %mine_c, align 4
  ret <{ce} x float> %d
}}
"""


def library(matrix: Matrix) -> str:
    """LLVM IR of the instruction, for the simulator."""
    layout = LAYOUTS[matrix.name]
    (m, n, k), (ae, be, ce) = layout.shape, layout.counts
    sums = [layout.c(lane, i) for lane in range(layout.lanes) for i in range(ce)]
    assert sorted(sums) == [(i, j) for i in range(m) for j in range(n)], "each element of D has one lane"
    return _WORDS + _MATRIX.format(
        threads=THREADS,
        lanes=layout.lanes,
        n=n,
        k=k,
        ae=ae,
        be=be,
        ce=ce,
        aw=ae // 2,
        bw=be // 2,
        am=m * k,
        bm=k * n,
        cm=len(sums),
        places_a=_integers(_places(layout.a, layout.lanes, ae, m, k)),
        places_b=_integers(_places(layout.b, layout.lanes, be, k, n)),
        rows_c=_integers([row for row, _ in sums]),
        columns_c=_integers([column for _, column in sums]),
    )


def _places(holds: Holds, lanes: int, count: int, rows: int, columns: int) -> list[int]:
    """Of every element of an operand, which of the wave's it is. If several lanes hold it, now one, now the other is
    asked, so that all must hold the same."""
    found: dict[tuple[int, int], list[int]] = {}
    for lane in range(lanes):
        for i in range(count):
            found.setdefault(holds(lane, i), []).append(lane * count + i)
    everything = [(r, c) for r in range(rows) for c in range(columns)]
    assert sorted(found) == everything
    return [found[at][sum(at) % len(found[at])] for at in everything]


def _integers(values: list[int]) -> str:
    return ", ".join(f"i64 {value}" for value in values)
