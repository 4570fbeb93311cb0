"""Exchanges: the same bits for every way of sharing, in every order of arrival; an agreed stop; a refused intruder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphac.ir import schedule
from alphac.runtime import tree
from alphac.runtime.arena import STORAGE
from alphac.runtime.collectives import Await, Group, Send
from alphac.runtime.combine import combine, narrow, widen
from alphac.runtime.errors import FrameRefused, PeerLost
from alphac.runtime.executor import Exchanged
from alphac.runtime.frames import check

IDENTITY = bytes(16)


def shares_of(counts: Sequence[int]) -> list[tuple[int, int]]:
    return [(sum(counts[:k]), n) for k, n in enumerate(counts)]


class Roles:
    """All roles of a group in memory; frames wait in order per pair. `log` tells who sent what."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = counts
        shares = shares_of(counts)
        self.groups = [Group(IDENTITY, k, sum(counts), [[share] for share in shares]) for k in range(len(counts))]
        self.log: list[str] = []

    def begin_step(self, version: int) -> None:
        for group in self.groups:
            group.begin_step(version)

    def exchange(self, values: list[Exchanged]) -> None:
        wires: dict[tuple[int, int], list[tuple[Any, bytearray]]] = {}
        waiting: dict[int, list[Await]] = {}

        def perform(role: int, actions: Sequence[Send | Await]) -> None:
            for action in actions:
                if isinstance(action, Send):
                    payload = bytearray().join(np.asarray(part).tobytes() for part in action.payload)
                    assert len(payload) == action.frame.length
                    wires.setdefault((role, action.to), []).append((action.frame, payload))
                    self.log.append(f"{role} → {action.to} scope {action.frame.scope} {len(payload)} bytes")
                else:
                    waiting.setdefault(role, []).append(action)

        for role in reversed(range(len(self.groups))):
            perform(role, self.groups[role].begin(values[role]))
        while waiting:
            role = next(r for r, awaits in waiting.items() if wires.get((awaits[0].peer, r)))
            action = waiting[role].pop(0)
            if not waiting[role]:
                del waiting[role]
            frame, payload = wires[action.peer, role].pop(0)
            check(frame, action.expected)
            perform(role, self.groups[role].deliver(frame, payload))
        assert not any(wires.values())


def contributions(counts: Sequence[int], leaves: np.ndarray, kind: str, dtype: str) -> list[np.ndarray]:
    """Each role's subtrees, as its kernels leave them: the shards' values combined by the tree's inner nodes."""
    join = combine(kind, dtype)
    found = []
    for first, count in shares_of(counts):
        ranges = tree.subtrees(len(leaves), first, count)
        parts = {(i, i + 1): np.atleast_1d(leaves[i]) for i in range(len(leaves))}
        found.append(np.stack([value_of(start, stop, parts, join).reshape(leaves.shape[1:]) for start, stop in ranges]))
    return found


def value_of(start: int, stop: int, parts: dict[tuple[int, int], np.ndarray], join: Any) -> np.ndarray:
    if stop - start == 1:
        return parts[start, stop]
    middle = start + tree.split(stop - start)
    return join(value_of(start, middle, parts, join), value_of(middle, stop, parts, join))


def reduce(counts: Sequence[int], leaves: np.ndarray, kind: str = "sum", dtype: str = "f32") -> list[np.ndarray]:
    """What every role holds after an exchange."""
    roles = Roles(counts)
    nodes = contributions(counts, leaves, kind, dtype)
    roles.exchange([Exchanged(0, (dtype,), (kind,), (n,)) for n in nodes])
    return [n[0] for n in nodes]


@given(st.integers(1, 70), st.data())
def test_the_tree_is_the_compilers(shards: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, shards - 1))
    count = data.draw(st.integers(1, shards - first))
    assert tree.subtrees(shards, first, count) == schedule.subtrees(shards, first, count)
    assert tree.merges(shards, first, count) == schedule.merges(shards, first, count)
    assert shards == 1 or tree.split(shards) == schedule.split(shards)


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    kind=st.sampled_from(["sum", "max", "min"]),
    dtype=st.sampled_from(sorted(STORAGE.keys() - {"bool"})),
    shape=st.sampled_from([(), (3,), (2, 2)]),
    seed=st.integers(0, 99),
)
def test_any_sharing_gives_the_bits_of_one_role(
    counts: list[int], kind: str, dtype: str, shape: tuple[int, ...], seed: int
) -> None:
    shards = sum(counts)
    raw = np.random.default_rng(seed).integers(0, 256, (shards, *shape, STORAGE[dtype].itemsize), np.uint8)
    leaves = raw.view(STORAGE[dtype]).reshape(shards, *shape)  # any bits: NaNs, infinities, subnormals
    (alone,) = reduce([shards], leaves, kind, dtype)
    for value in reduce(counts, leaves, kind, dtype):
        assert bits(value, dtype) == bits(alone, dtype)


def bits(value: np.ndarray, dtype: str) -> bytes:
    """All NaNs are one."""
    if dtype == "bf16":
        return np.where(np.isnan(widen(np.atleast_1d(value))), np.uint16(0x7FC0), np.atleast_1d(value)).tobytes()
    if value.dtype.kind == "f":
        value = np.where(np.isnan(value), np.array(np.nan, value.dtype), value)
    return value.tobytes()


def test_the_order_of_the_sum_is_the_trees() -> None:
    leaves = np.array([1e8, 1, -1e8, 1, 1], np.float32)
    expected = ((leaves[0] + leaves[1]) + (leaves[2] + leaves[3])) + leaves[4]
    assert expected != np.float32(leaves.astype(np.float64).sum())
    for counts in ([5], [1, 4], [3, 2], [2, 1, 2], [1] * 5):
        assert {float(v) for v in reduce(counts, leaves)} == {float(expected)}


def test_integers_wrap_silently() -> None:
    leaves = np.array([2**31 - 1, 1, 0], np.int32)
    assert reduce([1, 1, 1], leaves, "sum", "i32")[0] == -(2**31)


def test_maximum_and_minimum_are_ieee() -> None:
    largest, smallest = combine("max", "f32"), combine("min", "f64")
    a, b = np.array([-0.0, 0.0, np.nan, 1, -np.inf]), np.array([0.0, -0.0, 1, np.nan, np.inf])
    for kind, expected in (("max", [0.0, 0.0, np.nan, np.nan, np.inf]), ("min", [-0.0, -0.0, np.nan, np.nan, -np.inf])):
        for dtype in (np.float32, np.float64):
            found = combine(kind, "f32" if dtype == np.float32 else "f64")(a.astype(dtype), b.astype(dtype))
            np.testing.assert_array_equal(found, np.array(expected, dtype))
            np.testing.assert_array_equal(np.signbit(found[:2]), np.signbit(expected[:2]))
    assert largest(np.array([2], np.float32), np.array([3], np.float32)) == 3
    assert smallest(np.array([2.0]), np.array([3.0])) == 2


def test_bf16_is_rounded_once_to_nearest_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, np.inf, -0.0, 2**-133], np.float32)
    assert narrow(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0x7F80, 0x7F80, 0x8000, 0x0001]
    assert np.isnan(widen(narrow(np.array([np.nan], np.float32))))


def test_one_changed_contribution_changes_the_result() -> None:
    leaves = np.arange(8, dtype=np.float32)
    roles = Roles([3, 5])
    nodes = contributions([3, 5], leaves, "sum", "f32")
    nodes[1][0] += 1
    roles.exchange([Exchanged(0, ("f32",), ("sum",), (n,)) for n in nodes])
    assert nodes[0][0] == nodes[1][0] == leaves.sum() + 1


def test_a_transcript() -> None:
    roles = Roles([1, 2, 1])
    two = [(np.zeros((n, 3), np.float32), np.zeros(n, np.int64)) for n in (1, 2, 1)]
    roles.exchange([Exchanged(4, ("f32", "i64"), ("sum", "max"), value) for value in two])
    assert roles.log == [
        "2 → 0 scope 4 20 bytes",
        "1 → 0 scope 4 40 bytes",
        "0 → 1 scope 4 20 bytes",
        "0 → 2 scope 4 20 bytes",
    ]


@pytest.mark.parametrize("asks", [0, 1, 2])
def test_all_stop_after_the_same_step_whoever_asks(asks: int) -> None:
    roles = Roles([1, 1, 1])
    meeting = [Exchanged(0, (), (), ())] * 3
    stops: list[list[bool]] = []
    for step in range(4):
        if step == 1:
            roles.groups[asks].stop_wanted = True
        roles.begin_step(step)
        for _ in range(2):
            roles.exchange(meeting)
        stops.append([g.stopping for g in roles.groups])
    late = 0 if asks == 0 else 1  # the root hears of it in the step
    assert stops == [[step >= 1 + late] * 3 for step in range(4)]


def test_a_frame_out_of_turn_is_refused() -> None:
    roles = Roles([1, 1])
    value = Exchanged(0, ("f32",), ("sum",), (np.zeros(1, np.float32),))
    root, member = roles.groups
    (wait,) = root.begin(value)
    send, _ = member.begin(value)
    assert isinstance(wait, Await) and isinstance(send, Send)
    check(send.frame, wait.expected)
    root.deliver(send.frame, bytearray(4))
    (again,) = root.begin(value)
    assert isinstance(again, Await)
    with pytest.raises(FrameRefused, match="sequence 0 is not the expected 1"):
        check(send.frame, again.expected)


def test_an_abort_says_who_failed_and_why() -> None:
    roles = Roles([1, 1])
    value = Exchanged(0, (), (), ())
    words = json.dumps({"role": 5, "message": "out of luck"}).encode()
    (abort,) = roles.groups[1].abort(words)
    (wait,) = roles.groups[0].begin(value)
    assert isinstance(abort, Send) and isinstance(wait, Await)
    check(abort.frame, wait.expected)
    with pytest.raises(PeerLost, match="role 5 failed: out of luck") as caught:
        roles.groups[0].deliver(abort.frame, bytearray(words))
    assert caught.value.peer == 5
    with pytest.raises(PeerLost, match="role 1 failed: it does not say why"):
        roles.groups[0].deliver(abort.frame, bytearray(b"[]"))
