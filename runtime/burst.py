"""Bursts: a program's steps in one native call, each with its batch, and the feeding of single steps.

A role that owns all shards has nothing to exchange, so that native code runs many of its steps on its own
(`backends/burst.py`); what Python does in between, it does once for all of them. Batches that lie in the file as a
kernel wants them are used where they lie, others are copied by native code; values that are stored in another dtype
are converted here, ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime.arena import TABLE, Array, address_of
from alphac.runtime.combine import widen
from alphac.runtime.data import Batches, Feed
from alphac.runtime.executor import Executor, Program
from alphac.runtime.records import PortRecord
from alphac.runtime.team import Team

Words = npt.NDArray[np.int64]
MOST = 4096  # steps in a burst
AHEAD = 8 << 20  # bytes that are converted ahead
# Entries of the burst, of a column and of a scalar: docs/architecture.md, "Native interface".
SEGMENT, STEPS_TABLE, STEPS, DONE, COLUMNS, COLUMNS_AT, SCALARS, SCALARS_AT, TRACE_AT = range(9)
BEGIN, NUMBER_AT, SIZE, ROWS_AT, COPIES = range(9, 14)
WORDS = 16
SOURCE, PITCH, BYTES, ENTRY_AT, BUFFER_AT, FIRSTS_AT, COPIED = range(7)
COLUMN_WORDS = 8


@dataclass
class _Column:
    """A column of a program: as stored, where its batch goes, and its words for native code. `ahead`: converted
    examples of the batches that come."""

    name: str
    out: Array
    words: Words
    stored: Array
    pitch: int  # bytes from one example to the next
    converts: bool
    direct: bool  # rows that follow each other may be used where they lie
    ahead: Array | None = None


class Burst:
    """Runs the steps of a program on the batches of a feed. `strand`: whose columns it feeds."""

    def __init__(self, executor: Executor, program: Program, feed: Feed, strand: int = 0) -> None:
        assert isinstance(executor.team, Team)  # a device with memory of its own runs steps one by one
        self._team, self._crew = executor.team, executor.crew
        self._program, self._feed = program, feed
        self._words = np.zeros(WORDS, np.int64)
        self._load, self._run = (executor.library.address(f"alphac_{name}") for name in ("load", "burst"))
        ports = program.columns(strand)
        self._words[STEPS_TABLE] = program.addresses[strand]
        self._column_words = np.zeros((len(ports), COLUMN_WORDS), np.int64)
        self._columns = [self._column(p, out, w) for (p, out), w in zip(ports, self._column_words, strict=True)]
        self.scalars = [p for p in program.record.results if p.kind in ("loss", "metric")]
        self._scalar_words = np.zeros((len(self.scalars), 2), np.int64)
        for port, words in zip(self.scalars, self._scalar_words, strict=True):
            value = program.views[port.buffer]
            words[:] = address_of(value), value.itemsize
        self._trace = np.zeros((1, len(self.scalars)), np.int64)
        self._number = np.zeros(1, np.int64)
        numbers = [view for _, view in program.arguments("step")]
        words = self._words
        words[SEGMENT] = program.whole
        words[COLUMNS], words[COLUMNS_AT] = len(ports), address_of(self._column_words)
        words[SCALARS], words[SCALARS_AT] = len(self.scalars), address_of(self._scalar_words)
        words[NUMBER_AT] = address_of(numbers[0] if numbers else self._number)
        words[SIZE] = feed.size

    def _column(self, port: PortRecord, out: Array, words: Words) -> _Column:
        name = port.name.partition(".")[2]
        record, stored = self._feed.data.column(name)
        size, item = out[:1].nbytes, stored.itemsize
        pitch = item * record.stride if record.window else size
        converts = stored.dtype != out.dtype or not stored.flags.c_contiguous
        direct = address_of(stored) % item == 0 and (pitch == size or self._feed.size == 1)
        words[PITCH], words[BYTES] = pitch, size
        words[ENTRY_AT] = int(self._words[STEPS_TABLE]) + 8 * (TABLE + port.buffer)
        words[BUFFER_AT] = address_of(out)
        if not converts:
            words[SOURCE] = address_of(stored) + item * record.offset
        return _Column(name, out, words, stored, pitch, converts, direct)

    def load(self, step: int) -> None:
        """Let the program's next run find this role's rows of batch number `step`, and the step's number."""
        self._aim(step, 1)
        self._team.run(self._load, address_of(self._words))

    def run(self, step: int, count: int) -> tuple[int, int]:
        """Run up to `count` steps from number `step` on; at least one. Returns how many were finished, and the number
        of the guard that stopped the one behind these, or 0."""
        crew = self._crew
        threads, count = crew.begin(self._aim(step, min(count, MOST)))
        if len(self._trace) < count:
            self._trace = np.zeros((count, len(self.scalars)), np.int64)
        self._words[TRACE_AT] = address_of(self._trace)
        self._words[STEPS], self._words[DONE] = count, 0
        guard = self._team.run(self._run, address_of(self._words), threads)
        done = int(self._words[DONE])
        crew.end(done)
        return done, guard

    def values(self, count: int) -> list[list[float]]:
        """The scalars of the last run's first `count` steps, scalar by scalar."""
        found: list[list[float]] = []
        for number, port in enumerate(self.scalars):
            value = self._program.views[port.buffer]
            bits = np.ascontiguousarray(self._trace[:count, number]).view(np.uint8).reshape(count, 8)
            typed: npt.NDArray[Any] = np.ascontiguousarray(bits[:, : value.itemsize]).view(value.dtype).reshape(count)
            bf16 = self._program.record.buffers[port.buffer].dtype == "bf16"
            found.append([float(v) for v in (widen(typed) if bf16 else typed).tolist()])
        return found

    def _aim(self, step: int, count: int) -> int:
        """Say where the batches from `step` on are to be found; of how many."""
        for column in self._columns:
            if column.converts:
                count = min(count, max(1, AHEAD // max(1, column.out.nbytes)))
        self._batches = batches = self._feed.take(step, count)  # kept, as native code reads them
        self._ahead = np.arange(batches.count, dtype=np.int64) * self._feed.size
        self._words[BEGIN] = step
        self._words[ROWS_AT] = address_of(batches.rows) if batches.rows is not None else 0
        self._words[COPIES] = 0
        for column in self._columns:
            if column.converts:
                self._convert(column, batches)
                column.words[FIRSTS_AT] = address_of(self._ahead)
            elif batches.firsts is not None:
                column.words[FIRSTS_AT] = address_of(batches.firsts)
            column.words[COPIED] = not column.converts and (batches.firsts is None or not column.direct)
            self._words[COPIES] |= column.words[COPIED]
        return batches.count

    def _convert(self, column: _Column, batches: Batches) -> None:
        """Put the batches' examples side by side in memory, in the dtype that the program wants."""
        rows = batches.listed(self._feed.size).reshape(-1)
        if column.ahead is None or len(column.ahead) < len(rows):
            column.ahead = np.empty((len(rows), *column.out.shape[1:]), column.out.dtype)
            column.words[SOURCE] = address_of(column.ahead)
        self._feed.data.read(column.name, rows, column.ahead[: len(rows)])
