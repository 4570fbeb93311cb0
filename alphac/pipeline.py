"""From a source file to a bundle: the stages, read top to bottom."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from alphac.backends.compile import Library, build
from alphac.backends.kernels import lower
from alphac.backends.registry import host, target
from alphac.backends.target import KernelSource, Target
from alphac.diagnostics import Diagnostic, Diagnostics
from alphac.fleet import Fleet, read_fleet
from alphac.frontend.elaborate import elaborate
from alphac.frontend.parse import parse, read_source
from alphac.ir.core import Module
from alphac.ir.errors import NotDifferentiableError
from alphac.ir.passes.differentiate import Differentiate
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.place import PlacementError, Share, place
from alphac.ir.passes.project import project
from alphac.ir.passes.simplify import Simplify
from alphac.ir.protocol import Protocol, protocol
from alphac.ir.schedule import Program
from alphac.ir.text import print_module
from alphac.ir.verify import verify

STAGES = ("tree", "ir", "adjoint", "simplified", "schedule", "kernels", "protocol")


@dataclass(frozen=True)
class Plan:
    """Who takes part: one role per entry of `shares`, on `targets` (None: this host's best)."""

    shares: tuple[Fraction, ...]
    targets: tuple[str | None, ...]

    @classmethod
    def of(
        cls, *, fleet: Path | None = None, roles: int | None = None, shares: Sequence[Fraction] | None = None
    ) -> Plan:
        """A plan from a fleet file, a number of equal roles, or proportions. Raises Diagnostics for a bad fleet."""
        if fleet is not None:
            found: Fleet = read_fleet(fleet)
            return cls(tuple(e.speed for e in found.endpoints), tuple(e.target for e in found.endpoints))
        made = tuple(shares) if shares else (Fraction(1),) * (roles or 1)
        return cls(made, (None,) * len(made))


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
        raise Diagnostics([Diagnostic("E150", str(error), error.span, help=error.help)]) from error
    verify(module)
    return module


def simplify(module: Module) -> Module:
    """Composite ops unfolded, then everything that exact mode lets go."""
    for run_pass in (Expand(), Simplify()):
        module = run_pass.run(module)
        verify(module)
    return module


def schedules(module: Module) -> dict[str, Program]:
    """Regions → kernels, buffers and exchanges, one program per function."""
    return {name: project(function, module) for name, function in module.functions.items()}


def lower_all(programs: Mapping[str, Program], on: Target) -> dict[str, list[KernelSource]]:
    """Kernels → Numba source for one target."""
    return {name: [lower(kernel, on) for kernel in program.kernels()] for name, program in programs.items()}


def shares_of(module: Module, plan: Plan) -> tuple[Share, ...]:
    """The plan's proportions as whole shards. Raises Diagnostics when there are more roles than shards."""
    try:
        return tuple(place(module.grain.shards if module.grain else 1, plan.shares))
    except PlacementError as error:
        raise Diagnostics([Diagnostic("E201", str(error), None, help="declare a larger grain or use fewer roles")]) from error


def system_identity(module: Module, digests: Mapping[str, str]) -> str:
    """sha256 of what shapes learning: the elaborated IR (source and overrides) and the data's digests."""
    text = print_module(module, spans=False)
    files = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(f"{text}\n{files}".encode()).hexdigest()


def check(path: Path, *, overrides: Mapping[str, str]) -> str:
    """Run every stage that can find a mistake in the source; a one-line summary. Raises Diagnostics."""
    module = simplify(differentiate(parse_and_elaborate(path, overrides)))
    learned = [s for s in module.states.values() if s.kind == "param"]
    size = sum(s.type.size for s in learned)
    grain = f", grain {module.grain.shards} of {module.grain.name}" if module.grain else ""
    return f"{module.system}: {len(learned)} parameters of {size:,} elements{grain}"


@dataclass(frozen=True)
class Compiled:
    """A written bundle."""

    path: Path
    summary: str
