"""For tests and benchmarks: this machine's NVIDIA GPU, if it has one."""

from __future__ import annotations

from functools import cache

from alphac.backends.registry import targets
from alphac.backends.target import Target
from alphac.runtime.devices.cuda import CudaDriver
from alphac.runtime.errors import KernelFailed


@cache
def described() -> dict[str, str | int] | str:
    """What GPU there is, or why none can be used."""
    try:
        driver = CudaDriver(b"", "cuda", ())
    except KernelFailed as fault:
        return fault.message
    try:
        return driver.describe()
    finally:
        driver.close()


def hardware() -> Target:
    """The newest target that the GPU runs."""
    found = described()
    assert isinstance(found, dict), found
    own = int(str(found["architecture"]).removeprefix("sm_"))
    known = {int(t.cpu.removeprefix("sm_")): t for t in targets().values() if t.device == "cuda"}
    return known[max(architecture for architecture in known if architecture <= own)]
