"""Why a plan was chosen, in numbers: `alphac explain`, and what two plans differ in: `alphac diff`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from alphac.diagnostics import Diagnostics, fail
from alphac.fleet import shown_size
from alphac.ir.passes.plan import Part, Placement, Price
from alphac.ir.passes.solve import Found

FORMAT = 1
FACTORS = {
    "compute": "compute, slowest role",
    "state": "state that every role updates",
    "staging": "transfer staging",
    "rate": "communication, bytes",
    "synchronization": "synchronization",
}
WORDS = {
    "data": "shards",
    "regions": "shards by strand",
    "sharded": "shards, the optimizer's state dealt out",
    "pipeline": "parts of a region",
    "tensor": "256ths of long contractions",
}


@dataclass(frozen=True)
class Explanation:
    """Plans of one system on one fleet, best first; `chosen` is the one that is executed. `misfits`: why there is none
    of a kind."""

    system: str
    placements: tuple[Placement, ...]
    misfits: Mapping[str, str]

    @property
    def chosen(self) -> Placement:
        return next(p for p in self.placements if p.executable)

    def as_json(self) -> str:
        plans = [asdict(p) for p in self.placements]
        content = {"format": FORMAT, "system": self.system, "placements": plans, "misfits": dict(self.misfits)}
        return json.dumps(content, indent=1) + "\n"


def explanation(system: str, found: Found) -> Explanation:
    """What placement found."""
    return Explanation(system, (*found.placements, *found.beaten), found.misfits)


def read_plan(path: Path) -> Explanation:
    """A plan as `explain --json` wrote it, or of a bundle. Raises Diagnostics."""
    file = path / "plan.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise _refused(file, f"it is of format {content['format']}")
        plans = tuple(
            Placement(p["kind"], tuple(_part(part) for part in p["parts"]), Price(**p["price"]), p["note"])
            for p in content["placements"]
        )
        return Explanation(content["system"], plans, content["misfits"])
    except OSError as error:
        raise _refused(file, error.strerror or str(error)) from error
    except KeyError as error:
        raise _refused(file, f"it lacks {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _refused(file, str(error)) from error


def _part(fields: dict[str, Any]) -> Part:
    return Part(**{**fields, "owned": tuple(fields["owned"])})


def _refused(path: Path, reason: str) -> Diagnostics:
    help = "give what `alphac explain --json` wrote, or a bundle of a fleet with hosts"
    return fail("E213", f"{path} holds no plan: {reason}", None, help)


# ---------------------------------------------------------------------- for people
def show(made: Explanation, out: Console) -> None:
    """The plan, its price, and what it beat."""
    chosen = made.chosen
    out.print(f"[bold]{made.system}[/]  {seconds(chosen.total)} a step, {_who(chosen)}", markup=True)
    out.print(_roles(chosen))
    out.print(_prices(chosen.price))
    out.print(_alternatives(made))
    for kind, reason in made.misfits.items():
        out.print(f"no {kind} plan: {reason}")
    best = min(made.placements, key=lambda p: p.total)
    if not best.executable and best.total < chosen.total:
        out.print(
            f"a {best.kind} plan would take {best.total / chosen.total:.1%} of the time: it is planned and checked, "
            "and not executed by this version"
        )


def _who(plan: Placement) -> str:
    count = len(plan.parts)
    return f"{plan.kind} on {count} role{'s' * (count != 1)}"


def _roles(plan: Placement) -> Table:
    table = Table(box=None, pad_edge=False)
    for title, side in (("role", "left"), ("endpoint", "left"), (WORDS[plan.kind], "right"), ("busy", "right")):
        table.add_column(title, justify="right" if side == "right" else "left")
    table.add_column("memory", justify="right")
    longest = max(part.seconds for part in plan.parts)
    for number, part in enumerate(plan.parts):
        owns = f"{part.owns} ({part.first} to {part.first + part.owns - 1})"
        if len(plan.parts) == 1 or part.owned:
            owns = " + ".join(map(str, part.owned or (part.owns,)))
        busy = f"{seconds(part.seconds)} {part.seconds / longest:4.0%}"
        table.add_row(str(number), part.endpoint, owns, busy, shown_size(part.memory))
    return table


def _prices(price: Price) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("factor")
    table.add_column("a step", justify="right")
    table.add_column("", justify="right")
    for name, words in FACTORS.items():
        value = getattr(price, name)
        table.add_row(words, seconds(value), f"{value / price.total:4.0%}")
    return table


def _alternatives(made: Explanation) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("plan", overflow="fold")
    for title in ("a step", "compute", "state", "talk"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for plan in sorted(made.placements, key=lambda p: p.total):
        remark = "chosen" if plan is made.chosen else "" if plan.executable else "not yet"
        owners = " + ".join(f"{p.endpoint} {p.owns}" for p in plan.parts)
        name = f"{plan.note or plan.kind}: {owners}" if len(plan.parts) > 1 or not plan.note else plan.note
        price = plan.price
        parts = (plan.total, price.compute, price.state, price.staging + price.rate + price.synchronization)
        table.add_row(name, *(seconds(v) for v in parts), remark)
    return table


def seconds(value: float) -> str:
    """A time for people."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value * 1e6:.3g} µs" if value else "0"


# ---------------------------------------------------------------------- differences
def differences(one: Explanation, other: Explanation) -> Iterator[str]:
    """What the second plan does otherwise than the first."""
    if one.system != other.system:
        yield f"system: {one.system} → {other.system}"
    a, b = one.chosen, other.chosen
    if a.kind != b.kind:
        yield f"kind: {a.kind} → {b.kind}"
    before, after = {p.endpoint: p for p in a.parts}, {p.endpoint: p for p in b.parts}
    for name in dict.fromkeys([*before, *after]):
        x, y = before.get(name), after.get(name)
        if x is None or y is None:
            yield f"{name}: {x.owns if x else 'no part'} → {y.owns if y else 'no part'}"
            continue
        if x.owned != y.owned:
            yield f"{name}: {' + '.join(map(str, x.owned))} → {' + '.join(map(str, y.owned))} shards by strand"
        elif (x.first, x.owns) != (y.first, y.owns):
            yield f"{name}: {x.owns} from {x.first} → {y.owns} from {y.first}"
        if x.memory != y.memory:
            yield f"{name}: memory {shown_size(x.memory)} → {shown_size(y.memory)}"
    prices: tuple[dict[str, Any], dict[str, Any]] = (asdict(a.price), asdict(b.price))
    for name, words in FACTORS.items():
        if prices[0][name] != prices[1][name]:
            yield f"{words}: {seconds(prices[0][name])} → {seconds(prices[1][name])}"
    if a.total != b.total:
        yield f"a step: {seconds(a.total)} → {seconds(b.total)} ({b.total / a.total:.0%})"
