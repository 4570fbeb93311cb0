"""Schedules: what they compute, in which order, and in whose memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scheduling import BATCH, Draft, Machine, RandomFunction, build_loop, check, digits, inputs

from alphac.ir.interpret import interpret
from alphac.ir.passes.meetings import Meeting, by_shards, meets
from alphac.ir.passes.plan_memory import buffer_bytes, lifetimes, place_states, plan_memory, slots
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import Buffer, Exchange, Guard, Launch, Program, Repeat, Step, subtrees
from alphac.ir.schedule_text import print_program
from alphac.ir.typesys import F32, Dim, TensorType


def same_as_interpreted(function, shards: int = BATCH.shards) -> Program:
    """Schedule a function, run it by the oracle in its planned arena, and compare with `interpret` bit by bit."""
    program = schedule(function)
    print(print_program(program))
    check(program, shards)
    given = inputs(function)
    expected = interpret(function, given, exact=True)
    found = Machine(program, shards).run(given)
    for port, x, y in zip(function.results, found, expected, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=f"{port.kind} {port.name}")
    return program


def test_a_training_step_has_one_exchange():
    program = same_as_interpreted(digits())
    exchanges = [s for s in program.steps if isinstance(s, Exchange)]
    assert [len(e.buffers) for e in exchanges] == [5]
    guards = [i for i, s in enumerate(program.steps) if isinstance(s, Guard)]
    writes = [
        i
        for i, s in enumerate(program.steps)
        if isinstance(s, Launch) and any(v.buffer.role == "state" for _, v in s.kernel.stores)
    ]
    assert len(guards) == 1 and len(writes) == 4 and guards[0] < min(writes)
    assert not any(k.name.startswith("step.copy") for k in program.kernels()), "states are updated in place"


T, W = Dim("time", 4), Dim("width", 3)


def test_a_loop_carries_in_place_and_collects_into_the_stack():
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (BATCH, T, W)))
    h0 = d.b.constant(0, F32, (BATCH, W))

    def body(b, i, carried, slices):
        h = b("add", b("mul", carried[0], b.like(0.5, carried[0])), slices[0], hint="h")
        return [h], [b("mul", h, h)]

    loop = d.loop(T, [h0], [(x, "time")], body)
    d.result("output", "last", loop.results[0])
    d.result("output", "all", loop.results[1])
    program = same_as_interpreted(d.function())
    (repeat,) = [s for s in program.steps if isinstance(s, Repeat)]
    assert len(repeat.steps) == 1, "one kernel makes the next state and collects"
    assert len(list(program.kernels())) == 2


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_that_swaps_what_it_carries(reverse: bool):
    d = Draft()
    x, y = d.state("x", W), d.state("y", W)

    def body(b, i, carried, slices):
        a, c = carried
        return [c, a], [a, c, b("cast", i, dtype=F32)]

    loop = d.loop(T, [x, y], [], body, reverse)
    for i, v in enumerate(loop.results):
        d.result("output", f"o{i}", v)
    same_as_interpreted(d.function())


def test_states_that_swap():
    d = Draft()
    x, y, z = d.state("x", W), d.state("y", W), d.state("z", W)
    d.result("state", "x", y)
    d.result("state", "y", x)
    d.result("state", "z", d.b("add", z, x))
    d.result("output", "old", x)
    same_as_interpreted(d.function())


def test_a_state_read_at_another_index_is_not_overwritten_early():
    d = Draft()
    x, y = d.state("x", W), d.state("y", W)
    flipped = d.b("slice", x, dim="width", start=2, step=-1, to=W)
    d.result("state", "x", d.b("add", x, flipped))
    d.result("state", "y", d.b("mul", y, x))
    program = same_as_interpreted(d.function())
    assert [k.name for k in program.kernels() if "copy" in k.name] == ["step.copy.add"]


def test_what_reads_the_old_version_runs_before_it_is_overwritten():
    d = Draft()
    x = d.state("x", W)
    new = d.b("add", x, d.b.like(1, x))
    d.result("state", "x", new)
    d.result("state", "y", d.b("reduce_sum", x, over=("width",)))
    d.result("output", "both", d.b("reduce_sum", d.b("mul", new, new), over=("width",)))
    program = same_as_interpreted(d.function())
    assert not any("copy" in k.name for k in program.kernels())


def test_a_combine_that_a_loop_only_collects_is_exchanged_after_it():
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (BATCH, T, W)))
    w = d.state("w", T, W)

    def body(b, i, carried, slices):
        return [], [b.combine(b("reduce_sum", b("mul", slices[0], slices[0]), over=("batch",)))]

    loop = d.loop(T, [], [(x, "time")], body)
    d.result("state", "w", d.b("sub", w, loop.results[0]))
    program = same_as_interpreted(d.function())
    assert [type(s).__name__ for s in program.steps] == ["Repeat", "Exchange", "Launch"]
    (buffer,) = [b for b in program.buffers if b.role == "nodes"]
    assert buffer.type == TensorType(F32, (T, W))


def test_a_combine_beside_a_loop_shares_its_exchange():
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (BATCH, T, W)))

    def body(b, i, carried, slices):
        return [b("add", carried[0], slices[0])], [b.combine(b("reduce_sum", slices[0], over=("batch",)))]

    loop = d.loop(T, [d.b.constant(0, F32, (BATCH, W))], [(x, "time")], body)
    d.result("output", "inside", d.b("neg", loop.results[1]))
    d.result("output", "after", d.b.combine(d.b("reduce_sum", loop.results[0], over=("batch",))))
    program = same_as_interpreted(d.function())
    assert [len(s.buffers) for s in program.steps if isinstance(s, Exchange)] == [2]


def test_a_combine_that_a_loop_reads_is_exchanged_inside():
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (BATCH, T, W)))

    def body(b, i, carried, slices):
        total = b.combine(b("reduce_sum", b("mul", slices[0], b.broadcast(carried[0], (BATCH, W))), over=("batch",)))
        return [b("sub", carried[0], total)], [total]

    loop = d.loop(T, [d.b.constant(1, F32, (W,))], [(x, "time")], body)
    d.result("output", "w", loop.results[0])
    d.result("output", "totals", loop.results[1])
    program = same_as_interpreted(d.function())
    (repeat,) = [s for s in program.steps if isinstance(s, Repeat)]
    assert any(isinstance(s, Exchange) for s in repeat.steps)


def test_nested_loops_stack_through_both():
    d = Draft()
    b = d.b
    n = Dim("outer", 3)
    x = d.argument("column", "x", TensorType(F32, (BATCH, n, T, W)))

    def outer(b, i, carried, slices):
        def inner(b, j, carried2, slices2):
            new = b("add", carried2[0], slices2[0])
            return [new], [b.combine(b("reduce_sum", new, over=("batch",))), new]

        loop = build_loop(b, T, [carried[0]], [(slices[0], "time")], inner)
        return [loop.results[0]], [loop.results[1], loop.results[2]]

    loop = d.loop(n, [b.constant(0, F32, (BATCH, W))], [(x, "outer")], outer)
    d.result("output", "sums", loop.results[1])
    d.result("output", "all", loop.results[2])
    d.result("output", "last", loop.results[0])
    program = same_as_interpreted(d.function())
    assert [type(s).__name__ for s in program.steps] == ["Launch", "Repeat", "Exchange"]


def test_two_learners_are_guarded_before_either_writes():
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (BATCH,)))
    a, c = d.state("a"), d.state("c")
    b = d.b

    def loss(w):
        return b.combine(b("reduce_sum", b("mul", x, b.broadcast(w, (BATCH,))), over=("batch",)))

    first = loss(a)
    a1 = b("sub", a, first)
    second = loss(a1)
    c1 = b("sub", c, second)
    d.result("loss", "first", first)
    d.result("loss", "second", second)
    d.result("state", "a", a1)
    d.result("state", "c", c1)
    program = same_as_interpreted(d.function())
    (at,) = [i for i, s in enumerate(program.steps) if isinstance(s, Guard)]
    for step in program.steps[:at]:
        if isinstance(step, Launch):
            assert all(v.buffer.role != "state" for _, v in step.kernel.stores)


def test_results_that_are_arguments_or_the_same_value():
    d = Draft("evaluate.accuracy")
    total = d.argument("total", "accuracy", TensorType(F32))
    x = d.argument("column", "x", TensorType(F32, (BATCH,)))
    s = d.b.combine(d.b("reduce_sum", x, over=("batch",)))
    d.result("output", "x", x)
    d.result("metric", "a", s)
    d.result("metric", "b", s)
    d.result("total", "accuracy", d.b("add", total, s))
    d.result("output", "one", d.b.constant(1, F32))
    same_as_interpreted(d.function())


@pytest.mark.parametrize("seed", range(40))
def test_any_function(seed: int):
    same_as_interpreted(RandomFunction(seed).make(), 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 1000))
def test_many_functions(seed: int):
    same_as_interpreted(RandomFunction(seed).make(30), 4)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [1, 3])
def test_no_two_live_buffers_overlap(seed: int, count: int):
    program = schedule(RandomFunction(seed).make())
    states, base = place_states([program], count)
    plan = plan_memory(program, count, states, base, 0)
    lives = lifetimes(program)
    spans = [(o, o + buffer_bytes(b, count), lives[b]) for b, o in zip(program.buffers, plan.offsets, strict=True)]
    for i, (start, stop, life) in enumerate(spans):
        assert start % 64 == 0 and stop <= plan.arena
        for other_start, other_stop, other in spans[:i]:
            if life.start <= other.stop and other.start <= life.stop:
                assert stop <= other_start or other_stop <= start


@pytest.mark.parametrize("seed", range(20))
def test_kernels_between_two_meetings_touch_different_memory(seed: int):
    program = schedule(RandomFunction(seed).make(20))
    machine = Machine(program, 4)

    def span(buffer: Buffer) -> set[int]:
        start = machine.offsets[id(buffer)]
        return set(range(start, start + buffer_bytes(buffer, 4)))

    def visit(steps: Sequence[Step]) -> None:
        shared: list[Launch] = []  # since threads met that share each kernel's work
        chain: list[Launch] = []  # since all met
        for step, meeting in zip(steps, meets(steps), strict=True):
            if isinstance(step, Repeat):
                visit(step.steps)
            if isinstance(step, Launch):
                assert not any(disturb(step, other) for other in shared)
                for other in chain:
                    if disturb(step, other):  # the very same buffer, of which each thread has its shards
                        assert by_shards(step) and by_shards(other)
                        assert all(a is b for a, b in pairs(step, other) if span(a) & span(b))
                shared.append(step)
                chain.append(step)
            if meeting:
                shared = []
            if meeting == Meeting.ALWAYS:
                chain = []
        assert not chain

    def pairs(a: Launch, b: Launch) -> list[tuple[Buffer, Buffer]]:
        """What one stores beside what the other touches."""
        (stores, touches), (others, touched) = (
            ([v.buffer for _, v in x.kernel.stores], x.kernel.buffers()) for x in (a, b)
        )
        return [(s, t) for s in stores for t in touched] + [(s, t) for s in others for t in touches]

    def disturb(a: Launch, b: Launch) -> bool:
        return any(span(x) & span(y) for x, y in pairs(a, b))

    visit(program.steps)


def chained(program: Program) -> list[list[str]]:
    """The kernels between two meetings of all threads; `;` where threads that share work meet."""
    chains: list[list[str]] = [[]]
    for step, meeting in zip(program.steps, meets(program.steps), strict=True):
        name = step.kernel.name.partition(".")[2] if isinstance(step, Launch) else type(step).__name__
        chains[-1].append(name + ";" * (meeting == Meeting.SHARED))
        if meeting == Meeting.ALWAYS:
            chains.append([])
    return chains[:-1]


def test_a_training_step_of_small_kernels_meets_three_times():
    """From the batch to what is combined of it each thread goes on with its shards."""
    last = "contract.da"
    chains = [c for c in chained(schedule(digits())) if not c[0][0].isupper()]
    assert chains == [
        ["contract.r;", "contract.z;", "reduce_max.m;", "e;", "reduce_sum.s", "reduce_sum.reduce_sum;", "dz;", last],
        ["combine_sum.combine_sum", *(f"combine_sum.combine_sum.{k}" for k in range(2, 6))],
        ["mul"],
        ["sub", "sub.2", "sub.3", "sub.4"],
    ]


def test_slots_bound_the_subtrees_of_any_range():
    for shards in range(1, 40):
        for count in range(1, shards + 1):
            for first in range(shards - count + 1):
                assert len(subtrees(shards, first, count)) <= slots(count)


def test_memory_is_shared_by_what_is_not_needed_together():
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (Dim("n", 1000),)))
    for _ in range(8):
        x = d.b("cumsum", x, dim="n", reverse=False)
    d.result("output", "y", x)
    program = schedule(d.function())
    plan = plan_memory(program, 1, {}, 0, 0)
    assert plan.arena == 3 * 4032  # the argument, and two that take turns
