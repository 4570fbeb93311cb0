"""For tests and benchmarks: this machine's GPU, NVIDIA's or AMD's, if it has one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from alphac.backends.registry import targets
from alphac.backends.target import MATRIX, Target
from alphac.runtime.devices.cuda import CudaDriver
from alphac.runtime.devices.rocm import RocmDriver
from alphac.runtime.errors import KernelFailed

DRIVERS: dict[str, type[CudaDriver] | type[RocmDriver]] = {"cuda": CudaDriver, "rocm": RocmDriver}


@cache
def described() -> dict[str, str | int] | str:
    """What GPU there is, or why none can be used."""
    reasons: list[str] = []
    for device, make in DRIVERS.items():
        try:
            driver = make(b"", device, ())
        except KernelFailed as fault:
            reasons.append(fault.message)
            continue
        try:
            return {"device": device, **driver.describe()}
        finally:
            driver.close()
    return "; ".join(reasons)


def hardware() -> Target:
    """The newest target that the GPU runs: AMD's run their own architecture alone."""
    found = described()
    assert isinstance(found, dict), found
    known = {t.cpu: t for t in targets().values() if t.device == found["device"]}
    own = str(found["architecture"])
    if found["device"] == "rocm":
        return known[own]
    return known[max((cpu for cpu in known if _version(cpu) <= _version(own)), key=_version)]


def exact() -> Target:
    """The same without matrix instructions, which `numeric fast` allows: what its kernels compute is exact."""
    there = hardware()
    return replace(there, matrix=None, capabilities=there.capabilities - MATRIX)


def _version(cpu: str) -> int:
    return int(cpu.removeprefix("sm_"))
