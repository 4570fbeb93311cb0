"""Frames: what roles say to each other, and what of it a role accepts (design §7).

A frame is a header of 64 bytes, big-endian, and `length` bytes of payload:

    magic 4 · kind 2 · flags 2 · sender 4 · epoch 4 · identity 16 · scope 4 · zero 4 · sequence 8 · version 8 · length 8

`identity`: the first 16 bytes of the bundle's; `epoch`: of the membership; `scope`: the exchange; `sequence`: counts
the frames from this sender to this receiver; `version`: the step whose values these are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from alphac.runtime.errors import FrameRefused

MAGIC = b"aF01"
HEADER = struct.Struct(">4sHHII16sIIQQQ")
MAX_MESSAGE = 1 << 16  # bytes of a frame that carries words, not values

HELLO, WELCOME, CONTRIBUTE, RESULT, LEAVE, ABORT = 1, 2, 3, 4, 5, 6
NAMES = {HELLO: "hello", WELCOME: "welcome", CONTRIBUTE: "contribute", RESULT: "result", LEAVE: "leave", ABORT: "abort"}
STOP = 1  # flag: asks to stop (contribute), or says to stop after this step (result)


@dataclass(frozen=True)
class Frame:
    """A frame's header."""

    identity: bytes
    kind: int
    sender: int
    scope: int = 0
    sequence: int = 0
    version: int = 0
    length: int = 0
    epoch: int = 0
    flags: int = 0

    def encode(self) -> bytes:
        """The header's 64 bytes."""
        return HEADER.pack(
            MAGIC,
            self.kind,
            self.flags,
            self.sender,
            self.epoch,
            self.identity,
            self.scope,
            0,
            self.sequence,
            self.version,
            self.length,
        )


@dataclass(frozen=True)
class Expected:
    """The one frame that the local protocol expects next from `sender`; or an abort in its place.

    `length` is exact for values; for words (`limit`) it is a bound."""

    identity: bytes
    kind: int
    sender: int | None  # None: not yet known (hello)
    scope: int = 0
    sequence: int = 0
    version: int = 0
    length: int | None = None
    limit: int = MAX_MESSAGE
    epoch: int = 0


def decode(header: bytes) -> Frame:
    """A header's frame. Raises FrameRefused if these 64 bytes are no header."""
    if len(header) != HEADER.size:
        raise FrameRefused(f"a header of {len(header)} bytes")
    magic, kind, flags, sender, epoch, identity, scope, zero, sequence, version, length = HEADER.unpack(header)
    if magic != MAGIC or zero:
        raise FrameRefused("this is no frame of alphac's, or of another version")
    return Frame(identity, kind, sender, scope, sequence, version, length, epoch, flags)


def check(frame: Frame, expected: Expected) -> None:
    """Refuse a frame that is not the expected one, before a byte is allocated for it. Raises FrameRefused."""
    if frame.identity != expected.identity:
        raise _refuse(frame, "it belongs to another bundle")
    if frame.epoch != expected.epoch:
        raise _refuse(frame, f"it is of epoch {frame.epoch}, this is epoch {expected.epoch}")
    if expected.sender is not None and frame.sender != expected.sender:
        raise _refuse(frame, f"role {expected.sender} is expected to speak here")
    if frame.kind == ABORT:
        if frame.length > MAX_MESSAGE:
            raise _refuse(frame, f"it announces {frame.length} bytes, at most {MAX_MESSAGE} are taken")
        return
    if frame.kind != expected.kind:
        raise _refuse(frame, f"a {NAMES[expected.kind]} is expected")
    for name in ("scope", "sequence", "version"):
        if getattr(frame, name) != getattr(expected, name):
            raise _refuse(frame, f"{name} {getattr(frame, name)} is not the expected {getattr(expected, name)}")
    if expected.length is not None and frame.length != expected.length:
        raise _refuse(frame, f"it announces {frame.length} bytes, the protocol says {expected.length}")
    if expected.length is None and frame.length > expected.limit:
        raise _refuse(frame, f"it announces {frame.length} bytes, at most {expected.limit} are taken")


def _refuse(frame: Frame, reason: str) -> FrameRefused:
    kind = NAMES.get(frame.kind, f"frame of kind {frame.kind}")
    return FrameRefused(f"refused a {kind} from role {frame.sender}: {reason}", scope=str(frame.scope))
