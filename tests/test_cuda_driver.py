"""The calls of NVIDIA's driver, answered by a double: what is packed where, and what is said when a call fails."""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from alphac.runtime.devices.cuda import CudaDriver
from alphac.runtime.devices.gpu import Launch
from alphac.runtime.errors import KernelFailed, OutOfMemory


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_PTX = 218


class Options(IntEnum):
    CU_JIT_ERROR_LOG_BUFFER = 5
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6


class Modes(IntEnum):
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


class Attributes(IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16


class Double(ModuleType):
    """`cuda.bindings.driver` of a machine with one GPU of sm_90, whose memory is this process's."""

    CUresult, CUjit_option, CUdevice_attribute, CUstreamCaptureMode = Status, Options, Attributes, Modes

    def __init__(self) -> None:
        super().__init__("driver")
        self.launched: list[tuple[Any, ...]] = []
        self.memory: dict[int, Any] = {}
        self.freed: list[str] = []
        self.graph: list[Any] | None = None

    def cuInit(self, flags: int):  # noqa: N802
        return (Status.CUDA_SUCCESS,)

    def cuDeviceGet(self, number: int):  # noqa: N802
        return Status.CUDA_SUCCESS, "device"

    def cuDeviceGetAttribute(self, attribute: Attributes, device: str):  # noqa: N802
        return Status.CUDA_SUCCESS, {75: 9, 76: 0, 16: 132}[attribute]

    def cuDeviceGetName(self, length: int, device: str):  # noqa: N802
        return Status.CUDA_SUCCESS, b"NVIDIA Double\0\0"

    def cuDriverGetVersion(self):  # noqa: N802
        return Status.CUDA_SUCCESS, 13000

    def cuDevicePrimaryCtxRetain(self, device: str):  # noqa: N802
        return Status.CUDA_SUCCESS, "context"

    def cuDevicePrimaryCtxRelease(self, device: str):  # noqa: N802
        self.freed.append("context")
        return (Status.CUDA_SUCCESS,)

    def cuCtxSetCurrent(self, context: str):  # noqa: N802
        return (Status.CUDA_SUCCESS,)

    def cuModuleLoadDataEx(self, image: bytes, count: int, options: list[Options], values: list[Any]):  # noqa: N802
        if image == b"good\0":
            return Status.CUDA_SUCCESS, "module"
        values[0][:11] = b"line 1: no\0"
        return Status.CUDA_ERROR_INVALID_PTX, None

    def cuModuleUnload(self, module: str):  # noqa: N802
        self.freed.append(module)
        return (Status.CUDA_SUCCESS,)

    def cuModuleGetFunction(self, module: str, name: bytes):  # noqa: N802
        return Status.CUDA_SUCCESS, name.decode()

    def cuMemAlloc(self, size: int):  # noqa: N802
        if size > 1 << 40:
            return Status.CUDA_ERROR_OUT_OF_MEMORY, None
        block = ctypes.create_string_buffer(b"\xa5" * size, size)
        self.memory[ctypes.addressof(block)] = block
        return Status.CUDA_SUCCESS, ctypes.addressof(block)

    def cuMemFree(self, address: int):  # noqa: N802
        del self.memory[address]
        return (Status.CUDA_SUCCESS,)

    def cuMemsetD8(self, address: int, value: int, size: int):  # noqa: N802
        ctypes.memset(address, value, size)
        return (Status.CUDA_SUCCESS,)

    def cuMemcpyHtoD(self, to: int, source: int, size: int):  # noqa: N802
        ctypes.memmove(to, source, size)
        return (Status.CUDA_SUCCESS,)

    cuMemcpyDtoH = cuMemcpyHtoD  # noqa: N815

    def cuLaunchKernel(self, function: str, *rest: Any):  # noqa: N802
        grid, block, shared, stream, places, extra = rest[:3], rest[3:6], *rest[6:]
        arguments = [
            ctypes.cast(p, ctypes.POINTER(ctypes.c_int64))[0] for p in (ctypes.c_void_p * 3).from_address(places)
        ]
        recorded = self.launched if self.graph is None else self.graph
        recorded.append((function, grid, block, shared, stream, extra, arguments))
        return (Status.CUDA_SUCCESS,)

    def cuStreamCreate(self, flags: int):  # noqa: N802
        return Status.CUDA_SUCCESS, "stream"

    def cuStreamDestroy(self, stream: str):  # noqa: N802
        self.freed.append(stream)
        return (Status.CUDA_SUCCESS,)

    def cuStreamBeginCapture(self, stream: str, mode: int):  # noqa: N802
        self.graph = []
        return (Status.CUDA_SUCCESS,)

    def cuStreamEndCapture(self, stream: str):  # noqa: N802
        made, self.graph = self.graph, None
        return Status.CUDA_SUCCESS, made

    def cuGraphInstantiate(self, graph: list[Any], flags: int):  # noqa: N802
        return Status.CUDA_SUCCESS, graph

    def cuGraphDestroy(self, graph: list[Any]):  # noqa: N802
        return (Status.CUDA_SUCCESS,)

    def cuGraphLaunch(self, graph: list[Any], stream: str):  # noqa: N802
        self.launched += graph
        return (Status.CUDA_SUCCESS,)

    def cuGraphExecDestroy(self, graph: list[Any]):  # noqa: N802
        self.freed.append("graph")
        return (Status.CUDA_SUCCESS,)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    made = Double()
    bindings = ModuleType("cuda.bindings")
    bindings.driver = made  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    return made


def test_memory_and_launches(double: Double) -> None:
    driver = CudaDriver(b"good", "cuda-sm90", ("sm_90",))
    place = driver.allocate(16)
    found = np.ones(4, np.float32)
    driver.read(place, found)
    assert not found.any(), "memory starts as zeros"
    driver.write(place, np.arange(8, dtype=np.float32)[::2])
    driver.read(place, found)
    assert found.tolist() == [0, 2, 4, 6]
    launch = Launch(driver.function("k"), 7, 1, 256, (place, -1, 3))
    driver.launch(launch)
    one = ("k", (7, 1, 1), (256, 1, 1), 0, "stream", 0, [place, -1, 3])
    assert double.launched == [one]
    again = driver.record((launch, launch))
    assert double.launched == [one], "recorded, not started"
    again()
    again()
    assert double.launched == [one] * 5
    driver.launch(Launch("k", 7, 65537, 256, (place, 0, 64)))
    assert [(grid[1], given) for _, grid, *_, given in double.launched[5:]] == [
        (65535, [place, 0, 64]),
        (2, [place, 65535, 64]),
    ]
    assert driver.describe()["gpu"] == "NVIDIA Double"
    driver.close()
    driver.close()
    assert (double.memory, double.freed) == ({}, ["graph", "module", "stream", "context"])


def test_what_a_gpu_refuses(double: Double) -> None:
    with pytest.raises(KernelFailed, match="cuda-sm100 needs sm_100, this GPU is sm_90"):
        CudaDriver(b"good", "cuda-sm100", ("sm_100",))
    with pytest.raises(KernelFailed, match="does not take the kernels: CUDA_ERROR_INVALID_PTX line 1: no"):
        CudaDriver(b"bad", "cuda-sm90", ("sm_90",))
    with pytest.raises(OutOfMemory, match="the GPU has no memory left"):
        CudaDriver(b"good", "cuda-sm90", ("sm_90",)).allocate(1 << 50)
