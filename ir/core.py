"""The IR: typed SSA with regions.

A value is defined once, by an op or as a block's argument. Nothing is ever changed in place: a state is a value, its
next version another value, and a function returns the versions it leaves behind. Ops of a nested block may use values
of the blocks around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from alphac.ir.span import Span
from alphac.ir.typesys import Dim, DType, TensorType

# Everything an attribute may be: immutable, comparable, printable, and parsed back from text.
Attribute = int | float | bool | str | DType | Dim | tuple["Attribute", ...]


@dataclass(eq=False)
class Value:
    """One SSA value. `hint` is the source's name for it, for people only."""

    type: TensorType
    hint: str = ""
    op: Op | None = None  # None: a block's argument
    index: int = 0


@dataclass(eq=False)
class Op:
    """One operation. `name` is the key of its definition in `alphac.ir.ops`."""

    name: str
    operands: tuple[Value, ...]
    attributes: Mapping[str, Attribute]
    results: tuple[Value, ...]
    blocks: tuple[Block, ...] = ()
    span: Span | None = None

    @property
    def result(self) -> Value:
        (value,) = self.results
        return value


@dataclass(eq=False)
class Block:
    """A straight line of ops. `results` are the values it yields."""

    arguments: list[Value] = field(default_factory=list[Value])
    ops: list[Op] = field(default_factory=list[Op])
    results: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Port:
    """What a function's argument or result is bound to.

    kind      name                  meaning
    state     path of the state     its version on entry (argument) or on exit (result)
    column    `data.column`         this batch's rows of a data column, raw as stored
    sample    `data.split.column`   `attributes`: count, seed; rows drawn once, for initial states
    step      ""                    i64[]: the number of steps finished before this one
    valid     ""                    i64[]: how many leading examples of the batch are real (evaluate)
    count     ""                    i64[]: real examples in the whole split (finishing an evaluate)
    input     the input's name      what `alphac predict` feeds
    loss      statement's label     a scalar watched for NaN and shown
    metric    the metric's name     a scalar shown
    output    the output's name     what `alphac predict` returns
    total     label                 accumulator of an evaluate, carried over the batches of a split
    """

    kind: str
    name: str = ""
    attributes: tuple[tuple[str, Attribute], ...] = ()


@dataclass(eq=False)
class Function:
    """A pure function: `arguments` and `results` say what each block argument and result is bound to."""

    name: str
    block: Block
    arguments: tuple[Port, ...]
    results: tuple[Port, ...]


@dataclass(frozen=True)
class State:
    """A declared state. `kind`: `param` (learned by gradient), `state`, or `optimizer` (made by a `learn`)."""

    name: str
    type: TensorType
    kind: str


@dataclass(frozen=True)
class Column:
    """A column of a data declaration, raw as stored; scaling and casts are ops of the functions that read it.

    `source` is the array's key (npz, safetensors), the header's name (csv) or "" (npy, text). `window` > 0: the array
    is one long sequence and example i is elements [i * stride + offset, i * stride + offset + window).
    `below` > 0: an index column whose values must lie in [0, below), checked when compiling.
    """

    name: str
    source: str
    type: TensorType  # of one example
    window: int = 0
    stride: int = 0
    offset: int = 0
    below: int = 0


@dataclass(frozen=True)
class Data:
    """A data declaration: where examples come from, how they are split and shuffled."""

    name: str
    path: str
    format: str  # npz | npy | csv | safetensors | text
    columns: tuple[Column, ...]
    held_out: float = 0.0  # fraction in split `test`; the rest is `train`
    stratified_by: str = ""  # a column, or ""
    split_seed: int = 0
    split_kind: str = "random"  # random | tail (the last examples, for sequences)
    shuffle_seed: int = -1  # -1: in the file's order


@dataclass(frozen=True)
class Training:
    """`train on DATA for …`: exactly one of `epochs` and `steps` is > 0; `checkpoint_*` likewise, or both 0."""

    data: str
    epochs: int = 0
    steps: int = 0
    checkpoint_epochs: int = 0
    checkpoint_steps: int = 0
    keep_ragged: bool = False


@dataclass(frozen=True)
class Evaluation:
    """`evaluate NAME on SPLIT = …`: function `evaluate.NAME` per batch, then `finish.NAME` once."""

    name: str
    data: str
    split: str


@dataclass(frozen=True)
class RegionContract:
    """What a region asks for by name: `numeric` exact or fast (with its tolerance), `requires` as written, such as
    `matrix(bf16)`; `span` is where, or the region."""

    numeric: str = "exact"
    tolerance: float = 0.0
    requires: tuple[str, ...] = ()
    span: Span | None = field(default=None, compare=False)


@dataclass(eq=False)
class Module:
    """A learning system as IR.

    Functions: `initialize` (→ every state), `step` (one training step), `evaluate.NAME` and `finish.NAME` per
    evaluation, `region.NAME` per region (for predict).
    """

    system: str
    grain: Dim | None  # the batch axis with its shards; None when nothing is batched
    seed: int = 0
    states: dict[str, State] = field(default_factory=dict[str, State])
    data: dict[str, Data] = field(default_factory=dict[str, Data])
    training: Training | None = None
    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    # Those that say more than the default.
    regions: dict[str, RegionContract] = field(default_factory=dict[str, RegionContract])


def walk(block: Block) -> Iterator[Op]:
    """Every op of a block and of the blocks nested in it, outer before inner."""
    for op in block.ops:
        yield from walk_op(op)


def walk_op(op: Op) -> Iterator[Op]:
    """An op and those in its blocks, outer before inner."""
    yield op
    for block in op.blocks:
        yield from walk(block)
