"""A role's memory: one anonymous mapping, and the views and tables over it."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime.errors import OutOfMemory
from alphac.runtime.records import BufferRecord, ClassRecord, Manifest
from alphac.runtime.tree import merges, subtrees

ALIGNMENT = 64
HUGE = 4 << 20  # from this size on, huge pages are asked for
STORAGE = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
TABLE = 16  # entries of a program's table before its buffers
LINE = 64  # bytes of a cache line: of each thread at the barrier
TEAM_BYTES = 384
Array = npt.NDArray[np.generic]


class Arena:
    """Values, scratch, tables and the threads' meeting points of one role, in one mapping.

    By strand: `ranges` are the first and the number of the role's shards, `nodes` how many maximal aligned subtrees
    these make. Memory starts as zeros.
    """

    def __init__(self, manifest: Manifest, record: ClassRecord, first: int | Sequence[int], threads: int) -> None:
        self.ranges = ranges(record, first)
        self.threads = threads
        self.nodes = tuple(len(subtrees(manifest.shards, first, n)) if n else 0 for first, n in self.ranges)
        self.scratch_bytes = _aligned(record.scratch)
        parts = {
            "arena": record.arena,
            "scratch": self.scratch_bytes * threads,
            "barrier": LINE * threads,
            "team": TEAM_BYTES,
            **{merges_of(k): 8 * n for k, n in enumerate(record.owned)},
            **{
                table_of(name, k): 8 * (TABLE + len(p.buffers))
                for name, p in manifest.programs.items()
                for k in range(len(self.ranges))
            },
        }
        self._places: dict[str, int] = {}
        size = 0
        for name, extent in parts.items():
            self._places[name] = size
            size += _aligned(extent)
        self.bytes = size
        self._memory = _map(size)
        self.base = address_of(np.frombuffer(self._memory, np.uint8))
        for k, (first, count) in enumerate(self.ranges):
            self.integers(merges_of(k), count)[:] = merges(manifest.shards, first, count) if count else []

    def address(self, part: str) -> int:
        """Where a part begins."""
        return self.base + self._places[part]

    def integers(self, part: str, count: int) -> npt.NDArray[np.int64]:
        """A part as i64s."""
        return np.ndarray((count,), np.int64, self._memory, self._places[part])

    def view(self, buffer: BufferRecord, offset: int) -> Array:
        """A buffer's owned part: a buffer that grows has all owned rows, one of role `nodes` a leading axis of
        subtrees."""
        shape = buffer.shape
        if buffer.grows:
            shape = (shape[0] * self.ranges[buffer.strand][1], *shape[1:])
        if buffer.role == "nodes":
            shape = (max(1, self.nodes[buffer.strand]), *shape)
        return np.ndarray(shape, STORAGE[buffer.dtype], self._memory, self._places[_part(buffer)] + offset)

    def place(self, buffer: BufferRecord, offset: int) -> int:
        """The address of a buffer; of a private one, the first thread's."""
        return self.address(_part(buffer)) + offset


def ranges(record: ClassRecord, first: int | Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and number of a role's shards, by strand; `first`: one for each, or the same of all."""
    return tuple(zip((first,) * len(record.owned) if isinstance(first, int) else first, record.owned, strict=True))


def merges_of(strand: int) -> str:
    """The part that holds a strand's merges."""
    return f"merges {strand}"


def table_of(program: str, strand: int) -> str:
    """The part that holds a program's table for segments of a strand."""
    return f"{program} {strand}"


def _part(buffer: BufferRecord) -> str:
    return "scratch" if buffer.role == "private" else "arena"


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array's first element lies."""
    return int(array.__array_interface__["data"][0])


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _map(size: int) -> mmap.mmap:
    """Zeros. The mapping is private: one that could be shared has huge pages only where the host gives shared memory
    such."""
    try:
        memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError, MemoryError):
        raise OutOfMemory(
            f"this host cannot give {size:,} bytes", help="use more roles, so that each owns fewer shards"
        ) from None
    if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
