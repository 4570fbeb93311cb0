"""A run's directory: metrics as they come, the record of the run at its end.

RUNDIR/parameters.safetensors  metrics.jsonl  metrics.csv  checkpoints/  run.json
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from alphac.runtime.coding import CodingError, parse_json
from alphac.runtime.errors import RunDirectoryRefused

PARAMETERS, RECORD, CHECKPOINTS = "parameters.safetensors", "run.json", "checkpoints"
METRICS, TABLE = "metrics.jsonl", "metrics.csv"


def claim_directory(path: Path, *, resuming: bool) -> None:
    """Make a run directory. Raises RunDirectoryRefused if it exists and the run does not resume, or cannot be made."""
    try:
        if path.exists() and not resuming and (not path.is_dir() or any(path.iterdir())):
            raise RunDirectoryRefused(f"{path} exists", help="give another --out, or continue with --resume latest")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryRefused(f"{path} cannot be made: {error.strerror or error}") from None


def next_directory(system: str, root: Path = Path("runs")) -> Path:
    """The default run directory: runs/NAME-N with the least N that is free."""
    number = 1
    while (root / f"{system}-{number}").exists():
        number += 1
    return root / f"{system}-{number}"


def last_directory(system: str, root: Path = Path("runs")) -> Path | None:
    """The newest default run directory, if there is one."""
    number = 0
    while (root / f"{system}-{number + 1}").exists():
        number += 1
    return root / f"{system}-{number}" if number else None


class Metrics:
    """metrics.jsonl and metrics.csv: one line per step and per evaluation, in order.

    What was written for steps after `step`, by a run that is now resumed from there, is removed. Lines are buffered;
    `flush` puts them on disk. All raise RunDirectoryRefused when a file cannot be written."""

    def __init__(self, directory: Path, step: int, losses: Sequence[str], metrics: Sequence[str]) -> None:
        self._directory, self._names = directory, ["step", "epoch", *losses, *metrics]
        try:
            kept = _kept(directory / METRICS, step)
            self._lines = _rewritten(directory / METRICS, [self._line(line) for line in kept])
            header = ",".join(_quoted(n) for n in self._names) + "\n"
            self._table = _rewritten(directory / TABLE, [header, *(self._row(line) for line in kept)])
        except OSError as error:
            raise self._refused(error) from None

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """One line: what was measured after `step` steps, in the epoch counted from 0."""
        line = {"step": step, "epoch": epoch, **values}
        try:
            self._lines.write(self._line(line))
            self._table.write(self._row(line))
        except OSError as error:
            raise self._refused(error) from None

    def _line(self, line: Mapping[str, Any]) -> str:
        return json.dumps(_finite(line)) + "\n"

    def _row(self, line: Mapping[str, Any]) -> str:
        return ",".join("" if (v := line.get(name)) is None else repr(v) for name in self._names) + "\n"

    def flush(self) -> None:
        try:
            self._lines.flush()
            self._table.flush()
        except OSError as error:
            raise self._refused(error) from None

    def close(self) -> None:
        """May be called twice."""
        try:
            self._lines.close()
            self._table.close()
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> RunDirectoryRefused:
        return RunDirectoryRefused(f"{self._directory} cannot be written: {error.strerror or error}")


def _finite(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line without numbers that JSON has no words for."""
    return {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in line.items()}


def _rewritten(path: Path, lines: Sequence[str]) -> TextIO:
    """A file of these lines, which take the place of the file's at once, opened for more. Raises OSError."""
    work = path.with_name(f".{path.name}.writing")
    work.write_text("".join(lines), encoding="utf-8")
    os.replace(work, path)
    return path.open("a", encoding="utf-8", buffering=1 << 16)


def _kept(path: Path, step: int) -> list[dict[str, Any]]:
    """The whole lines of an earlier run up to `step`."""
    kept: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return kept
    for line in lines:
        try:
            value: Any = parse_json(line, "a line")
        except CodingError:
            break  # cut off when the run was killed
        entry = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if not isinstance(entry.get("step"), int) or entry["step"] > step:
            break
        kept.append(entry)
    return kept


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(c in name for c in ',"\n') else name


def write_record(directory: Path, record: Mapping[str, Any]) -> None:
    """Write run.json, by rename. Raises OSError."""
    work = directory / f".{RECORD}.writing"
    work.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.replace(work, directory / RECORD)
