"""What can go wrong while a bundle runs, as a small tree of types. Every fault may name role, scope and step.

A fault's `exit_code` is the code a role process ends with. Codes 10 to 19 are causes of role failure; 1 is the user's
input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RuntimeFault(Exception):
    """Base of all faults. `message` is for the user; `role`, `scope` and `step` say where, as far as known."""

    exit_code = 1
    help = ""

    def __init__(
        self,
        message: str,
        *,
        role: int | None = None,
        scope: str | None = None,
        step: int | None = None,
        help: str = "",
    ) -> None:
        super().__init__(message)
        self.message, self.role, self.scope, self.step = message, role, scope, step
        if help:
            self.help = help

    @property
    def is_role_failure(self) -> bool:
        """Whether a role failed, as against input that was refused before any role ran."""
        return self.exit_code != 1 and self.role is not None

    def at(self, *, role: int | None = None, scope: str | None = None, step: int | None = None) -> RuntimeFault:
        """Fill in what is not yet known about where this happened."""
        self.role = role if self.role is None else self.role
        self.scope = scope if self.scope is None else self.scope
        self.step = step if self.step is None else self.step
        return self

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (("role", self.role), ("scope", self.scope), ("step", self.step))
            if value is not None
        ]
        text = f"{', '.join(where)}: {self.message}" if where else self.message
        return f"{text}\nhelp: {self.help}" if self.help else text

    def as_dict(self) -> dict[str, Any]:
        """For a frame, a pipe or the run record; `fault_from` reads it back."""
        return {
            "fault": type(self).__name__,
            "message": self.message,
            "role": self.role,
            "scope": self.scope,
            "step": self.step,
            "help": self.help,
        }


class RunDirectoryRefused(RuntimeFault):
    """The run directory exists, or cannot be made."""


class InputRefused(RuntimeFault):
    """Inputs or options that do not fit the bundle (predict, eval, run)."""


class BundleRefused(RuntimeFault):
    """A bundle that is missing, damaged, edited or of another format."""

    exit_code = 10


class DataRefused(RuntimeFault):
    """A data file that is missing, or not what the bundle was compiled with."""

    exit_code = 11


class JoinFailed(RuntimeFault):
    """Roles that did not find together, or a connection that could not be made."""

    exit_code = 12


class FrameRefused(RuntimeFault):
    """A frame that the local protocol does not expect."""

    exit_code = 13


class NonFiniteLoss(RuntimeFault):
    """A loss became infinite or NaN; no state was changed. `op` and `span` name what made the first bad number."""

    exit_code = 14

    def __init__(self, message: str, *, op: str = "", span: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.op, self.span = op, span

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "op": self.op, "span": self.span}


class CheckpointRefused(RuntimeFault):
    """A checkpoint that is missing, damaged, or of another learning system."""

    exit_code = 15


class OutOfMemory(RuntimeFault):
    """The host cannot give the memory that the role's plan asks for."""

    exit_code = 16


class PeerLost(RuntimeFault):
    """Another role ended or cannot be reached; `peer` is its number."""

    exit_code = 17

    def __init__(self, message: str, *, peer: int = -1, **where: Any) -> None:
        super().__init__(message, **where)
        self.peer = peer

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "peer": self.peer}


class KernelFailed(RuntimeFault):
    """Native code that cannot be loaded on this host, or that ended the process."""

    exit_code = 18


class Interrupted(RuntimeFault):
    """The run was asked to stop; it stopped between two steps and can be resumed."""

    exit_code = 19


FAULTS: dict[str, type[RuntimeFault]] = {
    fault.__name__: fault
    for fault in (
        RuntimeFault,
        RunDirectoryRefused,
        InputRefused,
        BundleRefused,
        DataRefused,
        JoinFailed,
        FrameRefused,
        NonFiniteLoss,
        CheckpointRefused,
        OutOfMemory,
        PeerLost,
        KernelFailed,
        Interrupted,
    )
}


def fault_from(record: Mapping[str, Any]) -> RuntimeFault:
    """The fault that `as_dict` described. Unknown types become RuntimeFault; odd fields are dropped."""
    kind = FAULTS.get(str(record.get("fault")), RuntimeFault)
    where: dict[str, Any] = {k: record[k] for k in ("role", "step") if isinstance(record.get(k), int)}
    where |= {k: record[k] for k in ("scope", "help") if isinstance(record.get(k), str)}
    if kind is NonFiniteLoss:
        where |= {k: record[k] for k in ("op", "span") if isinstance(record.get(k), str)}
    if kind is PeerLost and isinstance(record.get("peer"), int):
        where["peer"] = record["peer"]
    return kind(str(record.get("message", "a role failed")), **where)
