"""Apple GPUs: source text, which Metal compiles for the GPU it finds, through pyobjc.

Memory is the machine's own, which the GPU shares. Kernels know one buffer, and others by their offset in it: `allocate`
gives out places, and the buffer is made when the first of them is used. Not run on Apple hardware yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alphac.runtime.arena import Arena, Array
from alphac.runtime.devices.gpu import GpuDevice, Launch
from alphac.runtime.errors import KernelFailed, OutOfMemory
from alphac.runtime.records import ClassRecord, Manifest

ALIGNED = 256  # bytes: of every place
ARGUMENTS = 4096  # bytes of arguments that a launch may have
THREADS = 256  # of a block
FAILED = 5  # MTLCommandBufferStatusError


def open_device(code: bytes, manifest: Manifest, record: ClassRecord, arena: Arena) -> GpuDevice:
    """A role's memory and code on this machine's GPU. Raises KernelFailed if Metal finds none."""
    return GpuDevice(code, lambda text: MetalDriver(text, record.target), manifest, record, arena)


class MetalDriver:
    """One queue on the default device; what was launched last is `_running` until somebody waits for it."""

    def __init__(self, text: bytes, target: str) -> None:
        try:
            import Metal  # pyright: ignore
        except ImportError:
            raise KernelFailed(
                f"{target} needs pyobjc-framework-Metal, which is not installed", help="pip install 'alphac[metal]'"
            ) from None
        self._metal: Any = Metal
        self._device: Any = self._metal.MTLCreateSystemDefaultDevice()
        if self._device is None:
            raise KernelFailed(f"{target}: Metal finds no GPU here")
        self._queue: Any = self._device.newCommandQueue()
        self._size = 0
        self._buffer: Any = None
        self._running: Any = None
        self._pipelines: dict[str, Any] = {}
        self._library: Any = self._compiled(text.decode()) if text else None

    def _compiled(self, text: str) -> Any:
        """Without fast math, which is Metal's default."""
        options = self._metal.MTLCompileOptions.alloc().init()
        if hasattr(options, "setMathMode_"):  # since macOS 15
            options.setMathMode_(self._metal.MTLMathModeSafe)
        else:
            options.setFastMathEnabled_(False)
        library, error = self._device.newLibraryWithSource_options_error_(text, options, None)
        if library is None:
            raise KernelFailed(f"Metal does not take the kernels: {error}")
        return library

    def describe(self) -> dict[str, str | int]:
        """Which GPU this is, for records."""
        return {"device": str(self._device.name()), "runs_on": "Metal on hardware"}

    # ------------------------------------------------------------------ what `Driver` asks for
    def allocate(self, size: int) -> int:
        """A place for so many bytes of zeros."""
        place = self._size
        self._size += -(-size // ALIGNED) * ALIGNED
        return place

    def _bytes(self) -> Array:
        """The memory, as large as all places, when all that was launched is done; what an earlier, smaller one held is
        in it."""
        self._wait()
        before = self._buffer
        if before is None or before.length() < self._size:
            mode = self._metal.MTLResourceStorageModeShared
            self._buffer = self._device.newBufferWithLength_options_(self._size, mode)
            if self._buffer is None:
                help = "use more roles, so that each owns fewer shards"
                raise OutOfMemory(f"the GPU gives no {self._size} bytes", help=help)
            fresh = _view(self._buffer)
            fresh[:] = 0
            if before is not None:
                fresh[: before.length()] = _view(before)
        return _view(self._buffer)

    def write(self, address: int, data: Array) -> None:
        """Copy to the device."""
        self._bytes()[address : address + data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def read(self, address: int, into: Array) -> None:
        """Copy from the device, when all that was launched is done."""
        into.reshape(-1).view(np.uint8)[:] = self._bytes()[address : address + into.nbytes]

    def function(self, symbol: str) -> str:
        """A kernel's name."""
        if symbol not in self._pipelines:
            function = self._library.newFunctionWithName_(symbol)
            if function is None:
                raise KernelFailed(f"there is no kernel `{symbol}`")
            pipeline, error = self._device.newComputePipelineStateWithFunction_error_(function, None)
            if pipeline is None:
                raise KernelFailed(f"Metal does not take `{symbol}`: {error}")
            if pipeline.maxTotalThreadsPerThreadgroup() < THREADS:
                raise KernelFailed(f"this GPU has no room for {THREADS} threads of `{symbol}` in a block")
            self._pipelines[symbol] = pipeline
        return symbol

    def launch(self, launch: Launch) -> None:
        """Start a kernel."""
        self._start((launch,))

    def record(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """These launches, one after the other, in one command buffer each time."""
        return lambda: self._start(launches)

    def _start(self, launches: Sequence[Launch]) -> None:
        self._bytes()
        commands = self._queue.commandBuffer()
        encoder = commands.computeCommandEncoder()  # whose dispatches wait for each other
        for launch in launches:
            for tiles, arguments in launch.parts():
                self._dispatch(encoder, launch, tiles, arguments)
        encoder.endEncoding()
        commands.commit()
        self._running = commands

    def _dispatch(self, encoder: Any, launch: Launch, tiles: int, arguments: Sequence[int]) -> None:
        given = struct.pack(f"<{len(arguments)}q", *arguments)
        if len(given) > ARGUMENTS:
            raise KernelFailed(f"`{launch.function}` has more arguments than a launch on Metal takes")
        encoder.setComputePipelineState_(self._pipelines[launch.function])
        encoder.setBuffer_offset_atIndex_(self._buffer, 0, 0)
        encoder.setBytes_length_atIndex_(given, len(given), 1)
        size = self._metal.MTLSizeMake
        grid, block = size(launch.blocks, tiles, 1), size(launch.threads, 1, 1)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(grid, block)

    def _wait(self) -> None:
        """For what was launched."""
        commands, self._running = self._running, None
        if commands is not None:
            commands.waitUntilCompleted()
            if commands.status() == FAILED:
                raise KernelFailed(f"the GPU failed: {commands.error()}")

    def close(self) -> None:
        """Give memory and code back. May be called twice."""
        if self._running is not None:
            self._running.waitUntilCompleted()
        self._buffer = self._running = self._library = None
        self._pipelines.clear()


def _view(buffer: Any) -> Array:
    """A buffer's bytes."""
    return np.frombuffer(buffer.contents().as_buffer(buffer.length()), np.uint8)
