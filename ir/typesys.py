"""Types of the IR: element types, named dimensions, tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True)
class DType:
    """An element type.

    `storage` is the NumPy type of its bytes in memory; `compute` the one NumPy calculates in. They differ for
    bf16 alone: two bytes in memory (as uint16 bits), float32 in registers.
    """

    name: str
    kind: Kind
    bits: int

    @property
    def storage(self) -> np.dtype:
        return np.dtype(_STORAGE[self.name])

    @property
    def compute(self) -> np.dtype:
        return np.dtype(np.float32) if self.name == "bf16" else self.storage

    @property
    def bytes(self) -> int:
        return self.storage.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


_STORAGE = {
    "f32": "float32",
    "f64": "float64",
    "bf16": "uint16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
}

F32 = DType("f32", "float", 32)
F64 = DType("f64", "float", 64)
BF16 = DType("bf16", "float", 16)
I32 = DType("i32", "int", 32)
I64 = DType("i64", "int", 64)
U8 = DType("u8", "uint", 8)
BOOL = DType("bool", "bool", 8)
# Inside op bodies only; the language does not have them.
U32 = DType("u32", "uint", 32)
U64 = DType("u64", "uint", 64)

LANGUAGE_DTYPES = {d.name: d for d in (F32, BF16, F64, I32, I64, U8, BOOL)}
ALL_DTYPES = {**LANGUAGE_DTYPES, "u32": U32, "u64": U64}


@dataclass(frozen=True)
class Dim:
    """A named axis. `shards` > 0 marks the grain's axis: it is cut into that many equal logical shards. `strand`: whose
    shards, where parts of a step are owned apart (`ir/passes/strands.py`)."""

    name: str
    size: int
    shards: int = 0
    strand: int = 0

    def __str__(self) -> str:
        cut = f"/{self.shards}" if self.shards or self.strand else ""
        return f"{self.name}:{self.size}{cut}" + (f"/{self.strand}" if self.strand else "")

    __repr__ = __str__


SHARD = "shard"  # reserved name: the axis of per-shard partial results, one entry per logical shard


def shard_dim(grain: Dim) -> Dim:
    """The axis of per-shard partials that a reduction over the grain's axis leaves."""
    return Dim(SHARD, grain.shards, strand=grain.strand)


@dataclass(frozen=True)
class TensorType:
    """dtype[dims]; each dim name occurs once. Row-major in the order of `dims` wherever bytes are seen."""

    dtype: DType
    dims: tuple[Dim, ...] = ()

    def __post_init__(self) -> None:
        names = [d.name for d in self.dims]
        if len(set(names)) != len(names):
            raise ValueError(f"a type names each dim once, not {names}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims)

    @property
    def size(self) -> int:
        n = 1
        for d in self.dims:
            n *= d.size
        return n

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.bytes

    @property
    def grain(self) -> Dim | None:
        """The grain's axis if this value has it."""
        return next((d for d in self.dims if d.shards), None)

    @property
    def cut(self) -> Dim | None:
        """The axis that is cut among owners, if this value has one: the grain's, or that of per-shard partials."""
        return next((d for d in self.dims if d.shards or d.name == SHARD), None)

    @property
    def is_partial(self) -> bool:
        """Whether this is a per-shard partial result (leading axis `shard`)."""
        return any(d.name == SHARD for d in self.dims)

    def has(self, name: str) -> bool:
        return any(d.name == name for d in self.dims)

    def dim(self, name: str) -> Dim:
        for d in self.dims:
            if d.name == name:
                return d
        raise KeyError(name)

    def without(self, *names: str) -> TensorType:
        return TensorType(self.dtype, tuple(d for d in self.dims if d.name not in names))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.dims)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"

    __repr__ = __str__
