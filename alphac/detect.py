"""`alphac fleet detect`: this machine as a fleet file. What could not be asked is said, never guessed in silence.

NVIDIA's GPUs are asked for through NVML, if nvidia-ml-py is installed; AMD's are listed by Linux; an Apple processor's
is known to be there; those of other makers are asked for through OpenCL, if pyopencl is installed.
"""

from __future__ import annotations

import importlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alphac import processor
from alphac.backends.registry import host_target, targets
from alphac.fleet import shown_size

KFD = Path("/sys/class/kfd/kfd/topology/nodes")  # where amdgpu, the kernel's driver, lists what computes
VIDEO_MEMORY = (1, 2)  # kinds of memory banks: the host sees all of it, or a part


@dataclass(frozen=True)
class Device:
    """An accelerator: `memory` 0 if it shares its host's. `target` "" if the compiler has none for it."""

    name: str
    model: str
    memory: int
    target: str
    identity: str = ""


@dataclass(frozen=True)
class Machine:
    """What was found. `unknown`: what could not be asked, and why."""

    name: str
    processor: str
    cores: int
    memory: int
    caches: tuple[tuple[str, int], ...]
    features: tuple[str, ...]
    target: str
    devices: tuple[Device, ...] = ()
    unified: bool = False
    unknown: tuple[str, ...] = ()


def detect() -> Machine:
    """This machine, as far as it lets itself be asked."""
    unknown: list[str] = []
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    makers = {
        "nvidia": _nvidia(unknown),
        "advanced micro devices": _amd(),
        "apple": [Device("gpu", "Apple GPU", 0, _known("metal"))] if apple else [],
    }
    devices = [device for found in makers.values() for device in found]
    devices += _opencl([maker for maker, found in makers.items() if found], unknown)
    return Machine(
        name=platform.node().partition(".")[0] or "here",
        processor=processor.name(unknown),
        cores=processor.cores(),
        memory=processor.memory(unknown),
        caches=processor.caches(unknown),
        features=processor.features(),
        target=host_target().name,
        devices=tuple(devices),
        unified=apple,
        unknown=tuple(unknown),
    )


def fleet_text(machine: Machine) -> str:
    """A fleet file. Rates are left to `alphac calibrate`; until then the processor's are a rule of thumb."""
    lines = [f"# {machine.processor}, {machine.cores} core{'s' * (machine.cores != 1)}"]
    if machine.caches:
        lines.append("# caches: " + ", ".join(f"{name} {shown_size(size)}" for name, size in machine.caches))
    if machine.features:
        lines.append("# instruction sets: " + ", ".join(machine.features))
    lines += [f"# could not be asked: {reason}" for reason in machine.unknown]
    lines += ["", "[[host]]", f"name = {_quoted(machine.name)}"]
    lines += [f'memory = "{machine.memory // 1_000_000} MB"'] if machine.memory else ["# memory is not known: write it"]
    lines += ["unified = true"] if machine.unified else []
    lines += ["", "[[endpoint]]", f"name = {_quoted(f'{machine.name}-cpu')}", f"host = {_quoted(machine.name)}"]
    lines += [f"target = {_quoted(machine.target)}", f"threads = {machine.cores}"]
    lines.append(f"compute = {{ f32 = {assumed_gflops(machine)} }}  # a rule of thumb: `alphac calibrate` measures it")
    for device in machine.devices:
        lines += ["", *_device(machine, device)]
    return "\n".join([*lines, ""])


def _device(machine: Machine, device: Device) -> list[str]:
    """An accelerator's table; commented out if nothing is known that it could run."""
    lines = [f"# {device.model}" + (f", {device.identity}" if device.identity else "")]
    table = ["[[endpoint]]", f"name = {_quoted(f'{machine.name}-{device.name}')}", f"host = {_quoted(machine.name)}"]
    table += [f"target = {_quoted(device.target)}"] if device.target else []
    if device.memory:
        table += [f'memory = "{device.memory // 1_000_000} MB"', 'memory_domain = "own"']
    table.append("compute = { f32 = 1000 }  # not known: write it, or calibrate")
    if device.target:
        return [*lines, *table]
    return [*lines, "# this compiler has no target for it", *(f"# {line}" for line in table)]


def assumed_gflops(machine: Machine) -> int:
    """Two vector multiply-adds a cycle at 2 GHz on every core."""
    return max(1, machine.cores * targets()[machine.target].lanes * 2 * 2 * 2)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _known(name: str) -> str:
    return name if name in targets() else ""


# ---------------------------------------------------------------------- accelerators
def _library(name: str, package: str, what: str, unknown: list[str]) -> Any:
    """A library, or None; that it is not there is said."""
    try:
        return importlib.import_module(name)
    except ImportError:
        unknown.append(f"{what}: install {package} to have them found")
    except Exception as error:
        unknown.append(f"{what}: {name} does not load here ({error})")
    return None


def _nvidia(unknown: list[str]) -> list[Device]:
    nvml = _library("pynvml", "nvidia-ml-py", "NVIDIA GPUs", unknown)
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        unknown.append(f"NVIDIA GPUs: no driver answers ({error})")
        return []
    try:
        return [_nvidia_device(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        unknown.append(f"NVIDIA GPUs: {error}")
        return []
    finally:
        nvml.nvmlShutdown()


def _nvidia_device(nvml: Any, number: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        f"gpu{number}",
        _text(nvml.nvmlDeviceGetName(handle)),
        int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        _nvidia_target(10 * major + minor),
        _text(nvml.nvmlDeviceGetUUID(handle)),
    )


def _nvidia_target(capability: int) -> str:
    """The newest target that a device of this compute capability runs: of its own generation."""
    known = {int(n.removeprefix("cuda-sm")): n for n in targets() if n.startswith("cuda-sm")}
    able = [c for c in known if c <= capability and c // 10 == capability // 10]
    return known[max(able)] if able else ""


def _amd() -> list[Device]:
    """GPUs that the kernel's driver lists for computing: no library is needed."""
    found: list[Device] = []
    for node in sorted(KFD.glob("*"), key=lambda p: int(p.name) if p.name.isdigit() else 0):
        said = _properties(node / "properties")
        version = said.get("gfx_target_version", 0)
        if not said.get("simd_count") or not version:
            continue  # a processor
        banks = [_properties(bank) for bank in node.glob("mem_banks/*/properties")]
        memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in VIDEO_MEMORY)
        name = f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"
        unique = said.get("unique_id", 0)
        identity = f"GPU-{unique:016x}" if unique else ""
        found.append(Device(f"amd{len(found)}", f"AMD {name}", memory, _known(f"rocm-{name}"), identity))
    return found


def _properties(path: Path) -> dict[str, int]:
    """Lines of a name and a number. Of a node that only others may read, none."""
    try:
        pairs = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _opencl(makers: list[str], unknown: list[str]) -> list[Device]:
    """Accelerators that speak OpenCL, but for those of `makers`, which were found another way."""
    cl = _library("pyopencl", "pyopencl", "GPUs of other makers", unknown)
    if cl is None:
        return []
    from alphac.runtime.devices import opencl

    found: list[Device] = []
    for device in opencl.devices(cl):
        kinds = cl.device_type
        if device.type & kinds.CPU or any(maker in device.vendor.lower() for maker in makers):
            continue
        lacks = opencl.lacks(cl, device, f64=True)
        memory = 0 if device.host_unified_memory else int(device.global_mem_size)
        said = f"lacks {', '.join(lacks)}" if lacks else ""
        found.append(Device(f"opencl{len(found)}", device.name.strip(), memory, "" if lacks else "opencl", said))
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
