"""Who owns which shards.

before: shares 3, 5 over a grain of 32     after: role 0 owns shards 0..11, role 1 owns 12..31
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


class PlacementError(Exception):
    """Roles and shards that do not fit together. The message is for the user."""


@dataclass(frozen=True)
class Share:
    """The contiguous range of shards one role owns."""

    first: int
    shards: int


def place(shards: int, shares: Sequence[Fraction]) -> list[Share]:
    """Cut `shards` logical shards into contiguous ranges in proportion to `shares`, one per role, each at least one.

    Largest remainders are rounded up first, earlier roles before later ones among equals. Raises PlacementError when
    there are more roles than shards, or a share is not positive.
    """
    if not shares:
        raise PlacementError("a plan needs at least one role")
    if any(share <= 0 for share in shares):
        raise PlacementError("every share must be positive")
    if len(shares) > shards:
        raise PlacementError(f"{len(shares)} roles cannot share {shards} shard{'s' * (shards != 1)}")
    total = sum(shares)
    exact = [Fraction(shards) * share / total for share in shares]
    counts = [max(1, int(e)) for e in exact]
    while sum(counts) < shards:
        counts[max(range(len(counts)), key=lambda i: (exact[i] - counts[i], -i))] += 1
    while sum(counts) > shards:
        counts[min((i for i in range(len(counts)) if counts[i] > 1), key=lambda i: (exact[i] - counts[i], i))] -= 1
    return ranges(counts)


def ranges(counts: Sequence[int]) -> list[Share]:
    """Contiguous ranges of so many shards each."""
    return [Share(sum(counts[:k]), count) for k, count in enumerate(counts)]


def deal(shards: int, seconds: Sequence[Sequence[float | None]]) -> list[tuple[Share, ...]]:
    """Deal out the shards of every strand; `seconds[strand][role]` is what one of them takes there, None where it may
    not be. Returns each role's shares, by strand.

    Strands that few may own come first, each shard to who is done with it first, so that the others' go to whom these
    leave time. Nobody is left with nothing. Raises PlacementError if that cannot be."""
    roles = len(seconds[0])
    busy = [0.0] * roles
    counts = [[0] * roles for _ in seconds]
    able = [[k for k in range(roles) if row[k] is not None] for row in seconds]
    for strand in sorted(range(len(seconds)), key=lambda s: len(able[s])):
        for _ in range(shards):
            ends = [(busy[k] + (seconds[strand][k] or 0.0), k) for k in able[strand]]
            end, role = min(ends)
            busy[role] = end
            counts[strand][role] += 1
    for role in range(roles):
        if not any(row[role] for row in counts):
            spare = [(max(counts[s]), s) for s in range(len(seconds)) if role in able[s]]
            most, strand = max(spare, default=(0, 0))
            if most < 2:
                raise PlacementError(f"{roles} roles cannot share {shards} shards")
            counts[strand][counts[strand].index(most)] -= 1
            counts[strand][role] += 1
    return [tuple(own) for own in zip(*map(ranges, counts), strict=True)]
