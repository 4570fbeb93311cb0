"""Apple GPUs: kernels in the Metal Shading Language, which macOS compiles when a role starts.

Metal has no f64 and may flush subnormal numbers to zero, whatever one asks of its compiler: it is no target of exact
mode. It runs systems whose regions are all `numeric fast`.
"""

from __future__ import annotations

from collections.abc import Iterable

from alphac.backends.target import CAPABILITIES, KernelSource, Target
from alphac.ir.passes.admit import EXACT
from alphac.ir.schedule import Kernel

SHARED = 32 << 10  # bytes that every Apple GPU gives a block
LACKS = {EXACT, "f64", "bf16"}  # bf16 of long integers is rounded through f64


def lower(kernel: Kernel, target: Target) -> KernelSource:
    """A kernel in the Numba dialect, for one thread of a grid."""
    from alphac.backends.gpu.lower import lower as lower_

    return lower_(kernel, target)


def text(sources: Iterable[KernelSource]) -> str:
    """Kernels in the Metal Shading Language."""
    from alphac.backends.c.language import METAL
    from alphac.backends.c.printer import written

    return written(sources, METAL)


TARGETS = (
    Target(
        name="metal",
        triple="",
        cpu="",
        features="",
        lanes=1,
        registers=0,
        capabilities=(CAPABILITIES - LACKS) | {f"scratch({SHARED})"},
        pause=("", ()),
        lowering=lower,
        runs_here=lambda: False,
        device="metal",
        printer=text,
    ),
)
