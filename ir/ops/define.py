"""How an op is declared: once, as data. Everything else (verifier, printer, interpreter, oracle, differentiation,
lowering to every target, tests) derives from the definition.

An op has one of a few shapes; the shape says what `body` is and how a target lowers it:

shape        body                                     meaning
elementwise  body(k, *x, **attributes) -> handle      operands and result have the same dims in the same order
index        body(k, op, index, read) -> handle       the result's element at `index` (dim name -> i64 handle), made of
                                                      operands' elements `read(i, {dim name: handle})`; no storage of
                                                      its own: lowering inlines it where it is read
reduce       body(k, a, b) -> handle                  combines two elements; `identity(k, dtype)` starts every lane
contract     None                                     sum of products by fma in the canonical order (design §3)
special      None                                     a loop of its own in each target (argmax, cumsum, scatter_add)
collective   body(k, a, b) -> handle                  `combine`: per-shard partials into one, by the shard tree
composite    body(b, op) -> value                      written in other ops; the pass `expand` unfolds it
structure    None                                     grad, loop, tile (with blocks), require: removed or unfolded
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from alphac.ir.core import Attribute, Block, Op, Value
from alphac.ir.typesys import TensorType

Shape = Literal["elementwise", "index", "reduce", "contract", "special", "collective", "composite", "structure"]
SHAPES: tuple[Shape, ...] = (
    "elementwise",
    "index",
    "reduce",
    "contract",
    "special",
    "collective",
    "composite",
    "structure",
)


class TypeRuleError(Exception):
    """Operands that an op does not take. The message is for the user: it names types by their dims."""


class NotDifferentiable:
    """The gradient field of an op that has none; `reason` is what the user is told."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


@dataclass(frozen=True)
class Cost:
    """Arithmetic per element of the result (elementwise, index) or per element read (reduce, contract)."""

    flops: float


Attributes = Mapping[str, Attribute]
ResultRule = Callable[[Sequence[TensorType], Attributes, Sequence[Block]], tuple[TensorType, ...]]


@dataclass(frozen=True)
class Definition:
    """One op. See `define` for the fields."""

    name: str
    shape: Shape
    operands: int | None  # None: any number
    attributes: tuple[str, ...]
    result: ResultRule
    reference: Callable[..., Any]
    gradient: Callable[..., Sequence[Value | None]] | NotDifferentiable
    cost: Cost
    needs: frozenset[str]
    body: Callable[..., Any] | None
    identity: Callable[..., Any] | None
    ulp: float  # documented bound on the error of a float result against the real value; 0: exact or correctly rounded


DEFINITIONS: dict[str, Definition] = {}


def define(
    name: str,
    *,
    shape: Shape,
    operands: int | None,
    result: ResultRule,
    reference: Callable[..., Any],
    gradient: Callable[..., Sequence[Value | None]] | NotDifferentiable,
    cost: Cost,
    needs: frozenset[str] | set[str],
    body: Callable[..., Any] | None,
    attributes: tuple[str, ...] = (),
    identity: Callable[..., Any] | None = None,
    ulp: float = 0,
) -> Definition:
    """Register an op.

    result      (operand types, attributes, blocks) -> result types; raises TypeRuleError
    reference   (op, *arrays) -> array, or a tuple of them: NumPy, in the arrays' own precision; judges accuracy only
    gradient    (b, op, *dy) -> one cotangent per operand, None where there is none, built with Builder `b`. A
                cotangent has its operand's dtype and dims, or these with a leading `shard` axis: a per-shard partial,
                which `differentiate` combines.
    """
    if name in DEFINITIONS:
        raise ValueError(f"op `{name}` is defined twice")
    if shape not in SHAPES:
        raise ValueError(f"op `{name}`: `{shape}` is no shape; one of {', '.join(SHAPES)}")
    if (body is None) != (shape in ("contract", "special", "structure")):
        raise ValueError(f"op `{name}`: a body is what {shape} ops {'lack' if body else 'need'}")
    if (identity is None) != (shape not in ("reduce", "collective")):
        raise ValueError(f"op `{name}`: an identity is what {shape} ops {'lack' if identity else 'need'}")
    definition = Definition(
        name, shape, operands, attributes, result, reference, gradient, cost, frozenset(needs), body, identity, ulp
    )
    DEFINITIONS[name] = definition
    return definition


def definition(op: Op) -> Definition:
    """The definition of an op in a graph."""
    return DEFINITIONS[op.name]
