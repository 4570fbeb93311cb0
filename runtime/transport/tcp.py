"""TCP: a star of connections, role 0 in the middle. The baseline transport."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

from alphac.runtime.errors import FrameRefused, JoinFailed, PeerLost
from alphac.runtime.frames import ABORT, HEADER, MAX_MESSAGE, Expected, Frame, check, decode
from alphac.runtime.membership import Claim, Gathering, answer_expected, hello, welcomed
from alphac.runtime.transport.interface import Payload

GREETING = 5.0  # seconds that a newcomer has for its first frame
FAREWELL = 2.0  # seconds that an abort may take to be sent
PIECES = 512  # of a payload, in one system call


class Tcp:
    """Connections to peers, by role."""

    def __init__(self, peers: dict[int, socket.socket]) -> None:
        self._peers = peers

    def send(self, peer: int, frame: Frame, payload: Payload) -> None:
        connection = self._peers[peer]
        if frame.kind == ABORT:
            connection.settimeout(FAREWELL)
        try:
            _send(connection, frame, payload)
        except OSError as error:
            raise _lost(peer, error) from None

    def receive(self, peer: int, expected: Expected) -> tuple[Frame, bytearray]:
        try:
            return _receive(self._peers[peer], expected)
        except (OSError, EOFError) as error:
            raise _lost(peer, error) from None

    def close(self) -> None:
        for connection in self._peers.values():
            connection.close()
        self._peers.clear()


def listen(address: tuple[str, int]) -> socket.socket:
    """A listening socket. Raises JoinFailed."""
    try:
        return socket.create_server(address, backlog=1024, reuse_port=False)
    except OSError as error:
        raise JoinFailed(f"cannot listen at {address[0]}:{address[1]}: {error.strerror or error}") from None


def gather(
    listener: socket.socket, claim: Claim, size: int, patience: float, refused: Callable[[str], None] = lambda _: None
) -> Tcp:
    """At the root: wait until roles 1 … size − 1 have joined, then welcome them. Strangers and misfits are sent away
    (and `refused` is told why), the wait goes on. Raises JoinFailed when `patience` seconds have passed. Closes
    `listener`."""
    gathering, peers = Gathering(claim, size), dict[int, socket.socket]()
    deadline = time.monotonic() + patience
    try:
        with listener:
            while not gathering.complete:
                listener.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    missing = ", ".join(map(str, gathering.missing[:8]))
                    raise JoinFailed(f"after {patience:.0f} s there is no role {missing}") from None
                _meet(connection, gathering, peers, refused)
        for connection in peers.values():
            frame, words = gathering.welcome()
            _send(connection, frame, [words])
            connection.settimeout(None)
    except OSError as error:
        _close(peers)
        raise JoinFailed(f"a role left while the others joined: {error}") from None
    except BaseException:
        _close(peers)
        raise
    return Tcp(peers)


def _meet(
    connection: socket.socket, gathering: Gathering, peers: dict[int, socket.socket], refused: Callable[[str], None]
) -> None:
    try:
        _prepare(connection)
        connection.settimeout(GREETING)
        frame, words = _receive(connection, gathering.expected())
        peers[gathering.admit(frame, bytes(words))] = connection
        return
    except JoinFailed as fault:
        refused(fault.message)
        frame, words = gathering.refusal(fault)
        with contextlib.suppress(OSError):  # the misfit may be gone already
            _send(connection, frame, [words])
    except FrameRefused as error:
        refused(f"a stranger: {error}")
        if error.scope is not None:  # its header is one of ours: it runs another bundle
            frame, words = gathering.refusal(JoinFailed(error.message))
            with contextlib.suppress(OSError):
                _send(connection, frame, [words])
                connection.shutdown(socket.SHUT_WR)
                connection.recv(MAX_MESSAGE)  # unread bytes would reset the connection, and the answer with it
    except (OSError, EOFError) as error:
        refused(f"a stranger: {error}")
    connection.close()


def join(address: tuple[str, int], claim: Claim, patience: float) -> Tcp:
    """At a member: reach the root, trying for `patience` seconds, and be welcomed. Raises JoinFailed, FrameRefused."""
    connection = _connect(address, patience)
    try:
        _prepare(connection)
        connection.settimeout(patience)
        frame, words = hello(claim)
        _send(connection, frame, [words])
        _, answer = _receive(connection, answer_expected(claim))
        welcomed(bytes(answer))
        connection.settimeout(None)
    except (OSError, EOFError) as error:
        connection.close()
        reason = "it says nothing" if isinstance(error, TimeoutError) else f"it hung up ({error})"
        raise JoinFailed(f"role 0 at {address[0]}:{address[1]} let nobody in: {reason}") from None
    except BaseException:
        connection.close()
        raise
    return Tcp({0: connection})


def _connect(address: tuple[str, int], patience: float) -> socket.socket:
    deadline, pause = time.monotonic() + patience, 0.02
    while True:
        try:
            return socket.create_connection(address, timeout=patience)
        except OSError as error:
            if time.monotonic() + pause > deadline or isinstance(error, socket.gaierror):
                raise JoinFailed(f"role 0 is not at {address[0]}:{address[1]}: {error.strerror or error}") from None
        time.sleep(pause)
        pause = min(0.5, 2 * pause)


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _send(connection: socket.socket, frame: Frame, payload: Payload) -> None:
    parts = [memoryview(frame.encode())] + [memoryview(part).cast("B") for part in payload if memoryview(part).nbytes]
    while parts:
        sent = connection.sendmsg(parts[:PIECES])
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if sent:
            parts[0] = parts[0][sent:]


def _receive(connection: socket.socket, expected: Expected) -> tuple[Frame, bytearray]:
    frame = decode(bytes(_read(connection, HEADER.size)))
    check(frame, expected)
    return frame, _read(connection, frame.length)


def _read(connection: socket.socket, count: int) -> bytearray:
    """Exactly `count` bytes. Raises EOFError if the peer closed before."""
    content = bytearray(count)
    view: Any = memoryview(content)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise EOFError("the connection was closed")
        view = view[got:]
    return content


def _lost(peer: int, error: Exception) -> PeerLost:
    return PeerLost(f"lost role {peer}: {error}", peer=peer)


def _close(peers: dict[int, socket.socket]) -> None:
    for connection in peers.values():
        connection.close()
