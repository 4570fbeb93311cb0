"""What type rules refuse, in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gradcheck import function
from opcases import BATCH, SHARDS, A, C, T, tensor

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Value
from alphac.ir.ops import TypeRuleError
from alphac.ir.typesys import BOOL, F32, I32, I64, Dim, TensorType

Make = Callable[..., Value]
OTHER_BATCH = Dim("batch", 6, 2)
X, Y, TABLE = tensor(BATCH, A), tensor(A, BATCH), tensor(A, C)
I = tensor(BATCH, dtype=I32)
M = tensor(BATCH, A, dtype=BOOL)

REFUSALS: list[tuple[Make, list[TensorType], str]] = [
    # elementwise
    (lambda b, x, y: b("add", x, y), [X, Y], r"f64\[batch, a\] and f64\[a, batch\] do not have the same axes"),
    (lambda b, x, y: b("add", x, y), [X, tensor(BATCH, Dim("a", 3))], "axis `a` is 4 in one place and 3 in another"),
    (lambda b, x, y: b("add", x, y), [X, tensor(OTHER_BATCH, A)], "`batch` is the grain's axis in one place"),
    (lambda b, x, y: b("add", x, y), [X, X.with_dtype(F32)], "operands of one type, not f64 and f32"),
    (lambda b, x, y: b("add", x, y), [M, M], "`add` takes numbers, not bool"),
    (lambda b, x, y: b("div", x, y), [I, I], "`div` takes floats, not i32"),
    (lambda b, x, y: b("mod", x, y), [X, X], "`mod` takes integers, not f64"),
    (lambda b, x, y: b("and", x, y), [X, X], "`and` takes bools or integers, not f64"),
    (lambda b, x: b("floor", x), [I], "`floor` takes floats"),
    (lambda b, c, x: b("where", c, x, x), [X, X], "the condition of `where` is a bool"),
    (lambda b, x: b("cast", x, dtype="f32"), [X], "attribute `dtype` is a DType, not 'f32'"),
    (lambda b, x: b("add", x), [X], "`add` takes 2 operands, not 1"),
    (lambda b, x: b("neg", x, dim="a"), [X], "`neg` has attributes"),
    # index
    (lambda b, x: b("broadcast", x, dims=(A,)), [X], "`broadcast` adds axes and drops none, but `batch`"),
    (lambda b, x: b("broadcast", x, dims=(A, A)), [tensor(A)], "two axes named `a`"),
    (lambda b, x: b("broadcast", x, dims=(BATCH, SHARDS)), [tensor()], "`batch` and `shard` cannot be axes"),
    (lambda b, x: b("broadcast", x, dims=(Dim("batch", 8, 4),)), [tensor(SHARDS)], "3 shards do not fit the 4 shards"),
    (lambda b, x: b("rename", x, dims=(BATCH,)), [X], "keeps the number of axes"),
    (lambda b, x: b("rename", x, dims=(BATCH, C)), [X], "`rename` keeps sizes: `a` is 4 and `c` is 5"),
    (lambda b, x: b("rename", x, dims=(Dim("b", 6), A)), [X], "the grain's axis keeps its name"),
    (lambda b, x: b("reshape", x, dims=(BATCH, C)), [X], "keeps the number of elements"),
    (lambda b, x: b("reshape", x, dims=(Dim("n", 24),)), [X], "`reshape` keeps `batch`"),
    (lambda b, x: b("reshape", x, dims=(A, BATCH)), [Y], "`reshape` keeps `batch`"),
    (lambda b, x: b("slice", x, dim="a", start=2, step=1, to=Dim("s", 3)), [X], "takes element 4 of `a`, which has 4"),
    (lambda b, x: b("slice", x, dim="a", start=2, step=0, to=Dim("s", 3)), [X], "step 0"),
    (lambda b, x: b("slice", x, dim="batch", start=0, step=1, to=C), [X], "`slice` cannot work along `batch`"),
    (lambda b, x: b("slice", x, dim="z", start=0, step=1, to=C), [X], r"f64\[batch, a\] has no axis `z`"),
    (lambda b, x: b("pad", x, dim="a", low=1, high=1, to=T, value=0), [X], r"1 \+ 4 \+ 1 elements are not the 7"),
    (lambda b, x: b("pad", x, dim="a", low=-1, high=1, to=A, value=0), [X], "must not be negative"),
    (lambda b: b("concat", dim="a", to=A), [], "`concat` of nothing"),
    (lambda b, x: b("concat", x, x, dim="a", to=T), [X], "the operands have 8 elements along `a`, `t` has 7"),
    (lambda b, x, y: b("concat", x, y, dim="a", to=T), [X, Y], "do not have the same axes in the same order"),
    (lambda b, x: b("concat", x, dim="batch", to=BATCH), [X], "the grain's axis"),
    (
        lambda b, x: b("window", x, dim="a", to=C, kernel=T, stride=0, low=0, dilation=1, value=0),
        [X],
        "stride and dilation of at least 1",
    ),
    (
        lambda b, x: b("window", x, dim="a", to=C, kernel=BATCH, stride=1, low=0, dilation=1, value=0),
        [X],
        "the grain's axis",
    ),
    (lambda b, x: b("unwindow", x, to="a", kernel="a", dim=T, stride=1, low=0, dilation=1), [X], "are two"),
    (lambda b, t, i: b("gather", t, i, dim="a"), [TABLE, X], "takes an integer index"),
    (lambda b, t, i: b("gather", t, i, dim="batch"), [X, I], "`gather` cannot work along `batch`"),
    (lambda b, t, i: b("gather", t, i, dim="a"), [tensor(OTHER_BATCH, A), I], "`batch` is the grain's axis in one"),
    (lambda b, t, i: b("gather", t, i, dim="a"), [tensor(Dim("shard", 2), A), I], "2 shards do not fit the 3 shards"),
    # sums
    (lambda b, x: b("reduce_sum", x, over=("a",)), [M], "`reduce_sum` takes numbers, not bool"),
    (lambda b, x: b("reduce_sum", x, over=()), [X], "takes one axis or more"),
    (lambda b, x: b("reduce_sum", x, over=("z",)), [X], "has no axis `z`"),
    (lambda b, x: b("reduce_max", x, over=("shard",)), [tensor(SHARDS)], "combine the shards first"),
    (lambda b, x: b("combine_sum", x), [X], r"`combine_sum` combines per-shard values; f64\[batch, a\]"),
    (lambda b, x, y: b("contract", x, y, dims=(BATCH, C)), [X, tensor(C)], "`contract` sums over `a`, which"),
    (lambda b, x, y: b("contract", x, y, dims=(T,)), [X, X], "axis `t` is in neither"),
    (lambda b, x, y: b("contract", x, y, dims=(BATCH,)), [X, tensor(Dim("a", 3))], "`a` is 4 in one place and 3"),
    (lambda b, x, y: b("contract", x, y, dims=(A,)), [tensor(SHARDS, A), X], "cannot be axes of one value"),
    (lambda b, x, y: b("contract", x, y, dims=(A,)), [tensor(SHARDS, A), tensor(SHARDS)], "combine the shards first"),
    # special
    (lambda b, x: b("argmax", x, dim="batch"), [X], "`argmax` cannot work along `batch`, the grain's axis"),
    (lambda b, x: b("cumsum", x, dim="batch", reverse=False), [X], "`cumsum` cannot work along `batch`"),
    (lambda b, x: b("cumsum", x, dim="a", reverse=0), [X], "attribute `reverse` is a bool, not 0"),
    (lambda b, i, x: b("scatter_add", i, x, dim=A, dims=(C,)), [I, X], "`a` is not an axis of the result"),
    (lambda b, i, x: b("scatter_add", i, x, dim=C, dims=(C,)), [I, X], "axis `a` of f64.batch, a. is neither"),
    (lambda b, i, x: b("scatter_add", i, x, dim=C, dims=(C, A)), [I, tensor(A)], "lacks axis `batch`"),
    (lambda b, i, x: b("scatter_add", i, x, dim=C, dims=(C, A)), [X, X], "takes an integer index"),
]


@pytest.mark.parametrize("make, types, message", REFUSALS, ids=[m for _, _, m in REFUSALS])
def test_refusals(make: Make, types: list[TensorType], message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        function(types, make)


# ---------------------------------------------------------------------- grad and loop
def _block(arguments: list[TensorType], make: Callable[..., list[Value]]) -> Block:
    block = Block([Value(t) for t in arguments])
    block.results = tuple(make(Builder(block), *block.arguments))
    return block


def _build(name: str, operands: list[TensorType], block: Block, **attributes: object) -> tuple[TensorType, ...]:
    b = Builder(Block())
    return tuple(v.type for v in b.build(name, [Value(t) for t in operands], [block], **attributes).results)  # type: ignore[arg-type]


def test_grad_gives_what_its_block_yields_and_a_gradient_per_operand() -> None:
    block = _block([tensor(A)], lambda b, x: [b("reduce_sum", x, over=("a",)), x])
    assert _build("grad", [tensor(A)], block, wrt=1) == (tensor(), tensor(A), tensor(A))


@pytest.mark.parametrize(
    "operand, make, message",
    [
        (tensor(A), lambda b, x: [x], r"of one number, not of f64\[a\]"),
        (tensor(A), lambda b, x: [], "yields no loss"),
        (tensor(A, dtype=I32), lambda b, x: [x], "with respect to floats, not i32"),
    ],
)
def test_grad_refuses(operand: TensorType, make: Callable[..., list[Value]], message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        _build("grad", [operand], _block([operand], make), wrt=1)


LOOP = {"dim": Dim("i", 7), "carried": 1, "reverse": False, "slices": ("t",)}
INSIDE = [TensorType(I64), tensor(BATCH), tensor(BATCH)]


def test_loop_collects_along_its_axis() -> None:
    block = _block(INSIDE, lambda b, i, c, x: [b("add", c, x), x])
    assert _build("loop", [tensor(BATCH), tensor(T, BATCH)], block, **LOOP) == (
        tensor(BATCH),
        tensor(Dim("i", 7), BATCH),
    )


@pytest.mark.parametrize(
    "operands, arguments, make, message",
    [
        ([tensor(BATCH), tensor(T, BATCH)], INSIDE, lambda b, i, c, x: [i], r"carries f64\[batch\], but its block"),
        ([tensor(BATCH), tensor(T, BATCH)], INSIDE, lambda b, i, c, x: [], "carries 1 values but yields 0"),
        ([tensor(BATCH), tensor(T, BATCH)], INSIDE[:2], lambda b, i, c: [c], "takes 3 values, not 2"),
        ([tensor(BATCH)], INSIDE, lambda b, i, c, x: [c], "1 carried and 1 stacked values has 1 operands"),
        (
            [tensor(BATCH), tensor(Dim("t", 6), BATCH)],
            INSIDE,
            lambda b, i, c, x: [c],
            r"over `i` \(7\) cannot take slices along `t` \(6\)",
        ),
        ([tensor(), tensor(T, BATCH)], INSIDE, lambda b, i, c, x: [c], r"gets f64\[\] as its value 1, but declares"),
    ],
)
def test_loop_refuses(
    operands: list[TensorType], arguments: list[TensorType], make: Callable[..., list[Value]], message: str
) -> None:
    with pytest.raises(TypeRuleError, match=message):
        _build("loop", operands, _block(arguments, make), **LOOP)
