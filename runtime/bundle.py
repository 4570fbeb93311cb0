"""The bundle's manifest: what a role needs to know, as data. The format is owned by this reader."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BufferRecord:
    """Bytes are `fixed` when the buffer does not grow with shards, else `per_shard` for each owned shard. `shape` is the
    physical one: for a buffer that grows, the first axis is `rows` per owned shard."""

    name: str
    dtype: str  # f32 f64 bf16 i32 i64 u8 bool
    shape: tuple[int, ...]
    role: str  # state argument temporary nodes
    grows: bool
    rows: int  # rows per shard of the first axis if it grows, else 0
    state: str = ""  # the state's name, for role state


@dataclass(frozen=True)
class PortRecord:
    kind: str
    name: str
    buffer: int
    attributes: dict[str, int | float | str | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class StepRecord:
    """kind segment: `symbol`, `guards` (each a list of buffers), `kernels` (for replay, in order);
    exchange: `buffers`, `kinds`; repeat: `count`, `reverse`, `index` (table entry 8 + index), `steps`."""

    kind: str
    symbol: str = ""
    guards: tuple[tuple[int, ...], ...] = ()
    kernels: tuple[KernelRecord, ...] = ()
    buffers: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    count: int = 0
    reverse: bool = False
    index: int = 0
    steps: tuple[StepRecord, ...] = ()


@dataclass(frozen=True)
class KernelRecord:
    """One kernel of a segment, for replay: `loops` are the enclosing loops' (count, reverse) inside the segment."""

    symbol: str
    buffers: tuple[int, ...]
    stores: int  # the first so many buffers are written
    op: str
    span: str  # FILE:LINE:COLUMN or ""


@dataclass(frozen=True)
class ProgramRecord:
    name: str
    buffers: tuple[BufferRecord, ...]
    steps: tuple[StepRecord, ...]
    arguments: tuple[PortRecord, ...]
    results: tuple[PortRecord, ...]


@dataclass(frozen=True)
class ProgramPlan:
    """Byte offsets into the role's arena, one per buffer of the program; state buffers of all programs agree."""

    offsets: tuple[int, ...]


@dataclass(frozen=True)
class ClassRecord:
    """Roles that own the same number of shards on the same target: one memory plan, one object."""

    shards: int
    target: str
    object: str  # path in the bundle
    arena: int  # bytes
    scratch: int  # bytes per thread
    plans: dict[str, ProgramPlan]


@dataclass(frozen=True)
class RoleRecord:
    role: int
    role_class: int
    first: int
    shards: int
