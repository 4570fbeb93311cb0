"""The bundle's records: what a role needs to know, as data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

FORMAT = 1
ITEM_BYTES = {"f32": 4, "f64": 8, "bf16": 2, "i32": 4, "i64": 8, "u8": 1, "bool": 1}
Attribute = int | float | str | bool
NONE: Mapping[str, Any] = MappingProxyType({})


class BufferRecord(NamedTuple):
    """`shape` is the physical one of the value: for a buffer that grows with the shards owned, the grain's axis is
    first and `shape[0]` is `rows`, its length per owned shard. A buffer of role `nodes` holds one `shape` for each
    maximal aligned subtree of the role, the first of which takes the result. One of role `private` lies in scratch
    memory, at the same place of every thread's. `strand`: whose shards, or subtrees."""

    name: str
    dtype: str  # f32 f64 bf16 i32 i64 u8 bool
    shape: tuple[int, ...]
    role: str  # state argument temporary private nodes
    grows: bool
    rows: int  # rows per shard of the first axis if it grows, else 0
    state: str = ""  # the state's name, for role state
    strand: int = 0

    @property
    def elements(self) -> int:
        """Elements of one `shape`: of one owned shard if the buffer grows."""
        n = 1
        for size in self.shape:
            n *= size
        return n

    def bytes(self, shards: int, nodes: int) -> int:
        """Bytes on a role with so many owned shards, cut into so many maximal aligned subtrees."""
        count = shards if self.grows else 1
        return self.elements * ITEM_BYTES[self.dtype] * count * (nodes if self.role == "nodes" else 1)


class PortRecord(NamedTuple):
    """What a program's argument or result is bound to; kinds are those of `ir/core.py`'s `Port`. For inputs and
    outputs that grow, attribute `axis` is the place of the grain's axis in the region's own order of dims (0 if left
    out). A total starts from attribute `start` (0 if left out; infinities are words, `inf` and `-inf`)."""

    kind: str
    name: str
    buffer: int
    attributes: Mapping[str, Attribute] = NONE


class LoopRecord(NamedTuple):
    """A loop inside a segment; `number` tells the loops of a program apart. `rows` > 0: it runs along the grain's axis,
    so many times for each shard that a role owns, at indices of the whole batch, which are `count`."""

    number: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    reverse: bool = False
    rows: int = 0


class KernelRecord(NamedTuple):
    """One kernel of a segment, for replay: `loops` are the enclosing loops inside the segment, outermost first. Its
    symbol depends on the target: `ClassRecord.symbols`."""

    buffers: tuple[int, ...]
    stores: int  # the first so many buffers are written
    op: str
    span: str  # FILE:LINE:COLUMN or ""
    loops: tuple[LoopRecord, ...] = ()


class StepRecord(NamedTuple):
    """kind segment: `symbol`, `guards` (each a list of buffers), `kernels` (for replay, in order);
    exchange: `buffers`, `kinds`; repeat: `count`, `reverse`, `index` (table entry 8 + index), `steps`. A segment or an
    exchange is of one `strand`."""

    kind: str
    symbol: str = ""
    guards: tuple[tuple[int, ...], ...] = ()
    kernels: tuple[KernelRecord, ...] = ()
    buffers: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    count: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    reverse: bool = False
    index: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    steps: tuple[StepRecord, ...] = ()
    strand: int = 0


class ProgramRecord(NamedTuple):
    """The schedule of one function. `whole`: the segment of all steps, for a role that owns all shards and so has
    nothing to exchange; empty if there are no steps."""

    name: str
    buffers: tuple[BufferRecord, ...]
    steps: tuple[StepRecord, ...]
    whole: str
    arguments: tuple[PortRecord, ...]
    results: tuple[PortRecord, ...]


class ProgramPlan(NamedTuple):
    """Byte offsets into the role's arena (of private buffers into a thread's scratch), one per buffer of the program;
    state buffers of all programs agree."""

    offsets: tuple[int, ...]


class ClassRecord(NamedTuple):
    """Roles that own the same number of shards on the same target: one memory plan, one object.

    `symbols`: of every program its kernels' in the object, in the order of its segments; empty for kernels of strands
    that these roles own no shards of.
    `tiles`: register tiles of contractions, rows x vectors, where measuring chose another than their shape suggests.
    `features`: the processor's features, in LLVM's names, without which the object must not be loaded.
    `others`: shards owned of the strands behind the first."""

    shards: int
    target: str
    object: str  # path in the bundle
    arena: int  # bytes
    scratch: int  # bytes per thread
    plans: dict[str, ProgramPlan]
    symbols: dict[str, tuple[str, ...]]
    features: tuple[str, ...] = ()
    device: str = "cpu"  # the module of `runtime/devices` that loads the object
    others: tuple[int, ...] = ()
    tiles: Mapping[str, str] = NONE

    @property
    def owned(self) -> tuple[int, ...]:
        """Shards by strand."""
        return (self.shards, *self.others)


class RoleRecord(NamedTuple):
    """One role: which class, and the contiguous range of shards it owns; `others`: its ranges (first, shards) of the
    strands behind the first."""

    role: int
    role_class: int
    first: int
    shards: int
    others: tuple[tuple[int, int], ...] = ()

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """First and number of shards, by strand."""
        return ((self.first, self.shards), *self.others)


class Withheld(NamedTuple):
    """Stands for a record that an extracted role does not need: its digest, so that the bundle's identity stays."""

    withheld: str


class GrainRecord(NamedTuple):
    """The batch axis: `size` examples in `shards` equal logical shards."""

    name: str
    size: int
    shards: int

    @property
    def rows(self) -> int:
        """Examples per shard."""
        return self.size // self.shards


class StateRecord(NamedTuple):
    """A state, in the module's order. kind: param, state, optimizer. `shape` is row-major and whole."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str


class ColumnRecord(NamedTuple):
    """A column of a data file, raw as stored; fields as in `ir/core.py`'s `Column`. `shape` is that of one example."""

    name: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    window: int = 0
    stride: int = 0
    offset: int = 0


class DataRecord(NamedTuple):
    """A data declaration; `path` is the file's path in the bundle, the other fields are those of `ir/core.py`'s
    `Data`."""

    name: str
    path: str
    format: str  # npz npy csv safetensors text
    columns: tuple[ColumnRecord, ...]
    held_out: float = 0.0
    stratified_by: str = ""
    split_seed: int = 0
    split_kind: str = "random"  # random tail
    shuffle_seed: int = -1


class TrainingRecord(NamedTuple):
    """How long to train, and how often to checkpoint; fields as in `ir/core.py`'s `Training`."""

    data: str
    epochs: int = 0
    steps: int = 0
    checkpoint_epochs: int = 0
    checkpoint_steps: int = 0


class EvaluationRecord(NamedTuple):
    """`evaluate NAME on SPLIT`: programs `evaluate.NAME` per batch and `finish.NAME` once."""

    name: str
    data: str
    split: str


class StrandRecord(NamedTuple):
    """Part of a system whose shards only roles on some `targets` own; `regions` are those in it that ask for it."""

    targets: tuple[str, ...]
    regions: tuple[str, ...] = ()


class FileRecord(NamedTuple):
    """A file of the bundle."""

    sha256: str
    bytes: int


class Manifest(NamedTuple):
    """All of a bundle but its files.

    identity   sha256 of the learning system: source, overrides, data (design §9)
    bundle     sha256 of everything in the manifest, and so of all files: the bundle's identity, filled in when written
    grain      None when nothing is batched: there is one shard then
    strands    if shards of parts of the system are owned apart: what each part is
    solo       the class (in `classes`) that owns all shards, for `eval` and `predict`; −1: there is none
    apart      the classes instead of it, where no role's target may own everything: each owns all of some strands
    files      filled in when written
    """

    system: str
    identity: str
    grain: GrainRecord | None
    seed: int
    states: tuple[StateRecord, ...]
    data: dict[str, DataRecord]
    training: TrainingRecord | None
    evaluations: tuple[EvaluationRecord, ...]
    programs: dict[str, ProgramRecord]
    classes: tuple[ClassRecord | Withheld, ...]
    roles: tuple[RoleRecord | Withheld, ...]
    strands: tuple[StrandRecord, ...] = ()
    solo: int = -1
    apart: tuple[int, ...] = ()
    format: int = FORMAT
    bundle: str = ""
    files: Mapping[str, FileRecord] = NONE

    @property
    def shards(self) -> int:
        return self.grain.shards if self.grain else 1

    @property
    def batch(self) -> int:
        """Examples per batch; 0 when nothing is batched."""
        return self.grain.size if self.grain else 0

    def state(self, name: str) -> StateRecord:
        """The state of that name. KeyError if there is none."""
        for state in self.states:
            if state.name == name:
                return state
        raise KeyError(name)
