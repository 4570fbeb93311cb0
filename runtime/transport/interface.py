"""What a transport is: it moves frames between a role and its peers, in order, whole, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from alphac.runtime.frames import Expected, Frame

Payload = Sequence[Any]  # of objects with contiguous buffers


class Transport(Protocol):
    """Frames to and from peers. A peer that is gone raises PeerLost from either call."""

    def send(self, peer: int, frame: Frame, payload: Payload) -> None:
        """Send a frame; `frame.length` is the sum of the payload's bytes. Returns when the payload may be changed."""
        ...

    def receive(self, peer: int, expected: Expected) -> tuple[Frame, bytearray]:
        """Wait for the peer's next frame. Raises FrameRefused, before its payload is read, if it is not as expected;
        an abort comes back as a frame."""
        ...

    def close(self) -> None:
        """Let go of all peers. May be called twice."""
        ...
