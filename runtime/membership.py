"""How the roles of a bundle find together, sans-I/O. All of them join at the start; the membership never changes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from alphac.runtime.errors import JoinFailed
from alphac.runtime.frames import HELLO, MAX_MESSAGE, WELCOME, Expected, Frame


@dataclass(frozen=True)
class Claim:
    """What a role says of itself when it joins: its number, the bundle it runs, and what it starts from (a checkpoint's
    identity, or "" for the beginning)."""

    role: int
    bundle: str
    start: str

    def encode(self) -> bytes:
        return json.dumps({"role": self.role, "bundle": self.bundle, "start": self.start}).encode()

    @classmethod
    def decode(cls, words: bytes) -> Claim:
        """Raises JoinFailed."""
        try:
            value: Any = json.loads(words)
            claim = cls(value["role"], value["bundle"], value["start"])
        except (ValueError, TypeError, KeyError):
            raise JoinFailed("a participant said nothing understandable") from None
        if type(claim.role) is not int or type(claim.bundle) is not str or type(claim.start) is not str:
            raise JoinFailed("a participant said nothing understandable")
        return claim


@dataclass
class Gathering:
    """At the root: who has joined. `own` is the root's claim, which the others must match."""

    own: Claim
    size: int
    joined: set[int] = field(default_factory=set[int])

    @property
    def identity(self) -> bytes:
        return bytes.fromhex(self.own.bundle)[:16]

    @property
    def complete(self) -> bool:
        return len(self.joined) == self.size - 1

    @property
    def missing(self) -> list[int]:
        return [k for k in range(1, self.size) if k not in self.joined]

    def expected(self) -> Expected:
        """The frame that a newcomer must send first."""
        return Expected(self.identity, HELLO, None, limit=MAX_MESSAGE)

    def admit(self, frame: Frame, words: bytes) -> int:
        """Admit a newcomer; its role. Raises JoinFailed with the reason for which it must stay out."""
        claim = Claim.decode(words)
        if claim.role != frame.sender or not 0 < claim.role < self.size:
            raise JoinFailed(f"there is no role {claim.role} to join: roles are 0 to {self.size - 1}")
        if claim.role in self.joined:
            raise JoinFailed(f"role {claim.role} has joined already")
        if claim.bundle != self.own.bundle:
            raise JoinFailed(f"role {claim.role} runs another bundle ({claim.bundle[:12]}, not {self.own.bundle[:12]})")
        if claim.start != self.own.start:
            raise JoinFailed(
                f"role {claim.role} starts from {_start(claim.start)}, role 0 from {_start(self.own.start)}",
                help="give all roles the same --resume",
            )
        self.joined.add(claim.role)
        return claim.role

    def welcome(self) -> tuple[Frame, bytes]:
        """What everybody is told when all have joined."""
        return self._answer(WELCOME, {"size": self.size})

    def refusal(self, fault: JoinFailed) -> tuple[Frame, bytes]:
        """What a newcomer is told that must stay out."""
        return self._answer(WELCOME, {"refused": fault.message, "help": fault.help})

    def _answer(self, kind: int, value: dict[str, Any]) -> tuple[Frame, bytes]:
        words = json.dumps(value).encode()
        return Frame(self.identity, kind, 0, length=len(words)), words


def hello(claim: Claim) -> tuple[Frame, bytes]:
    """What a newcomer says."""
    words = claim.encode()
    return Frame(bytes.fromhex(claim.bundle)[:16], HELLO, claim.role, length=len(words)), words


def answer_expected(claim: Claim) -> Expected:
    """The root's answer to a hello."""
    return Expected(bytes.fromhex(claim.bundle)[:16], WELCOME, 0, limit=MAX_MESSAGE)


def welcomed(words: bytes) -> None:
    """Raises JoinFailed if the answer is a refusal."""
    try:
        value: Any = json.loads(words)
    except ValueError:
        raise JoinFailed("role 0 answered nothing understandable") from None
    if not isinstance(value, dict):
        raise JoinFailed("role 0 answered nothing understandable")
    answer = cast("dict[str, Any]", value)
    if "refused" in answer:
        raise JoinFailed(f"role 0 refused: {answer['refused']}", help=str(answer.get("help", "")))


def _start(name: str) -> str:
    return f"checkpoint {name[:12]}" if name else "the beginning"
