"""Fusion: which ops share a kernel, and what is stored."""

from __future__ import annotations

from scheduling import BATCH, Draft, RandomFunction, digits

from alphac.ir.core import Function
from alphac.ir.passes.fuse import MAX_STORES, Cluster, Nest, fuse
from alphac.ir.typesys import F32, I32, Dim, TensorType

A, B, C = Dim("a", 8), Dim("b", 6), Dim("c", 512)


def shown(function: Function) -> list[str]:
    """One line per kernel: anchor, what is stored."""
    fused = fuse(function)
    lines: list[str] = []
    for node in sorted(fused.root.nodes, key=lambda n: n.order):
        if isinstance(node, Cluster):
            names = sorted(v.hint or v.op.name for v in node.stores if v.op)
            lines.append(f"{node.anchor.name if node.anchor else 'map'}: {' '.join(names)}")
        else:
            lines.append("loop")
    return lines


def column(d: Draft, name: str, *dims: Dim):
    return d.argument("column", name, TensorType(F32, dims))


def test_an_epilogue_joins_its_anchor():
    d = Draft()
    b = d.b
    x, w, bias = column(d, "x", BATCH, A), d.state("w", A, B), d.state("bias", B)
    h = b("contract", x, w, dims=(BATCH, B), hint="h")
    r = b("maximum", b("add", h, b.broadcast(bias, (BATCH, B))), b.constant(0, F32, (BATCH, B)), hint="r")
    d.result("output", "r", r)
    assert shown(d.function()) == ["contract: r"]


def test_an_anchor_needed_elsewhere_is_stored_beside_its_epilogue():
    d = Draft()
    b = d.b
    x, w = column(d, "x", BATCH, A), d.state("w", A, B)
    h = b("contract", x, w, dims=(BATCH, B), hint="h")
    d.result("output", "r", b("neg", h, hint="r"))
    d.result("output", "s", b("cumsum", h, dim="b", reverse=False, hint="s"))
    assert shown(d.function()) == ["contract: h r", "cumsum: s"]


def test_an_epilogue_that_depends_on_the_anchor_in_another_way_is_its_own_kernel():
    d = Draft()
    b = d.b
    x = column(d, "x", A, B)
    m = b("reduce_sum", x, over=("b",), hint="m")
    total = b("reduce_sum", m, over=("a",), hint="total")
    d.result("output", "y", b("sub", m, b.broadcast(total, (A,)), hint="y"))
    assert shown(d.function()) == ["reduce_sum: m", "reduce_sum: total", "map: y"]


def test_a_combine_computes_the_partials_it_alone_reads():
    d = Draft()
    b = d.b
    x, y = column(d, "x", BATCH, A), column(d, "y", BATCH, B)
    d.result("output", "g", b.combine(b("contract", x, y, dims=(A, B))))
    partial = b("reduce_sum", x, over=("batch",), hint="partial")
    d.result("output", "h", b.combine(partial))
    d.result("output", "p", partial)
    assert shown(d.function()) == [
        "combine_sum: combine_sum", "reduce_sum: partial", "combine_sum: combine_sum"]  # fmt: skip


def test_a_quotient_is_dear_and_a_comparison_of_counters_costs_next_to_nothing():
    d = Draft()
    b = d.b
    x, y = column(d, "x", A, C), column(d, "y", A, C)
    row, place = (b.broadcast(b("iota", dim=dim, dtype=I32), (A, C)) for dim in (A, C))
    mask = b("le", place, row, hint="mask")
    for name, v in (("x", b("div", x, y, hint="quotient")), ("y", y)):
        masked = b("where", mask, v, x)
        d.result("output", name + "1", b("reduce_sum", masked, over=("c",)))
        d.result("output", name + "2", b("reduce_max", v, over=("c",)))
    assert shown(d.function()) == [
        "map: quotient", "reduce_sum: reduce_sum", "reduce_max: reduce_max",
        "reduce_sum: reduce_sum", "reduce_max: reduce_max"]  # fmt: skip


def test_dear_values_with_several_readers_are_stored_and_cheap_ones_are_not():
    d = Draft()
    b = d.b
    x = column(d, "x", A, C)
    cheap, dear = b("neg", x, hint="cheap"), b("exp", x, hint="dear")
    for v in (cheap, dear):
        d.result("output", v.hint + "1", b("reduce_sum", v, over=("c",)))
        d.result("output", v.hint + "2", b("reduce_max", v, over=("a",)))
    assert shown(d.function())[0] == "map: dear"
    assert not any("cheap" in line for line in shown(d.function()))


def test_what_a_broadcast_would_repeat_is_stored():
    d = Draft()
    b = d.b
    x, y = column(d, "x", A), column(d, "y", A, C)
    d.result("output", "z", b("mul", y, b.broadcast(b("exp", x, hint="e"), (A, C)), hint="z"))
    assert shown(d.function()) == ["map: e", "map: z"]


def test_what_an_optimizer_keeps_is_one_kernel():
    d = Draft()
    b = d.b
    p, m, v, g = d.state("p", A, B), d.state("m", A, B), d.state("v", A, B), column(d, "g", A, B)
    half = b.like(0.5, p)
    m2 = b("add", b("mul", m, half), g, hint="m2")
    v2 = b("add", b("mul", v, half), b("mul", g, g), hint="v2")
    p2 = b("sub", p, b("div", m2, b("add", b("abs", v2), half)), hint="p2")
    for name, value in (("p", p2), ("m", m2), ("v", v2)):
        d.result("state", name, value)
    assert shown(d.function()) == ["map: m2 p2 v2"]


def test_a_value_does_not_join_its_reader_if_another_reader_comes_between():
    d = Draft()
    b = d.b
    x = column(d, "x", A, B)
    e = b("exp", x, hint="e")
    s = b("reduce_sum", e, over=("b",), hint="s")
    d.result("output", "y", b("div", e, b.broadcast(s, (A, B)), hint="y"))
    assert shown(d.function()) == ["map: e", "reduce_sum: s", "map: y"]


def test_no_value_is_made_to_wait_for_an_exchange_it_does_not_need():
    d = Draft()
    b = d.b
    x, y = column(d, "x", BATCH), d.state("y")
    total = b.combine(b("reduce_sum", x, over=("batch",)))
    early = b("exp", y, hint="early")
    d.result("output", "late", b("add", total, early, hint="late"))
    d.result(
        "output", "other", b.combine(b("reduce_max", b("mul", x, b.broadcast(early, (BATCH,))), over=("batch",)), "max")
    )
    fused = fuse(d.function())
    (node,) = [n for n in fused.root.nodes if isinstance(n, Cluster) and any(v.hint == "early" for v in n.stores)]
    assert not any(v.hint == "late" for v in node.stores)


def test_a_loop_reads_outer_values_that_are_stored():
    d = Draft()
    b = d.b
    x = column(d, "x", A, B)
    outer = b("exp", b("reduce_max", x, over=("a",)), hint="outer")

    def body(inner, i, carried, slices):
        return [inner("add", carried[0], outer)], []

    d.result("output", "y", d.loop(C, [b.constant(0, F32, (B,))], [], body).results[0])
    fused = fuse(d.function())
    (nest,) = [n for n in fused.root.nodes if isinstance(n, Nest)]
    assert fused.stored(outer) and len(nest.body.nodes) == 1


def test_every_stored_value_has_one_producer_and_every_read_one_too():
    for seed in range(60):
        function = RandomFunction(seed).make(25)
        fused = fuse(function)
        levels = [fused.root]
        while levels:
            level = levels.pop()
            for node in level.nodes:
                if isinstance(node, Nest):
                    levels.append(node.body)
                    continue
                assert len(node.stores) <= MAX_STORES + 1
                assert all(level.producer[v] is node for v in node.stores)
                for leaf in fused.leaves(node):
                    home = fused.home[leaf]
                    assert leaf.op is None or leaf in home.producer


def test_digits():
    assert shown(digits()) == [
        "contract: contract r",
        "contract: z",
        "reduce_max: m",
        "map: e",
        "reduce_sum: s",
        "reduce_sum: reduce_sum",
        "combine_sum: combine_sum",
        "map: mul",
        "map: dz",
        "contract: da",
        *["combine_sum: combine_sum", "map: sub"] * 4,
    ]
