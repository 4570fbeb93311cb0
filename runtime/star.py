"""A role's way into a group of several: the join, and the star of connections that its exchanges use."""

from __future__ import annotations

import socket
import sys

from alphac.runtime.bundle import Bundle
from alphac.runtime.collectives import Group, Star
from alphac.runtime.errors import JoinFailed
from alphac.runtime.groups import ROOT
from alphac.runtime.membership import Claim
from alphac.runtime.transport import tcp


def join_star(
    bundle: Bundle,
    scopes: int,
    role: int,
    start: str,
    address: tuple[str, int] | None,
    listener: int | None,
    patience: float,
) -> Star:
    """Join the other roles over TCP. The root listens at `address`, or on the inherited descriptor `listener`.

    Raises JoinFailed, FrameRefused."""
    manifest = bundle.manifest
    size = len(manifest.roles)
    claim = Claim(role, manifest.bundle, start)
    if role == ROOT:
        shares = [record.ranges for record in bundle.all_roles()]
        if listener is not None:
            waiting = socket.socket(fileno=listener)
        elif address is not None:
            waiting = tcp.listen(address)
        else:
            raise JoinFailed(f"this bundle has {size} roles", help="say where role 0 listens: --join HOST:PORT")
        transport = tcp.gather(waiting, claim, size, patience, _refused)
    else:
        if address is None:
            raise JoinFailed(f"this bundle has {size} roles", help="say where role 0 listens: --join HOST:PORT")
        transport = tcp.join(address, claim, patience)
        me = bundle.role(role)
        shares: list[tuple[tuple[int, int], ...]] = [
            ((0, 0),) * len(me.ranges)
        ] * size  # a member needs to know of its own shards only
        shares[role] = me.ranges
    identity = bytes.fromhex(manifest.bundle)[:16]
    return Star(Group(identity, role, manifest.shards, shares), transport, scopes)


def _refused(reason: str) -> None:
    print(f"role 0: refused a participant: {reason}", file=sys.stderr, flush=True)
