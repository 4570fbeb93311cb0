"""The verifier: each way in which IR can be wrong is found, and said with the IR attached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from alphac.ir.core import Block, Function, Module, Op, Port, State, Value
from alphac.ir.errors import InternalError
from alphac.ir.span import Span
from alphac.ir.text import parse_module
from alphac.ir.typesys import F32, I64, TensorType
from alphac.ir.verify import verify

GOOD = """system t seed 0

state w: f32[k:3] param

function step(
    %w.1: f32[k:3] = state w,
    %n.2: i64[] = step,
) {
    %3 = add(%w.1, %w.1) : f32[k:3] @ t.alpha:1:1-9
    %4 = reduce_sum(%3) {over = ("k",)} : f32[]
    %5, %6 = loop(%w.1, %w.1) {dim = k:3, carried = 1, reverse = false, slices = ("k",)} : f32[k:3], f32[k:3] do \
(%i.7: i64[], %8: f32[k:3], %9: f32[]) {
        %10 = broadcast(%4) {dims = (k:3,)} : f32[k:3]
        %11 = add(%8, %10) : f32[k:3]
        yield %11, %9
    }
    %12, %13 = grad(%w.1) {wrt = 1} : f32[], f32[k:3] do (%14: f32[k:3]) {
        %15 = reduce_sum(%14) {over = ("k",)} : f32[]
        yield %15
    }
    return (
        %5 = state w,
        %12 = loss a,
    )
}
"""


def test_good_ir_passes() -> None:
    verify(parse_module(GOOD))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("add(%w.1, %w.1)", "ad(%w.1, %w.1)", "there is no op `ad`"),
        ("add(%w.1, %w.1)", "add(%w.1)", "`add` takes 2 operands, not 1"),
        ("add(%w.1, %w.1)", "add(%w.1, %n.2)", "operands do not fit: "),
        ("%3 = add(%w.1, %w.1) : f32[k:3]", "%3 = add(%w.1, %w.1) : f32[k:4]", "where its rule gives [f32[k:3]]"),
        ("add(%w.1, %w.1)", "add(%w.1, %w.1) {a = 1}", "`add` has attributes [], not ['a']"),
        ("{over", "{under", "`reduce_sum` has attributes ['over'], not ['under']"),
        ("t.alpha:1:1-9", "t.alpha:0:1-9", "is no range"),
        ("t.alpha:1:1-9", "t.alpha:1:5-4", "is no range"),
        ("carried = 1", "carried = 3", "operands do not fit: `loop` with 3 carried"),
        ("yield %11, %9", "yield %9, %11", "operands do not fit: `loop` carries"),
        ("%i.7: i64[]", "%i.7: f32[]", "the block of `loop` gets i64[] as its value 0"),
        ("yield %15", "yield %14", "operands do not fit: `grad` is taken of one number"),
        ("%5 = state w", "%4 = state w", "state `w` is f32[k:3], not f32[], the type of its result"),
        ("%w.1: f32[k:3] = state w", "%w.1: f32[k:3] = state v", "state `v` among the arguments is not declared"),
        ("= step,", "= state w,", "is f32[k:3], not i64[]"),
        ("%12 = loss a", "%6 = state w", "state `w` is bound twice among the results"),
    ],
)
def test_bad_ir_is_found(before: str, after: str, message: str) -> None:
    assert before in GOOD
    with pytest.raises(InternalError) as caught:
        verify(parse_module(GOOD.replace(before, after, 1)))
    assert message in caught.value.message
    assert "function step(" in caught.value.ir and "function step(" in str(caught.value)


def test_the_failing_op_is_named() -> None:
    with pytest.raises(InternalError, match=r"^t.alpha:1:1: function `step`: .* in `%3 = add\(%w.1\) : f32\[k:3\] @"):
        verify(parse_module(GOOD.replace("add(%w.1, %w.1)", "add(%w.1)", 1)))


def body(module: Module) -> Block:
    return module.functions["step"].block


def swap_ops(module: Module) -> None:
    ops = body(module).ops
    ops[0], ops[1] = ops[1], ops[0]


def use_outside(module: Module) -> None:
    block = body(module)
    block.results = (block.ops[2].blocks[0].results[0], block.results[1])


def twice(module: Module) -> None:
    body(module).ops.append(body(module).ops[0])


def one_value_of_two_ops(module: Module) -> None:
    first = body(module).ops[0]
    body(module).ops.insert(1, Op("add", first.operands, {}, first.results))


def shared_block(module: Module) -> None:
    loop = body(module).ops[2]
    results = (Value(loop.results[0].type), Value(loop.results[1].type, index=1))
    body(module).ops.append(Op("loop", loop.operands, loop.attributes, results, loop.blocks))


def no_back_pointer(module: Module) -> None:
    body(module).ops[0].results[0].op = None


def argument_that_is_a_result(module: Module) -> None:
    block = body(module)
    block.arguments[1] = block.ops[0].result


def block_on_add(module: Module) -> None:
    body(module).ops[0].blocks = (Block(),)


def no_block(module: Module) -> None:
    body(module).ops[2].blocks = ()


def missing_port(module: Module) -> None:
    f = module.functions["step"]
    module.functions["step"] = Function(f.name, f.block, f.arguments[:1], f.results)


def port_bound_twice(module: Module) -> None:
    f = module.functions["step"]
    f.block.arguments.append(Value(TensorType(I64)))
    module.functions["step"] = Function(f.name, f.block, (*f.arguments, Port("step")), f.results)


def misfiled_function(module: Module) -> None:
    module.functions["stop"] = module.functions["step"]


def misfiled_state(module: Module) -> None:
    module.states["v"] = State("u", TensorType(F32), "state")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (swap_ops, "reads a value of type f32[k:3] before its definition"),
        (use_outside, "yields a value of type f32[k:3] out of its scope"),
        (twice, "an op stands in two places"),
        (one_value_of_two_ops, "does not point back to its op"),
        (shared_block, "a block stands in two places"),
        (no_back_pointer, "result 0 does not point back to its op"),
        (argument_that_is_a_result, "is"),
        (block_on_add, "`add` takes no block"),
        (no_block, "operands do not fit: `loop` has one block"),
        (missing_port, "2 arguments but 1 ports"),
        (port_bound_twice, "step `` is bound twice among the arguments"),
        (misfiled_function, "function `step` is filed under `stop`"),
        (misfiled_state, "state `u` is filed under `v`"),
    ],
)
def test_bad_graphs_are_found(damage: Callable[[Module], None], message: str) -> None:
    module = parse_module(GOOD)
    damage(module)
    with pytest.raises(InternalError) as caught:
        verify(module)
    assert message in caught.value.message


def test_a_grad_is_no_longer_there_after_differentiate() -> None:
    with pytest.raises(InternalError, match="a `grad` is left after `differentiate`"):
        verify(parse_module(GOOD), differentiated=True)


def test_a_span_may_end_on_a_later_line() -> None:
    module = parse_module(GOOD)
    op = body(module).ops[0]
    op.span = replace(op.span or Span("t.alpha", 1, 1, 1, 1), line=3, column=9, end_line=4, end_column=1)
    verify(module)
