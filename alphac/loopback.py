"""The loopback, as exchanges of two roles on one machine see it: the transport and the collective that runs use."""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from dataclasses import dataclass

import numpy as np

from alphac.runtime.collectives import Group, Star
from alphac.runtime.combine import combine
from alphac.runtime.executor import Exchanged
from alphac.runtime.transport.tcp import Tcp
from alphac.runtime.tree import fold

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 23)  # bytes of a value
REPEATS = {1 << 10: 400, 1 << 16: 200, 1 << 20: 40, 1 << 23: 8}
IDENTITY = bytes(16)


@dataclass(frozen=True)
class Exchanges:
    """Seconds of a message's way, bytes/s, seconds of an exchange beside these at the root, and seconds for a byte of a
    subtree that is put together with others."""

    latency: float
    rate: float
    overhead: float
    fold: float


def measure_exchanges() -> Exchanges:
    """Let two processes exchange values."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = multiprocessing.get_context("spawn")
        peer = context.Process(target=_peer, args=(listener.getsockname()[1],), daemon=True)
        peer.start()
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        latency = _latency(connection)
        star = Star(Group(IDENTITY, 0, 2, [[(0, 1)], [(1, 1)]]), Tcp({1: connection}), 1)
        times = {size: _time(star, size) for size in SIZES}
    finally:
        connection.close()
        peer.join(5)
    folding = _fold(SIZES[-1])
    smallest, largest = SIZES[0], SIZES[-1]
    # One subtree goes up, the sum comes down, and two subtrees are put together.
    per_byte = (times[largest] - times[smallest]) / (largest - smallest)
    rate = 2 / max(per_byte - 2 * folding, per_byte / 10)
    return Exchanges(latency, rate, max(0.0, times[smallest] - 2 * latency), folding)


def _value(size: int) -> Exchanged:
    return Exchanged(0, ("f32",), ("sum",), (np.ones((1, size // 4), np.float32),))


def _time(star: Star, size: int) -> float:
    """One exchange: the median."""
    value, times = _value(size), list[float]()
    for _ in range(REPEATS[size]):
        began = time.perf_counter()
        star.exchange(value)
        times.append(time.perf_counter() - began)
    return statistics.median(times[len(times) // 4 :])


def _latency(connection: socket.socket) -> float:
    """Half of the way there and back of one byte."""
    times: list[float] = []
    for _ in range(400):
        began = time.perf_counter()
        connection.sendall(b"a")
        connection.recv(1)
        times.append(time.perf_counter() - began)
    connection.sendall(b"b")
    return statistics.median(times[100:]) / 2


def _fold(size: int) -> float:
    """Seconds a byte of a subtree, of which two are put together."""
    parts = {(0, 1): np.ones(size // 4, np.float32), (1, 2): np.ones(size // 4, np.float32)}
    times: list[float] = []
    for _ in range(8):
        began = time.perf_counter()
        fold(2, dict(parts), combine("sum", "f32"))
        times.append(time.perf_counter() - began)
    return statistics.median(times) / (2 * size)


def _peer(port: int) -> None:
    """The other process: answers bytes, then takes its part in all exchanges."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(1) == b"a":
            connection.sendall(b"a")
        star = Star(Group(IDENTITY, 1, 2, [[(0, 0)], [(1, 1)]]), Tcp({0: connection}), 1)
        for size in SIZES:
            value = _value(size)
            for _ in range(REPEATS[size]):
                star.exchange(value)
