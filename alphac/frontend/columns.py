"""Data declarations: what a column is made of, and the examples of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from alphac.diagnostics import Diagnostics, Label, fail, nearest
from alphac.frontend import tree
from alphac.frontend.arithmetic import as_tensor, coerce
from alphac.frontend.data import DataError, Source, Stored
from alphac.frontend.expressions import evaluate
from alphac.frontend.scope import Context, Scope
from alphac.frontend.values import Builtin, ColumnReference, DataReference, is_known, number, type_text
from alphac.ir.core import Column, Data, Port, Value
from alphac.ir.span import Span
from alphac.ir.typesys import Dim, TensorType

if TYPE_CHECKING:
    from alphac.frontend.calls import Call
    from alphac.frontend.system import System


@dataclass(eq=False)
class ColumnPart:
    """A declared column. `raw`: the arrays it is made of, by the words that stand for them in its expression."""

    node: tree.Column
    type: TensorType  # of one example
    raw: dict[str, Column]
    direct: bool  # the stored numbers themselves, at most cast
    below: int = 0
    below_span: Span | None = None
    below_dim: str = ""


@dataclass(eq=False)
class DataPart:
    node: tree.Data
    source: Source
    columns: dict[str, ColumnPart] = field(default_factory=dict)
    rows: int = 0


# ------------------------------------------------------------------------------------------------------------ resolving
def reference(system: System, name: str, span: Span) -> ColumnReference:
    """The column that a plain name stands for."""
    owners = system.columns_of[name]
    if len(owners) > 1:
        both = " and ".join(f"`{o}`" for o in owners)
        raise fail("E110", f"`{name}` is a column of {both}", span, f"write `{owners[0]}.{name}`")
    return ColumnReference(owners[0], name)


def member(system: System, target: DataReference, name: str, span: Span) -> DataReference | ColumnReference:
    """`digits.image`, `digits.train`, `digits.train.image`."""
    if not target.split and name in ("train", "test"):
        if name == "test" and not part(system, target.data).node.hold_outs:
            help = f"say so in `data {target.data}`: `hold out test 20%, seed 0`"
            raise fail("E307", f"`{target.data}` holds out no `test`", span, help)
        return DataReference(target.data, name)
    columns = part(system, target.data).columns
    if name not in columns:
        near = nearest(name, [*columns, "train", "test"])
        help = f"did you mean `{near}`?" if near else f"it has {', '.join(f'`{c}`' for c in columns)}"
        raise fail("E110", f"`{target.data}` has no column `{name}`", span, help)
    return ColumnReference(target.data, name, target.split)


def part(system: System, name: str) -> DataPart:
    """What is known of a data declaration; its file is opened on first use. A faulty one fails every time."""
    if name not in system.data_parts:
        node = system.declarations[name]
        assert isinstance(node, tree.Data)
        help = "name dims, not columns, in types"
        system.data_parts[name] = fail("E120", f"`{name}` is defined by itself", node.span, help)
        try:
            system.data_parts[name] = _declare(system, node)
        except Diagnostics as error:
            system.data_parts[name] = error
    found = system.data_parts[name]
    if isinstance(found, Diagnostics):
        raise found
    return found


def _declare(system: System, node: tree.Data) -> DataPart:
    try:
        source = Source(system.directory, node.path.value)
    except DataError as error:
        raise fail(error.code, error.message, node.path.span, error.help) from None
    found = DataPart(node, source)
    context = Context(system, "data")
    problems = []
    for column in node.columns:
        try:
            if column.name in found.columns:
                raise fail("E105", f"`{column.name}` is declared twice", column.span, "give one of them another name")
            found.columns[column.name] = _column(system, context, found, column)
        except Diagnostics as error:
            problems += error.diagnostics
    if problems:
        raise Diagnostics(problems)
    if not found.columns:
        raise fail(
            "E302", f"`{node.name}` has no columns", node.span, "declare one: `image: f32[pixels] = images / 16`"
        )
    found.rows = _rows(found)
    return found


def _column(system: System, context: Context, data: DataPart, node: tree.Column) -> ColumnPart:
    type = system.type(node.type, system.scope, context)
    if type.grain is not None:
        help = f"a column is declared for one example: leave `{type.grain.name}` out"
        raise fail("E303", f"`{node.name}` has the grain's axis", node.type.span, help)
    raw: dict[str, Column] = {}
    windows = _windows(system, context, node, type)
    for word, at in _words(node.value):
        source = _stored_names(data, word, at)
        if source is None or word in raw:
            continue
        stored = _joined(data, source, at)
        name = node.name if not raw else f"{node.name}.{word}"
        raw[word] = _raw_column(data, stored, name, ",".join(source), type, windows.get(word), node)
    if not raw:
        _no_raw(data, node)
    direct = isinstance(node.value, tree.Name) or (isinstance(node.value, tree.Call) and bool(windows))
    return ColumnPart(node, type, raw, direct)


def _words(node: tree.Expression) -> list[tuple[str, tree.Expression]]:
    """What may stand for arrays of the file: names, and calls of `columns` and `except`."""
    found: list[tuple[str, tree.Expression]] = []
    stack: list[Any] = [node]
    while stack:
        item = stack.pop(0)
        if (
            isinstance(item, tree.Call)
            and isinstance(item.callee, tree.Name)
            and item.callee.id in ("columns", "except")
        ):
            found.append((_call_word(item), item))
        elif isinstance(item, tree.Name):
            found.append((item.id, item))
        elif isinstance(item, tuple):
            stack = [*item, *stack]
        elif isinstance(item, tree.Node):
            stack = [*(getattr(item, f) for f in item.__dataclass_fields__ if f != "span"), *stack]
    return found


def _call_word(call: tree.Call) -> str:
    assert isinstance(call.callee, tree.Name)
    return f"{call.callee.id}({','.join(_column_names(call))})"


def _column_names(call: tree.Call) -> list[str]:
    names: list[str] = []
    for argument in call.arguments:
        value = argument.value
        if isinstance(value, (tree.Name, tree.String)):
            names.append(value.id if isinstance(value, tree.Name) else value.value)
        else:
            raise fail("E116", "columns are given by name", argument.span, 'write `columns(mass, "mean radius")`')
    return names


def _stored_names(data: DataPart, word: str, node: tree.Expression) -> list[str] | None:
    """The arrays that a word stands for; None if it is a name of the system's own."""
    if isinstance(node, tree.Name):
        return [word] if word in data.source.arrays else None
    assert isinstance(node, tree.Call) and isinstance(node.callee, tree.Name)
    given = _column_names(node)
    for name in given:
        if name not in data.source.arrays:
            raise _no_array(data, name, node.span)
    if node.callee.id == "columns":
        return given
    return [name for name in data.source.arrays if name not in given]


def _no_array(data: DataPart, name: str, span: Span) -> Diagnostics:
    near = nearest(name, data.source.arrays)
    shown = ", ".join(f"`{a}`" for a in list(data.source.arrays)[:8])
    help = f"did you mean `{near}`?" if near else f"it holds {shown or 'nothing'}"
    return fail("E302", f"`{data.source.path.name}` holds no `{name}`", span, help)


def _no_raw(data: DataPart, node: tree.Column) -> None:
    """A column that reads nothing: most likely a misspelt name."""
    names = [(w, n) for w, n in _words(node.value) if isinstance(n, tree.Name)]
    if names:
        raise _no_array(data, names[-1][0], names[-1][1].span)
    raise fail("E302", f"`{node.name}` reads nothing from the file", node.value.span, "name an array of the file")


def _joined(data: DataPart, names: list[str], node: tree.Expression) -> Stored:
    """One array, or several columns of a csv file side by side."""
    arrays = [data.source.arrays[n] for n in names]
    if isinstance(node, tree.Name):
        return arrays[0]
    if data.source.format != "csv" or any("," in n for n in names) or not arrays:
        raise fail("E302", "`columns` and `except` choose columns of a csv file", node.span, "name one array")
    dtype = (
        arrays[0].dtype
        if all(a.dtype == arrays[0].dtype for a in arrays)
        else next(a.dtype for a in arrays if a.dtype.is_float)
    )
    return Stored(names[0], dtype, (len(arrays),), arrays[0].rows)


def _raw_column(
    data: DataPart,
    stored: Stored,
    name: str,
    source: str,
    type: TensorType,
    window: tuple[int, int] | None,
    node: tree.Column,
) -> Column:
    """The stored array as a column of the IR, with the declared axes."""
    from alphac.ir.typesys import LANGUAGE_DTYPES

    file, span = data.source.path.name, node.span
    if stored.dtype.name not in LANGUAGE_DTYPES:
        help = "convert it, e.g. to int32 or float32"
        raise fail("E303", f"`{stored.name}` in `{file}` is stored as {stored.dtype}", span, help)
    if stored.dtype.is_float and not type.dtype.is_float:
        help = f"declare `{node.name}` as {stored.dtype}"
        raise fail("E303", f"`{stored.name}` in `{file}` is {stored.dtype}, not {type.dtype}", span, help)
    if stored.rows == 0:
        raise fail("E305", f"`{stored.name}` in `{file}` has no rows", span, "there is nothing to learn from")
    raw = TensorType(stored.dtype, type.dims)
    if window is not None:
        if stored.shape:
            raise fail(
                "E303", f"`{stored.name}` is no sequence: each row is {stored.shape}", span, "window a 1-d array"
            )
        stride, offset = window
        if stored.rows < offset + type.size:
            message = f"`{stored.name}` has {stored.rows} elements, fewer than one window of {offset + type.size}"
            raise fail("E305", message, span, "shorten the window")
        return Column(name, source, raw, type.size, stride, offset)
    if math.prod(stored.shape) != type.size:
        shape = f"{' × '.join(map(str, stored.shape))} elements" if stored.shape else "single numbers"
        message = f"rows of `{stored.name}` in `{file}` are {shape}; {type_text(type)} has {type.size} elements"
        raise fail("E303", message, span, "make the dims fit the file")
    return Column(name, source, raw)


def _windows(system: System, context: Context, node: tree.Column, type: TensorType) -> dict[str, tuple[int, int]]:
    """`window(text, stride = s, offset = o)`: (s, o) by the array's name."""
    found: dict[str, tuple[int, int]] = {}
    stack: list[Any] = [node.value]
    while stack:
        item = stack.pop()
        if isinstance(item, tree.Call) and isinstance(item.callee, tree.Name) and item.callee.id == "window":
            if not item.arguments or not isinstance(item.arguments[0].value, tree.Name):
                raise fail(
                    "E116", "`window` takes an array of the file", item.span, "write `window(text, stride = time)`"
                )
            numbers = {"stride": type.size, "offset": 0}
            for argument in item.arguments[1:]:
                if argument.name not in numbers:
                    raise fail("E116", "`window` takes `stride` and `offset`", argument.span, "give them by name")
                value = evaluate(context, argument.value, system.scope)
                whole = (
                    is_known(value) and isinstance(number(value), int) and number(value) >= (argument.name == "stride")
                )
                if not whole:
                    raise fail("E118", f"`{argument.name}` is a whole number", argument.span, "a stride is at least 1")
                numbers[argument.name] = int(number(value))
            found[item.arguments[0].value.id] = (numbers["stride"], numbers["offset"])
        elif isinstance(item, tuple):
            stack.extend(item)
        elif isinstance(item, tree.Node):
            stack.extend(getattr(item, f) for f in item.__dataclass_fields__ if f != "span")
    return found


def _rows(data: DataPart) -> int:
    """The number of examples: rows of every array; as many windows as fit all."""
    counts: dict[str, int] = {}
    for column in data.columns.values():
        for raw in column.raw.values():
            stored = data.source.arrays[raw.source.split(",")[0]]
            counts[raw.name] = stored.rows
            if raw.window:
                counts[raw.name] = (stored.rows - raw.offset - raw.window) // raw.stride + 1
    windows = any(r.window for c in data.columns.values() for r in c.raw.values())
    if len(set(counts.values())) > 1 and not windows:
        parts = ", ".join(f"`{n}` {c}" for n, c in counts.items())
        raise fail("E308", f"columns of `{data.node.name}` differ in rows: {parts}", data.node.span, "fix the file")
    return min(counts.values())


# -------------------------------------------------------------------------------------------------------------- reading
def read_column(context: Context, column: ColumnReference, span: Span) -> Value:
    """This batch's examples of a column: `T[batch, …]`."""
    system = context.system
    found = part(system, column.data).columns[column.column]
    if context.name == "initialize":
        help = f"draw some: `sample({column.data}.train.{column.column}, count, seed = 0)`"
        raise fail("E141", f"`{column.column}` is of the batch, and there is none yet", span, help)
    if context.name.startswith("region"):
        raise fail(
            "E141", f"`{column.column}` is data; a region sees its inputs only", span, "make it an input of the region"
        )
    grain = system.grain
    if grain is None:
        raise fail("E106", "data is read in batches, and no grain is declared", span, "write `grain 32 of batch`")
    key = (column.data, column.column)
    if key not in context.columns:
        with context.outside():
            context.columns[key] = _computed(context, column.data, found, "column", grain)
    return context.sliced(context.columns[key], 0)


def sample(context: Context, column: ColumnReference, count: Dim, seed: int, span: Span) -> Value:
    """`count` rows of a split, drawn once, for the first version of a state."""
    found = part(context.system, column.data).columns[column.column]
    if context.name != "initialize":
        raise fail(
            "E141", "`sample` draws rows once, for the first version of a state", span, "use it in `state x = …`"
        )
    rows = part(context.system, column.data).rows
    if count.size > rows:
        raise fail("E305", f"`sample` draws {count.size} of {rows} rows", span, "draw fewer")
    with context.outside():
        value = _computed(context, column.data, found, "sample", count, column.split, seed)
    return context.sliced(value, 0)


def _computed(
    context: Context, data: str, column: ColumnPart, kind: str, count: Dim, split: str = "train", seed: int = 0
) -> Value:
    """The column's expression, computed from the stored arrays."""
    scope = Scope(None, "")
    values: dict[str, Value] = {}
    for word, raw in column.raw.items():
        if raw.type.has(count.name):
            help = f"give the column's axis another name than `{count.name}`"
            raise fail("E118", f"`{column.node.name}` has an axis `{count.name}` already", column.node.span, help)
        type = TensorType(raw.type.dtype, (count, *raw.type.dims))
        name = f"{data}.{raw.name}" if kind == "column" else f"{data}.{split}.{raw.name}"
        attributes = () if kind == "column" else (("count", count.size), ("seed", seed))
        values[word] = context.cast(context.argument(Port(kind, name, attributes), type), column.type.dtype)
        if "(" not in word:
            scope.bind(word, values[word], 0)

    def chosen(call: Call) -> Value:
        return values[_call_word(call.node)]

    def windowed(call: Call) -> Any:
        return call.value(0)

    for name, function in (("columns", chosen), ("except", chosen), ("window", windowed)):
        scope.bind(name, Builtin(name, function), 0)
    with context.at(column.node.span):
        value = as_tensor(context, evaluate(context, column.node.value, scope), column.node.value.span)
        wanted = TensorType(column.type.dtype, (count, *column.type.dims))
        value = coerce(context, value, wanted, f"column `{column.node.name}`", column.node.value.span)
    if not value.hint:
        value.hint = column.node.name
    return value


# --------------------------------------------------------------------------------------------------------------- checks
def require_below(context: Context, index: Value, dim: Dim, span: Span) -> None:
    """If `index` is a data column itself, its numbers must be positions on `dim`."""
    for (data, name), value in context.columns.items():
        found = part(context.system, data).columns[name]
        if value is index and found.direct and (not found.below or dim.size < found.below):
            found.below, found.below_span, found.below_dim = dim.size, span, dim.name
            _scan(part(context.system, data), found)


def _scan(data: DataPart, column: ColumnPart) -> None:
    """Refuse labels outside of [0, below)."""
    (raw,) = column.raw.values()
    try:
        numbers = np.asarray(data.source.array(raw.source.split(",")[0]))
    except DataError as error:
        raise fail(error.code, error.message, column.node.span, error.help) from None
    wrong = np.flatnonzero((numbers.reshape(-1) < 0) | (numbers.reshape(-1) >= column.below))
    if len(wrong):
        row, value = int(wrong[0]), int(numbers.reshape(-1)[wrong[0]])
        message = f"`{column.node.name}` is {value} in row {row}, and `{column.below_dim}` has {column.below} positions"
        help = (
            f"enlarge `{column.below_dim}`, or mend the data ({len(wrong)} such value{'s' if len(wrong) != 1 else ''})"
        )
        labels = [Label(column.node.span, f"{value} in row {row}")]
        if column.below_span is not None and column.below_span.file == column.node.span.file:
            labels.append(Label(column.below_span, f"chooses along `{column.below_dim}`"))
        raise fail("E304", message, column.node.span, help, labels)


def finished(system: System, name: str) -> Data:
    """The declaration for the module."""
    found = part(system, name)
    node = found.node
    columns: list[Column] = []
    for column in found.columns.values():
        for raw in column.raw.values():
            below = column.below if column.direct else 0
            columns.append(Column(raw.name, raw.source, raw.type, raw.window, raw.stride, raw.offset, below))
    hold, shuffle = _split(found)
    return Data(
        name, node.path.value, found.source.format, tuple(columns),
        held_out=hold.percent / 100 if hold else 0.0,
        stratified_by=hold.stratified.id if hold and hold.stratified else "",
        split_seed=hold.seed if hold else 0,
        split_kind="tail" if hold and hold.tail else "random",
        shuffle_seed=shuffle.seed if shuffle else -1,
    )  # fmt: skip


def _split(data: DataPart) -> tuple[tree.HoldOut | None, tree.Shuffle | None]:
    node = data.node
    for extra in (*node.hold_outs[1:], *node.shuffles[1:]):
        raise fail("E307", "this is said twice", extra.span, "say it once")
    hold = node.hold_outs[0] if node.hold_outs else None
    if hold is not None:
        if hold.split != "test":
            raise fail(
                "E307", f"what is held out is called `test`, not `{hold.split}`", hold.span, "write `hold out test 20%`"
            )
        if not 0 < hold.percent < 100:
            raise fail(
                "E307", f"{hold.percent}% cannot be held out", hold.span, "hold out more than 0% and less than 100%"
            )
        if hold.stratified is not None:
            column = data.columns.get(hold.stratified.id)
            if column is None or column.type.dims or column.type.dtype.is_float or not column.direct:
                help = "it is a column of classes: whole numbers, one for each example"
                raise fail("E307", f"`{hold.stratified.id}` cannot stratify", hold.stratified.span, help)
    return hold, node.shuffles[0] if node.shuffles else None
