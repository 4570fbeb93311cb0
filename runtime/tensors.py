"""safetensors files: a length, a JSON header, the tensors' bytes. Written in a given order; mapped, and checked."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from alphac.runtime.arena import STORAGE
from alphac.runtime.coding import parse_json

Array = npt.NDArray[Any]
MAX_HEADER = 100 << 20
CODES = {"f32": "F32", "f64": "F64", "bf16": "BF16", "i32": "I32", "i64": "I64", "u8": "U8", "bool": "BOOL"}
DTYPES = {code: dtype for dtype, code in CODES.items()}


@dataclass(frozen=True)
class Tensor:
    """A named tensor; `array` is in its dtype's storage (bf16: the bits as uint16)."""

    name: str
    dtype: str
    array: Array


def write_tensors(path: Path, tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors in the given order, by rename and on disk before it. Raises OSError."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.array.nbytes
        header[tensor.name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.array.shape),
            "data_offsets": [begin, end],
        }
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    work = path.with_name(f".{path.name}.writing")
    try:
        with work.open("wb") as stream:
            stream.write(struct.pack("<Q", len(words)) + words)
            for tensor in tensors:
                stream.write(np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, mapped read-only. Raises OSError, or ValueError for a file that is not whole and valid."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) != 8 or (length := int(struct.unpack("<Q", prefix)[0])) > min(MAX_HEADER, size - 8):
            raise ValueError("its header is longer than the file or than is sane")
        header: Any = parse_json(stream.read(length), "its header")
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    entries = cast("dict[str, Any]", header)
    entries.pop("__metadata__", None)
    content = np.memmap(path, np.uint8, "r", 8 + length) if size > 8 + length else np.empty(0, np.uint8)
    tensors: dict[str, Tensor] = {}
    ranges: list[tuple[int, int]] = []
    for name, entry in entries.items():
        dtype, shape, begin, end = _entry(name, entry)
        ranges.append((begin, end))
        if end > len(content):
            raise ValueError(f"tensor `{name}` lies outside the file")
        tensors[name] = Tensor(name, dtype, content[begin:end].view(STORAGE[dtype]).reshape(shape))
    position = 0
    for begin, end in sorted(ranges):
        if begin != position:
            raise ValueError("its tensors overlap or leave holes")
        position = end
    if position != len(content):
        raise ValueError("it has bytes that belong to no tensor")
    return tensors


def _entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tensor `{name[:80]}` is described oddly: {error}") from None
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"tensor `{name[:80]}` has extents that are no counts")
    size = STORAGE[dtype].itemsize
    for extent in shape:
        size *= extent
    if end - begin != size:
        raise ValueError(f"tensor `{name[:80]}` has {end - begin} bytes, its shape needs {size}")
    return dtype, shape, begin, end
