"""What a role needs of the group that it works in, and the group of one.

Apart from `collectives.py`, so that a role alone starts without what talks to others.
"""

from __future__ import annotations

from typing import Any, Protocol

from alphac.runtime.errors import RuntimeFault
from alphac.runtime.executor import Exchanged

ROOT = 0


class Collective(Protocol):
    """What a role's training loop needs of its group."""

    def exchange(self, value: Exchanged) -> None:
        """Put every role's subtrees together; results go to `value.nodes[i][0]`."""
        ...

    def begin_step(self, step: int) -> None: ...

    def end_step(self) -> bool:
        """Whether all roles stop here, at the boundary after this step."""
        ...

    def request_stop(self) -> None:
        """Ask for an orderly stop. May be called from a signal handler or another thread."""
        ...

    def leave(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Finish: the root gets all roles' records in order, the others an empty list."""
        ...

    def abort(self, fault: RuntimeFault) -> None:
        """Tell the others why this role stops, if they can still be told."""
        ...

    def close(self) -> None: ...


class Alone:
    """The group of one role: it owns all shards, so its only subtree is the root already."""

    def __init__(self) -> None:
        self._wanted = False

    def exchange(self, value: Exchanged) -> None: ...

    def begin_step(self, step: int) -> None: ...

    def end_step(self) -> bool:
        return self._wanted

    def request_stop(self) -> None:
        self._wanted = True

    def leave(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        return [record]

    def abort(self, fault: RuntimeFault) -> None: ...

    def close(self) -> None: ...
