"""NVIDIA GPUs: PTX through the driver, by cuda-bindings alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alphac.runtime.arena import Arena, Array
from alphac.runtime.devices.gpu import GpuDevice, Launch
from alphac.runtime.errors import KernelFailed, OutOfMemory
from alphac.runtime.records import ClassRecord, Manifest

LOG_BYTES = 8192


def open_device(code: bytes, manifest: Manifest, record: ClassRecord, arena: Arena) -> GpuDevice:
    """A role's memory and code on this machine's first NVIDIA GPU (`CUDA_VISIBLE_DEVICES` says which that is).

    Raises KernelFailed if there is no driver, no GPU, or one that is older than what the code was made for."""
    return GpuDevice(code, lambda kernels: CudaDriver(kernels, record.target, record.features), manifest, record, arena)


class CudaDriver:
    """The driver's calls, in one context on one device. `features`: `sm_XX`, the oldest GPU that takes the kernels."""

    def __init__(self, kernels: bytes, target: str, features: Sequence[str]) -> None:
        try:
            from cuda.bindings import driver  # pyright: ignore
        except ImportError:
            raise KernelFailed(
                f"{target} needs cuda-bindings, which is not installed", help="pip install 'alphac[cuda]'"
            ) from None
        self._cuda: Any = driver
        self._allocated: list[int] = []
        self._graphs: list[Any] = []
        try:
            self._call("cuInit", 0)
            (self._device,) = self._call("cuDeviceGet", 0)
        except (RuntimeError, KernelFailed) as error:  # the bindings raise RuntimeError where libcuda is missing
            raise KernelFailed(f"{target}: no NVIDIA GPU can be used here: {error}") from None
        self._refuse_older(target, features)
        (context,) = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._context: Any = context
        self._call("cuCtxSetCurrent", context)
        (self._stream,) = self._call("cuStreamCreate", 0)  # what is copied waits for it, and it for what is copied
        self._module: Any = self._load(kernels) if kernels else None

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Call the driver. Raises KernelFailed with its own word for what went wrong."""
        status, *results = getattr(self._cuda, name)(*arguments)
        if status != self._cuda.CUresult.CUDA_SUCCESS:
            if status == self._cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise OutOfMemory("the GPU has no memory left", help="use more roles, so that each owns fewer shards")
            raise KernelFailed(f"{name}: {status.name}")
        return tuple(results)

    def _attribute(self, name: str) -> int:
        (found,) = self._call("cuDeviceGetAttribute", getattr(self._cuda.CUdevice_attribute, name), self._device)
        return int(found)

    @property
    def architecture(self) -> int:
        """The compute capability: 90 is sm_90."""
        prefix = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY"
        return 10 * self._attribute(f"{prefix}_MAJOR") + self._attribute(f"{prefix}_MINOR")

    def describe(self) -> dict[str, str | int]:
        """Which GPU and which driver this is, for records."""
        (name,) = self._call("cuDeviceGetName", 256, self._device)
        (version,) = self._call("cuDriverGetVersion")
        return {
            "gpu": name.split(b"\0", 1)[0].decode(),
            "architecture": f"sm_{self.architecture}",
            "multiprocessors": self._attribute("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"),
            "cuda_of_the_driver": f"{version // 1000}.{version % 1000 // 10}",
        }

    def _refuse_older(self, target: str, features: Sequence[str]) -> None:
        wanted = max((int(f.removeprefix("sm_")) for f in features if f.startswith("sm_")), default=0)
        if self.architecture < wanted:
            raise KernelFailed(
                f"{target} needs sm_{wanted}, this GPU is sm_{self.architecture}", help="compile for this GPU's target"
            )

    def _load(self, kernels: bytes) -> Any:
        """The driver compiles PTX for its device."""
        option = self._cuda.CUjit_option
        log = bytearray(LOG_BYTES)
        options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        status, module = self._cuda.cuModuleLoadDataEx(kernels + b"\0", len(options), options, [log, LOG_BYTES])
        if status != self._cuda.CUresult.CUDA_SUCCESS:
            said = bytes(log).split(b"\0", 1)[0].decode(errors="replace").strip()
            raise KernelFailed(f"the driver does not take the kernels: {status.name} {said}".rstrip())
        return module

    # ------------------------------------------------------------------ what `Driver` asks for
    def allocate(self, size: int) -> int:
        """Bytes of zeros on the device."""
        (pointer,) = self._call("cuMemAlloc", size)
        self._allocated.append(int(pointer))
        self._call("cuMemsetD8", int(pointer), 0, size)
        return int(pointer)

    def write(self, address: int, data: Array) -> None:
        """Copy to the device."""
        data = np.ascontiguousarray(data)
        if data.nbytes:
            self._call("cuMemcpyHtoD", address, data.ctypes.data, data.nbytes)

    def read(self, address: int, into: Array) -> None:
        """Copy from the device; this waits for what was launched."""
        if into.nbytes:
            self._call("cuMemcpyDtoH", into.ctypes.data, address, into.nbytes)

    def function(self, symbol: str) -> Any:
        """A kernel."""
        (found,) = self._call("cuModuleGetFunction", self._module, symbol.encode())
        return found

    def launch(self, launch: Launch) -> None:
        """Start a kernel."""
        for grid, places in launch.starts():
            shape, pointer = (*grid, launch.threads, 1, 1), ctypes.addressof(places)
            self._call("cuLaunchKernel", launch.function, *shape, 0, self._stream, pointer, 0)

    def record(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A graph of these launches, which the driver starts at once."""
        self._call("cuStreamBeginCapture", self._stream, self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        for launch in launches:
            self.launch(launch)
        (graph,) = self._call("cuStreamEndCapture", self._stream)
        (made,) = self._call("cuGraphInstantiate", graph, 0)
        self._call("cuGraphDestroy", graph)
        self._graphs.append(made)

        def run() -> None:
            self._call("cuGraphLaunch", made, self._stream)

        return run

    def close(self) -> None:
        """Give memory, code and context back. May be called twice."""
        for pointer in self._allocated:
            self._cuda.cuMemFree(pointer)
        self._allocated.clear()
        for graph in self._graphs:
            self._cuda.cuGraphExecDestroy(graph)
        self._graphs.clear()
        if self._module is not None:
            self._cuda.cuModuleUnload(self._module)
            self._module = None
        if self._context is not None:
            self._cuda.cuStreamDestroy(self._stream)
            self._cuda.cuDevicePrimaryCtxRelease(self._device)
            self._context = None
