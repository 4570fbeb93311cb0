"""For tests: PoCL, which runs OpenCL on this machine's processor, if the extra `dev` has installed it."""

from __future__ import annotations

import pytest

from alphac.runtime.devices.opencl import OpenClDriver
from alphac.runtime.errors import KernelFailed


def _missing() -> str:
    try:
        OpenClDriver(b"", "opencl-cpu", ("cpu", "fp64")).close()
    except KernelFailed as fault:
        return fault.message
    return ""


MISSING = _missing()
runs = pytest.mark.skipif(bool(MISSING), reason=MISSING or "PoCL runs here")
