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
    placed: list[Share] = []
    first = 0
    for count in counts:
        placed.append(Share(first, count))
        first += count
    return placed
