"""From a source file to a bundle: the stages, read top to bottom."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from alphac import compiled
from alphac.backends.registry import capabilities, host_target, target, targets_here
from alphac.backends.target import MATRIX_BF16, Target
from alphac.bundling import Draft, Kind, kernels_text, kinds, shard_count, write
from alphac.diagnostics import Diagnostic, Diagnostics, fail
from alphac.explain import Explanation, explanation
from alphac.fleet import Endpoint, Fleet, read_fleet
from alphac.frontend.elaborate import elaborate
from alphac.frontend.parse import parse, read_source
from alphac.frontend.tree_text import tree_text
from alphac.ir.core import Module
from alphac.ir.errors import NotDifferentiableError, ToolMissing
from alphac.ir.fleet import assumed
from alphac.ir.passes.admit import EXACT, Admission, Parting, Refusal, Strand, admit, settled
from alphac.ir.passes.differentiate import Differentiate
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.pad_windows import PadWindows
from alphac.ir.passes.place import PlacementError, Share, deal, place, ranges
from alphac.ir.passes.plan import Pricer
from alphac.ir.passes.project import schedule
from alphac.ir.passes.rematerialize import Rematerialize
from alphac.ir.passes.simplify import Simplify
from alphac.ir.passes.solve import Found, search, search_regions
from alphac.ir.passes.survey import survey
from alphac.ir.passes.tile import Tile
from alphac.ir.passes.work import Count, uncounted
from alphac.ir.protocol import protocol
from alphac.ir.schedule import Program
from alphac.ir.schedule_text import print_program
from alphac.ir.text import print_module
from alphac.ir.typesys import LANGUAGE_DTYPES
from alphac.ir.verify import verify

if TYPE_CHECKING:
    from alphac.backends.emit import Code
    from alphac.backends.tune import Tuner

STAGES = ("tree", "ir", "adjoint", "simplified", "tiled", "schedule", "kernels", "protocol")


@dataclass(frozen=True)
class Plan:
    """Who takes part: one role per entry of `shares`, on `targets` (None: this host's best); `names` of the endpoints,
    if they have any.

    fleet   whose endpoints say what they can do: placement is to decide, and has not yet
    dealt   each role's shards by strand, once that is decided for several strands
    found   what placement decided between"""

    shares: tuple[Fraction, ...]
    targets: tuple[str | None, ...]
    names: tuple[str, ...] = ()
    fleet: Fleet | None = None
    dealt: tuple[tuple[int, ...], ...] = ()
    found: Found | None = None

    @classmethod
    def of(
        cls, *, fleet: Path | None = None, roles: int | None = None, shares: Sequence[Fraction] | None = None
    ) -> Plan:
        """A plan from a fleet file, a number of equal roles, or proportions. Raises Diagnostics for a bad fleet."""
        if fleet is not None:
            found = read_fleet(fleet)
            ends = found.endpoints
            open_ = found if found.described else None
            return cls(tuple(e.speed for e in ends), tuple(e.target for e in ends), tuple(e.name for e in ends), open_)
        made = tuple(shares) if shares else (Fraction(1),) * (roles or 1)
        return cls(made, (None,) * len(made))

    def target_names(self, module: Module) -> tuple[str, ...]:
        """The target of every role by name; where the plan names none, the best that this machine has for what the
        regions ask for."""
        wanted = {need for contract in module.regions.values() for need in contract.requires}
        if any(contract.numeric == "fast" for contract in module.regions.values()):
            wanted.add(MATRIX_BF16)
        best = host_target(frozenset(wanted)).name
        return tuple(name if name is not None else best for name in self.targets)


def parse_and_elaborate(path: Path, overrides: Mapping[str, str]) -> Module:
    """Source → system IR. Raises Diagnostics."""
    text = read_source(path)
    module = elaborate(parse(text, str(path)), overrides=dict(overrides), directory=path.parent)
    verify(module)
    return module


def differentiate(module: Module) -> Module:
    """+ adjoint regions. Raises Diagnostics where a gradient does not exist."""
    try:
        module = Differentiate().run(module)
    except NotDifferentiableError as error:
        raise Diagnostics([Diagnostic("E131", str(error), error.span, help=error.help)]) from error
    verify(module, differentiated=True)
    return module


def simplify(module: Module) -> Module:
    """Composite ops unfolded, then everything that exact mode lets go; windows over padded copies."""
    for run_pass in (Expand(), Simplify(), PadWindows()):
        module = run_pass.run(module)
        verify(module, differentiated=True)
    return module


def tile(module: Module) -> Module:
    """Cheap values of one loop made anew in another; groups of ops that run index by index of outer axes."""
    for run_pass in (Rematerialize(), Tile()):
        module = run_pass.run(module)
        verify(module, differentiated=True)
    return module


def schedules(module: Module, plan: Plan | None = None) -> dict[str, Program]:
    """Regions → kernels, buffers and exchanges, one program per function, for all roles of a plan (by default, of this
    machine): with streams if all their targets take them."""
    streams = all(target(name).streams for name in (plan or Plan.of(roles=1)).target_names(module))
    return {name: schedule(function, streams) for name, function in module.functions.items()}


def admitted(module: Module, plan: Plan) -> tuple[Module, tuple[Strand, ...], Plan]:
    """The module with strands apart that not everybody may own, these strands, and the plan without those who can run
    nothing of it. Raises Diagnostics with every region or function that a role's target cannot run."""
    names = plan.target_names(module)
    found = _admit(module, names)
    if found.refusals and plan.fleet is not None:
        refused = {target for refusal in found.refusals for target in refusal.targets}
        able = [k for k, name in enumerate(names) if name not in refused]
        if able:
            plan = replace(
                plan,
                shares=tuple(plan.shares[k] for k in able),
                targets=tuple(plan.targets[k] for k in able),
                names=tuple(plan.names[k] for k in able),
            )
            found = _admit(module, plan.target_names(module))
    if found.refusals:
        by_target: dict[str, list[str]] = {name: [] for name in names}
        for name, endpoint in zip(names, plan.names, strict=False):
            by_target[name].append(endpoint)
        raise Diagnostics([Diagnostic("E204", r.text(by_target), r.span, help=_instead(r)) for r in found.refusals])
    verify(found.module, differentiated=True)
    return found.module, found.strands, plan


def _admit(module: Module, targets: Sequence[str]) -> Admission:
    able = {name: capabilities(name) for name in dict.fromkeys(targets)}
    free = settled(module, able)
    return admit(module if free is module else simplify(free), able)


def placed(
    module: Module, programs: Mapping[str, Program], strands: Sequence[Strand], plan: Plan, sources: Path
) -> Plan:
    """The plan with everything decided: of a described fleet, the best one that this version executes, on endpoints
    that were admitted. `sources`: the folder that data paths are relative to. Raises Diagnostics."""
    names = plan.target_names(module)
    if plan.fleet is None:
        return plan if len(strands) == 1 else replace(plan, dealt=_dealt(module, programs, strands, plan))
    target_of = dict(zip(plan.names, names, strict=True))
    able = [e for e in plan.fleet.endpoints if e.name in target_of]
    data = sum(p.stat().st_size for p in {sources / d.path for d in module.data.values()} if p.exists())
    system = survey(module, programs, data, counted(module, {e.rates.target for e in able if e.rates}))
    if len(strands) == 1:
        found = search(system, plan.fleet, able)
    else:
        owners = [{name for name, target in target_of.items() if target in strand.targets} for strand in strands]
        found = search_regions(system, plan.fleet, able, owners)
    chosen = found.executed
    if chosen is None:
        raise fail("E211", f"no plan fits this fleet: {found.misfits['data']}", None, _way_out(found))
    ends = [plan.fleet.endpoint(part.endpoint) for part in chosen.parts]
    return Plan(
        tuple(Fraction(part.owns) for part in chosen.parts),
        tuple(e.target for e in ends),
        tuple(e.name for e in ends),
        dealt=tuple(part.owned for part in chosen.parts) if len(strands) > 1 else (),
        found=found,
    )


def counted(module: Module, targets: Collection[str]) -> Count:
    """What says what kernels' code for these targets does; an empty name stands for none."""
    chosen = [target(name) for name in sorted(targets) if name]
    if not chosen:
        return uncounted
    from alphac.backends.count import counter  # with Numba

    return counter(chosen, shard_count(module))


def _dealt(
    module: Module, programs: Mapping[str, Program], strands: Sequence[Strand], plan: Plan
) -> tuple[tuple[int, ...], ...]:
    """Each role's shards by strand, by the speeds of a fleet that says no more. Raises Diagnostics."""
    system, names = survey(module, programs), plan.target_names(module)
    everywhere = Endpoint("anywhere", rates=assumed(dict.fromkeys(LANGUAGE_DTYPES, 1e11), 1e10))
    pricer = Pricer(system, Fleet((everywhere,)))
    seconds = [
        [
            pricer.strand_seconds(everywhere, k) / float(speed) if name in strand.targets else None
            for name, speed in zip(names, plan.shares, strict=True)
        ]
        for k, strand in enumerate(strands)
    ]
    try:
        shares = deal(system.shards, seconds)
    except PlacementError as error:
        raise fail("E201", str(error), None, "declare a larger grain or use fewer roles") from error
    return tuple(tuple(share.shards for share in own) for own in shares)


def _way_out(found: Found) -> str:
    if found.best is None:
        return "give endpoints more memory, or use a smaller batch"
    return f"a `{found.best.kind}` plan would fit, which is planned but not executed yet; give endpoints more memory"


def shares_of(module: Module, plan: Plan) -> tuple[tuple[Share, ...], ...]:
    """Each role's shares, by strand. Raises Diagnostics when there are more roles than shards."""
    if plan.dealt:
        strands = [ranges(counts) for counts in zip(*plan.dealt, strict=True)]
        return tuple(zip(*strands, strict=True))
    try:
        return tuple((share,) for share in place(shard_count(module), plan.shares))
    except PlacementError as error:
        raise fail("E201", str(error), None, "declare a larger grain or use fewer roles") from error


def _instead(refusal: Refusal | Parting) -> str:
    if isinstance(refusal, Parting):
        way = "a `pipeline` plan, which hands such values from endpoint to endpoint, is not executed yet"
        return f"{way}: give one endpoint all of it, or let the parts meet in sums over the batch only"
    if refusal.missing == EXACT and refusal.what.startswith("region "):
        return f"write `numeric fast(tolerance = …)` at the region, or leave {' and '.join(refusal.targets)} out"
    return "give the fleet endpoints with this capability, or ask for less"


def check(path: Path, *, overrides: Mapping[str, str]) -> str:
    """Run every stage that can find a mistake in the source; a one-line summary. Raises Diagnostics."""
    module = simplify(differentiate(parse_and_elaborate(path, overrides)))
    learned = [s for s in module.states.values() if s.kind == "param"]
    size = sum(s.type.size for s in learned)
    grain = f", grain {module.grain.shards} of {module.grain.name}" if module.grain else ""
    return f"{module.system}: {len(learned)} parameters of {size:,} elements{grain}"


def compile_file(
    path: Path,
    *,
    out: Path | None = None,
    plan: Plan | None = None,
    overrides: Mapping[str, str] | None = None,
    tuner: Tuner | None = None,
) -> compiled.Compiled:
    """Compile a source file into a bundle; `tuner` chooses how contractions are cut. Raises Diagnostics for the user's
    mistakes; nothing is written then."""
    plan, overrides = plan or Plan.of(), overrides or {}
    key = compiled.key(
        path, read_source(path), overrides, repr((plan.shares, plan.targets, targets_here(), plan.fleet))
    )
    known = compiled.recall(key, path.parent) if tuner is None else None
    made = known or _drafted(path, plan, overrides, tuner)
    directory = out if out is not None else Path(f"{made.system}.bundle")
    if directory.exists():
        raise fail("E401", f"{directory} exists already", None, "remove it, or give another directory with -o")
    try:
        if known is not None:
            with suppress(compiled.DataChanged):
                return known.write(directory)
        draft = made if isinstance(made, Draft) else _drafted(path, plan, overrides, tuner)
        bundle = write(draft, directory, path.parent)
    except ToolMissing as error:
        raise fail("E214", error.message, None, error.help) from error
    except OSError as error:
        reason = error.strerror or error
        help = "give another directory with -o"
        raise fail("E402", f"{directory} cannot be written: {reason}", None, help) from error
    kernels, roles = sum(len(c.sources) for c in draft.code.values()), len(draft.shares)
    summary = f"{roles} role{'s' * (roles != 1)}, {kernels} kernels"
    if tuner is not None:
        return compiled.Compiled(bundle.path, summary)
    return compiled.remember(key, bundle, draft.module, summary)


def _drafted(path: Path, plan: Plan, overrides: Mapping[str, str], tuner: Tuner | None) -> Draft:
    """Every stage but the last. Raises Diagnostics."""
    elaborated = parse_and_elaborate(path, overrides)
    module, strands, plan = admitted(simplify(differentiate(elaborated)), plan)
    module = tile(module)
    programs = schedules(module, plan)
    plan = placed(module, programs, strands, plan, path.parent)
    shares = shares_of(module, plan)
    made = protocol(programs, shard_count(module), tuple(zip(*shares, strict=True)))
    names = plan.target_names(module)
    code = _lowered(programs, kinds(shares, names, strands), len(strands), tuner)
    tiles = {symbol: f"{c.tile[0]}x{c.tile[1]}" for symbol, c in tuner.choices.items() if c.tile} if tuner else {}
    report = explanation(module.system, plan.found).as_json() if plan.found is not None else ""
    return Draft(elaborated, module, programs, shares, strands, names, made, code, report, tiles)


def _lowered(
    programs: Mapping[str, Program], wanted: Sequence[Kind], strands: int, tuner: Tuner | None = None
) -> dict[Kind, Code]:
    """Code by kind."""
    from alphac.backends.emit import lower_programs  # with Numba, which a bundle compiled before does without

    lower = tuner.lower if tuner is not None else Target.lower
    made: dict[Kind, Code] = {}
    for name, owned in sorted(set(wanted), key=lambda kind: (kind[0], sorted(kind[1]))):
        part = owned if len(owned) < strands else None
        made[name, owned] = lower_programs(programs.values(), target(name), strands=part, lower=lower)
    return made


def explain(path: Path, *, plan: Plan, overrides: Mapping[str, str]) -> Explanation:
    """Why a fleet's endpoints take the parts that they take. Raises Diagnostics."""
    module, strands, plan = admitted(simplify(differentiate(parse_and_elaborate(path, overrides))), plan)
    module = tile(module)
    decided = placed(module, schedules(module, plan), strands, plan, path.parent)
    if decided.found is None:
        help = "describe its hosts (docs/fleets.md); `alphac fleet detect` does it for this machine"
        raise fail("E202", "this fleet says no more than speeds: shares are in proportion to them", None, help)
    return explanation(module.system, decided.found)


def emit(path: Path, stage: str, *, plan: Plan, overrides: Mapping[str, str]) -> str:
    """What a stage (one of STAGES) makes of a file, as text. Raises Diagnostics."""
    if stage == "tree":
        return tree_text(parse(read_source(path), str(path)))
    module = parse_and_elaborate(path, overrides)
    if stage == "ir":
        return print_module(module)
    module = differentiate(module)
    if stage == "adjoint":
        return print_module(module)
    module = simplify(module)
    if stage == "simplified":
        return print_module(module)
    module, strands, plan = admitted(module, plan)
    module = tile(module)
    if stage == "tiled":
        return print_module(module)
    programs = schedules(module, plan)
    if stage == "schedule":
        return "\n".join(print_program(p) for p in programs.values())
    plan = placed(module, programs, strands, plan, path.parent)
    shares = shares_of(module, plan)
    if stage == "protocol":
        made = protocol(programs, shard_count(module), tuple(zip(*shares, strict=True)))
        return json.dumps(made.as_dict(), indent=1) + "\n"
    code = _lowered(programs, kinds(shares, plan.target_names(module), strands), len(strands))
    return "\n".join(kernels_text(c) for c in code.values())
