"""Regions as functions of their own (for predict)."""

from __future__ import annotations

from alphac.diagnostics import fail
from alphac.frontend import tree
from alphac.frontend.bodies import call_region
from alphac.frontend.contracts import contract_of
from alphac.frontend.scope import Context
from alphac.frontend.system import System
from alphac.ir.core import Function, Port


def elaborate_region(system: System, node: tree.Region) -> tuple[Function | None, set[str]]:
    """The function `region.NAME`, None if not all inputs have the grain's axis; and the states that it reads."""
    contract_of(system, node)
    context = Context(system, f"region.{node.name}")
    inputs: dict[str, Port] = {}
    given = {}
    batched = True
    for parameter in node.parameters:
        if parameter.type is None or parameter.rest:
            help = f"write `{parameter.name}: f32[batch, …]`"
            raise fail("E114", f"input `{parameter.name}` of region `{node.name}` has no type", parameter.span, help)
        type = system.type(parameter.type, system.scope, context)
        batched = batched and type.grain is not None
        inputs[parameter.name] = Port("input", parameter.name)
        given[parameter.name] = context.argument(inputs[parameter.name], type)
    values = call_region(context, node, given, node.span)
    if not batched or not inputs:
        return None, context.reading
    values = values if isinstance(values, tuple) else (values,)
    names = [name or node.name for name, _ in node.results]
    results = [(Port("output", n), v) for n, v in zip(names, values, strict=True)]
    return context.function(results, tuple(inputs.values())), context.reading
