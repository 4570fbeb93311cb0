"""Data files, as far as the compiler looks into them: which columns, of what type, how many rows, which labels."""

from __future__ import annotations

import csv
import math
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alphac.ir.typesys import BF16, BOOL, F32, F64, I32, I64, U8, DType
from alphac.runtime.columns import DAMAGED

FORMATS = {".npz": "npz", ".npy": "npy", ".csv": "csv", ".safetensors": "safetensors", ".txt": "text", ".text": "text",
           ".md": "text"}  # fmt: skip
_DTYPES = {"float32": F32, "float64": F64, "int32": I32, "int64": I64, "uint8": U8, "bool": BOOL}
_SAFETENSORS = {"F32": F32, "F64": F64, "BF16": BF16, "I32": I32, "I64": I64, "U8": U8, "BOOL": BOOL}


class DataError(Exception):
    """What is wrong with a data file: a diagnostic's code, sentence and help."""

    def __init__(self, code: str, message: str, help: str) -> None:
        super().__init__(message)
        self.code, self.message, self.help = code, message, help


@dataclass(frozen=True)
class Stored:
    """An array of a file: element type, shape of one example, number of rows. Text and 1-d arrays may be windowed."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    rows: int


class Source:
    """An opened data file.

    `arrays` says what it holds. In a csv file every column is an array of its own; integers are i64, other numbers f64.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = path = directory / name
        if path.suffix not in FORMATS:
            known = ", ".join(sorted(FORMATS))
            raise DataError("E309", f"`{path.name}` is of no known format", f"there are {known}")
        self.format = FORMATS[path.suffix]
        if not os.path.exists(path):  # unlike the path's own, silent where a name is too long
            raise DataError("E300", f"there is no data file `{name}`", "paths are relative to the `.alpha` file")
        self.arrays: dict[str, Stored] = {}
        self._csv: dict[str, np.ndarray[Any, Any]] = {}
        try:
            getattr(self, f"_open_{self.format}")()
        except DataError:
            raise
        except (OSError, KeyError, csv.Error, *DAMAGED) as error:
            reason = str(error).splitlines()[0] if str(error) else "it ends too early"
            message = f"`{path.name}` is not a good {self.format} file: {reason}"
            raise DataError("E301", message, "make the file anew, or name the right one") from None

    # ------------------------------------------------------------------------------------------------------- opening
    def _add(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if dtype.name not in _DTYPES or not dtype.isnative:
            known = DType(dtype.name if dtype.isnative else f"big-endian {dtype.name}", "int", 8 * dtype.itemsize)
        else:
            known = _DTYPES[dtype.name]
        self.arrays[name] = Stored(name, known, shape[1:], shape[0] if shape else 0)

    def _open_npz(self) -> None:
        with zipfile.ZipFile(self.path) as archive:
            for member in archive.infolist():
                if member.filename.endswith(".npy"):
                    with archive.open(member) as file:
                        shape, dtype = _npy_header(file, member.file_size)
                    self._add(member.filename[:-4], dtype, shape)

    def _open_npy(self) -> None:
        with open(self.path, "rb") as file:
            shape, dtype = _npy_header(file, self.path.stat().st_size)
        self._add("array", dtype, shape)

    def _open_safetensors(self) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "np") as file:
                names = list(file.keys())
                for name in names:
                    part = file.get_slice(name)
                    shape, code = tuple(part.get_shape()), part.get_dtype()
                    if shape:
                        dtype = _SAFETENSORS.get(code, DType(code.lower(), "int", 0))
                        self.arrays[name] = Stored(name, dtype, shape[1:], shape[0])
        except SafetensorError as error:
            raise ValueError(str(error)) from None

    def _open_text(self) -> None:
        raw = np.memmap(self.path, dtype=np.uint8, mode="r") if self.path.stat().st_size else np.zeros(0, np.uint8)
        try:
            bytes(raw).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                "E301", f"byte {error.start} of `{self.path.name}` is not UTF-8", "save the text as UTF-8"
            ) from None
        self.arrays["text"] = Stored("text", U8, (), len(raw))

    def _open_csv(self) -> None:
        with open(self.path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
        if not rows or not rows[0]:
            raise ValueError("it has no header")
        header = [name.strip() for name in rows[0]]
        if twice := next((name for name in header if header.count(name) > 1), None):
            raise ValueError(f"two columns are called `{twice}`")
        body = [row for row in rows[1:] if row]
        for number, row in enumerate(body, 2):
            if len(row) != len(header):
                raise ValueError(f"row {number} has {len(row)} fields, not {len(header)}")
        for i, name in enumerate(header):
            texts = [row[i].strip() for row in body]
            values = _numbers(name, texts)
            self._csv[name] = values
            self._add(name, values.dtype, values.shape)

    # ------------------------------------------------------------------------------------------------------- reading
    def array(self, name: str) -> np.ndarray[Any, Any]:
        """All elements of an array (mapped into memory where the format allows)."""
        if self.format == "csv":
            return self._csv[name]
        if self.format == "text":
            return np.memmap(self.path, dtype=np.uint8, mode="r")
        if self.format == "npy":
            return np.asarray(np.load(self.path, mmap_mode="r", allow_pickle=False))
        try:
            if self.format == "npz":
                with np.load(self.path, allow_pickle=False) as archive:
                    return np.asarray(archive[name])
            from safetensors.numpy import load_file

            return load_file(self.path)[name]
        except (OSError, MemoryError, *DAMAGED) as error:
            reason = str(error).splitlines()[0] if str(error) else "it ends too early"
            message = f"`{name}` in `{self.path.name}` cannot be read: {reason}"
            raise DataError("E301", message, "make the file anew") from None


def _npy_header(file: Any, size: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and element type of an array of so many bytes, its header included. Raises ValueError."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if fortran and len(shape) > 1:
        raise ValueError("the array is in Fortran order; save it in C order")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"the shape {shape} is none")
    missing = file.tell() + dtype.itemsize * math.prod(shape) - size
    if missing > 0 and not dtype.hasobject:
        raise ValueError(f"{missing} bytes are missing at its end")
    return shape, dtype


def _numbers(name: str, texts: list[str]) -> np.ndarray[Any, Any]:
    """A csv column: i64 if every field is a whole number, else f64."""
    try:
        return np.array([int(t) for t in texts], dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    values = np.empty(len(texts), dtype=np.float64)
    for row, text in enumerate(texts):
        try:
            values[row] = float(text)
        except ValueError:
            raise ValueError(f"row {row + 2} of column `{name}` is `{text[:20]}`, not a number") from None
    return values
