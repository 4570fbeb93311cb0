"""What a machine says of its processor and memory: Linux through files, macOS through sysctl. What could not be asked
is added to `unknown`."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from alphac.backends.registry import targets

ROOT = Path("/")  # tests put another machine's files in its place


def name(unknown: list[str]) -> str:
    """The processor's model."""
    said = _sysctl("machdep.cpu.brand_string") or _linux_name()
    if said:
        return said
    unknown.append("the processor's model: neither /proc/cpuinfo nor sysctl says it")
    return platform.processor() or platform.machine()


def _linux_name() -> str:
    """A model's name, as x86-64 has one; of aarch64 the board's, or the numbers of who designed the core, and which."""
    try:
        lines = (ROOT / "proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" in said:
        return said["model name"]
    try:
        return (ROOT / "proc/device-tree/model").read_text(encoding="utf-8").rstrip("\0").strip()
    except OSError:
        if "CPU part" not in said:
            return ""
        return f"{platform.machine()}, implementer {said.get('CPU implementer', '?')}, part {said['CPU part']}"


def cores() -> int:
    """How many threads a role should have; of an Apple processor, as many as it has fast cores: threads that meet often
    go at the pace of the slowest."""
    if platform.system() == "Darwin":
        said = _sysctl("hw.perflevel0.physicalcpu")
        return int(said) if said.isdigit() else os.cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(unknown: list[str]) -> int:
    """Bytes that processes here may have: the machine's, or less if a control group says so."""
    said = _sysctl("hw.memsize")
    if said.isdigit():
        return int(said)
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        unknown.append("memory: this system does not tell its pages")
        return 0
    try:
        limit = (ROOT / "sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        return min(size, int(limit)) if limit.isdigit() else size
    except OSError:
        return size


def caches(unknown: list[str]) -> tuple[tuple[str, int], ...]:
    """Data caches of a (fast) core by level, in bytes."""
    if platform.system() == "Darwin":
        sizes = (("L1", _sysctl("hw.perflevel0.l1dcachesize")), ("L2", _sysctl("hw.perflevel0.l2cachesize")))
        found = [(level, int(size)) for level, size in sizes if size.isdigit()]
    else:
        found = _linux_caches()
    if not found:
        unknown.append("caches: neither /sys/devices/system/cpu nor sysctl lists them")
    return tuple(found)


def _linux_caches() -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for index in sorted((ROOT / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((index / n).read_text(encoding="ascii").strip() for n in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K") and size[:-1].isdigit():
            found.append((f"L{level}", int(size[:-1]) << 10))
    return found


def features() -> tuple[str, ...]:
    """Of the instruction sets that targets need, those that are here."""
    import llvmlite.binding as llvm

    here = {name for name, present in llvm.get_host_cpu_features().items() if present}
    wanted = {feature for target in targets().values() for feature in target.needs}
    return tuple(sorted(wanted & here))


def _sysctl(key: str) -> str:
    """What macOS says of itself under a name; nothing elsewhere, or if it has no such name."""
    if platform.system() != "Darwin":
        return ""
    try:
        said = subprocess.run(["/usr/sbin/sysctl", "-n", key], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()
