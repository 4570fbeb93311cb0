"""`repeat` and `scan`: one `loop` op each.

Inside, a name from outside that has the loop's axis stands for its slice at this iteration; names that the body rebinds
are carried; the value of the body, if it has one, is collected along the loop's axis.
"""

from __future__ import annotations

from typing import Any

from alphac.diagnostics import fail
from alphac.frontend import tree
from alphac.frontend.arithmetic import as_tensor
from alphac.frontend.scope import Context, Level, Scope
from alphac.frontend.values import Counter, describe, is_known, type_text
from alphac.ir.core import Block, Value
from alphac.ir.ops.define import TypeRuleError
from alphac.ir.span import Span
from alphac.ir.typesys import I64, Dim, TensorType


def loop(context: Context, node: tree.Loop, scope: Scope) -> Any:
    """Elaborate a loop; its value is what it collected, or None."""
    from alphac.frontend.bodies import bind, run

    dim = _axis(context, node, scope)
    carried = [n for n in _rebound(node.body) if (b := scope.find(n)) is not None and _is_data(b.value)]
    first = [_entering(context, n, scope, node) for n in carried]
    index = Value(TensorType(I64), node.index or "index")
    level = Level(Block(), dim, node.stacked, index)
    inner = Scope(scope, scope.path, scope.order)
    with context.inside(level):
        if node.index is not None:
            inner.bind(node.index, Counter(index), context.depth)
        entering = [Value(v.type, n) for n, v in zip(carried, first, strict=True)]
        for name, value in zip(carried, entering, strict=True):
            inner.bind(name, value, context.depth)
        value = run(context, node.body, inner)
        leaving = [_leaving(context, n, inner, v, node) for n, v in zip(carried, first, strict=True)]
        collected = _collected(context, value, dim, node.body.span)
        updates = _updates(context, level, node)
    level.block.arguments = [index, *entering, *level.slices.values()]
    level.block.results = (*leaving, *collected, *updates.values())
    # What the loop's own outer loop slices is sliced there: `slices` holds values of the level around.
    operands = [*first, *level.slices]
    try:
        op = context.builder.build(
            "loop", operands, [level.block], dim=dim, carried=len(first), reverse=False,
            slices=tuple(dim.name for _ in level.slices),
        )  # fmt: skip
    except TypeRuleError as error:
        raise fail("E111", str(error), node.span, "look at what the loop carries and collects") from None
    results = list(op.results)
    for name in carried:
        bind(context, scope, name, results.pop(0))
    found = [results.pop(0) for _ in collected]
    for path in updates:
        context.levels[-1].updates[path] = results.pop(0)
    if not found:
        return None
    return tuple(found) if isinstance(value, tuple) else found[0]


def _axis(context: Context, node: tree.Loop, scope: Scope) -> Dim:
    dims = context.system.dims(node.dim, scope, context)
    if len(dims) != 1:
        raise fail("E118", f"a loop goes along one axis, not {len(dims)}", node.dim.span, "write one loop for each")
    (dim,) = dims
    if dim.shards:
        help = "examples of a batch are independent: operate on the whole axis at once"
        raise fail("E118", f"a loop along the grain's axis `{dim.name}`", node.dim.span, help)
    if any(level.dim is not None and level.dim.name == dim.name for level in context.levels):
        help = f"give the inner one another name: `dim other = {dim.name}`"
        raise fail("E118", f"a loop along `{dim.name}` inside a loop along `{dim.name}`", node.dim.span, help)
    return dim


def _rebound(body: tree.Body) -> list[str]:
    """The names that a body binds, inner loops and choices included, in order."""
    found: dict[str, None] = {}
    stack: list[Any] = [body]
    while stack:
        node = stack.pop(0)
        if isinstance(node, tree.Body):
            stack = [*node.statements, *stack]
        elif isinstance(node, tree.Bind):
            found.update(dict.fromkeys(n.id for n in node.names))
            stack.insert(0, node.value)
        elif isinstance(node, tree.Evaluated):
            stack.insert(0, node.value)
        elif isinstance(node, tree.Loop):
            stack.insert(0, node.body)
        elif isinstance(node, tree.If):
            stack = [node.then, *([node.otherwise] if node.otherwise is not None else []), *stack]
    return list(found)


def _is_data(value: Any) -> bool:
    return isinstance(value, (Value, Counter)) or is_known(value)


def _entering(context: Context, name: str, scope: Scope, node: tree.Loop) -> Value:
    binding = scope.find(name)
    assert binding is not None
    if not isinstance(binding.value, Value):
        help = f"give it a type before the loop: `{name}: f32[] = …`"
        raise fail("E122", f"the loop carries `{name}`, which is {describe(binding.value)}", node.span, help)
    return context.sliced(binding.value, binding.depth)


def _leaving(context: Context, name: str, inner: Scope, first: Value, node: tree.Loop) -> Value:
    """What the body leaves under a carried name, of the type it entered with."""
    value = as_tensor(context, inner.names[name].value, node.body.span)
    same = value.type.dtype == first.type.dtype and set(value.type.dims) == set(first.type.dims)
    if not same:
        message = (
            f"the loop carries `{name}` as {type_text(first.type)}, but its body makes {type_text(value.type)} of it"
        )
        span = _last_binding(node.body, name) or node.body.span
        raise fail("E122", message, span, f"give `{name}` its final type before the loop, or use another name inside")
    return context.broadcast(value, first.type.dims)


def _last_binding(body: tree.Body, name: str) -> Span | None:
    spans = [s.span for s in body.statements if isinstance(s, tree.Bind) and any(n.id == name for n in s.names)]
    return spans[-1] if spans else None


def _collected(context: Context, value: Any, dim: Dim, span: Span) -> list[Value]:
    """The body's value, one for each iteration."""
    if value is None:
        return []
    parts = [as_tensor(context, v, span) for v in (value if isinstance(value, tuple) else (value,))]
    for part in parts:
        if part.type.has(dim.name):
            message = f"the loop collects {type_text(part.type)} along `{dim.name}`, an axis it has already"
            raise fail(
                "E122", message, span, "rename the axis, or bind the value to a name so that it is not the body's"
            )
    return parts


def _updates(context: Context, level: Level, node: tree.Loop) -> dict[str, Value]:
    """Next versions of the states of blocks in a `repeat`: collected, as the states are stacked."""
    for path in level.updates:
        info = context.system.states[path]
        if not node.stacked or level.dim not in info.stack:
            name = path.rpartition(".")[2]
            help = "a block in a `scan` is used once for every step: keep its state out of the scan, or carry a value"
            raise fail("E133", f"`{name}'` is assigned once in every step of a `scan`", node.span, help)
    return level.updates
