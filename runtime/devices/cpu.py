"""CPU code: a relocatable object is linked into this process by LLVM, through llvmlite alone."""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from alphac.runtime.errors import KernelFailed

RELOCATABLE = 1  # in both formats
LINKER = "libllvmlite"


@dataclass(frozen=True)
class Format:
    """A system's objects: how they begin; where they say for what machine they are, and of what kind (offset, bytes);
    its machines, by the names that this system gives them."""

    name: str
    magic: bytes
    machine: tuple[int, int]
    kind: tuple[int, int]
    machines: dict[str, int]


FORMATS = {
    "linux": Format("ELF", b"\x7fELF\x02\x01", (18, 2), (16, 2), {"x86_64": 62, "aarch64": 183}),
    "darwin": Format("Mach-O", b"\xcf\xfa\xed\xfe", (4, 4), (12, 4), {"x86_64": 0x01000007, "arm64": 0x0100000C}),
}


class CpuLibrary:
    """An object linked into this process. Its code lives as long as this does."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def address(self, symbol: str) -> int:
        """Where a function lies. Raises KernelFailed if there is no such symbol."""
        found = int(self._engine.get_function_address(symbol))
        if not found:
            raise KernelFailed(f"the object has no function `{symbol}`", help="the bundle is damaged: compile again")
        return found


def load(code: bytes, features: Iterable[str], name: str) -> CpuLibrary:
    """Link an object. `features` are what the processor must have; `name` is for messages.

    Raises KernelFailed if this host cannot run it: another architecture, missing features, a damaged object."""
    refuse_foreign(code, name)
    import llvmlite.binding as binding  # pyright: ignore[reportMissingTypeStubs]

    llvm: Any = binding

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    wanted = list(features)
    if wanted:
        has = llvm.get_host_cpu_features()
        missing = [feature for feature in wanted if not has.get(feature)]
        if missing:
            raise KernelFailed(
                f"{name} needs a processor with {', '.join(missing)}", help="compile for this host's target"
            )
    module = llvm.parse_assembly("")
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True, codemodel="small")
    engine = llvm.create_mcjit_compiler(module, machine)
    try:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
    except RuntimeError as error:
        raise KernelFailed(f"{name} cannot be linked: {error}") from None
    _give_back(LINKER)
    return CpuLibrary(engine)


def _give_back(library: str) -> None:
    """Let a library's code leave this process's memory, where the system can say where it lies: linking has touched
    tens of megabytes of LLVM that training has no use for. What is used after all is mapped in again."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            span, access, *_ = line.split()
            if access == "r-xp" and library in line:  # code, which nobody writes to
                begin, end = (int(address, 16) for address in span.split("-"))
                advise(begin, end - begin, mmap.MADV_DONTNEED)


def refuse_foreign(code: bytes, name: str) -> None:
    """Raise KernelFailed for an object of another system: LLVM would end the process."""
    form = FORMATS.get(sys.platform)
    if form is None:
        return
    if len(code) < 64 or not code.startswith(form.magic):
        raise KernelFailed(f"{name} is no 64-bit {form.name} object")
    machine, kind = (int.from_bytes(code[at : at + size], "little") for at, size in (form.machine, form.kind))
    if kind != RELOCATABLE:
        raise KernelFailed(f"{name} is no relocatable object")
    expected = form.machines.get(platform.machine())
    if expected is not None and machine != expected:
        known = {number: text for text, number in form.machines.items()}
        raise KernelFailed(
            f"{name} is for {known.get(machine, f'machine {machine}')}, this host is {platform.machine()}",
            help="compile for this host's target",
        )
