"""Apple GPUs: kernels in the Metal Shading Language, which macOS compiles when a role starts.

Metal may flush subnormal numbers to zero, whatever one asks of its compiler: it is no target of exact mode. It runs
what is `numeric fast`. It has no f64 either; the little that steps have of it, rates and their corrections, is made of
integers (c/soft64.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from alphac.backends.target import CAPABILITIES, KernelSource, Target, lower_for_a_grid
from alphac.ir.passes.admit import EXACT

SHARED = 32 << 10  # bytes that every Apple GPU gives a block


def text(sources: Iterable[KernelSource]) -> str:
    """Kernels in the Metal Shading Language."""
    from alphac.backends.c.language import METAL
    from alphac.backends.c.printer import written

    return written(sources, METAL)


TARGETS = (
    Target(
        name="metal",
        capabilities=(CAPABILITIES - {EXACT}) | {f"scratch({SHARED})"},
        lowering=lower_for_a_grid,
        device="metal",
        printer=text,
    ),
)
