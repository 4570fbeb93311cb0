"""OpenCL devices: source text, which the device's own compiler takes, through pyopencl.

Kernels know one memory, and buffers by their offset in it: `allocate` gives out places, and the memory itself is made
when the first of them is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alphac.runtime.arena import Arena, Array
from alphac.runtime.devices.gpu import GpuDevice, Launch
from alphac.runtime.errors import KernelFailed, OutOfMemory
from alphac.runtime.records import ClassRecord, Manifest

ALIGNED = 256  # bytes: of every place
OPTIONS = ("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt")
THREADS = 256  # of a block
CPU, F64 = "cpu", "fp64"  # what a target may need: that the device is a processor; that it has f64


def open_device(code: bytes, manifest: Manifest, record: ClassRecord, arena: Arena) -> GpuDevice:
    """A role's memory and code on this machine's first OpenCL device of the kind that the target asks for.

    Raises KernelFailed if there is none, or none that computes as exactly as the kernels need."""
    return GpuDevice(code, lambda text: OpenClDriver(text, record.target, record.features), manifest, record, arena)


class OpenClDriver:
    """One queue, in order, on one device. `features`: `cpu` if it is to be a processor, else it is none; `fp64`."""

    def __init__(self, text: bytes, target: str, features: Sequence[str]) -> None:
        try:
            import pyopencl  # pyright: ignore
        except ImportError:
            raise KernelFailed(
                f"{target} needs pyopencl, which is not installed", help="pip install 'alphac[opencl]'"
            ) from None
        self._cl: Any = pyopencl
        self._size = 0
        self._memory: Any = None
        self._kernels: dict[str, Any] = {}
        self.device = self._chosen(target, CPU in features, F64 in features)
        self._context: Any = self._cl.Context([self.device])
        self._queue: Any = self._cl.CommandQueue(self._context)
        self._program: Any = self._built(text.decode()) if text else None

    def _chosen(self, target: str, cpu: bool, f64: bool) -> Any:
        """The first device of the kind that has what the kernels need."""
        kinds = self._cl.device_type
        reasons: list[str] = []
        for device in devices(self._cl):
            if bool(device.type & kinds.CPU) != cpu:
                kind = "is a processor" if device.type & kinds.CPU else "is no processor"
                reasons.append(f"{device.name} {kind}")
            elif missing := lacks(self._cl, device, f64):
                reasons.append(f"{device.name} has no {', no '.join(missing)}")
            else:
                return device
        reason = "; ".join(reasons) or "there is no OpenCL device"
        help = "an endpoint whose target is `opencl-cpu` runs on a processor" if not cpu else ""
        raise KernelFailed(f"{target}: no OpenCL device can be used here: {reason}", help=help)

    def describe(self) -> dict[str, str | int]:
        """Which device and which platform this is, for records."""
        device, platform = self.device, self.device.platform
        kind = "a CPU" if device.type & self._cl.device_type.CPU else "hardware"
        return {
            "device": device.name.strip(),
            "opencl": f"{platform.name.strip()}, {platform.version.strip()}",
            "runs_on": f"{'PoCL' if 'pocl' in platform.vendor.lower() else platform.name.strip()} on {kind}",
            "units": int(device.max_compute_units),
        }

    def _built(self, text: str) -> Any:
        """The device's compiler takes the text."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler says of a text that it takes
            try:
                return self._cl.Program(self._context, text).build(list(OPTIONS), cache_dir=False)
            except self._cl.Error as error:
                raise KernelFailed(f"the device's compiler does not take the kernels: {error}") from None

    # ------------------------------------------------------------------ what `Driver` asks for
    def allocate(self, size: int) -> int:
        """A place for so many bytes of zeros."""
        place = self._size
        self._size += -(-size // ALIGNED) * ALIGNED
        return place

    @property
    def _buffer(self) -> Any:
        """The memory, as large as all places; what an earlier, smaller one held is in it."""
        before = self._memory
        if before is None or before.size < self._size:
            try:
                self._memory = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, self._size)
                self._cl.enqueue_fill_buffer(self._queue, self._memory, np.zeros(1, np.uint8), 0, self._size)
            except (self._cl.MemoryError, self._cl.LogicError) as error:
                help = "use more roles, so that each owns fewer shards"
                raise OutOfMemory(f"the OpenCL device gives no {self._size} bytes: {error}", help=help) from None
            if before is not None:
                self._cl.enqueue_copy(self._queue, self._memory, before, byte_count=before.size)
        return self._memory

    def write(self, address: int, data: Array) -> None:
        """Copy to the device."""
        if data.nbytes:
            self._cl.enqueue_copy(self._queue, self._buffer, np.ascontiguousarray(data), dst_offset=address)

    def read(self, address: int, into: Array) -> None:
        """Copy from the device; this waits for what was launched."""
        if into.nbytes:
            self._cl.enqueue_copy(self._queue, into, self._buffer, src_offset=address)

    def function(self, symbol: str) -> str:
        """A kernel's name."""
        if symbol not in self._kernels:
            try:
                kernel = self._cl.Kernel(self._program, symbol)
            except self._cl.Error as error:
                raise KernelFailed(f"there is no kernel `{symbol}`: {error}") from None
            self._refuse_large(symbol, kernel)
            self._kernels[symbol] = kernel
        return symbol

    def _refuse_large(self, symbol: str, kernel: Any) -> None:
        """A kernel whose blocks the device has no room for."""
        info, device = self._cl.kernel_work_group_info, self.device
        local = kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device)
        threads = kernel.get_work_group_info(info.WORK_GROUP_SIZE, device)
        for what, has, needs in (
            ("bytes of local memory", device.local_mem_size, local),
            ("threads to a block", threads, THREADS),
        ):
            if has < needs:
                raise KernelFailed(f"{device.name} has {has} {what}, `{symbol}` needs {needs}")

    def launch(self, launch: Launch) -> None:
        """Start a kernel."""
        kernel = self._kernels[launch.function]
        for tiles, arguments in launch.parts():
            kernel.set_args(self._buffer, *map(np.int64, arguments))
            grid = (launch.blocks * launch.threads, tiles)
            try:
                self._cl.enqueue_nd_range_kernel(self._queue, kernel, grid, (launch.threads, 1))
            except self._cl.Error as error:
                raise KernelFailed(f"the OpenCL device does not run `{launch.function}`: {error}") from None

    def record(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """OpenCL keeps no graphs: kernels with their arguments, started one after the other."""

        def run() -> None:
            for launch in launches:
                self.launch(launch)

        return run

    def close(self) -> None:
        """Give memory and code back. May be called twice."""
        if self._memory is not None:
            self._queue.finish()
            self._memory.release()
        self._memory = self._program = None
        self._kernels.clear()


def devices(cl: Any) -> list[Any]:
    """Every OpenCL device of this machine, platform by platform."""
    try:
        return [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.LogicError:  # there is no platform
        return []


def lacks(cl: Any, device: Any, f64: bool) -> list[str]:
    """What exact kernels need and a device has not."""
    flags = cl.device_fp_config
    wanted = {flags.DENORM: "subnormals", flags.FMA: "fma", flags.INF_NAN: "NaNs"}
    wanted[flags.ROUND_TO_NEAREST] = "rounding to nearest"
    f32 = {**wanted, flags.CORRECTLY_ROUNDED_DIVIDE_SQRT: "correctly rounded division"}
    missing = [word for flag, word in f32.items() if not device.single_fp_config & flag]
    if f64:
        missing += [f"{word} in f64" for flag, word in wanted.items() if not device.double_fp_config & flag]
    return missing if device.address_bits == 64 else [*missing, "64-bit addresses"]
