"""Opening data files: every format as arrays in memory or mapped from the file, never as code."""

from __future__ import annotations

import csv
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime.arena import STORAGE
from alphac.runtime.coding import CodingError, parse_json
from alphac.runtime.errors import DataRefused
from alphac.runtime.records import ColumnRecord

Array = npt.NDArray[Any]
MAX_HEADER = 100 << 20
SAFETENSORS = {"F64": "f64", "F32": "f32", "BF16": "bf16", "I64": "i64", "I32": "i32", "U8": "u8", "BOOL": "bool"}


def open_columns(path: Path, format: str, columns: Sequence[ColumnRecord]) -> list[Array]:
    """One array per column: the examples along axis 0, or for a windowed column the one long sequence.

    Raises DataRefused for a missing or damaged file, a missing column, or one of another shape or dtype."""
    try:
        arrays = READERS[format](path, [c.source for c in columns], [c.dtype for c in columns])
    except KeyError as error:
        raise DataRefused(f"{path} has no column {error}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, struct.error, csv.Error) as error:
        raise DataRefused(f"{path} cannot be read as {format}: {error}") from None
    return [_fitting(path, column, array) for column, array in zip(columns, arrays, strict=True)]


def _fitting(path: Path, column: ColumnRecord, array: Array) -> Array:
    example = column.shape[1:] if column.window else column.shape
    if array.ndim != len(example) + 1 or array.shape[1:] != example:
        raise DataRefused(f"{path}: column `{column.name}` has examples of shape {array.shape[1:]}, not {example}")
    if column.dtype != "bf16" and not np.can_cast(array.dtype, STORAGE[column.dtype], "safe"):
        raise DataRefused(f"{path}: column `{column.name}` is {array.dtype}, which {column.dtype} does not hold")
    return array


def _npy(path: Path, sources: Sequence[str], dtypes: Sequence[str]) -> list[Array]:
    whole = np.load(path, mmap_mode="r", allow_pickle=False)
    return [whole for _ in sources]


def _npz(path: Path, sources: Sequence[str], dtypes: Sequence[str]) -> list[Array]:
    with zipfile.ZipFile(path) as archive:
        opened = {source: _member(path, archive, source) for source in dict.fromkeys(sources)}
    return [opened[source] for source in sources]


def _member(path: Path, archive: zipfile.ZipFile, source: str) -> Array:
    """One array of an npz: mapped if it is stored as it is, else read."""
    try:
        info = archive.getinfo(f"{source}.npy")
    except KeyError:
        raise KeyError(source) from None
    with archive.open(info) as stream:
        major, _ = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        if info.compress_type != zipfile.ZIP_STORED or fortran or dtype.hasobject:
            archive.open(info).close()
            with archive.open(info) as again:
                return np.lib.format.read_array(again, allow_pickle=False)
        begin = stream.tell()
    with path.open("rb") as raw:
        raw.seek(info.header_offset)
        header = struct.unpack("<4s22xHH", raw.read(30))
    if header[0] != b"PK\x03\x04":
        raise ValueError(f"member {source} has no header")
    start = info.header_offset + 30 + header[1] + header[2] + begin
    return _mapped(path, dtype, start, shape)


def _mapped(path: Path, dtype: np.dtype[Any], start: int, shape: tuple[int, ...]) -> Array:
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if start < 0 or size < 0 or start + size > path.stat().st_size:
        raise ValueError("the file is shorter than it says")
    if size == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", start, shape)


def _safetensors(path: Path, sources: Sequence[str], dtypes: Sequence[str]) -> list[Array]:
    with path.open("rb") as raw:
        (length,) = struct.unpack("<Q", raw.read(8))
        if length > min(MAX_HEADER, path.stat().st_size):
            raise ValueError("its header is absurdly long")
        header = parse_json(raw.read(length), "the header")
    if not isinstance(header, dict):
        raise CodingError("the header is no object")
    return [_tensor(path, header[source], 8 + length) for source in sources]


def _tensor(path: Path, entry: Any, base: int) -> Array:
    try:
        dtype, shape, (begin, end) = STORAGE[SAFETENSORS[entry["dtype"]]], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"odd tensor: {error}") from None
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError("odd tensor: its extents are no counts")
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if end - begin != size:
        raise ValueError("odd tensor: its bytes do not fit its shape")
    return _mapped(path, dtype, base + begin, shape)


def _csv(path: Path, sources: Sequence[str], dtypes: Sequence[str]) -> list[Array]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream)
        header = [name.strip() for name in next(lines, [])]
        places: list[int] = []
        for source in sources:
            if source not in header:
                raise KeyError(source)
            places.append(header.index(source))
        found: list[list[str]] = [[] for _ in sources]
        for line in lines:
            if not line:
                continue
            if len(line) != len(header):
                raise ValueError(f"line {lines.line_num} has {len(line)} fields, not {len(header)}")
            for values, place in zip(found, places, strict=True):
                values.append(line[place])
    return [_parsed(values, dtype, source) for values, dtype, source in zip(found, dtypes, sources, strict=True)]


def _parsed(values: list[str], dtype: str, source: str) -> Array:
    convert: Callable[[str], float | int] = float if dtype in ("f32", "f64") else int
    try:
        return np.array([convert(v) for v in values], STORAGE[dtype])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column `{source}`: {error}") from None


def _text(path: Path, sources: Sequence[str], dtypes: Sequence[str]) -> list[Array]:
    whole = _mapped(path, np.dtype(np.uint8), 0, (path.stat().st_size,))
    return [whole for _ in sources]


READERS: dict[str, Callable[[Path, Sequence[str], Sequence[str]], list[Array]]] = {
    "npy": _npy,
    "npz": _npz,
    "csv": _csv,
    "safetensors": _safetensors,
    "text": _text,
}
