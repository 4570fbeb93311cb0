"""The syntax tree: what was written, with its place in the source, and nothing more."""

from __future__ import annotations

from dataclasses import dataclass

from alphac.ir.span import Span


@dataclass(frozen=True, eq=False)
class Node:
    span: Span


# ---------------------------------------------------------------------------------------------------------- expressions
@dataclass(frozen=True, eq=False)
class Expression(Node):
    """Anything with a value."""


@dataclass(frozen=True, eq=False)
class Number(Expression):
    value: int | float


@dataclass(frozen=True, eq=False)
class String(Expression):
    value: str


@dataclass(frozen=True, eq=False)
class Name(Expression):
    id: str


@dataclass(frozen=True, eq=False)
class Primed(Expression):
    """`m'`: the next version of state `m`."""

    id: str


@dataclass(frozen=True, eq=False)
class Unary(Expression):
    operator: str  # - not
    operand: Expression


@dataclass(frozen=True, eq=False)
class Binary(Expression):
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, eq=False)
class Like(Expression):
    """`value like x`: value, with the type of x."""

    value: Expression
    model: Expression


@dataclass(frozen=True, eq=False)
class Argument(Node):
    name: str | None
    value: Expression


@dataclass(frozen=True, eq=False)
class Call(Expression):
    callee: Expression
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, eq=False)
class Index(Expression):
    target: Expression
    indices: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Attribute(Expression):
    target: Expression
    name: str


@dataclass(frozen=True, eq=False)
class Tuple(Expression):
    items: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Loop(Expression):
    """`repeat dim as index { … }` (`stacked`: blocks in it have one copy of their parameters per iteration) or
    `scan dim as index { … }` (one copy for all)."""

    stacked: bool
    dim: Expression
    index: str | None
    body: Body


@dataclass(frozen=True, eq=False)
class If(Expression):
    """A choice made by the compiler."""

    condition: Expression
    then: Body
    otherwise: Body | If | None


@dataclass(frozen=True, eq=False)
class Type(Node):
    dtype: str
    dims: tuple[Expression, ...]


# ----------------------------------------------------------------------------------------------------------- statements
@dataclass(frozen=True, eq=False)
class Body(Node):
    statements: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class Statement(Node):
    """A line of a body."""


@dataclass(frozen=True, eq=False)
class Bind(Statement):
    names: tuple[Name, ...]
    type: Type | None
    value: Expression


@dataclass(frozen=True, eq=False)
class Prime(Statement):
    """`m' = value`."""

    name: str
    value: Expression


@dataclass(frozen=True, eq=False)
class Evaluated(Statement):
    """An expression as a statement: the body's value if it is the last one."""

    value: Expression


@dataclass(frozen=True, eq=False)
class Entry(Node):
    """One name of a `param` or `state` declaration. `type` is None for `0 like p`."""

    name: str
    type: Type | None
    value: Expression


@dataclass(frozen=True, eq=False)
class Declare(Statement):
    """`param …` or `state …`, at top level or in a body."""

    kind: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, eq=False)
class DimEntry(Node):
    name: str
    value: Expression


@dataclass(frozen=True, eq=False)
class Dims(Statement):
    entries: tuple[DimEntry, ...]


# --------------------------------------------------------------------------------------------------------- declarations
@dataclass(frozen=True, eq=False)
class SystemName(Node):
    name: str


@dataclass(frozen=True, eq=False)
class Use(Node):
    path: str


@dataclass(frozen=True, eq=False)
class Let(Node):
    name: str
    value: Expression


@dataclass(frozen=True, eq=False)
class Grain(Node):
    shards: Expression
    dim: Name


@dataclass(frozen=True, eq=False)
class Seed(Node):
    value: Expression


@dataclass(frozen=True, eq=False)
class Numeric(Node):
    mode: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, eq=False)
class Column(Node):
    name: str
    type: Type
    value: Expression


@dataclass(frozen=True, eq=False)
class HoldOut(Node):
    """`percent` of the examples are held out: at random (by class of column `stratified`), or the last ones."""

    split: str
    percent: int | float
    tail: bool
    stratified: Name | None
    seed: int


@dataclass(frozen=True, eq=False)
class Shuffle(Node):
    seed: int


@dataclass(frozen=True, eq=False)
class Data(Node):
    name: str
    path: String
    columns: tuple[Column, ...]
    hold_outs: tuple[HoldOut, ...]
    shuffles: tuple[Shuffle, ...]


@dataclass(frozen=True, eq=False)
class Parameter(Node):
    """A parameter of a function. `rest`: it takes all remaining arguments."""

    name: str
    type: Type | None
    default: Expression | None
    rest: bool = False


@dataclass(frozen=True, eq=False)
class Callable(Node):
    """What `fn`, `initializer`, `optimizer`, `block` and `region` have in common."""

    name: str
    parameters: tuple[Parameter, ...]
    body: Body


@dataclass(frozen=True, eq=False)
class Fn(Callable):
    result: Type | None


@dataclass(frozen=True, eq=False)
class Initializer(Callable):
    """Makes the first version of a state of any type."""


@dataclass(frozen=True, eq=False)
class Optimizer(Callable):
    """A rule for one parameter `p` and its gradient `g`."""


@dataclass(frozen=True, eq=False)
class BlockDeclaration(Callable):
    result: Type | None


@dataclass(frozen=True, eq=False)
class Region(Callable):
    results: tuple[tuple[str, Type], ...]  # the name is "" for a single unnamed result
    numeric: Numeric | None
    requires: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Path(Node):
    """`a.b` or `a.*`."""

    parts: tuple[str, ...]
    all: bool

    def __str__(self) -> str:
        return ".".join((*self.parts, "*") if self.all else self.parts)


@dataclass(frozen=True, eq=False)
class Learn(Node):
    targets: tuple[Path, ...]
    optimizer: Expression
    label: str | None
    loss: Body


@dataclass(frozen=True, eq=False)
class Transition(Node):
    body: Body


@dataclass(frozen=True, eq=False)
class Together(Node):
    statements: tuple[Learn | Transition, ...]


@dataclass(frozen=True, eq=False)
class Evaluate(Node):
    name: str
    split: Path
    value: Body


@dataclass(frozen=True, eq=False)
class Checkpoint(Node):
    every: Expression | None
    unit: str  # epoch | step


@dataclass(frozen=True, eq=False)
class Train(Node):
    data: Name
    amount: Expression
    unit: str  # epoch | step
    checkpoints: tuple[Checkpoint, ...]
    keep_ragged: bool


@dataclass(frozen=True, eq=False)
class Contract(Node):
    name: str


@dataclass(frozen=True, eq=False)
class System(Node):
    """A whole file. `source` is its text, for messages."""

    source: str
    declarations: tuple[Node, ...]
