"""What happens in a run, as data: sent by roles as JSON lines, handed by the launcher to whoever watches."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from alphac.runtime.coding import CodingError, decode, parse_json


class Started(NamedTuple):
    """All roles have joined; `shards` per role; `step` of `total` steps are finished."""

    system: str
    shards: tuple[int, ...]
    threads: int
    step: int
    total: int


class Step(NamedTuple):
    """So many steps are finished; the last one's losses by label. Not every step is told."""

    step: int
    epoch: int
    losses: dict[str, float]


class Evaluated(NamedTuple):
    """All evaluations after a step; `epoch` is how many epochs are finished, None in the midst of one."""

    step: int
    epoch: int | None
    values: dict[str, float]


class Checkpointed(NamedTuple):
    """A checkpoint was published."""

    step: int
    path: str


class Finished(NamedTuple):
    """A role is done: it finished `step` steps, or stopped there as asked."""

    role: int
    step: int
    stopped: bool
    values: dict[str, float]


class Failed(NamedTuple):
    """A role failed; `fault` as in `errors.fault_from`."""

    role: int
    fault: dict[str, str | int | None]


Event = Started | Step | Evaluated | Checkpointed | Finished | Failed
KINDS: dict[str, type[Any]] = {k.__name__: k for k in (Started, Step, Evaluated, Checkpointed, Finished, Failed)}


def encode_event(event: Event) -> bytes:
    """One line."""
    return json.dumps({"event": type(event).__name__, **event._asdict()}).encode() + b"\n"


def decode_event(line: bytes) -> Event:
    """Raises CodingError."""
    value: Any = parse_json(line, "an event")
    kind = KINDS.get(value.pop("event", "")) if isinstance(value, dict) else None  # pyright: ignore
    if kind is None:
        raise CodingError("this is no event")
    return decode(kind, value, kind.__name__)


class Wire:
    """Sends events to a file descriptor, None: nowhere. A reader that is gone is no fault of the run."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self, event: Event) -> None:
        if self._descriptor is None:
            return
        line = memoryview(encode_event(event))
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            self._descriptor = None
