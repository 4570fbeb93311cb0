"""AMD GPUs: code objects through HIP's library, by ctypes alone.

ROCm brings `libamdhip64.so`, of which two dozen C functions are needed. Their ABI holds from ROCm 6 on; hip-python
would be one more package, of exactly the installed ROCm's version, and is not on PyPI.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from alphac.runtime.arena import Arena, Array
from alphac.runtime.devices.gpu import GpuDevice, Launch
from alphac.runtime.errors import KernelFailed, OutOfMemory
from alphac.runtime.records import ClassRecord, Manifest

LIBRARIES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so")
RELAXED = 2  # hipStreamCaptureModeRelaxed
OUT_OF_MEMORY = 2
COMPUTE_UNITS = 63  # hipDeviceAttributeMultiprocessorCount
# hipDeviceProp_tR0600: its size, and where in it the name and the architecture are, such as `gfx942:sramecc+:xnack-`.
PROPERTIES, NAME, ARCHITECTURE, TEXT = 1472, 0, 1160, 256

_P, _I, _U, _N = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipInit": (_U,),
    "hipSetDevice": (_I,),
    "hipGetDevicePropertiesR0600": (_P, _I),
    "hipDeviceGetAttribute": (_P, _I, _I),
    "hipDriverGetVersion": (_P,),
    "hipMalloc": (_P, _N),
    "hipFree": (_P,),
    "hipMemset": (_P, _I, _N),
    "hipMemcpyHtoD": (_P, _P, _N),
    "hipMemcpyDtoH": (_P, _P, _N),
    "hipModuleLoadData": (_P, _P),
    "hipModuleUnload": (_P,),
    "hipModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "hipModuleLaunchKernel": (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P, _P),
    "hipStreamCreate": (_P,),
    "hipStreamDestroy": (_P,),
    "hipStreamBeginCapture": (_P, _I),
    "hipStreamEndCapture": (_P, _P),
    "hipGraphInstantiate": (_P, _P, _P, _P, _N),
    "hipGraphDestroy": (_P,),
    "hipGraphExecDestroy": (_P,),
    "hipGraphLaunch": (_P, _P),
}


def open_device(code: bytes, manifest: Manifest, record: ClassRecord, arena: Arena) -> GpuDevice:
    """A role's memory and code on this machine's first AMD GPU (`HIP_VISIBLE_DEVICES` says which that is).

    Raises KernelFailed if there is no ROCm, no GPU, or one of another architecture than the code's."""
    return GpuDevice(code, lambda kernels: RocmDriver(kernels, record.target, record.features), manifest, record, arena)


@cache
def load_library() -> ctypes.CDLL | None:
    """HIP's library, with every function's parameters declared."""
    for name in LIBRARIES:
        try:
            found = ctypes.CDLL(name)
            for function, parameters in _SIGNATURES.items():
                getattr(found, function).argtypes = parameters
        except (OSError, AttributeError):  # not here, or older than ROCm 6
            continue
        found.hipGetErrorName.argtypes, found.hipGetErrorName.restype = [ctypes.c_int], ctypes.c_char_p
        return found
    return None


class RocmDriver:
    """HIP's calls, on one device. `features`: the architecture that the kernels are for, such as `gfx942`."""

    def __init__(self, kernels: bytes, target: str, features: Sequence[str]) -> None:
        library = load_library()
        if library is None:
            raise KernelFailed(f"{target} needs ROCm's libamdhip64, which is not here", help="install ROCm 6 or later")
        self._hip = library
        self._allocated: list[int] = []
        self._graphs: list[int] = []
        self._stream = self._module = 0
        try:
            self._call("hipInit", 0)
            self._call("hipSetDevice", 0)
            properties = ctypes.create_string_buffer(PROPERTIES)
            self._call("hipGetDevicePropertiesR0600", properties, 0)
        except KernelFailed as error:
            raise KernelFailed(f"{target}: no AMD GPU can be used here: {error}") from None
        self._properties = properties.raw
        if features and self.architecture not in features:
            raise KernelFailed(
                f"{target} needs {features[0]}, this GPU is {self.architecture}", help="compile for this GPU's target"
            )
        self._stream = self._made("hipStreamCreate")  # what is copied waits for it, and it for what is copied
        try:
            self._module = self._made("hipModuleLoadData", kernels) if kernels else 0
        except KernelFailed:
            self.close()
            raise

    def _call(self, name: str, *arguments: Any) -> None:
        """Call HIP. Raises KernelFailed with its own word for what went wrong."""
        status = getattr(self._hip, name)(*arguments)
        if status == OUT_OF_MEMORY:
            raise OutOfMemory("the GPU has no memory left", help="use more roles, so that each owns fewer shards")
        if status:
            raise KernelFailed(f"{name}: {self._hip.hipGetErrorName(status).decode()}")

    def _made(self, name: str, *arguments: Any) -> int:
        """What a function of HIP returns through its first parameter."""
        result = ctypes.c_void_p()
        self._call(name, ctypes.byref(result), *arguments)
        return result.value or 0

    def _number(self, name: str, *arguments: Any) -> int:
        result = ctypes.c_int()
        self._call(name, ctypes.byref(result), *arguments)
        return result.value

    def _text(self, at: int) -> str:
        return self._properties[at : at + TEXT].split(b"\0", 1)[0].decode(errors="replace")

    @property
    def architecture(self) -> str:
        """Such as `gfx942`, without the modes that code takes as it finds them."""
        return self._text(ARCHITECTURE).partition(":")[0]

    def describe(self) -> dict[str, str | int]:
        """Which GPU and which HIP this is, for records."""
        version = self._number("hipDriverGetVersion")
        return {
            "gpu": self._text(NAME),
            "architecture": self.architecture,
            "multiprocessors": self._number("hipDeviceGetAttribute", COMPUTE_UNITS, 0),
            "hip": f"{version // 10_000_000}.{version // 100_000 % 100}",
        }

    # ------------------------------------------------------------------ what `Driver` asks for
    def allocate(self, size: int) -> int:
        """Bytes of zeros on the device."""
        pointer = self._made("hipMalloc", size)
        self._allocated.append(pointer)
        self._call("hipMemset", pointer, 0, size)
        return pointer

    def write(self, address: int, data: Array) -> None:
        """Copy to the device."""
        data = np.ascontiguousarray(data)
        if data.nbytes:
            self._call("hipMemcpyHtoD", address, data.ctypes.data, data.nbytes)

    def read(self, address: int, into: Array) -> None:
        """Copy from the device; this waits for what was launched."""
        if into.nbytes:
            self._call("hipMemcpyDtoH", into.ctypes.data, address, into.nbytes)

    def function(self, symbol: str) -> int:
        """A kernel."""
        return self._made("hipModuleGetFunction", self._module, symbol.encode())

    def launch(self, launch: Launch) -> None:
        """Start a kernel."""
        for grid, places in launch.starts():
            shape = (*grid, launch.threads, 1, 1)
            self._call("hipModuleLaunchKernel", launch.function, *shape, 0, self._stream, places, None)

    def record(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A graph of these launches, which HIP starts at once."""
        self._call("hipStreamBeginCapture", self._stream, RELAXED)
        for launch in launches:
            self.launch(launch)
        graph = ctypes.c_void_p()
        self._call("hipStreamEndCapture", self._stream, ctypes.byref(graph))
        made = self._made("hipGraphInstantiate", graph, None, None, 0)
        self._call("hipGraphDestroy", graph)
        self._graphs.append(made)

        def run() -> None:
            self._call("hipGraphLaunch", made, self._stream)

        return run

    def close(self) -> None:
        """Give memory and code back. May be called twice."""
        for pointer in self._allocated:
            self._hip.hipFree(pointer)
        self._allocated.clear()
        for graph in self._graphs:
            self._hip.hipGraphExecDestroy(graph)
        self._graphs.clear()
        if self._module:
            self._hip.hipModuleUnload(self._module)
            self._module = 0
        if self._stream:
            self._hip.hipStreamDestroy(self._stream)
            self._stream = 0
