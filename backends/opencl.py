"""OpenCL devices: kernels in OpenCL C, which the device's own compiler takes when a role starts.

A device that does not round divisions and roots correctly, or flushes subnormal numbers, is refused by the runtime
(runtime/devices/opencl.py). `opencl-cpu` is the same code for a processor behind OpenCL, such as PoCL: an endpoint says
so itself, since what is asked of an accelerator never becomes work for a processor.
"""

from __future__ import annotations

from collections.abc import Iterable

from alphac.backends.target import CAPABILITIES, KernelSource, Target
from alphac.ir.schedule import Kernel

SHARED = 32 << 10  # bytes that every full profile gives a block


def lower(kernel: Kernel, target: Target) -> KernelSource:
    """A kernel in the Numba dialect, for one thread of a grid."""
    from alphac.backends.gpu.lower import lower as lower_

    return lower_(kernel, target)


def text(sources: Iterable[KernelSource]) -> str:
    """Kernels in OpenCL C."""
    from alphac.backends.c.language import OPENCL
    from alphac.backends.c.printer import written

    return written(sources, OPENCL)


def _target(name: str, needs: tuple[str, ...]) -> Target:
    return Target(
        name=name,
        triple="",
        cpu="",
        features="",
        lanes=1,
        registers=0,
        capabilities=CAPABILITIES | {f"scratch({SHARED})"},
        pause=("", ()),
        lowering=lower,
        runs_here=lambda: False,
        needs=needs,
        device="opencl",
        printer=text,
    )


TARGETS = (_target("opencl", ("fp64",)), _target("opencl-cpu", ("fp64", "cpu")))
