"""`evaluate`: one function per batch that carries totals, and one that finishes them."""

from __future__ import annotations

from alphac.diagnostics import fail
from alphac.frontend import columns, tree
from alphac.frontend.arithmetic import as_tensor
from alphac.frontend.bodies import run
from alphac.frontend.scope import Context, Finish, Scope
from alphac.frontend.system import System
from alphac.frontend.values import DataReference, describe
from alphac.ir.core import Evaluation, Function, Port


def elaborate_evaluate(system: System, node: tree.Evaluate) -> tuple[Evaluation, Function, Function, set[str]]:
    """`evaluate.NAME`, `finish.NAME`, and the states that they read."""
    data, split = _split(system, node.split)
    context = Context(system, f"evaluate.{node.name}")
    context.masked = True
    context.finish = Finish()
    system.number_sites(node.value)
    with context.at(node.span):
        value = run(context, node.value, Scope(None, context.name))
        span = node.value.statements[-1].span if node.value.statements else node.value.span
        result = as_tensor(context, value, span)
        if result.type.dims or result not in context.finish.values:
            if result.type.grain is None and not result.type.dims:
                help = "reduce over the batch: `mean(…)`"
                raise fail("E136", f"`{node.name}` does not depend on the examples", span, help)
            help = "reduce it: `mean(…)`, `sum(…)` or `max(…)`"
            raise fail("E134", f"a metric is one number, not {describe(result)}", span, help)
    used = {data for data, _ in context.columns}
    if used - {data}:
        other = sorted(used - {data})[0]
        message = f"`{node.name}` is evaluated on `{data}`, but reads `{other}`"
        raise fail("E136", message, node.span, f"write `on {other}.{split}`")
    batch = context.function([(port, total) for port, total in context.totals])
    finish = context.finish
    ports = tuple(sorted(finish.arguments, key=lambda p: (p.kind != "total", p.name)))
    finish.block.arguments = [finish.arguments[p] for p in ports]
    finish.block.results = (result,)
    finished = Function(f"finish.{node.name}", finish.block, ports, (Port("metric", node.name),))
    return Evaluation(node.name, data, split), batch, finished, context.reading


def _split(system: System, path: tree.Path) -> tuple[str, str]:
    """`test`, `digits.test` or `digits`: the data and the split."""
    parts = list(path.parts)
    datas = [s.name for s in system.statements if isinstance(s, tree.Data)]
    if not datas:
        raise fail("E106", "there is no data to evaluate on", path.span, 'declare some: `data NAME from "FILE" { … }`')
    if parts and parts[0] in datas:
        data = parts.pop(0)
    else:
        train = system.one(tree.Train, "train")
        data = train.data.id if train is not None and train.data.id in datas else datas[0]
        if len(datas) > 1 and train is None:
            raise fail("E307", f"`{path}` of which data?", path.span, f"write `{datas[0]}.{path}`")
    if len(parts) != 1 or path.all or parts[0] not in ("train", "test"):
        raise fail("E307", f"there is no split `{path}`", path.span, "there are `train` and `test`")
    reference = columns.member(system, DataReference(data), parts[0], path.span)
    assert isinstance(reference, DataReference)
    return data, parts[0]
