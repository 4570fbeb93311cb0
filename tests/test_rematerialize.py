"""What one loop saves for another and is cheap is computed there anew: fewer stacks, the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scheduling import Draft, build_loop, inputs
from test_kernels import same_bits

from alphac.ir.builder import Builder
from alphac.ir.core import Function, Module, Value
from alphac.ir.interpret import interpret
from alphac.ir.passes.rematerialize import Rematerialize
from alphac.ir.rewrite import Loop
from alphac.ir.typesys import F32, Dim, TensorType
from alphac.ir.verify import verify

BATCH, WIDTH, LAYER, OTHER = Dim("batch", 8, 4), Dim("width", 12), Dim("layer", 3), Dim("other", 3)
EAGER = Rematerialize(bytes=0)
SAVED = ("e", "share", "scaled", "shifted", "gain", "dear")


def function(reads: Sequence[str], used: Sequence[str] = (), dim: Dim = LAYER) -> Function:
    """A loop forward that collects values by name, of which a loop backward reads some; others are `used` whole.

    e        of a carried value, by exp                 share    e over its sum, which is collected too
    scaled   share times this layer's parameter         shifted  share plus a value from outside and the index
    gain     the entering carried value, doubled        dear     many flops of e"""
    d = Draft()
    x = d.argument("column", "x", TensorType(F32, (BATCH, WIDTH)))
    w = d.argument("column", "w", TensorType(F32, (LAYER, WIDTH)))
    bias = d.b("mul", x, d.b.like(0.5, x))

    def forward(b: Builder, index: Value, carried: list[Value], slices: list[Value]):
        (h,), (scale,) = carried, slices
        dims = h.type.dims
        e = b("exp", h)
        total = b("reduce_sum", e, over=("width",))
        share = b("div", e, b.broadcast(total, dims))
        made: dict[str, Value] = {
            "e": e,
            "share": share,
            "scaled": b("mul", share, b.broadcast(scale, dims)),
            "shifted": b("add", share, b("add", bias, b.broadcast(b("cast", index, dtype=F32), dims))),
            "gain": b("add", h, h),
            "dear": b("tanh", b("exp", e)),
        }
        return [b("add", h, made["scaled"])], [total, *(made[n] for n in SAVED)]

    first = d.loop(LAYER, [x], [(w, "layer")], forward)
    last, total, *stacks = first.results
    saved: dict[str, Value] = dict(zip(SAVED, stacks, strict=True))

    def backward(b: Builder, index: Value, carried: list[Value], slices: list[Value]):
        (h,) = carried
        for value in slices[1:]:
            h = b("add", b("mul", h, h), value)
        return [h], [b("add", h, slices[-1])]

    taken = [(total, "layer"), *((saved[n], "layer") for n in reads)]
    second = build_loop(d.b, dim, [last], taken, backward, reverse=True)
    for i, value in enumerate((*second.results, *(saved[n] for n in used))):
        d.result("output", f"o{i}", value)
    return d.function()


def collected(before: Function, options: Rematerialize = EAGER) -> int:
    """How many values the first loop still collects; the bits are the same."""
    module = options.run(Module("loops", BATCH, functions={"step": before}))
    verify(module, differentiated=True)
    after = module.functions["step"]
    given = inputs(before)
    for a, b in zip(interpret(after, given, exact=True), interpret(before, given, exact=True), strict=True):
        np.testing.assert_array_equal(a, b)
    return len(Loop(next(op for op in after.block.ops if op.name == "loop")).collected)


@pytest.mark.parametrize(
    ("reads", "used", "dropped"),
    [
        (("e", "share"), (), 1),
        (("e", "share", "scaled"), (), 2),
        (("scaled", "e", "shifted", "share"), (), 3),
        (("share", "scaled"), (), 2),  # of e, which is collected, though not read yet
        (("share", "share"), (), 1),
        (("e", "share"), ("share",), 0),  # a result keeps its stack
        (("e", "gain"), (), 0),  # of what is carried
        (("e", "dear"), (), 0),  # takes too long
    ],
)
def test_what_is_made_anew(reads: Sequence[str], used: Sequence[str], dropped: int):
    assert collected(function(reads, used)) == 1 + len(SAVED) - dropped


def test_small_or_dear_stacks_stay():
    made = function(("e", "share", "scaled"))
    assert collected(made, Rematerialize()) == 1 + len(SAVED)
    assert collected(made, Rematerialize(bytes=0, flops=1)) == 1 + len(SAVED) - 1
    assert collected(made, Rematerialize(bytes=0, flops=0)) == 1 + len(SAVED)
    assert collected(function(("e", "share"), dim=OTHER)) == 1 + len(SAVED)  # its layers are not these
    assert collected(function(("e", "dear")), Rematerialize(bytes=0, flops=1000)) == 1 + len(SAVED) - 1


def test_in_native_code():
    module = EAGER.run(Module("loops", BATCH, functions={"step": function(("e", "share", "shifted"))}))
    same_bits(module.functions["step"], (3, 1), 2)
