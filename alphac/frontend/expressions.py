"""What an expression means, by its form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alphac.diagnostics import Label, fail
from alphac.frontend import tree
from alphac.frontend.arithmetic import OPERATORS, apply, as_tensor, coerce
from alphac.frontend.scope import Context, Scope
from alphac.frontend.values import (
    Axes,
    Builtin,
    Callee,
    ColumnReference,
    Counter,
    DataReference,
    ElementType,
    StateReference,
    describe,
    dims_text,
    is_known,
    number,
    type_text,
)
from alphac.ir.core import Value
from alphac.ir.span import Span
from alphac.ir.typesys import I64, LANGUAGE_DTYPES, Dim, TensorType


def evaluate(context: Context, node: tree.Expression, scope: Scope) -> Any:
    """The value of an expression. Raises Diagnostics."""
    with context.at(node.span):
        return _FORMS[type(node)](context, node, scope)


def evaluate_tensor(context: Context, node: tree.Expression, scope: Scope) -> Value:
    """The value of an expression that must have elements."""
    return as_tensor(context, evaluate(context, node, scope), node.span)


# ---------------------------------------------------------------------------------------------------------------- atoms
def _number(context: Context, node: tree.Number, scope: Scope) -> Any:
    return node.value


def _string(context: Context, node: tree.String, scope: Scope) -> Any:
    return node.value


def _name(context: Context, node: tree.Name, scope: Scope) -> Any:
    return settle(context, named(context, node.id, node.span, scope), node.span)


def named(context: Context, name: str, span: Span, scope: Scope) -> Any:
    """What a name stands for; states and columns are left as references."""
    from alphac.frontend.calls import BUILTINS, CONSTANTS

    binding = scope.find(name)
    if binding is not None:
        if isinstance(binding.value, Value):
            return context.sliced(binding.value, binding.depth)
        return binding.value
    if name == "training":
        return context.training
    if name == "step":
        with context.outside():
            return Counter(context.step() if context.name == "step" else context.constant(0, TensorType(I64)))
    declared = context.system.declarations
    if name not in declared:
        if name in LANGUAGE_DTYPES:
            return ElementType(LANGUAGE_DTYPES[name])
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name in BUILTINS:
            return Builtin(name, BUILTINS[name])
    return context.system.lookup(name, span, scope, context)


def settle(context: Context, value: Any, span: Span) -> Any:
    """A reference to a state or a column as the tensor that it is here."""
    if isinstance(value, StateReference):
        return context.read_state(value.path, span)
    if isinstance(value, ColumnReference) and not value.split:
        from alphac.frontend.columns import read_column

        return read_column(context, value, span)
    return value


def _primed(context: Context, node: tree.Primed, scope: Scope) -> Any:
    versions = scope.versions
    if versions is None:
        raise fail(
            "E133", f"`{node.id}'` has no meaning here", node.span, "only a transition, a block or an optimizer has it"
        )
    if node.id not in versions.assigned:
        raise fail(
            "E133", f"`{node.id}'` is read before it is assigned", node.span, f"assign it above: `{node.id}' = …`"
        )
    binding = versions.assigned[node.id]
    return context.sliced(binding.value, binding.depth) if isinstance(binding.value, Value) else binding.value


def _tuple(context: Context, node: tree.Tuple, scope: Scope) -> Any:
    values = tuple(evaluate(context, item, scope) for item in node.items)
    return Axes(values) if values and all(isinstance(v, Dim) for v in values) else values


def _attribute(context: Context, node: tree.Attribute, scope: Scope) -> Any:
    from alphac.frontend.columns import member

    if isinstance(node.target, tree.Name):
        target = named(context, node.target.id, node.target.span, scope)
    else:
        target = evaluate(context, node.target, scope)
    if isinstance(target, DataReference):
        return settle(context, member(context.system, target, node.name, node.span), node.span)
    raise fail(
        "E117", f"{describe(target)} has no `.{node.name}`", node.span, "only data has parts: `digits.train.image`"
    )


# ------------------------------------------------------------------------------------------------------------ operators
def _unary(context: Context, node: tree.Unary, scope: Scope) -> Any:
    value = evaluate(context, node.operand, scope)
    return apply(context, "neg" if node.operator == "-" else "not", [value], [node.operand.span], node.span)


def _binary(context: Context, node: tree.Binary, scope: Scope) -> Any:
    left, right = evaluate(context, node.left, scope), evaluate(context, node.right, scope)
    if node.operator == "@":
        return _join(context, node, left, right, scope)
    if (
        isinstance(left, (Axes, Dim))
        and isinstance(right, (Axes, Dim))
        and (node.operator == "&" or isinstance(left, Axes) or isinstance(right, Axes))
    ):
        return _axes_operator(node, left, right)
    if isinstance(left, ElementType) and isinstance(right, ElementType) and node.operator in ("==", "!="):
        return (left == right) == (node.operator == "==")
    if node.operator == "&":
        raise fail("E117", "`&` takes the axes that both sides have", node.span, "for bools write `and`")
    return apply(context, OPERATORS[node.operator], [left, right], [node.left.span, node.right.span], node.span)


def _axes_operator(node: tree.Binary, left: Axes | Dim, right: Axes | Dim) -> Axes | bool:
    """`-`: the axes of the left side only; `&`: those of both; `+`: those of either."""
    a = left if isinstance(left, Axes) else Axes((left,))
    b = right if isinstance(right, Axes) else Axes((right,))
    names = {d.name for d in b}
    match node.operator:
        case "-":
            return Axes(d for d in a if d.name not in names)
        case "&":
            return Axes(d for d in a if d.name in names)
        case "+":
            mine = {d.name for d in a}
            return Axes((*a, *(d for d in b if d.name not in mine)))
        case "==":
            return a == b
        case "!=":
            return a != b
        case _:
            raise fail("E117", f"`{node.operator}` is not for axes", node.span, "axes have `-`, `+` and `&`")


def _join(context: Context, node: tree.Binary, left: Any, right: Any, scope: Scope) -> Value:
    """`x @ w`: contracts the last axis of x with the first of w."""
    from alphac.frontend.contraction import contract

    a, b = as_tensor(context, left, node.left.span), as_tensor(context, right, node.right.span)
    labels = (Label(node.left.span, type_text(a.type)), Label(node.right.span, type_text(b.type)))
    for value, at in ((a, node.left.span), (b, node.right.span)):
        if not value.type.dims:
            raise fail("E112", "`@` joins axes, and a single number has none", at, "multiply by `*`", labels)
    x, w = a.type.dims[-1], b.type.dims[0]
    if x != w:
        message = f"`@` joins `{x.name}` ({x.size}) with `{w.name}` ({w.size})"
        raise fail("E112", message, node.left.span, _join_help(context, node, a, b, scope), labels)
    if a.type.dtype != b.type.dtype:
        help = f"cast one of them: `{a.type.dtype}(…)`"
        raise fail("E113", f"`@` joins {a.type.dtype} with {b.type.dtype}", node.left.span, help, labels)
    return contract(context, a, b, {x.name}, node.span)


def _join_help(context: Context, node: tree.Binary, a: Value, b: Value, scope: Scope) -> str:
    """A state that would fit on the right of `@`, or what else may have been meant."""
    wanted = a.type.dims[-1].name
    last = b.type.dims[-1].name
    fitting = [
        (info.type.dims[-1].name != last, abs(len(name) - len(str(getattr(node.right, "id", "")))), name)
        for name, info in context.system.states.items()
        if len(info.type.dims) > 1 and info.type.dims[0].name == wanted and "." not in name
    ]
    if isinstance(node.right, tree.Name) and fitting:
        name = min(fitting)[2]
        type = type_text(context.system.states[name].type)
        return f"did you mean `{name}`, {'an' if type[0] == 'f' or type[0] == 'i' else 'a'} {type}?"
    if b.type.has(wanted):
        return f"`{wanted}` is not the first axis on the right: use `dot(x, y, {wanted})`, or `einsum`"
    return "the last axis on the left and the first on the right must be the same dim"


def _like(context: Context, node: tree.Like, scope: Scope) -> Value:
    model = evaluate_tensor(context, node.model, scope)
    return coerce(context, evaluate(context, node.value, scope), model.type, "the value", node.span)


def _index(context: Context, node: tree.Index, scope: Scope) -> Any:
    """`table[i]`: along the first axes of table that i lacks; `x[0]`: the first along the first axis."""
    from alphac.frontend.movement import element_at, gather_at

    target = evaluate(context, node.target, scope)
    if isinstance(target, ElementType):
        raise fail(
            "E101", f"`{target.dtype}[…]` is a type, and a value is expected", node.span, f"cast by `{target.dtype}(x)`"
        )
    if isinstance(target, tuple):
        position = evaluate(context, node.indices[0], scope)
        known = number(position) if is_known(position) else None
        if len(node.indices) != 1 or not isinstance(known, int) or not -len(target) <= known < len(target):
            raise fail("E123", f"there are {len(target)} values here", node.span, "write a position among them")
        return target[known]
    value = as_tensor(context, target, node.target.span)
    for part in node.indices:
        index = evaluate(context, part, scope)
        if is_known(index) and not isinstance(index, bool):
            if not value.type.dims:
                raise fail("E123", "a single number has no elements to choose from", node.span, "remove the index")
            value = element_at(context, value, value.type.dims[0], number(index), part.span)
            continue
        at = as_tensor(context, index, part.span)
        free = [d for d in value.type.dims if not at.type.has(d.name)]
        if not free:
            message = f"{type_text(value.type)} has no axis beside those of its index {dims_text(at.type.dims)}"
            raise fail("E123", message, node.span, "an index chooses along the first axis that it lacks")
        value = gather_at(context, value, at, free[0], part.span)
    return value


# --------------------------------------------------------------------------------------------------------------- calls
def _call(context: Context, node: tree.Call, scope: Scope) -> Any:
    from alphac.frontend import bodies
    from alphac.frontend.calls import Call

    if isinstance(node.callee, tree.Name):
        callee = named(context, node.callee.id, node.callee.span, scope)
    else:
        callee = evaluate(context, node.callee, scope)
    if isinstance(callee, Builtin):
        return callee.apply(Call(context, node, scope, callee.name))
    if isinstance(callee, ElementType):
        return _cast(context, node, callee, scope)
    if isinstance(callee, Callee):
        return bodies.call(context, callee, node, scope)
    raise fail(
        "E117", f"{describe(settle(context, callee, node.span))} cannot be called", node.callee.span, "remove the `(`"
    )


def _cast(context: Context, node: tree.Call, callee: ElementType, scope: Scope) -> Any:
    if len(node.arguments) != 1 or node.arguments[0].name is not None:
        raise fail("E116", f"`{callee.dtype}` casts one value", node.span, f"write `{callee.dtype}(x)`")
    value = evaluate(context, node.arguments[0].value, scope)
    if isinstance(value, Value):
        return context.cast(value, callee.dtype)
    if isinstance(value, Counter) or is_known(value):
        from alphac.frontend.arithmetic import tensor

        return tensor(context, value, callee.dtype)
    raise fail("E117", f"`{callee.dtype}` casts tensors, not {describe(value)}", node.span, "give it a tensor")


def _loop(context: Context, node: tree.Loop, scope: Scope) -> Any:
    from alphac.frontend.loops import loop

    return loop(context, node, scope)


def _if(context: Context, node: tree.If, scope: Scope) -> Any:
    from alphac.frontend.bodies import run

    condition = evaluate(context, node.condition, scope)
    if not isinstance(condition, bool):
        help = "the compiler chooses here; to choose per element write `where(condition, x, y)`"
        raise fail(
            "E121", f"`if` needs a bool known when compiling, not {describe(condition)}", node.condition.span, help
        )
    if condition:
        return run(context, node.then, scope)
    if isinstance(node.otherwise, tree.If):
        return evaluate(context, node.otherwise, scope)
    return run(context, node.otherwise, scope) if node.otherwise is not None else None


_FORMS: dict[type, Callable[[Context, Any, Scope], Any]] = {
    tree.Number: _number,
    tree.String: _string,
    tree.Name: _name,
    tree.Primed: _primed,
    tree.Tuple: _tuple,
    tree.Attribute: _attribute,
    tree.Unary: _unary,
    tree.Binary: _binary,
    tree.Like: _like,
    tree.Index: _index,
    tree.Call: _call,
    tree.Loop: _loop,
    tree.If: _if,
}
