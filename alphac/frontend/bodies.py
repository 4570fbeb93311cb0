"""Bodies: their statements, and what a call of a `fn`, `block` or `region` makes of them."""

from __future__ import annotations

from typing import Any

from alphac.diagnostics import fail
from alphac.frontend import tree
from alphac.frontend.arithmetic import as_tensor, coerce
from alphac.frontend.contracts import asked
from alphac.frontend.expressions import evaluate
from alphac.frontend.scope import Binding, Context, Scope, Versions
from alphac.frontend.values import (
    EVERY,
    Axes,
    Callee,
    Counter,
    StateInfo,
    StateReference,
    describe,
    dims_text,
    type_text,
)
from alphac.ir.core import Value
from alphac.ir.span import Span
from alphac.ir.typesys import Dim, TensorType

MAXIMAL_CALLS = 100


def run(context: Context, body: tree.Body, scope: Scope) -> Any:
    """Do a body's statements; the value of the last one, or None."""
    value: Any = None
    for statement in body.statements:
        with context.at(statement.span):
            value = _statement(context, statement, scope)
    return value


def _statement(context: Context, node: tree.Statement, scope: Scope) -> Any:
    if isinstance(node, tree.Bind):
        return _bind(context, node, scope)
    if isinstance(node, tree.Prime):
        return _prime(context, node, scope)
    if isinstance(node, tree.Declare):
        return _declare(context, node, scope)
    if isinstance(node, tree.Dims):
        for entry in node.entries:
            (dim,) = context.system.dims(entry.value, scope, context)
            name = f"{scope.owner}.{entry.name}" if scope.owner else entry.name
            scope.bind(entry.name, Dim(name, dim.size), context.depth)
        return None
    assert isinstance(node, tree.Evaluated)
    return evaluate(context, node.value, scope)


def _bind(context: Context, node: tree.Bind, scope: Scope) -> None:
    value = evaluate(context, node.value, scope)
    if node.type is not None:
        type = context.system.type(node.type, scope, context)
        value = coerce(context, value, type, f"`{node.names[0].id}`", node.value.span)
    if len(node.names) == 1:
        if value is None:
            raise fail("E117", "there is no value here to give a name to", node.value.span, "end the body with a value")
        bind(context, scope, node.names[0].id, value)
        return
    for name, part in zip(node.names, _parts(context, node, value), strict=True):
        bind(context, scope, name.id, part)


def _parts(context: Context, node: tree.Bind, value: Any) -> list[Any]:
    """`q, k, v = x`: several values, axes, or a tensor's elements along its first axis."""
    from alphac.frontend.movement import element_at

    wanted = len(node.names)
    if isinstance(value, tuple):
        parts = list(value)
        size = len(parts)
    else:
        tensor = as_tensor(context, value, node.value.span)
        size = tensor.type.dims[0].size if tensor.type.dims else 1
        parts = []
        if tensor.type.dims and size == wanted:
            parts = [element_at(context, tensor, tensor.type.dims[0], i, node.span) for i in range(size)]
    if size != wanted or not parts:
        raise fail("E114", f"{wanted} names for {describe(value)}", node.span, "as many names as values")
    return parts


def bind(context: Context, scope: Scope, name: str, value: Any) -> None:
    """Give a value a name."""
    if isinstance(value, Value) and not value.hint:
        value.hint = name
    scope.bind(name, value, context.depth)


# ------------------------------------------------------------------------------------------------------------- versions
def _prime(context: Context, node: tree.Prime, scope: Scope) -> None:
    """`m' = value`: the next version of state m."""
    versions = scope.versions
    if versions is None:
        help = "a state changes in a `transition`, a `block` or an `optimizer`; elsewhere make a binding with `=`"
        raise fail("E133", f"`{node.name}'` cannot be assigned here", node.span, help)
    if node.name in versions.assigned:
        raise fail(
            "E133", f"`{node.name}'` is assigned twice", node.span, "a statement makes one next version of a state"
        )
    path, type = _target(context, node, scope, versions)
    value = evaluate(context, node.value, scope)
    coerced = coerce(context, value, type, f"`{node.name}'`", node.value.span)
    versions.assigned[node.name] = Binding(coerced, context.depth)
    versions.declared[node.name] = path


def _target(context: Context, node: tree.Prime, scope: Scope, versions: Versions) -> tuple[str, TensorType]:
    """The path and the type, as seen here, of the state that gets a next version."""
    if node.name in versions.types:
        return versions.declared[node.name], versions.types[node.name]
    if node.name in versions.declared:
        path = versions.declared[node.name]
        return path, context.read_state(path, node.span).type
    binding = scope.find(node.name)
    declaration = context.system.declarations.get(node.name)
    if binding is None and isinstance(declaration, tree.Entry) and versions.top:
        reference = context.system.lookup(node.name, node.span, scope, context)
        assert isinstance(reference, StateReference)
        return reference.path, context.read_state(reference.path, node.span).type
    if binding is not None or declaration is not None:
        message = f"`{node.name}` is not a state that this body may change"
        raise fail("E133", message, node.span, "declare it by `state`, or make a binding with `=`")
    raise context.system.unknown(node.name, node.span, scope)


def _declare(context: Context, node: tree.Declare, scope: Scope) -> None:
    """`param` and `state` in a block: one copy for each place in the text where the block is used."""
    if scope.order == 0 or scope.versions is None:
        raise fail(
            "E141", f"`{node.kind}` stands outside of a block", node.span, "declare it at the top level or in a block"
        )
    stack = tuple(level.dim for level in context.levels if level.stacked and level.dim is not None)
    for entry in node.entries:
        path = f"{scope.path}.{entry.name}"
        if entry.type is None:
            raise fail(
                "E114", f"`{entry.name}` has no type", entry.span, f"write `{node.kind} {entry.name}: f32[…] = …`"
            )
        element = context.system.type(entry.type, scope, context)
        if element.grain is not None:
            help = "a state outlives the batch: its axes are other dims"
            raise fail("E118", f"`{entry.name}` has the grain's axis", entry.span, help)
        names = {d.name for d in element.dims}
        if clash := next((d for d in stack if d.name in names), None):
            help = f"give the axis another name: `dim other = {clash.name}`"
            raise fail("E118", f"`repeat {clash.name}` stacks `{entry.name}`, which has that axis", entry.span, help)
        type = TensorType(element.dtype, (*stack, *element.dims))
        order = (scope.order, len(context.system.states))
        place = context.place(entry.span)
        info = StateInfo(path, type, node.kind, order, entry.value, scope.constants(), place, stack)
        context.system.declare(info)
        scope.bind(entry.name, StateReference(path), context.depth)
        if node.kind == "state":
            scope.versions.declared[entry.name] = path


def update_states(context: Context, versions: Versions) -> None:
    """Note the next versions that a block made of its states: applied once per step, by the first use under `learn`."""
    for name, binding in versions.assigned.items():
        path = versions.declared[name]
        if context.training and path not in context.applied:
            context.applied.add(path)
            context.levels[-1].updates[path] = binding.value


# ---------------------------------------------------------------------------------------------------------------- calls
def call(context: Context, callee: Callee, node: tree.Call, scope: Scope) -> Any:
    """Apply a declared function."""
    from alphac.frontend import learning

    declaration = callee.declaration
    if isinstance(declaration, tree.Optimizer):
        return learning.apply_optimizer(context, callee, node, scope)
    if isinstance(declaration, tree.Initializer):
        given = arguments(context, declaration, node, scope)
        return Callee(declaration, given)
    given = arguments(context, declaration, node, scope)
    site = context.system.site(node)
    with Entered(context, declaration.name, node.span):
        if isinstance(declaration, tree.Region):
            return call_region(context, declaration, given, node.span)
        path = f"{scope.path}.{site}" if scope.path else site
        if isinstance(declaration, tree.BlockDeclaration):
            if scope.order == 0:
                help = f"call `{declaration.name}` in a region, and the region here"
                raise fail("E141", f"the block `{declaration.name}` is used outside of a region", node.span, help)
            return _call_block(context, declaration, given, path, scope.order, node)
        inner = Scope(None, path, scope.order)
        inner.versions = None
        return _call_fn(context, declaration, given, inner, node)


class Entered:
    """Keeps the chain of calls, and refuses one that does not end."""

    def __init__(self, context: Context, name: str, span: Span) -> None:
        self.context, self.name, self.span = context, name, span

    def __enter__(self) -> None:
        names = [n for n, _ in self.context.calls]
        if self.name in names:
            raise fail("E120", f"`{self.name}` calls itself", self.span, "use `repeat` or `scan`")
        if len(names) >= MAXIMAL_CALLS:
            raise fail(
                "E103",
                f"calls are nested more than {MAXIMAL_CALLS} deep",
                self.span,
                "call fewer functions inside others",
            )
        self.context.calls.append((self.name, self.span))

    def __exit__(self, *_: object) -> None:
        self.context.calls.pop()


def arguments(context: Context, declaration: tree.Callable, node: tree.Call, scope: Scope) -> dict[str, Any]:
    """The values given for a function's parameters, by name; defaults are left out."""
    given: dict[str, Any] = {}
    positional = [p for p in declaration.parameters if not p.rest]
    rest = next((p for p in declaration.parameters if p.rest), None)
    extra: list[Dim] = []
    named = False  # axes were given, be it none
    taken = 0
    for argument in node.arguments:
        value = evaluate(context, argument.value, scope)
        if argument.name is not None:
            if argument.name not in {p.name for p in positional}:
                known = ", ".join(f"`{p.name}`" for p in positional) or "nothing"
                message = f"`{declaration.name}` has no parameter `{argument.name}`"
                raise fail("E116", message, argument.span, f"it takes {known}")
            if argument.name in given:
                raise fail("E116", f"`{argument.name}` is given twice", argument.span, "give it once")
            given[argument.name] = value
        elif rest is not None and taken >= _before_rest(declaration):
            if not isinstance(value, (Dim, Axes)):
                raise fail(
                    "E116", f"`{declaration.name}` takes axes here, not {describe(value)}", argument.span, "name dims"
                )
            named = named or value is not EVERY
            extra += [value] if isinstance(value, Dim) else list(value)
        elif taken < len(positional):
            name = positional[taken].name
            if name in given:
                raise fail("E116", f"`{name}` is given twice", argument.span, "give it once")
            given[name] = value
            taken += 1
        else:
            count = len(positional)
            message = f"`{declaration.name}` takes {count} argument{'s' if count != 1 else ''}, and here is one more"
            raise fail("E116", message, argument.span, _signature(declaration))
    for parameter in positional:
        if parameter.name not in given and parameter.default is None:
            raise fail("E116", f"`{declaration.name}` needs `{parameter.name}`", node.span, _signature(declaration))
    if rest is not None:
        given[rest.name] = Axes(extra) if named else EVERY
    return given


def _before_rest(declaration: tree.Callable) -> int:
    return next(i for i, p in enumerate(declaration.parameters) if p.rest)


def _signature(declaration: tree.Callable) -> str:
    parts = [
        f"{p.name}…" if p.rest else p.name + (" = …" if p.default is not None else "") for p in declaration.parameters
    ]
    return f"it is `{declaration.name}({', '.join(parts)})`"


def bind_arguments(
    context: Context, declaration: tree.Callable, given: dict[str, Any], inner: Scope, span: Span
) -> None:
    """Bind parameters in the callee's scope: given values, or defaults evaluated there; types are checked."""
    for parameter in declaration.parameters:
        if parameter.name in given:
            value = given[parameter.name]
        else:
            assert parameter.default is not None
            value = evaluate(context, parameter.default, inner)
        if parameter.type is not None:
            value = _as_declared(context, value, parameter, inner, declaration.name, span)
        inner.bind(parameter.name, value, context.depth)


def _as_declared(
    context: Context, value: Any, parameter: tree.Parameter, inner: Scope, function: str, span: Span
) -> Value:
    """An argument as its parameter's type says: the same axes by name, put in order. `batch` matches any count."""
    assert parameter.type is not None
    what = f"`{parameter.name}` of `{function}`"
    grain = context.system.grain
    if isinstance(value, Value) and grain is not None and inner.find(grain.name) is None:
        declared = context.system.type(parameter.type, inner, context)
        if declared.has(grain.name):
            unmatched = [d for d in value.type.dims if not declared.has(d.name) or d.name == grain.name]
            if len(unmatched) == 1:
                inner.bind(grain.name, unmatched[0], context.depth)
    type = context.system.type(parameter.type, inner, context)
    if isinstance(value, Value) and {d.name for d in value.type.dims} != {d.name for d in type.dims}:
        message = f"{what} is {type_text(type)}, not {type_text(value.type)}"
        raise fail("E114", message, span, _axes_help(value.type, type))
    return coerce(context, value, type, what, span)


def _axes_help(found: TensorType, wanted: TensorType) -> str:
    missing = tuple(d for d in wanted.dims if not found.has(d.name))
    extra = tuple(d for d in found.dims if not wanted.has(d.name))
    if missing and extra:
        return f"it has {dims_text(extra)} where {dims_text(missing)} is wanted"
    return f"it lacks {dims_text(missing)}" if missing else f"it has {dims_text(extra)} beside"


def _call_fn(context: Context, declaration: tree.Callable, given: dict[str, Any], inner: Scope, node: tree.Call) -> Any:
    context.system.number_sites(declaration.body)
    inner.owner = declaration.name
    bind_arguments(context, declaration, given, inner, node.span)
    value = run(context, declaration.body, inner)
    if value is None:
        raise fail("E117", f"`{declaration.name}` has no value", node.span, "end its body with an expression")
    result = getattr(declaration, "result", None)
    if result is not None:
        type = context.system.type(result, inner, context)
        value = _result(context, value, type, declaration.name, declaration.body)
    return value


def _result(context: Context, value: Any, type: TensorType, name: str, body: tree.Body) -> Value:
    """A function's value, checked against the type that it declares."""
    span = body.statements[-1].span if body.statements else body.span
    if isinstance(value, Value) and {d.name for d in value.type.dims} != {d.name for d in type.dims}:
        message = f"`{name}` results in {type_text(type)}, but its body makes {type_text(value.type)}"
        raise fail("E114", message, span, _axes_help(value.type, type))
    return coerce(context, value, type, f"the result of `{name}`", span)


def _call_block(
    context: Context, declaration: tree.BlockDeclaration, given: dict[str, Any], path: str, order: int, node: tree.Call
) -> Any:
    inner = Scope(None, path, order, Versions())
    value = _call_fn(context, declaration, given, inner, node)
    assert inner.versions is not None
    update_states(context, inner.versions)
    return value


def call_region(context: Context, declaration: tree.Region, given: dict[str, Any], span: Span) -> Any:
    """A region's results on given inputs: one value, or several."""
    system = context.system
    inner = Scope(None, declaration.name, system.orders[declaration.name], Versions())
    inner.owner = declaration.name
    system.number_sites(declaration.body)
    for parameter in declaration.parameters:
        if parameter.type is None or parameter.rest:
            help = f"write `{parameter.name}: f32[batch, …]`"
            raise fail(
                "E114", f"input `{parameter.name}` of region `{declaration.name}` has no type", parameter.span, help
            )
    before, exact = context.reading, context.fast
    context.reading = set()
    try:
        bind_arguments(context, declaration, given, inner, span)
        context.fast = declaration.numeric is not None and declaration.numeric.mode == "fast"
        value = run(context, declaration.body, inner)
        assert inner.versions is not None
        update_states(context, inner.versions)
        system.region_reads.setdefault(declaration.name, set()).update(context.reading)
    finally:
        context.reading |= before
        context.fast = exact
    found = _region_results(context, declaration, value, inner)
    needs = asked(system, declaration)
    if needs is None:
        return found
    several = found if isinstance(found, tuple) else (found,)
    marked = tuple(
        context.builder("require", v, region=declaration.name, needs=needs) if isinstance(v, Value) else v
        for v in several
    )
    return marked if isinstance(found, tuple) else marked[0]


def _region_results(context: Context, declaration: tree.Region, value: Any, inner: Scope) -> Any:
    last = declaration.body.statements[-1].span if declaration.body.statements else declaration.body.span
    if value is None or isinstance(value, (Callee, Axes, str)):
        raise fail("E117", f"region `{declaration.name}` has no value", last, "end its body with an expression")
    types = [context.system.type(t, inner, context) for _, t in declaration.results]
    if len(types) == 1:
        return _result(context, value, types[0], declaration.name, declaration.body)
    if not isinstance(value, tuple) or len(value) != len(types):
        message = f"region `{declaration.name}` has {len(types)} results, but its body makes {describe(value)}"
        raise fail("E114", message, last, f"end it with `({', '.join(n for n, _ in declaration.results)})`")
    return tuple(
        _result(context, v, t, f"{declaration.name}.{n}", declaration.body)
        for v, t, (n, _) in zip(value, types, declaration.results, strict=True)
    )


def scalar_loss(context: Context, value: Any, span: Span) -> Value:
    """The value of a loss: one float."""
    if isinstance(value, Counter):
        value = as_tensor(context, value, span)
    if not isinstance(value, Value) or value.type.dims or not value.type.dtype.is_float:
        found = describe(value)
        raise fail("E134", f"a loss is one number, not {found}", span, "reduce it: `mean(…)` or `sum(…)`")
    return value
