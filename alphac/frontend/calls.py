"""A call of a function of the language itself, and the table of these functions.

`CONSTANTS` and `BUILTINS` are all names that the language itself gives a meaning; modules `builtins…` fill the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from alphac.diagnostics import Diagnostics, fail, nearest
from alphac.frontend import tree
from alphac.frontend.arithmetic import as_tensor
from alphac.frontend.expressions import evaluate
from alphac.frontend.scope import Context, Scope
from alphac.frontend.values import describe, is_known, number, type_text
from alphac.ir.core import Value
from alphac.ir.span import Span
from alphac.ir.typesys import Dim

CONSTANTS: dict[str, Any] = {"true": True, "false": False, "inf": math.inf, "pi": math.pi}


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a builtin: its arguments, evaluated when they are asked for."""

    context: Context
    node: tree.Call
    scope: Scope
    name: str

    @property
    def span(self) -> Span:
        return self.node.span

    def problem(self, message: str, help: str, code: str = "E116", span: Span | None = None) -> Diagnostics:
        return fail(code, message, span or self.span, help)

    def check(self, least: int, most: int | None, *keywords: str) -> None:
        """Refuse a wrong number of positional arguments, or an unknown keyword."""
        count = len(self.positional())
        if count < least or (most is not None and count > most):
            wanted = f"{least}" if least == most else f"{least} to {most}" if most is not None else f"at least {least}"
            raise self.problem(
                f"`{self.name}` takes {wanted} arguments, not {count}", USAGE.get(self.name, "see docs/language.md")
            )
        for argument in self.node.arguments:
            if argument.name is not None and argument.name not in keywords:
                near = nearest(argument.name, keywords)
                help = f"did you mean `{near}`?" if near else USAGE.get(self.name, "see docs/language.md")
                raise self.problem(f"`{self.name}` has no parameter `{argument.name}`", help, span=argument.span)

    def positional(self) -> list[tree.Expression]:
        return [a.value for a in self.node.arguments if a.name is None]

    def at(self, index: int) -> Span:
        return self.positional()[index].span

    def value(self, index: int) -> Any:
        return evaluate(self.context, self.positional()[index], self.scope)

    def values(self, start: int = 0) -> list[Any]:
        return [self.value(i) for i in range(start, len(self.positional()))]

    def tensor(self, index: int) -> Value:
        return as_tensor(self.context, self.value(index), self.at(index))

    def keyword(self, name: str) -> Any:
        """The value of a keyword argument, or None."""
        for argument in self.node.arguments:
            if argument.name == name:
                return evaluate(self.context, argument.value, self.scope)
        return None

    def dim(self, index: int) -> Dim:
        dims = self.context.system.dims(self.positional()[index], self.scope, self.context)
        if len(dims) != 1:
            raise self.problem(f"`{self.name}` takes one axis here", "name a dim", span=self.at(index))
        return dims[0]

    def dims(self, start: int) -> tuple[Dim, ...]:
        """The axes from an argument on."""
        found: list[Dim] = []
        for node in self.positional()[start:]:
            found += self.context.system.dims(node, self.scope, self.context)
        return tuple(found)

    def axis_of(self, x: Value, index: int) -> Dim:
        """A named axis that x has."""
        return self.own(x, (self.dim(index),), self.at(index))[0]

    def axes_of(self, x: Value, start: int) -> tuple[Dim, ...]:
        return self.own(x, self.dims(start), self.span)

    def own(self, x: Value, dims: tuple[Dim, ...], span: Span) -> tuple[Dim, ...]:
        for dim in dims:
            if not x.type.has(dim.name):
                near = nearest(dim.name, x.type.names)
                help = (
                    f"did you mean `{near}`?"
                    if near
                    else f"its axes are {', '.join(f'`{n}`' for n in x.type.names) or 'none'}"
                )
                raise fail("E123", f"{type_text(x.type)} has no axis `{dim.name}`", span, help)
        return tuple(x.type.dim(d.name) for d in dims)

    def whole(self, name: str, default: int) -> int:
        """A keyword that is a whole number known to the compiler."""
        value = self.keyword(name)
        if value is None:
            return default
        known = number(value) if is_known(value) else None
        if not isinstance(known, int) or isinstance(known, bool):
            raise self.problem(
                f"`{name}` is a whole number known when compiling, not {describe(value)}", "write a number", "E121"
            )
        return known


BUILTINS: dict[str, Callable[[Call], Any]] = {}
USAGE: dict[str, str] = {}


def builtin(usage: str) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Register a function of the language under the name with which its usage begins."""

    def register(function: Callable[[Call], Any]) -> Callable[[Call], Any]:
        name = usage.partition("(")[0]
        BUILTINS[name] = function
        USAGE[name] = f"it is `{usage}`"
        return function

    return register
