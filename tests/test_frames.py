"""Frames: what a role accepts from others, and what it refuses with which reason. Joining over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alphac.runtime.errors import FrameRefused, JoinFailed, PeerLost
from alphac.runtime.frames import (
    ABORT,
    CONTRIBUTE,
    HEADER,
    HELLO,
    LEAVE,
    MAGIC,
    MAX_MESSAGE,
    RESULT,
    Expected,
    Frame,
    check,
    decode,
)
from alphac.runtime.membership import Claim, Gathering, hello
from alphac.runtime.transport import tcp

IDENTITY = bytes(range(16))
FRAME = Frame(IDENTITY, CONTRIBUTE, 3, scope=2, sequence=9, version=40, length=128)
EXPECTED = Expected(IDENTITY, CONTRIBUTE, 3, scope=2, sequence=9, version=40, length=128)
BUNDLE = "0123456789abcdef" * 4


def test_the_expected_frame_is_taken() -> None:
    assert len(FRAME.encode()) == HEADER.size == 64
    assert decode(FRAME.encode()) == FRAME
    check(FRAME, EXPECTED)


REFUSED: dict[str, Frame] = {
    "another bundle": replace(FRAME, identity=b"x" * 16),
    "it is of epoch 1, this is epoch 0": replace(FRAME, epoch=1),
    "role 3 is expected to speak": replace(FRAME, sender=4),
    "a contribute is expected": replace(FRAME, kind=RESULT),
    "refused a frame of kind 77": replace(FRAME, kind=77),
    "scope 3 is not the expected 2": replace(FRAME, scope=3),
    "sequence 8 is not the expected 9": replace(FRAME, sequence=8),
    "version 41 is not the expected 40": replace(FRAME, version=41),
    "announces 4611686018427387904 bytes, the protocol says 128": replace(FRAME, length=1 << 62),
    "announces 127 bytes": replace(FRAME, length=127),
    "announces 65537 bytes, at most 65536": replace(FRAME, kind=ABORT, length=MAX_MESSAGE + 1),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_any_other_frame_is_refused_with_its_reason(reason: str) -> None:
    with pytest.raises(FrameRefused, match=reason) as caught:
        check(REFUSED[reason], EXPECTED)
    assert caught.value.exit_code == 13


def test_words_are_bounded() -> None:
    words = Expected(IDENTITY, LEAVE, 3, sequence=9, version=40)
    check(replace(FRAME, kind=LEAVE, scope=0, length=MAX_MESSAGE), words)
    with pytest.raises(FrameRefused):
        check(replace(FRAME, kind=LEAVE, scope=0, length=MAX_MESSAGE + 1), words)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_refused(content: bytes) -> None:
    try:
        frame = decode(content)
    except FrameRefused:
        return
    assert frame.encode() == content


# ---------------------------------------------------------------------- joining
def test_who_may_join() -> None:
    gathering = Gathering(Claim(0, BUNDLE, ""), 3)

    def admit(claim: Claim) -> int:
        frame, words = hello(claim)
        return gathering.admit(frame, words)

    assert admit(Claim(2, BUNDLE, "")) == 2
    assert (gathering.complete, gathering.missing) == (False, [1])
    for claim, reason in (
        (Claim(2, BUNDLE, ""), "joined already"),
        (Claim(0, BUNDLE, ""), "no role 0 to join"),
        (Claim(3, BUNDLE, ""), "no role 3 to join"),
        (Claim(1, BUNDLE[:-1] + "0", ""), "another bundle"),
        (Claim(1, BUNDLE, "c" * 64), "starts from checkpoint cccccccccccc, role 0 from the beginning"),
    ):
        with pytest.raises(JoinFailed, match=reason):
            admit(claim)
    for words in (b"", b"[]", b"{}", b'{"role": "1", "bundle": "", "start": ""}', b"\xff"):
        with pytest.raises(JoinFailed, match="nothing understandable"):
            gathering.admit(hello(Claim(1, BUNDLE, ""))[0], words)
    assert admit(Claim(1, BUNDLE, "")) == 1
    assert gathering.complete


class Apart(threading.Thread):
    """Runs a function in a thread; `result` is what it returned or raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.work()
        except Exception as error:
            self.result = error

    def wait(self) -> Any:
        self.join(20)
        assert not self.is_alive()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def listener() -> socket.socket:
    return tcp.listen(("127.0.0.1", 0))


def claim(role: int) -> Claim:
    return Claim(role, BUNDLE, "")


def test_strangers_and_misfits_are_sent_away_and_the_others_join(listener: socket.socket) -> None:
    address = listener.getsockname()
    reasons: list[str] = []
    root = Apart(lambda: tcp.gather(listener, claim(0), 3, 20, reasons.append))
    strangers = {b"GET / HTTP/1.1".ljust(64): b"", replace(FRAME, kind=HELLO).encode(): MAGIC}
    for content, answer in strangers.items():  # one is hung up on, the other, of another bundle, is told why
        with socket.create_connection(address) as stranger:
            stranger.sendall(content)
            assert stranger.recv(4) == answer
    with pytest.raises(JoinFailed, match="role 0 refused: there is no role 9"):
        tcp.join(address, claim(9), 20)
    members = [Apart(lambda k=k: tcp.join(address, claim(k), 20)) for k in (2, 1)]
    found = root.wait()
    two, one = (member.wait() for member in members)
    identity = bytes.fromhex(BUNDLE)[:16]
    frame = Frame(identity, RESULT, 0, length=6)
    expected = Expected(identity, RESULT, 0, length=6)
    found.send(2, frame, [b"ab", bytearray(b"cdef")])
    assert two.receive(0, expected)[1] == b"abcdef"
    found.send(1, replace(frame, length=1 << 40), [b""])
    with pytest.raises(FrameRefused, match="1099511627776 bytes, the protocol says 6"):
        one.receive(0, expected)
    one.close()
    with pytest.raises(PeerLost) as caught:
        found.receive(1, Expected(identity, CONTRIBUTE, 1, length=6))
    assert (caught.value.peer, caught.value.exit_code) == (1, 17)
    for transport in (found, two):
        transport.close()
        transport.close()
    assert len(reasons) == 3


def test_missing_roles_are_named(listener: socket.socket) -> None:
    with pytest.raises(JoinFailed, match="there is no role 1, 2") as caught:
        tcp.gather(listener, claim(0), 3, 0.05)
    assert caught.value.exit_code == 12


def test_a_root_that_is_not_there(listener: socket.socket) -> None:
    address = listener.getsockname()
    listener.close()
    with pytest.raises(JoinFailed, match="role 0 is not at"):
        tcp.join(address, claim(1), 0.05)


def test_a_port_that_is_taken(listener: socket.socket) -> None:
    with listener, pytest.raises(JoinFailed, match="cannot listen"):
        tcp.listen(listener.getsockname())


def test_a_root_that_hangs_up(listener: socket.socket) -> None:
    member = Apart(lambda: tcp.join(listener.getsockname(), claim(1), 20))
    connection, _ = listener.accept()
    connection.close()
    listener.close()
    with pytest.raises(JoinFailed, match="let nobody in"):
        member.wait()
