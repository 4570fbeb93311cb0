"""`alphac fleet detect`: this machine as a fleet file. What could not be asked is said, never guessed in silence.

GPUs are asked for through their vendors' libraries, if these are installed: NVML (nvidia-ml-py), AMD SMI (amdsmi); an
Apple processor's GPU is known to be there.
"""

from __future__ import annotations

import importlib
import platform
from dataclasses import dataclass
from typing import Any

from alphac import processor
from alphac.backends.registry import host_target, targets
from alphac.fleet import shown_size


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
    devices = [*_nvidia(unknown), *_amd(unknown)]
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    if apple:
        devices.append(Device("gpu", "Apple GPU", 0, _known("metal")))
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
    """A vendor's library, or None; that it is not there is said."""
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


def _amd(unknown: list[str]) -> list[Device]:
    smi = _library("amdsmi", "amdsmi", "AMD GPUs", unknown)
    if smi is None:
        return []
    try:
        smi.amdsmi_init()
    except Exception as error:
        unknown.append(f"AMD GPUs: no driver answers ({error})")
        return []
    try:
        found: list[Device] = []
        for number, handle in enumerate(smi.amdsmi_get_processor_handles()):
            asic = smi.amdsmi_get_gpu_asic_info(handle)
            memory = int(smi.amdsmi_get_gpu_vram_info(handle)["vram_size"]) << 20
            name = str(asic.get("target_graphics_version", ""))
            found.append(Device(f"amd{number}", str(asic["market_name"]), memory, _known(f"rocm-{name}")))
        return found
    except Exception as error:
        unknown.append(f"AMD GPUs: {error}")
        return []
    finally:
        smi.amdsmi_shut_down()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
