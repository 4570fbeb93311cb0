"""What changes the state: `learn`, `transition`, `together`; optimizers and initializers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alphac.diagnostics import fail, nearest
from alphac.frontend import tree
from alphac.frontend.arithmetic import apply, as_tensor, coerce
from alphac.frontend.bodies import Entered, arguments, bind_arguments, run, scalar_loss
from alphac.frontend.expressions import evaluate
from alphac.frontend.paths import check_paths
from alphac.frontend.scope import Binding, Context, Level, Scope, Versions
from alphac.frontend.values import Axes, Callee, StateInfo, StateReference, describe
from alphac.ir.core import Block, Port, Value
from alphac.ir.ops.define import TypeRuleError
from alphac.ir.span import Span
from alphac.ir.typesys import I64, TensorType

if TYPE_CHECKING:
    from alphac.frontend.calls import Call
    from alphac.frontend.system import System


# ---------------------------------------------------------------------------------------------------------- statements
def learn(context: Context, node: tree.Learn, losses: list[tuple[Port, Value]], label: str) -> dict[str, Value]:
    """One `learn` statement; the next versions of parameters, optimizer states and blocks' states."""
    system = context.system
    paths = _targets(context, node)
    with context.at(node.span):
        rule = evaluate(context, node.optimizer, Scope(None, ""))
        if not isinstance(rule, Callee) or not isinstance(rule.declaration, tree.Optimizer):
            message = f"`with` takes an optimizer, not {describe(rule)}"
            raise fail("E117", message, node.optimizer.span, "e.g. `with adam(1e-3)`")
        current = [context.read_state(p, node.span) for p in paths]
        gradients, loss, updates = _gradients(context, node, paths, current, label)
        losses.append((Port("loss", label), loss))
        scopes = [_ParameterScope(p, v, g) for p, v, g in zip(paths, current, gradients, strict=True)]
        name = _optimizer_name(system, rule, node)
        with context.at(node.optimizer.span):
            found = _Rule(context, system, updates, system.orders_of[node]).run(rule, scopes, name, node.optimizer.span)
    updates.update(zip(paths, found, strict=True))
    return updates


def _gradients(
    context: Context, node: tree.Learn, paths: list[str], current: list[Value], label: str
) -> tuple[list[Value], Value, dict[str, Value]]:
    """The `grad` op: gradients, the loss, and next versions of the states of the blocks used."""
    arguments_ = [Value(v.type, p.rpartition(".")[2]) for p, v in zip(paths, current, strict=True)]
    level = Level(Block(list(arguments_)), overrides=dict(zip(paths, arguments_, strict=True)))
    context.system.number_sites(node.loss)
    context.training = True
    reading, context.reading = context.reading, set()
    try:
        with context.inside(level):
            value = run(context, node.loss, Scope(None, f"learn.{label}"))
            span = node.loss.statements[-1].span if node.loss.statements else node.loss.span
            loss = scalar_loss(context, value, span)
    finally:
        context.training = False
        used, context.reading = context.reading, context.reading | reading
    for path in paths:
        if path not in used:
            help = "remove it from the list, or let the loss depend on it"
            raise fail("E130", f"`{path}` is learned here, but this loss does not use it", node.span, help)
    check_paths(level.block, loss, list(zip(paths, arguments_, strict=True)), node.span)
    level.block.results = (loss, *level.updates.values())
    try:
        op = context.builder.build("grad", current, [level.block], wrt=len(current))
    except TypeRuleError as error:
        raise fail("E131", str(error), node.span, "learn parameters of a float type") from None
    results = list(op.results)
    updates = dict(zip(level.updates, results[1 : 1 + len(level.updates)], strict=True))
    return results[1 + len(level.updates) :], results[0], updates


def _targets(context: Context, node: tree.Learn) -> list[str]:
    """The parameters that a `learn` names, in order of declaration."""
    system = context.system
    found: dict[str, None] = {}
    params = [p for p in system.state_order() if system.states[p].kind == "param"]
    for target in node.targets:
        dotted = ".".join(target.parts)
        if not target.all:
            if dotted not in params:
                declared = system.declarations.get(dotted)
                if dotted in system.states or declared is not None:
                    help = "only a `param` is learned by gradient; a `state` changes by `transition`"
                    raise fail("E132", f"`{dotted}` is not a param", target.span, help)
                near = nearest(dotted, params)
                help = (
                    f"did you mean `{near}`?"
                    if near
                    else "params are declared by `param`; `region.*` names all of a region"
                )
                raise fail("E110", f"there is no param `{dotted}`", target.span, help)
            chosen = [dotted]
        else:
            chosen = [p for p in params if p.startswith(f"{dotted}.") or p in system.region_reads.get(dotted, ())]
            if not chosen:
                raise fail("E132", f"`{target}` names no param", target.span, _star_help(system, dotted))
        for path in chosen:
            if path in found and not target.all:
                raise fail("E132", f"`{path}` is listed twice", target.span, "list it once")
            found[path] = None
    for path in found:
        if not system.states[path].type.dtype.is_float:
            message = f"`{path}` is {system.states[path].type.dtype}: there is no gradient of whole numbers"
            raise fail("E131", message, node.span, "learn floats; change the rest by a `transition`")
    return sorted(found, key=lambda p: system.states[p].order)


def _star_help(system: System, dotted: str) -> str:
    regions = [n for n, d in system.declarations.items() if isinstance(d, tree.Region)]
    near = nearest(dotted, regions)
    return f"did you mean `{near}.*`?" if near else "`REGION.*` names the params that a region uses"


def transition(context: Context, node: tree.Transition, name: str) -> dict[str, Value]:
    """Next versions by a rule without gradient."""
    versions = Versions(top=True)
    scope = Scope(None, name, 0, versions)
    context.system.number_sites(node.body)
    with context.at(node.span):
        run(context, node.body, scope)
    if not versions.assigned:
        raise fail("E133", "this transition changes nothing", node.span, "assign a next version: `state' = …`")
    updates: dict[str, Value] = {}
    for name, binding in versions.assigned.items():
        path = versions.declared[name]
        updates[path] = binding.value
    return updates


# ----------------------------------------------------------------------------------------------------------- optimizers
@dataclass(eq=False)
class _ParameterScope:
    """One learned parameter: its path, its version on entry, its gradient."""

    path: str
    p: Value
    g: Value


def apply_optimizer(context: Context, callee: Callee, node: tree.Call, scope: Scope) -> Callee:
    """`adam(rate)`: a rule with its numbers."""
    if callee.bound is not None:
        help = f"write `p' = {_source(node)}` in the body of an optimizer"
        raise fail("E141", "a rule is applied where it has no parameter", node.span, help)
    return Callee(callee.declaration, arguments(context, callee.declaration, node, scope))


def _source(node: tree.Call) -> str:
    return f"{node.callee.id}(p, g)" if isinstance(node.callee, tree.Name) else "rule(p, g)"


def _optimizer_name(system: System, rule: Callee, node: tree.Learn) -> str:
    """Where the optimizer's states are: its name, numbered if several `learn`s use it."""
    name = rule.declaration.name
    count = system.optimizer_uses.get(name, 0) + 1
    system.optimizer_uses[name] = count
    return name if count == 1 else f"{name}_{count}"


class _Rule:
    """Runs an optimizer for all learned parameters, statement by statement, so that `total` can look at all of them."""

    def __init__(self, context: Context, system: System, updates: dict[str, Value], order: int) -> None:
        self.context, self.system, self.updates, self.order = context, system, updates, order

    def run(self, rule: Callee, parameters: list[_ParameterScope], name: str, span: Span) -> list[Value]:
        """The next version of every parameter."""
        declaration = rule.declaration
        context = self.context
        if rule.bound is None:
            rule = Callee(declaration, {})
            missing = [p.name for p in declaration.parameters if p.default is None and not p.rest]
            if missing:
                raise fail("E116", f"`{declaration.name}` needs `{missing[0]}`", span, f"write `{declaration.name}(…)`")
        assert rule.bound is not None
        context.system.number_sites(declaration.body)
        scopes: list[Scope] = []
        with Entered(context, name, span):
            for parameter in parameters:
                scopes.append(self._scope(declaration, rule.bound, parameter, f"{name}.{parameter.path}", span))
            for statement in declaration.body.statements:
                self._statement(statement, scopes, parameters, name)
        return [self._finish(s, p, declaration) for s, p in zip(scopes, parameters, strict=True)]

    def _scope(
        self, declaration: tree.Callable, bound: dict[str, Any], parameter: _ParameterScope, path: str, span: Span
    ) -> Scope:
        versions = Versions({"p": parameter.path}, {"p": parameter.p.type})
        scope = Scope(None, path, self.order, versions)
        bind_arguments(self.context, declaration, bound, scope, span)
        scope.bind("p", parameter.p, self.context.depth)
        scope.bind("g", parameter.g, self.context.depth)
        return scope

    def _statement(
        self, node: tree.Statement, scopes: list[Scope], parameters: list[_ParameterScope], name: str
    ) -> None:
        context = self.context
        with context.at(node.span):
            if isinstance(node, tree.Declare):
                for scope, parameter in zip(scopes, parameters, strict=True):
                    for entry in node.entries:
                        self._declare(node, entry, scope, parameter)
                return
            inner = self._inner_rule(node, scopes)
            if inner is not None:
                assert isinstance(node, tree.Prime) and isinstance(node.value, tree.Call)
                values = self._apply_inner(inner, node.value, scopes, parameters, name)
                for scope, value in zip(scopes, values, strict=True):
                    assert scope.versions is not None
                    if "p" in scope.versions.assigned:
                        raise fail("E133", "`p'` is assigned twice", node.span, "an optimizer makes one next version")
                    scope.versions.assigned["p"] = Binding(value, context.depth)
                return
            before = [dict(s.names) for s in scopes]
            outer = context.lockstep
            context.lockstep = list(zip(scopes, before, strict=True))
            context.totals_here = {}
            try:
                for scope in scopes:
                    run(context, tree.Body(node.span, (node,)), scope)
            finally:
                context.lockstep = outer

    def _inner_rule(self, node: tree.Statement, scopes: list[Scope]) -> Callee | None:
        """`p' = inner(p, g)`: the rule that an optimizer was given as an argument."""
        if not (isinstance(node, tree.Prime) and isinstance(node.value, tree.Call)):
            return None
        callee = node.value.callee
        if node.name != "p" or not isinstance(callee, tree.Name) or not scopes:
            return None
        binding = scopes[0].find(callee.id)
        value = binding.value if binding is not None else None
        return value if isinstance(value, Callee) and isinstance(value.declaration, tree.Optimizer) else None

    def _apply_inner(
        self, rule: Callee, node: tree.Call, scopes: list[Scope], parameters: list[_ParameterScope], name: str
    ) -> list[Value]:
        context = self.context
        if len(node.arguments) != 2:
            raise fail("E116", "a rule is applied to a parameter and its gradient", node.span, "write `rule(p, g)`")
        inner: list[_ParameterScope] = []
        for scope, parameter in zip(scopes, parameters, strict=True):
            p, g = (
                coerce(context, evaluate(context, a.value, scope), parameter.p.type, "it", a.span)
                for a in node.arguments
            )
            inner.append(_ParameterScope(parameter.path, p, g))
        return self.run(rule, inner, f"{name}.{rule.declaration.name}", node.span)

    def _declare(self, node: tree.Declare, entry: tree.Entry, scope: Scope, parameter: _ParameterScope) -> None:
        """A state of the optimizer for one parameter."""
        context = self.context
        if node.kind != "state":
            raise fail("E141", "an optimizer has states, not params", node.span, "write `state`")
        path = f"{scope.path}.{entry.name}"
        if entry.type is not None:
            type = context.system.type(entry.type, scope, context)
        elif isinstance(entry.value, tree.Like):
            type = as_tensor(context, evaluate(context, entry.value.model, scope), entry.span).type
        else:
            type = as_tensor(context, evaluate(context, entry.value, scope), entry.span).type
        initial = scope.constants()
        initial.bind("p", StateReference(parameter.path), 0)
        order = (1 << 30, len(self.system.states))
        self.system.declare(StateInfo(path, type, "optimizer", order, entry.value, initial, context.place(entry.span)))
        scope.bind(entry.name, StateReference(path), context.depth)
        assert scope.versions is not None
        scope.versions.declared[entry.name] = path

    def _finish(self, scope: Scope, parameter: _ParameterScope, declaration: tree.Callable) -> Value:
        """The parameter's next version; those of the optimizer's states are noted."""
        versions = scope.versions
        assert versions is not None
        for name, binding in versions.assigned.items():
            if name != "p":
                self.updates[versions.declared[name]] = binding.value
        if "p" not in versions.assigned:
            help = "an optimizer says what the parameter becomes: `p' = p - rate * g`"
            raise fail("E133", f"the optimizer `{declaration.name}` does not assign `p'`", declaration.span, help)
        return versions.assigned["p"].value


def total(call: Call) -> Any:
    """The sum of an expression over all learned parameters, in order of declaration."""
    context = call.context
    if not context.lockstep:
        raise fail(
            "E141", "`total` sums over learned parameters, and there are none here", call.span, "use it in an optimizer"
        )
    node = call.node.arguments[0].value
    if call.node in context.totals_here:
        return context.totals_here[call.node]
    parts: list[Any] = []
    for scope, names in context.lockstep:
        view = Scope(None, scope.path, scope.order, scope.versions)
        view.names = dict(names)
        value = evaluate(context, node, view)
        if isinstance(value, Value) and value.type.dims:
            raise fail(
                "E114",
                f"`total` sums single numbers, not {describe(value)}",
                node.span,
                "reduce it: `total(sum(g * g))`",
            )
        parts.append(value)
    result = parts[0]
    for part in parts[1:]:
        result = apply(context, "add", [result, part], [call.span, call.span], call.span)
    context.totals_here[call.node] = result
    return result


# --------------------------------------------------------------------------------------------------------- initializers
def initial_value(context: Context, info: StateInfo) -> Value:
    """The first version of a state, in `initialize`. A stacked one is made slice by slice."""
    return _stacked(context, info, list(info.stack))


def _stacked(context: Context, info: StateInfo, stack: list[Any]) -> Value:
    if not stack:
        return _element(context, info)
    dim = stack[0]
    index = Value(TensorType(I64), "index")
    level = Level(Block(), dim, True, index)
    with context.inside(level):
        value = _stacked(context, info, stack[1:])
    level.block.arguments = [index, *level.slices.values()]
    level.block.results = (value,)
    op = context.builder.build(
        "loop", list(level.slices), [level.block], dim=dim, carried=0, reverse=False,
        slices=tuple(dim.name for _ in level.slices),
    )  # fmt: skip
    return op.result


def _element(context: Context, info: StateInfo) -> Value:
    scope = Scope(info.scope, info.path, info.order[0])
    context.initial = info.element
    try:
        with context.at(info.span):
            value = evaluate(context, info.value, scope)
            if isinstance(value, Callee) and isinstance(value.declaration, tree.Initializer):
                value = _initialized(context, value, info)
            return coerce(context, value, info.element, f"the first version of `{info.path}`", info.value.span)
    finally:
        context.initial = None


def _initialized(context: Context, callee: Callee, info: StateInfo) -> Any:
    """Run an initializer. It sees the declared axes as `shape`, and `fan_in` and `fan_out`: the last axis is the output
    and the others are the input."""
    declaration = callee.declaration
    scope = Scope(None, info.path, info.order[0])
    sizes = info.element.shape
    fan_in = 1
    for size in sizes[:-1]:
        fan_in *= size
    scope.bind("shape", Axes(info.element.dims), 0)
    scope.bind("fan_in", fan_in, 0)
    scope.bind("fan_out", sizes[-1] if sizes else 1, 0)
    context.system.number_sites(declaration.body)
    with Entered(context, declaration.name, info.value.span):
        bind_arguments(context, declaration, callee.bound or {}, scope, info.value.span)
        value = run(context, declaration.body, scope)
    if isinstance(value, Callee) and isinstance(value.declaration, tree.Initializer):
        return _initialized(context, value, info)
    return value
