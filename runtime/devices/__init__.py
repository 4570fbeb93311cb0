"""Devices: loading and launching code, one module per kind of device, found by its name.

The host's own (`cpu.py`) links an object into this process, and the runtime's memory is its memory. Any other is
`Remote`: it has memory of its own.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from alphac.runtime.errors import KernelFailed

if TYPE_CHECKING:
    from alphac.runtime.arena import Arena, Array
    from alphac.runtime.records import ClassRecord, Manifest, ProgramRecord

HOST = "cpu"


class Library(Protocol):
    """Loaded code of one class."""

    def address(self, symbol: str) -> int:
        """Where a function lies. Raises KernelFailed if there is no such symbol."""
        ...


class Remote(Library, Protocol):
    """A device with memory of its own, in the place of a team of threads; its segments are numbers.

    The host's arena holds what the runtime reads and writes; `begin` and `end` stand around a program's run, `states`
    before anybody looks at states or changes them."""

    def run(self, function: int, table: int) -> int: ...

    def begin(self, program: ProgramRecord) -> None: ...

    def end(self, program: ProgramRecord) -> None: ...

    def states(self) -> None: ...

    def read(self, program: ProgramRecord, buffer: int) -> Array:
        """Fetch one buffer into the host's arena."""
        ...

    def write(self, program: ProgramRecord, buffer: int) -> None:
        """Send one buffer of the host's arena."""
        ...

    def launch(self, segment: str, kernel: int, indices: Sequence[int]) -> None:
        """Run the kernel of that number in a segment. `indices`: of all loops around it."""
        ...

    def cpu_seconds(self) -> list[float]: ...

    def describe(self) -> dict[str, str | int]:
        """What hardware, and what drives it, for records."""
        ...

    def close(self) -> None: ...


Open = Callable[[bytes, "Manifest", "ClassRecord", "Arena"], Remote]
OpenDevice = Callable[[str], Open]


def device(name: str) -> Open:
    """How a device with memory of its own is opened: its module's `open_device`. Raises KernelFailed."""
    if not re.fullmatch(r"[a-z]\w*", name):
        raise KernelFailed(f"there is no device `{name[:40]}`")
    try:
        module = importlib.import_module(f"alphac.runtime.devices.{name}")
    except ModuleNotFoundError:
        raise KernelFailed(f"this alphac knows no device `{name}`", help="run it with the one that made it") from None
    opened: Open = module.open_device
    return opened
