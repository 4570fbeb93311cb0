"""What an expression may stand for while a program is elaborated.

Tensors are IR values (`alphac.ir.core.Value`). Known to the compiler are Python's int, float, bool and str, a `Dim`, an
`Axes`, a tuple of values, and the things below.
"""

from __future__ import annotations

from collections.abc import Callable as Function
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from alphac.frontend import tree
from alphac.ir.core import Value
from alphac.ir.typesys import Dim, DType, TensorType

if TYPE_CHECKING:
    from alphac.frontend.scope import Scope


class Axes(tuple[Dim, ...]):
    """Several axes, as `axes(x)` gives them."""


EVERY = Axes()  # what `d...` stands for when no axes are given: a reduction takes all


@dataclass(frozen=True, eq=False)
class Counter:
    """A scalar that is computed at run time in 64 bits (i64 or f64) and rounds on meeting a tensor: `step`, and what is
    computed from it, from integer scalars and from transcendental functions of constants."""

    value: Value


@dataclass(frozen=True)
class StateReference:
    """A param or state by its path; stands for its version at the place where it is read."""

    path: str


@dataclass(frozen=True)
class ColumnReference:
    """A data column; stands for this batch's examples. `split`: "" or the split in `digits.train.image`."""

    data: str
    column: str
    split: str = ""


@dataclass(frozen=True)
class DataReference:
    """A data declaration, or one split of it."""

    data: str
    split: str = ""


@dataclass(frozen=True, eq=False)
class Callee:
    """A declared function of any kind, with arguments given so far (initializers and optimizers)."""

    declaration: tree.Callable
    bound: dict[str, Any] | None = None  # None: not applied yet


@dataclass(frozen=True, eq=False)
class Builtin:
    """A function of the language itself: (call) -> value."""

    name: str
    apply: Function[..., Any]


@dataclass(frozen=True)
class ElementType:
    """`f32` as a function: a cast."""

    dtype: DType


@dataclass(eq=False)
class StateInfo:
    """A declared state, and how its first version is made."""

    path: str
    type: TensorType  # all of it, stack axes first
    kind: str  # param | state | optimizer
    order: tuple[int, int]
    value: tree.Expression
    scope: Scope
    span: Any
    stack: tuple[Dim, ...] = ()  # axes added by enclosing `repeat`s
    read: bool = field(default=False)

    @property
    def element(self) -> TensorType:
        """The type without the axes of the stack: what the initializer makes."""
        return TensorType(self.type.dtype, self.type.dims[len(self.stack) :])


Known = int | float | bool
"""A number that the compiler knows."""


def is_known(value: object) -> bool:
    """Whether value is a number (or bool, or dim) that the compiler knows."""
    return isinstance(value, (bool, int, float, Dim))


def number(value: Any) -> int | float | bool:
    """A known value as a number: a dim is its size."""
    return value.size if isinstance(value, Dim) else value


def describe(value: Any) -> str:
    """A value in the words of the language, for messages."""
    if isinstance(value, Value):
        return type_text(value.type)
    if isinstance(value, Counter):
        return f"a counter ({value.value.type.dtype})"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value:g}" if isinstance(value, float) else f"the number {value}"
    if isinstance(value, Dim):
        return f"the dim `{value.name}`"
    if isinstance(value, Axes):
        return f"the axes {dims_text(value)}"
    if isinstance(value, tuple):
        return f"{len(value)} values"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, Callee):
        kind = {"Fn": "fn", "BlockDeclaration": "block"}.get(type(value.declaration).__name__) or type(
            value.declaration
        ).__name__.lower()
        return f"the {kind} `{value.declaration.name}`"
    if isinstance(value, Builtin):
        return f"the function `{value.name}`"
    if isinstance(value, ElementType):
        return f"the element type `{value.dtype}`"
    if isinstance(value, DataReference):
        return f"the data `{value.data}`"
    if isinstance(value, ColumnReference):
        return f"the column `{value.column}`"
    if isinstance(value, StateReference):
        return f"the state `{value.path}`"
    return "nothing" if value is None else type(value).__name__


def dims_text(dims: tuple[Dim, ...]) -> str:
    """`[batch, hidden]`."""
    return f"[{', '.join(d.name for d in dims)}]"


def type_text(type: TensorType) -> str:
    """A type as the language writes it: `f32[batch, hidden]`."""
    return f"{type.dtype}{dims_text(type.dims)}"
