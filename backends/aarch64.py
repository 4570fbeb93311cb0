"""aarch64: NEON, 128-bit vectors and fma, which every processor of the architecture has. Two systems: Linux (ELF, any
armv8-a), and macOS (Mach-O, Apple silicon from the M1 on)."""

from __future__ import annotations

import platform

from alphac.backends.target import CAPABILITIES, Target, lower_for_vectors


def _target(name: str, triple: str, cpu: str, system: str, attributes: tuple[tuple[str, str], ...] = ()) -> Target:
    return Target(
        name=name,
        triple=triple,
        cpu=cpu,
        features="",
        lanes=4,
        registers=32,
        capabilities=CAPABILITIES | {f"scratch({1 << 30})"},  # a thread's: ordinary memory
        pause=("llvm.aarch64.isb", (15,)),  # some tens of cycles; what `yield` says, most cores ignore
        lowering=lower_for_vectors,
        runs_here=lambda: (platform.system(), platform.machine()) in ((system, "aarch64"), (system, "arm64")),
        preference=1,
        attributes=attributes,
        streams=True,
    )


TARGETS = (
    # Instructions of the baseline, in an order that suits cores of servers rather than small ones, LLVM's `generic`.
    _target("aarch64", "aarch64-unknown-linux-gnu", "generic", "Linux", (("tune-cpu", "neoverse-n1"),)),
    _target("aarch64-macos", "arm64-apple-macosx11.0.0", "apple-m1", "Darwin"),
)
