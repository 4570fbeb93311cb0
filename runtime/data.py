"""Examples: splits, their order, and the rows of a batch that one role owns. All index arithmetic is on integers."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Split:
    """Rows of a file, in its order: `count` ones from `start` on, or those that `rows` lists."""

    count: int
    start: int = 0
    rows: Rows | None = None

    @classmethod
    def of(cls, rows: Rows) -> Split:
        """Listed rows."""
        return cls(len(rows), rows=rows)

    def at(self, positions: Rows) -> Rows:
        """The rows at some positions."""
        return self.start + positions if self.rows is None else self.rows[positions]


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

    def split(self, name: str) -> Split:
        """Split `train` or `test`."""
        return self._splits[name]

    def column(self, name: str) -> tuple[ColumnRecord, Array]:
        """A column as it is stored."""
        return self._columns[name]

    def shuffles(self, split: str) -> bool:
        """Whether the order of a split's rows changes from epoch to epoch."""
        return split == "train" and self.record.shuffle_seed >= 0

    def read(self, column: str, rows: Rows, out: Array) -> None:
        """Copy the examples `rows` of a column into `out`, converted to its dtype (which holds every stored value)."""
        record, array = self._columns[column]
        if record.window:
            index = rows[:, None] * record.stride + (record.offset + np.arange(record.window))
        else:
            index = rows
        out[...] = np.take(array, index, axis=0, mode="clip")

    def sample(self, port: PortRecord, out: Array) -> None:
        """Fill `out` with the rows that a `sample` port names: `count` of them, drawn without replacement by `seed`."""
        _, split, column = port.name.split(".", 2)
        rows, count, seed = self.split(split), int(port.attributes["count"]), int(port.attributes["seed"])
        if count > rows.count:
            raise DataRefused(f"{count} examples cannot be drawn from the {rows.count} of {self.record.name}.{split}")
        drawn = shuffle.permute(np.arange(count), rows.count, seed, self._stream("sample"))
        self.read(column, rows.at(drawn), out)

    def order(self, split: str, epoch: int, positions: Rows) -> Rows:
        """The rows at these positions of an epoch: shuffled for `train` if the declaration says so."""
        rows = self.split(split)
        if self.shuffles(split):
            seed = self.record.shuffle_seed
            positions = shuffle.permute(positions, rows.count, seed, self._stream("shuffle"), epoch)
        return rows.at(positions)

    def _stream(self, purpose: str) -> int:
        return shuffle.stream(f"{self.record.name}.{purpose}")

    def _split(self) -> dict[str, Split]:
        if not self.record.held_out:
            return {"train": Split(self.count), "test": Split(0)}
        if self.record.split_kind == "tail":
            begin = self.count - held_out(self.record.held_out, self.count)
            return {"train": Split(begin), "test": Split(self.count - begin, begin)}
        groups = [np.arange(self.count, dtype=np.int64)]
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
        return {"train": Split.of(np.flatnonzero(~test)), "test": Split.of(np.flatnonzero(test))}


def held_out(fraction: float, count: int) -> int:
    """How many of `count` examples are held out: fraction × count, rounded half up; the fraction counts in
    billionths."""
    return (2 * round(fraction * BILLION) * count + BILLION) // (2 * BILLION)


def _examples(column: ColumnRecord, length: int) -> int:
    if not column.window:
        return length
    return max(0, (length - column.offset - column.window) // column.stride + 1)


@dataclass(frozen=True)
class Batches:
    """A role's rows of some batches that follow each other: of batch k the run from `firsts[k]` on, or `rows[k]`."""

    count: int
    firsts: Rows | None = None
    rows: Rows | None = None

    def listed(self, size: int) -> Rows:
        """The rows of every batch, of `size` rows each."""
        if self.firsts is not None:
            return self.firsts[:, None] + np.arange(size)
        assert self.rows is not None
        return self.rows


class Feed:
    """The batches of one split, one after the other through the epochs, and which rows of them a role reads.

    `first`, `size`: its rows within a batch are [first, first + size). `ragged`: an epoch ends with a batch of what is
    left, filled up with the split's first row; else this is left out.
    """

    def __init__(self, data: Dataset, split: str, batch: int, first: int, size: int, ragged: bool = False) -> None:
        self.data, self.split, self.batch, self.first, self.size = data, split, batch, first, size
        self.examples = data.split(split).count
        self.batches = -(-self.examples // batch) if ragged else self.examples // batch  # in an epoch
        self._chunk = max(1, CHUNK // max(1, size))  # batches whose order is kept
        self._kept: tuple[int, Rows] | None = None

    def valid(self, step: int) -> int:
        """How many examples of a whole batch are real."""
        return min(self.batch, self.examples - step % self.batches * self.batch)

    def take(self, step: int, count: int) -> Batches:
        """This role's rows of up to `count` batches from number `step` on, one at least."""
        split = self.data.split(self.split)
        number = step % self.batches
        if split.rows is None and not self.data.shuffles(self.split) and self.valid(step) == self.batch:
            whole = self.examples // self.batch
            if whole < self.batches:
                count = min(count, whole - number)
            numbers = np.arange(step, step + count, dtype=np.int64) % self.batches
            return Batches(count, firsts=split.start + self.first + numbers * self.batch)
        begin = step - number % self._chunk
        if self._kept is None or self._kept[0] != begin:
            self._kept = begin, self._order(begin, min(self._chunk, self.batches - begin % self.batches))
        rows = self._kept[1][step - begin : step - begin + count]
        return Batches(len(rows), rows=rows)

    def _order(self, begin: int, count: int) -> Rows:
        """This role's rows of `count` batches of an epoch."""
        epoch, number = divmod(begin, self.batches)
        numbers = np.arange(number, number + count, dtype=np.int64)
        positions = (numbers[:, None] * self.batch + self.first) + np.arange(self.size)
        real = positions < self.examples
        rows = self.data.order(self.split, epoch, np.where(real, positions, 0).reshape(-1)).reshape(positions.shape)
        return np.where(real, rows, self.data.split(self.split).at(np.zeros(1, np.int64)))
