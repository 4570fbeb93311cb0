"""Examples: splits, their order, and the rows of a batch that one role owns. All index arithmetic is on integers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime import shuffle
from alphac.runtime.columns import open_columns
from alphac.runtime.errors import DataRefused
from alphac.runtime.records import ColumnRecord, DataRecord, PortRecord

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
BILLION = 10**9
CHUNK = 1 << 16  # positions whose order is worked out at once


class Dataset:
    """An opened data declaration. Raises DataRefused if the file is not what the record says."""

    def __init__(self, record: DataRecord, path: Path) -> None:
        self.record = record
        arrays = open_columns(path, record.format, record.columns)
        self._columns = {c.name: (c, a) for c, a in zip(record.columns, arrays, strict=True)}
        counts = {c.name: _examples(c, len(a)) for c, a in self._columns.values()}
        whole = {n for name, n in counts.items() if not self._columns[name][0].window}
        if len(whole) > 1:
            raise DataRefused(f"{path}: its columns have {', '.join(map(str, sorted(whole)))} examples")
        self.count = min(counts.values(), default=0)
        if whole and self.count < max(whole):
            raise DataRefused(f"{path}: a windowed column has {self.count} examples, the others {max(whole)}")
        self._splits = self._split()

    def split(self, name: str) -> Rows:
        """The rows of split `train` or `test`, in the file's order."""
        return self._splits[name]

    def read(self, column: str, rows: Rows, out: Array) -> None:
        """Copy the examples `rows` of a column into `out`, converted to its dtype (which holds every stored value)."""
        record, array = self._columns[column]
        if record.window:
            index = rows[:, None] * record.stride + (record.offset + np.arange(record.window))
        else:
            index = rows
        if array.dtype == out.dtype:
            np.take(array, index, axis=0, out=out, mode="clip")
        else:
            out[...] = np.take(array, index, axis=0, mode="clip")

    def sample(self, port: PortRecord, out: Array) -> None:
        """Fill `out` with the rows that a `sample` port names: `count` of them, drawn without replacement by `seed`."""
        _, split, column = port.name.split(".", 2)
        rows, count, seed = self.split(split), int(port.attributes["count"]), int(port.attributes["seed"])
        if count > len(rows):
            raise DataRefused(f"{count} examples cannot be drawn from the {len(rows)} of {self.record.name}.{split}")
        drawn = shuffle.permute(np.arange(count), len(rows), seed, self._stream("sample"))
        self.read(column, rows[drawn], out)

    def order(self, split: str, epoch: int, positions: Rows) -> Rows:
        """The rows at these positions of an epoch: shuffled for `train` if the declaration says so."""
        rows, seed = self.split(split), self.record.shuffle_seed
        if split == "train" and seed >= 0:
            positions = shuffle.permute(positions, len(rows), seed, self._stream("shuffle"), epoch)
        return rows[positions]

    def _stream(self, purpose: str) -> int:
        return shuffle.stream(f"{self.record.name}.{purpose}")

    def _split(self) -> dict[str, Rows]:
        everything = np.arange(self.count, dtype=np.int64)
        if not self.record.held_out:
            return {"train": everything, "test": everything[:0]}
        if self.record.split_kind == "tail":
            begin = self.count - held_out(self.record.held_out, self.count)
            return {"train": everything[:begin], "test": everything[begin:]}
        groups = [everything]
        if self.record.stratified_by:
            record, array = self._columns[self.record.stratified_by]
            if record.shape or record.window:
                raise DataRefused(f"{self.record.name} cannot be stratified by `{record.name}`, which is no scalar")
            values = np.asarray(array)
            groups = [np.flatnonzero(values == value) for value in sorted(set(values.tolist()))]
        test = np.zeros(self.count, np.bool_)
        for number, members in enumerate(groups):
            drawn = np.arange(held_out(self.record.held_out, len(members)))
            test[
                members[shuffle.permute(drawn, len(members), self.record.split_seed, self._stream("split"), number)]
            ] = True
        return {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}


def held_out(fraction: float, count: int) -> int:
    """How many of `count` examples are held out: fraction × count, rounded half up; the fraction counts in
    billionths."""
    return (2 * round(fraction * BILLION) * count + BILLION) // (2 * BILLION)


def _examples(column: ColumnRecord, length: int) -> int:
    if not column.window:
        return length
    return max(0, (length - column.offset - column.window) // column.stride + 1)


class Feed:
    """The batches of one split, of which one role reads its own rows into its arena.

    `first`, `rows`: its rows within a batch are [first, first + rows). `ports`: columns and where they go.
    """

    def __init__(
        self, data: Dataset, split: str, batch: int, first: int, rows: int, ports: Sequence[tuple[PortRecord, Array]]
    ) -> None:
        self.data, self.split, self.batch, self.first, self.rows = data, split, batch, first, rows
        self.ports = [(port.name.partition(".")[2], out) for port, out in ports]
        self.examples = len(data.split(split))
        self._chunk = max(1, CHUNK // max(1, rows))  # batches whose order is kept
        self._kept: tuple[int, int, Rows] | None = None

    @property
    def full(self) -> int:
        """Whole batches in an epoch."""
        return self.examples // self.batch

    @property
    def batches(self) -> int:
        """Batches in an epoch, the last of which may be ragged."""
        return -(-self.examples // self.batch)

    def load(self, epoch: int, number: int) -> int:
        """Read this role's rows of a batch; rows beyond the split's end repeat its first. Returns how many examples of
        the whole batch are real."""
        rows = self._rows(epoch, number)
        for column, out in self.ports:
            self.data.read(column, rows, out)
        return min(self.batch, self.examples - number * self.batch)

    def _rows(self, epoch: int, number: int) -> Rows:
        begin = number - number % self._chunk
        if self._kept is None or self._kept[:2] != (epoch, begin):
            numbers = np.arange(begin, min(begin + self._chunk, self.batches), dtype=np.int64)
            positions = (numbers[:, None] * self.batch + self.first) + np.arange(self.rows)
            real = positions < self.examples
            rows = self.data.order(self.split, epoch, np.where(real, positions, 0).reshape(-1)).reshape(positions.shape)
            self._kept = (epoch, begin, np.where(real, rows, self.data.split(self.split)[0]))
        return self._kept[2][number - begin]
