"""OpenCL devices: kernels in OpenCL C, which the device's own compiler takes when a role starts.

A device that does not round divisions and roots correctly, or flushes subnormal numbers, is refused by the runtime
(runtime/devices/opencl.py). `opencl-cpu` is the same code for a processor behind OpenCL, such as PoCL: an endpoint says
so itself, since what is asked of an accelerator never becomes work for a processor.
"""

from __future__ import annotations

from collections.abc import Iterable

from alphac.backends.target import CAPABILITIES, KernelSource, Target, lower_for_a_grid

SHARED = 32 << 10  # bytes that every full profile gives a block


def text(sources: Iterable[KernelSource]) -> str:
    """Kernels in OpenCL C."""
    from alphac.backends.c.language import OPENCL
    from alphac.backends.c.printer import written

    return written(sources, OPENCL)


def _target(name: str, needs: tuple[str, ...]) -> Target:
    return Target(
        name=name,
        capabilities=CAPABILITIES | {f"scratch({SHARED})"},
        lowering=lower_for_a_grid,
        needs=needs,
        device="opencl",
        printer=text,
    )


TARGETS = (_target("opencl", ("fp64",)), _target("opencl-cpu", ("fp64", "cpu")))
