"""x86-64 with FMA: the levels v3 (AVX2) and v4 (AVX-512), v4 with AVX512-BF16, and v3 held to 4 lanes."""

from __future__ import annotations

import platform
from functools import cache

from alphac.backends.target import CAPABILITIES, MATRIX, Target, lower_for_vectors

TRIPLE = "x86_64-unknown-linux-gnu"
_V3 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@cache
def host_features() -> frozenset[str]:
    """What this processor has, in LLVM's names."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    import llvmlite.binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def _target(
    name: str,
    cpu: str,
    lanes: int,
    registers: int,
    wanted: tuple[str, ...],
    preference: int,
    features: str = "",
    forbidden: str = "",
    capabilities: frozenset[str] = CAPABILITIES,
) -> Target:
    return Target(
        name=name,
        triple=TRIPLE,
        cpu=cpu,
        features=features,
        lanes=lanes,
        registers=registers,
        capabilities=capabilities | {f"scratch({1 << 30})"},  # a thread's: ordinary memory
        pause=("llvm.x86.sse2.pause", ()),
        lowering=lower_for_vectors,
        runs_here=lambda: host_features().issuperset(wanted),
        needs=wanted,
        preference=preference,
        attributes=(("prefer-vector-width", str(32 * lanes)),),
        forbidden=forbidden,
        streams=True,
    )


TARGETS = (
    _target("x86-64-v4", "x86-64-v4", 16, 32, _V4, 3),
    # The same with products of bf16 pairs, which only regions with `numeric fast` use: preferred where there are some.
    _target(
        "x86-64-v4-bf16",
        "x86-64-v4",
        16,
        32,
        (*_V4, "avx512bf16"),
        0,
        features="+avx512bf16",
        capabilities=CAPABILITIES | MATRIX,
    ),
    _target("x86-64-v3", "x86-64-v3", 8, 16, _V3, 2),
    # AVX has FMA, which is wanted, and wide registers. Without AVX2, LLVM makes none of narrow vectors of integers.
    _target("x86-64-v3-128", "x86-64-v3", 4, 16, _V3, 1, features="-avx2", forbidden=r"%[yz]mm"),
)
