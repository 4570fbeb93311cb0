"""Devices: loading and launching code, one module per kind of device. Found by name: see `load`."""

from __future__ import annotations

from typing import Protocol


class Library(Protocol):
    """Loaded code of one class."""

    def address(self, symbol: str) -> int:
        """Where a function lies. Raises KernelFailed if there is no such symbol."""
        ...
