"""Exchanges: every role's subtrees are gathered at the root, folded by the shard tree, and the roots sent to all.

`Group` is sans-I/O: it is told what happened and answers with what to do. `Star` does that over a transport.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime.arena import STORAGE
from alphac.runtime.combine import combine
from alphac.runtime.errors import FrameRefused, PeerLost, RuntimeFault
from alphac.runtime.executor import Exchanged
from alphac.runtime.frames import ABORT, CONTRIBUTE, LEAVE, RESULT, STOP, Expected, Frame
from alphac.runtime.groups import ROOT, Alone, Collective
from alphac.runtime.transport.interface import Payload, Transport
from alphac.runtime.tree import Range, fold, subtrees

__all__ = ["Action", "Alone", "Await", "Collective", "Group", "Send", "Star", "aborted"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Send:
    """Action: send this."""

    to: int
    frame: Frame
    payload: Payload


@dataclass(frozen=True)
class Await:
    """Action: wait for this, then `deliver` it."""

    peer: int
    expected: Expected


Action = Send | Await


class Group:
    """One role's part in the exchanges of a group. `shares[k]` are role k's ranges (first, shards) of the `shards`, by
    strand."""

    def __init__(
        self, identity: bytes, role: int, shards: int, shares: Sequence[Sequence[tuple[int, int]]], epoch: int = 0
    ) -> None:
        self.identity, self.role, self.shards, self.epoch = identity, role, shards, epoch
        self.ranges: list[list[list[Range]]] = [
            [subtrees(shards, first, count) if count else [] for first, count in owned] for owned in shares
        ]
        self.size = len(shares)
        self.version = 0
        self.stop_wanted = False  # asked for here or, at the root, anywhere
        self.stopping = False  # agreed: all stop after this step
        self._sent = [0] * self.size
        self._received = [0] * self.size
        self._value: Exchanged | None = None
        self._parts: list[dict[Range, Array]] = []
        self._waiting: list[int] = []

    def begin_step(self, version: int) -> None:
        """A new step begins: what was asked for until now decides whether it is the last."""
        self.version = version
        if self.role == ROOT:
            self.stopping = self.stop_wanted

    def begin(self, value: Exchanged) -> list[Action]:
        """Take part in an exchange. It is finished when no Await is among the actions; then `value.nodes[i][0]` hold
        the results."""
        self._value = value
        if self.role == ROOT:
            own = self._ranges(ROOT, value)
            self._parts = [dict(zip(own, _rows(nodes)[: len(own)], strict=True)) for nodes in value.nodes]
            self._waiting = list(range(1, self.size))
            return self._proceed()
        own = [nodes[: len(self._ranges(self.role, value))] for nodes in value.nodes]
        contribution = self._send(ROOT, CONTRIBUTE, value.scope, own, STOP if self.stop_wanted else 0)
        length = sum(nodes[:1].nbytes for nodes in value.nodes)
        return [contribution, Await(ROOT, self._expect(ROOT, RESULT, value.scope, length))]

    def deliver(self, frame: Frame, payload: bytearray) -> list[Action]:
        """What was awaited came. Raises PeerLost if it is an abort."""
        if frame.kind == ABORT:
            raise aborted(frame, payload)
        value = self._value
        assert value is not None, "nothing is awaited"
        self._received[frame.sender] += 1
        if self.role == ROOT:
            self.stop_wanted = self.stop_wanted or bool(frame.flags & STOP)
            self._waiting.remove(frame.sender)
            self._keep(value, self._ranges(frame.sender, value), payload)
            return self._proceed()
        self.stopping = bool(frame.flags & STOP)
        place = 0
        for nodes in value.nodes:
            result = nodes[:1]
            result[...] = np.frombuffer(payload, result.dtype, result.size, place).reshape(result.shape)
            place += result.nbytes
        return []

    def _proceed(self) -> list[Action]:
        """At the root: wait for the next role, or fold and tell."""
        value = self._value
        assert value is not None
        if self._waiting:
            peer = self._waiting[0]
            length = sum(nodes[:1].nbytes for nodes in value.nodes) * len(self._ranges(peer, value))
            return [Await(peer, self._expect(peer, CONTRIBUTE, value.scope, length))]
        for nodes, parts, dtype, kind in zip(value.nodes, self._parts, value.dtypes, value.kinds, strict=True):
            nodes[0] = fold(self.shards, parts, combine(kind, dtype)).reshape(nodes.shape[1:])
        self._parts = []
        results = [nodes[:1] for nodes in value.nodes]
        flags = STOP if self.stopping else 0
        return [self._send(peer, RESULT, value.scope, results, flags) for peer in range(1, self.size)]

    def _ranges(self, role: int, value: Exchanged) -> list[Range]:
        """The subtrees that a role contributes to a value."""
        return self.ranges[role][value.strand]

    def _keep(self, value: Exchanged, ranges: list[Range], payload: bytearray) -> None:
        place = 0
        for nodes, parts, dtype in zip(value.nodes, self._parts, value.dtypes, strict=True):
            found = np.frombuffer(payload, STORAGE[dtype], len(ranges) * nodes[:1].size, place)
            parts.update(zip(ranges, found.reshape(len(ranges), nodes[:1].size), strict=True))
            place += found.nbytes

    # ------------------------------------------------------------------ leaving
    def leave(self, words: bytes) -> list[Action]:
        """At the end: a member sends its record, the root waits for all of them, one `deliver_leave` each."""
        if self.role != ROOT:
            return [self._send(ROOT, LEAVE, 0, [words], 0)]
        return [Await(peer, self._expect(peer, LEAVE, 0, None)) for peer in range(1, self.size)]

    def abort(self, words: bytes) -> list[Action]:
        """Tell the others that this role stops."""
        peers = range(1, self.size) if self.role == ROOT else [ROOT]
        return [
            Send(p, Frame(self.identity, ABORT, self.role, length=len(words), epoch=self.epoch), [words]) for p in peers
        ]

    def _send(self, to: int, kind: int, scope: int, payload: Payload, flags: int) -> Send:
        payload = [part for part in payload if memoryview(part).nbytes]
        length = sum(memoryview(part).nbytes for part in payload)
        frame = Frame(self.identity, kind, self.role, scope, self._sent[to], self.version, length, self.epoch, flags)
        self._sent[to] += 1
        return Send(to, frame, payload)

    def _expect(self, peer: int, kind: int, scope: int, length: int | None) -> Expected:
        sequence = self._received[peer]
        return Expected(self.identity, kind, peer, scope, sequence, self.version, length, epoch=self.epoch)


def _rows(nodes: Array) -> Array:
    """Each subtree's value as a row: NumPy's arrays wrap integers silently, its scalars do not."""
    return nodes.reshape(len(nodes), -1)


def aborted(frame: Frame, payload: bytearray) -> PeerLost:
    """The fault of a role that was told of another's failure."""
    try:
        record = json.loads(bytes(payload))
        peer, message = int(record["role"]), str(record["message"])
    except (ValueError, TypeError, KeyError):
        peer, message = frame.sender, "it does not say why"
    return PeerLost(f"role {peer} failed: {message}", peer=peer)


class Star:
    """A group over a transport. `scopes`: how many exchanges the bundle has; the next number is the meeting without
    values that ends a step in which nothing else was exchanged."""

    def __init__(self, group: Group, transport: Transport, scopes: int) -> None:
        self.group, self.transport = group, transport
        self._meeting = Exchanged(scopes, (), (), ())
        self._met = False

    def exchange(self, value: Exchanged) -> None:
        self._met = True
        self._perform(self.group.begin(value))

    def _perform(self, actions: list[Action]) -> None:
        while actions:
            following: list[Action] = []
            for action in actions:
                if isinstance(action, Send):
                    self.transport.send(action.to, action.frame, action.payload)
                else:
                    following += self.group.deliver(*self.transport.receive(action.peer, action.expected))
            actions = following

    def begin_step(self, step: int) -> None:
        self._met = False
        self.group.begin_step(step)

    def end_step(self) -> bool:
        if not self._met:
            self.exchange(self._meeting)
        return self.group.stopping

    def request_stop(self) -> None:
        self.group.stop_wanted = True

    def leave(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        found = [record]
        for action in self.group.leave(json.dumps(record).encode()):
            if isinstance(action, Send):
                self.transport.send(action.to, action.frame, action.payload)
                return []
            frame, payload = self.transport.receive(action.peer, action.expected)
            if frame.kind == ABORT:
                raise aborted(frame, payload)
            try:
                found.append(json.loads(bytes(payload)))
            except ValueError:
                raise FrameRefused(f"role {action.peer} left with words that are no JSON") from None
        return found

    def abort(self, fault: RuntimeFault) -> None:
        for action in self.group.abort(json.dumps(fault.as_dict()).encode()):
            if isinstance(action, Send):
                try:
                    self.transport.send(action.to, action.frame, action.payload)
                except (RuntimeFault, OSError):
                    continue  # gone already

    def close(self) -> None:
        self.transport.close()
