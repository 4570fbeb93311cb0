"""Meetings: behind which steps the threads of a team must wait for each other.

Between two kernels of which neither stores what the other reads or stores, they need not. Nor between kernels that
make values of the grain's axis of others, if each thread computes the shards that are its own from the first of these
kernels to the last, as a role of its own would: such kernels read no shards but those they make. So a chain of small
kernels from a batch to what is combined of it needs no meeting at all:

    hidden → logits → top → exp → …           each thread: its shards, one kernel after the other
    combine loss, combine d_w, combine d_b    all threads, behind a meeting

A team whose threads do not come out even on the shards shares each kernel's work instead, and meets in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from alphac.ir.schedule import Buffer, Kernel, Launch, Step, Tiles

FIXED = 64 << 10  # bytes without shards that every thread may read, and pack, for itself alone
CHAIN = 32 << 20  # bytes that a chain of kernels may store: buffers that are needed at the same time


class Meeting(IntEnum):
    """Whether threads meet behind a step: SHARED means that they do if they share each kernel's work."""

    NONE = 0
    SHARED = 1
    ALWAYS = 2


def keeps_to_shards(stores: Iterable[Buffer], reads: Iterable[Buffer]) -> bool:
    """Whether a kernel with these buffers may be run shard by shard: it makes nothing but values of shards, and of
    nothing large that has none."""
    fixed = sum(b.type.bytes for b in set(reads) if not b.per_shard)
    return fixed <= FIXED and all(b.per_shard > 0 and b.role != "private" for b in stores)


def kernels_of(step: Launch | Tiles) -> tuple[Kernel, ...]:
    """The kernels of a step."""
    return (step.kernel,) if isinstance(step, Launch) else tuple(launch.kernel for launch in step.steps)


def by_shards(step: Step) -> bool:
    """Whether a step may be run shard by shard."""
    return isinstance(step, Launch) and _Work.of(step).own


@dataclass(frozen=True)
class _Work:
    """What a step reads and stores; `own`: it may be run shard by shard."""

    reads: frozenset[Buffer]
    stores: frozenset[Buffer]
    own: bool

    @classmethod
    def of(cls, step: Launch | Tiles) -> _Work:
        kernels = kernels_of(step)
        reads = frozenset(v.buffer for kernel in kernels for v in kernel.reads.values())
        stores = frozenset(v.buffer for kernel in kernels for _, v in kernel.stores)
        return cls(reads, stores, isinstance(step, Launch) and keeps_to_shards(stores, reads))

    def disturbs(self, other: _Work) -> bool:
        """Whether one stores what the other touches."""
        return bool(self.stores & (other.reads | other.stores) or self.reads & other.stores)


def meets(steps: Sequence[Step]) -> list[Meeting]:
    """For each step: whether the threads of a team must meet behind it. They always do at the end, and around a step
    that is no kernel's."""
    found: list[Meeting] = []
    chain: list[_Work] = []  # since all met
    shared: list[_Work] = []  # since they met if they share work
    for number, step in enumerate(steps):
        if not isinstance(step, Launch | Tiles):
            if found:
                found[-1] = Meeting.ALWAYS
            found.append(Meeting.ALWAYS)
            chain, shared = [], []
            continue
        work = _Work.of(step)
        begins = work.own and not any(w.own for w in chain) and _needed(chain, steps[number:])
        if begins or any(work.disturbs(w) and not (work.own and w.own) for w in chain) or _too_long(chain, work):
            found[-1] = Meeting.ALWAYS
            chain, shared = [], []
        elif any(work.disturbs(w) for w in shared):
            found[-1] = Meeting.SHARED
            shared = []
        chain.append(work)
        shared.append(work)
        found.append(Meeting.NONE)
    return [*found[:-1], Meeting.ALWAYS] if found else []


def _needed(chain: Sequence[_Work], steps: Sequence[Step]) -> bool:
    """Whether the steps that begin a chain of shards need what was made before of what has none: if all meet first,
    they need not in the midst of it."""
    for step in steps:
        if not isinstance(step, Launch | Tiles):
            return False
        work = _Work.of(step)
        if work.own and any(work.disturbs(w) for w in chain):
            return True
    return False


def _too_long(chain: Sequence[_Work], work: _Work) -> bool:
    """Whether a step would make a chain store too much."""
    if not work.own or not any(work.disturbs(w) for w in chain):
        return False
    stored = {b for w in (*chain, work) if w.own for b in w.stores}
    return sum(b.type.bytes for b in stored) > CHAIN
