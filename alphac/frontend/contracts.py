"""What a region asks for by name: its numeric mode, and capabilities."""

from __future__ import annotations

from alphac.diagnostics import fail, nearest
from alphac.frontend import tree
from alphac.frontend.expressions import evaluate
from alphac.frontend.scope import Context
from alphac.frontend.system import System
from alphac.frontend.values import is_known, number
from alphac.ir.core import RegionContract
from alphac.ir.passes.admit import EXACT
from alphac.ir.typesys import LANGUAGE_DTYPES

REQUIREMENTS = ("matrix", "scratch", "family", "atomics", "scan", *LANGUAGE_DTYPES)
EXAMPLES = {
    "matrix": "matrix(bf16)",
    "scratch": "scratch(48 * 1024)",
    "family": "family(cuda)",
}  # that take an argument


def contract_of(system: System, node: tree.Region) -> RegionContract:
    """A region's contract, kept in `system.regions`."""
    if node.name not in system.regions:
        system.regions[node.name] = _contract(system, node)
    return system.regions[node.name]


def asked(system: System, node: tree.Region) -> tuple[str, ...] | None:
    """What a region's results are marked with until admission has read it; None: nothing. In a system with fast regions
    and others, each is marked: as exact, or with what it requires alone."""
    contract = contract_of(system, node)
    declared = [s for s in system.statements if isinstance(s, tree.Region)]
    fast = [r.numeric is not None and r.numeric.mode == "fast" for r in declared]
    if all(fast) or not any(fast):
        return contract.requires or None
    return (*contract.requires, *(() if contract.numeric == "fast" else (EXACT,)))


def _contract(system: System, node: tree.Region) -> RegionContract:
    """`numeric fast(tolerance = 1e-2) requires matrix(bf16)`."""
    mode, tolerance = "exact", 0.0
    context = Context(system, "contract")
    if node.numeric is not None:
        mode = node.numeric.mode
        if mode not in ("exact", "fast"):
            near = nearest(mode, ("exact", "fast"))
            help = f"did you mean `{near}`?" if near else "there are `exact` and `fast`"
            raise fail("E140", f"`{mode}` is no numeric mode", node.numeric.span, help)
        for argument in node.numeric.arguments:
            value = evaluate(context, argument.value, system.scope)
            if argument.name != "tolerance" or not is_known(value) or not 0 < number(value) < 1:
                raise fail("E140", "`numeric fast` takes a tolerance", argument.span, "write `fast(tolerance = 1e-2)`")
            tolerance = float(number(value))
        if (mode == "fast") != (tolerance > 0):
            help = "write `numeric fast(tolerance = 1e-2)`" if mode == "fast" else "exact has no tolerance"
            raise fail("E140", f"`numeric {mode}` and its tolerance do not fit", node.numeric.span, help)
    span = node.requires[0].span if node.requires else node.span
    return RegionContract(mode, tolerance, tuple(_requirement(context, system, r) for r in node.requires), span)


def _requirement(context: Context, system: System, node: tree.Expression) -> str:
    """A capability as written: `scan`, `matrix(bf16)`, `family(cuda)`; `scratch(48 * 1024)` computed."""
    name = node.callee if isinstance(node, tree.Call) else node
    if not isinstance(name, tree.Name) or name.id not in REQUIREMENTS:
        text = name.id if isinstance(name, tree.Name) else "this"
        near = nearest(text, REQUIREMENTS)
        help = f"did you mean `{near}`?" if near else f"there are {', '.join(REQUIREMENTS)}"
        raise fail("E140", f"`{text}` is no capability", node.span, help)
    if not isinstance(node, tree.Call):
        if name.id in EXAMPLES:
            raise fail("E140", f"`{name.id}` of what?", node.span, f"write `{EXAMPLES[name.id]}`")
        return name.id
    if name.id not in EXAMPLES:
        raise fail("E140", f"`{name.id}` takes no argument", node.span, f"write `{name.id}`")
    if len(node.arguments) != 1:
        raise fail("E140", f"`{name.id}` takes one argument", node.span, f"write `{EXAMPLES[name.id]}`")
    return f"{name.id}({_argument(context, system, name.id, node.arguments[0].value)})"


def _argument(context: Context, system: System, capability: str, node: tree.Expression) -> str:
    """An element type, a target family, or bytes."""
    if capability == "scratch":
        value = evaluate(context, node, system.scope)
        if not is_known(value) or not 0 < number(value) < 1 << 40 or number(value) != int(number(value)):
            raise fail("E140", "`scratch` takes a whole number of bytes", node.span, f"write `{EXAMPLES['scratch']}`")
        return str(int(number(value)))
    if capability == "family" and isinstance(node, tree.String):
        return node.value
    if not isinstance(node, tree.Name):
        raise fail("E140", f"`{capability}` takes a name", node.span, f"write `{EXAMPLES[capability]}`")
    if capability == "matrix" and node.id not in LANGUAGE_DTYPES:
        raise fail("E115", f"`{node.id}` is no element type", node.span, f"there are {', '.join(LANGUAGE_DTYPES)}")
    return node.id
