"""Whether this process's processor is real, as far as that shows. The launcher says so of a role that it starts through
an emulator; one that somebody starts by hand looks for itself."""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
KEYS = {"x86_64": "vendor_id", "aarch64": "CPU implementer"}  # that Linux tells of each processor


def emulator() -> str:
    """What emulates the processor; nothing if it seems real."""
    if sys.platform == "darwin":
        return "Rosetta" if _translated() else ""
    key = KEYS.get(platform.machine())
    if key is None:
        return ""
    try:
        said = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    others = [machine for machine, word in KEYS.items() if word in said]
    return f"unknown, on {others[0]}" if others and key not in said else ""


def _translated() -> bool:
    """Whether macOS translates this process's code."""
    value, size = ctypes.c_int32(0), ctypes.c_size_t(4)
    found = ctypes.CDLL(None).sysctlbyname(
        b"sysctl.proc_translated", ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return found == 0 and value.value == 1
