"""What type rules share: typed access to attributes, checks of axes, and their messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from alphac.ir.core import Block
from alphac.ir.ops.define import Attributes, ResultRule, TypeRuleError
from alphac.ir.typesys import SHARD, Dim, DType, Kind, TensorType

T = TypeVar("T")


def refuse(message: str) -> NoReturn:
    raise TypeRuleError(message)


# ---------------------------------------------------------------------- element types
@dataclass(frozen=True)
class Accepts:
    """The element types that an op takes; `words` names them in messages."""

    words: str
    kinds: tuple[Kind, ...]

    def __call__(self, dtype: DType) -> bool:
        return dtype.kind in self.kinds


floats = Accepts("floats", ("float",))
integers = Accepts("integers", ("int", "uint"))
numbers = Accepts("numbers", ("float", "int", "uint"))
bits = Accepts("bools or integers", ("bool", "int", "uint"))
anything = Accepts("anything", ("float", "int", "uint", "bool"))


def check_dtype(op: str, accepts: Accepts, *types: TensorType) -> None:
    """All operands have one dtype, of a kind that the op takes."""
    for t in types:
        if not accepts(t.dtype):
            refuse(f"`{op}` takes {accepts.words}, not {t.dtype}; cast it first")
        if t.dtype != types[0].dtype:
            refuse(f"`{op}` takes operands of one type, not {types[0].dtype} and {t.dtype}; cast one of them")


# ---------------------------------------------------------------------- attributes
def attribute(attributes: Attributes, name: str, kind: type[T]) -> T:
    """The attribute, checked to be of its kind."""
    value = attributes[name]
    if isinstance(value, bool) and kind is int:  # Python's bools are ints
        refuse(f"attribute `{name}` is an int, not {value!r}")
    if not isinstance(value, kind):
        refuse(f"attribute `{name}` is a {kind.__name__}, not {value!r}")
    return value


def number_attribute(attributes: Attributes, name: str) -> float | int | bool:
    value = attributes[name]
    if not isinstance(value, int | float):
        refuse(f"attribute `{name}` is a number, not {value!r}")
    return value


def dims_attribute(attributes: Attributes, name: str = "dims") -> tuple[Dim, ...]:
    return _tuple_of(attributes, name, Dim)


def names_attribute(attributes: Attributes, name: str) -> tuple[str, ...]:
    return _tuple_of(attributes, name, str)


def _tuple_of(attributes: Attributes, name: str, kind: type[T]) -> tuple[T, ...]:
    items: list[T] = []
    for item in attribute(attributes, name, tuple):  # type: ignore[type-var]
        if not isinstance(item, kind):
            refuse(f"attribute `{name}` holds {kind.__name__}s, not {item!r}")
        items.append(item)
    return tuple(items)


# ---------------------------------------------------------------------- axes
def shown(type_: TensorType) -> str:
    """A type as users write it: `f32[batch, hidden]`."""
    return f"{type_.dtype}[{', '.join(type_.names)}]"


def made(dtype: DType, dims: Iterable[Dim]) -> TensorType:
    """The type of a result. Refused: an axis named twice, two grains, a per-shard axis beside the grain's."""
    dims = tuple(dims)
    names = [d.name for d in dims]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        refuse(f"the result would have two axes named `{twice}`; rename one")
    sharded = [d.name for d in dims if d.shards or d.name == SHARD]
    if len(sharded) > 1:
        refuse(
            f"`{sharded[0]}` and `{sharded[1]}` cannot be axes of one value: both are cut among the owners of shards"
        )
    return TensorType(dtype, dims)


def axis(op: str, type_: TensorType, name: str) -> Dim:
    """The axis of that name; refused if there is none."""
    if not type_.has(name):
        refuse(f"`{op}`: {shown(type_)} has no axis `{name}`")
    return type_.dim(name)


def local_axis(op: str, type_: TensorType, name: str) -> Dim:
    """The axis of that name; refused if it is cut among owners, since no op but `combine` crosses shards."""
    return check_local(op, axis(op, type_, name))


def check_local(op: str, dim: Dim) -> Dim:
    if dim.shards:
        refuse(f"`{op}` cannot work along `{dim.name}`, the grain's axis: its shards live on different owners")
    if dim.name == SHARD:
        refuse(f"`{op}` cannot work along the per-shard axis; combine the shards first")
    return dim


def check_same_dim(op: str, a: Dim, b: Dim) -> None:
    """Two axes of one name must be one axis."""
    if a.size != b.size:
        refuse(f"`{op}`: axis `{a.name}` is {a.size} in one place and {b.size} in another")
    if a.shards != b.shards:
        refuse(f"`{op}`: axis `{a.name}` is the grain's axis in one place and not in another")
    if a.strand != b.strand:
        refuse(f"`{op}`: axis `{a.name}` is of strand {a.strand} in one place and of {b.strand} in another")


def check_same_dims(op: str, *types: TensorType) -> None:
    """Identical axes in the same order, as elementwise ops need."""
    first = types[0]
    for t in types[1:]:
        for d in t.dims:
            if first.has(d.name):
                check_same_dim(op, first.dim(d.name), d)
        if t.names != first.names:
            refuse(f"`{op}`: {shown(first)} and {shown(t)} do not have the same axes in the same order")


def replaced(dims: tuple[Dim, ...], name: str, *by: Dim) -> tuple[Dim, ...]:
    """dims with the axis of that name replaced in place."""
    at = [d.name for d in dims].index(name)
    return (*dims[:at], *by, *dims[at + 1 :])


# ---------------------------------------------------------------------- rules of elementwise ops
def elementwise(op: str, accepts: Accepts, gives: DType | None = None) -> ResultRule:
    """Operands of one dtype and the same axes; the result is like them, or of dtype `gives`."""

    def result(types: Sequence[TensorType], attributes: Attributes, blocks: Sequence[Block]) -> tuple[TensorType, ...]:
        check_dtype(op, accepts, *types)
        check_same_dims(op, *types)
        return (types[0] if gives is None else types[0].with_dtype(gives),)

    return result
