"""The shard tree (design §4): left child = the largest power of two below n. The same few lines as in `ir/schedule.py`,
which the runtime does not import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
Range = tuple[int, int]


def split(n: int) -> int:
    """Leaves in the left child of a tree over n > 1 leaves."""
    return 1 << (n - 1).bit_length() - 1


def subtrees(shards: int, first: int, count: int) -> list[Range]:
    """The maximal aligned subtrees [start, stop) that lie in [first, first + count), left to right."""
    found: list[Range] = []

    def descend(start: int, stop: int) -> None:
        if stop <= first or start >= first + count:
            return
        if first <= start and stop <= first + count:
            found.append((start, stop))
            return
        middle = start + split(stop - start)
        descend(start, middle)
        descend(middle, stop)

    descend(0, shards)
    return found


def merges(shards: int, first: int, count: int) -> list[int]:
    """For each owned shard in order: how often the two topmost partials are merged after its own was pushed."""
    after = [0] * count

    def build(start: int, stop: int) -> None:
        if stop - start > 1:
            middle = start + split(stop - start)
            build(start, middle)
            build(middle, stop)
            after[stop - 1 - first] += 1

    for start, stop in subtrees(shards, first, count):
        build(start, stop)
    return after


def fold(shards: int, parts: Mapping[Range, T], combine: Callable[[T, T], T]) -> T:
    """The root's value from the values of disjoint subtrees that cover all shards. KeyError if one is missing."""

    def value(start: int, stop: int) -> T:
        part = parts.get((start, stop))
        if part is not None:
            return part
        if stop - start == 1:
            raise KeyError((start, stop))
        middle = start + split(stop - start)
        return combine(value(start, middle), value(middle, stop))

    return value(0, shards)
