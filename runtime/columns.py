"""Opening data files: every format as arrays in memory or mapped from the file, never as code."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime.arena import STORAGE
from alphac.runtime.errors import DataRefused
from alphac.runtime.records import ColumnRecord
from alphac.runtime.tensors import read_tensors

Array = npt.NDArray[Any]
# What reading a damaged file raises: zipfile knows versions, encryptions and compressions that it does not read.
DAMAGED = (ValueError, EOFError, zipfile.BadZipFile, struct.error, RuntimeError, zlib.error)


READ = 64 << 20  # bytes of an array that are read if it cannot be used where it is mapped, for its elements' alignment


def open_columns(path: Path, format: str, columns: Sequence[ColumnRecord]) -> list[Array]:
    """One array per column: the examples along axis 0, each of the column's shape, or for a windowed column the one
    long sequence. A csv column may be several of the file side by side, their names joined by commas.

    Raises DataRefused for a missing or damaged file, a missing column, or one of another shape or dtype."""
    try:
        arrays = READERS[format](path, [c.source for c in columns], [c.dtype for c in columns])
    except KeyError as error:
        raise DataRefused(f"{path} has no column {error}") from None
    except (OSError, *DAMAGED) as error:
        raise DataRefused(f"{path} cannot be read as {format}: {error}") from None
    return [_fitting(path, column, array) for column, array in zip(columns, arrays, strict=True)]


def _fitting(path: Path, column: ColumnRecord, array: Array) -> Array:
    example = () if column.window else column.shape
    if not array.ndim or math.prod(array.shape[1:]) != math.prod(example):
        raise DataRefused(f"{path}: column `{column.name}` has examples of shape {array.shape[1:]}, not {example}")
    if column.dtype != "bf16" and not np.can_cast(array.dtype, STORAGE[column.dtype], "safe"):
        raise DataRefused(f"{path}: column `{column.name}` is {array.dtype}, which {column.dtype} does not hold")
    return array.reshape(len(array), *example)


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
    if start % dtype.itemsize and size <= READ:
        return np.fromfile(path, dtype, size // dtype.itemsize, offset=start).reshape(shape)
    return np.memmap(path, dtype, "r", start, shape)


def _safetensors(path: Path, sources: Sequence[str], dtypes: Sequence[str]) -> list[Array]:
    tensors = read_tensors(path)
    return [tensors[source].array for source in sources]


def _csv(path: Path, sources: Sequence[str], dtypes: Sequence[str]) -> list[Array]:
    import csv

    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = csv.reader(stream)
            header, *body = [(lines.line_num, line) for line in lines if line]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    names = [name.strip() for name in header[1]]
    for number, line in body:
        if len(line) != len(names):
            raise ValueError(f"line {number} has {len(line)} fields, not {len(names)}")
    places = [[_place(names, name) for name in source.split(",")] for source in sources]
    found = [[[line[place] for place in wanted] for _, line in body] for wanted in places]
    return [_parsed(values, dtype, source) for values, dtype, source in zip(found, dtypes, sources, strict=True)]


def _place(header: list[str], name: str) -> int:
    if name not in header:
        raise KeyError(name)
    return header.index(name)


def _parsed(rows: list[list[str]], dtype: str, source: str) -> Array:
    """Rows of one column, or of several side by side."""
    convert: Callable[[str], float | int] = float if dtype in ("f32", "f64") else int
    try:
        values = np.array([[convert(v) for v in row] for row in rows], STORAGE[dtype])
        return values.reshape(len(rows), -1) if "," in source else values.reshape(len(rows))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column `{source}`: {error}") from None


def _text(path: Path, sources: Sequence[str], dtypes: Sequence[str]) -> list[Array]:
    whole = _mapped(path, np.dtype(np.uint8), 0, (path.stat().st_size,))
    return [whole for _ in sources]


def open_arrays(path: Path) -> dict[str, Array]:
    """Every array of an npz or safetensors file, by name. Raises DataRefused."""
    try:
        if path.suffix == ".safetensors":
            return {name: tensor.array for name, tensor in read_tensors(path).items()}
        with zipfile.ZipFile(path) as archive:
            names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
            return {name: _member(path, archive, name) for name in names}
    except OSError as error:
        raise DataRefused(f"{path} cannot be read: {error.strerror or error}") from None
    except DAMAGED as error:
        raise DataRefused(f"{path} cannot be read: {error}") from None


READERS: dict[str, Callable[[Path, Sequence[str], Sequence[str]], list[Array]]] = {
    "npy": _npy,
    "npz": _npz,
    "csv": _csv,
    "safetensors": _safetensors,
    "text": _text,
}
