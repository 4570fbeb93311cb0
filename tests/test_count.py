"""What kernels' code does, as counted from its source, against what it must do; and where bytes come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from alphac import pipeline
from alphac.backends import count as counting
from alphac.backends import loops
from alphac.backends.kernels import TYPES
from alphac.backends.registry import target
from alphac.backends.routines import ROUTINE, done_by
from alphac.backends.target import KernelSource
from alphac.backends.vector import SCALARS
from alphac.generic import SYSTEMS, write_system
from alphac.ir.passes.touches import touches_of
from alphac.ir.passes.work import KernelWork, work_of
from alphac.ir.schedule import merges
from alphac.ir.typesys import F32

V4 = target("x86-64-v4")


def counts(body: str, shards: int = 4, owned: int = 4) -> dict[str, float]:
    """Of a kernel on two buffers of f32."""
    head = "def k(p0, p1, shards, first, merges, scratch, thread, threads):\n"
    memory = "    y = memory(p0, f32, 0, 3)\n    x = memory(p1, f32, 1, 3)\n    merge = memory(merges, i64, 2, 3)\n"
    text = head + memory + "".join(f"    {line}\n" for line in body.splitlines())
    namespace = {**SCALARS, **TYPES, **loops.vector_loops(text, V4.lanes)}
    source = KernelSource("k", text, (F32, F32), namespace=namespace)
    return {kind: n for kind, n in counting.count(source, shards, owned, V4.lanes).items() if n}


def test_whole_vectors_and_the_rest() -> None:
    assert counts("for e in range(32):\n    t = x[e]\n    y[e] = t * f32(2.0)") == {"turns": 2, "moved": 4, "vector": 2}
    found = counts("n = 10 * shards\nfor e in range(n):\n    t = x[e]\n    y[e] = t / f32(3.0)")
    assert found == {"turns": 10, "moved": 4, "element": 16, "slow": 2, "root": 8}


def test_what_does_not_vary_is_done_once_and_strides_are_seen() -> None:
    found = counts("for e in range(16):\n    t = x[7]\n    u = t * t\n    v = x[8 * e]\n    y[e] = u + v")
    assert found == {"turns": 1, "element": 1, "scalar": 1, "gathered": 16, "vector": 1, "moved": 1}


def test_a_division_hides_behind_what_else_is_done() -> None:
    lines = "\n".join(f"    t{k + 1} = t{k} + f32(1.0)" for k in range(12))
    found = counts(f"for e in range(160):\n    t0 = x[e]\n{lines}\n    y[e] = t12 / f32(3.0)")
    assert found["slow"] == pytest.approx(10 - 10 * 12 / counting.HIDDEN)


def test_turns_that_are_alike_are_not_all_read() -> None:
    """A triangle's elements, and the work of a loop whose end is a partial tile."""
    assert counts("for i in range(0, 160, 16):\n    for e in range(i):\n        y[e] = x[e] * x[e]")["vector"] == 45
    inside = "    m = minimum(1000 - n, 48)\n    for e in range(m):\n        y[e] = x[e]\n    n += 48"
    tiles = f"n = 0\nwhile n < 1000:\n{inside}"
    assert counts(tiles) == {"turns": 21 + 20 * 3 + 2 + 8, "moved": 2 * (20 * 3 + 2), "element": 16}


def test_carried_numbers_are_followed_through_the_tree() -> None:
    push = "    for m in range(merge[s]):\n        top -= 1\n        y[top] = x[top]\n    top += 1"
    body = f"top = 0\nfor s in range(shards):\n{push}"
    assert counts(body, 8, 8)["element"] == 2 * sum(merges(8, 0, 8)) == 14
    assert counts(body, 8, 3)["element"] == 2


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[int, tuple[KernelWork, ...]]]:
    """Of some generic systems: shards and kernels, counted for AVX-512."""
    found: dict[int, tuple[int, tuple[KernelWork, ...]]] = {}
    for number in (1, 5, 8, 11):
        source = write_system(SYSTEMS[number], tmp_path_factory.mktemp("generic") / "one")
        module = pipeline.simplify(pipeline.differentiate(pipeline.parse_and_elaborate(source, {})))
        module, _, plan = pipeline.admitted(module, pipeline.Plan.of(roles=1))
        module = pipeline.tile(module)
        programs = pipeline.schedules(module, plan)
        assert module.grain is not None
        found[number] = module.grain.shards, work_of(programs["step"], pipeline.counted(module, {V4.name})).kernels
    return found


def test_contractions_multiply_what_they_must(works: dict[int, tuple[int, tuple[KernelWork, ...]]]) -> None:
    """Register tiles do the multiply-adds of the definition, and edges at most as much again."""
    seen = 0
    for shards, kernels in works.values():
        for kernel in kernels:
            tile = kernel.units(V4.name, shards).get("tile", 0.0)
            exact = kernel.calls.at(shards) * kernel.fma.at(shards) / V4.lanes
            if kernel.dtype and tile and exact > 1000:
                assert 0.45 < tile / exact < 1.7, kernel.name
                seen += 1
    assert seen > 20


def test_work_grows_with_shards(works: dict[int, tuple[int, tuple[KernelWork, ...]]]) -> None:
    for shards, kernels in works.values():
        few, all_ = (sum(sum(k.units(V4.name, n).values()) for k in kernels) for n in (shards // 2, shards))
        assert 0.4 * all_ < few < all_


def test_every_routine_is_counted() -> None:
    names = [
        *(f"{kind}_{join}" for kind in ("lanes", "columns") for join in ("add", "minimum", "maximum")),
        "copy_48", "transpose_3", "multiply_8x3p1", "multiply_14x1mp1", "pairs_6x2", "fetch_2", "dots_4", "chains_2x2",
        "narrow_words", "interleave_words", "windows_2x10_8x1_1",
    ]  # fmt: skip
    for name in names:
        assert ROUTINE.fullmatch(name) and done_by(name, [None, *[16] * 14], 16, 32), name


def test_bytes_come_from_where_they_were_left(tmp_path: Path) -> None:
    """What an iteration of tiles hands on is near; what a step reads of the one before is far."""
    source = write_system(SYSTEMS[16], tmp_path / "one")
    module = pipeline.simplify(pipeline.differentiate(pipeline.parse_and_elaborate(source, {})))
    module, _, plan = pipeline.admitted(module, pipeline.Plan.of(roles=1))
    programs = pipeline.schedules(pipeline.tile(module), plan)
    found = touches_of(programs["step"])
    shards = 28
    inside = [
        touch.since.at(shards)
        for kernel, touches in found.items()
        if kernel.loops and any(v.buffer.role == "private" for v in kernel.reads.values())
        for touch in touches
    ]
    outside = [touch.since.at(shards) for touches in found.values() for touch in touches]
    assert inside and min(inside) < 1 << 20
    assert max(outside) > 50e6
    assert all(since >= 0 for since in outside)
