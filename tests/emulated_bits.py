"""What an emulated processor does in tests/test_aarch64.py: `python emulated_bits.py JOB ANSWER` runs many functions
and compares their bits with what they should be. ANSWER is written as JSON: of every function that failed, how."""

from __future__ import annotations

import json
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyop_bits import check_bits
from everyop_runs import Compiled, Runs
from native_roles import Loaded, Team
from numpy.typing import NDArray

Array = NDArray[Any]
THREADS = (1, 2)


@dataclass(frozen=True)
class Trial:
    """What a function is given, and what it should give."""

    given: Sequence[Array]
    expected: Sequence[Array]
    shards: int


@dataclass(frozen=True)
class Job:
    """Functions of an object by name; `triple`: the system that it is for."""

    data: bytes
    triple: str
    compiled: Mapping[str, Compiled]
    trials: Mapping[str, Trial]


class Emulated(Runs):
    """A job's functions in this process."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.compiled)
        self._loaded = Loaded(job.data, job.triple)

    def team(self, threads: int) -> Team:
        return Team(self._loaded, threads)


def main(job_file: str, answer: str) -> None:
    job: Job = pickle.loads(Path(job_file).read_bytes())  # noqa: S301 (the test wrote it)
    failed: dict[str, str] = {}
    with Emulated(job) as runs:
        for name, trial in job.trials.items():
            try:
                check_bits(runs, name, trial.given, trial.expected, trial.shards, THREADS)
            except Exception:
                failed[name] = traceback.format_exc(limit=-1)
    Path(answer).write_text(json.dumps(failed), encoding="utf-8")


if __name__ == "__main__":
    # Classes are pickled by their module's name, which is not `__main__` where the job was made.
    from emulated_bits import main as run

    run(*sys.argv[1:])
