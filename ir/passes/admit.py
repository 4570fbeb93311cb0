"""Admission: can every role's target run what the system asks of it?

Each region is admitted by its own needs, and each function by those of its ops and element types; a refusal names what
is missing and every target that lacks it. Nothing is admitted by falling back to another target.

before: region `project` requires matrix(bf16); roles on x86-64-v4 (lacks it) and gpu (has it)
after:  Refusal("region `project`", "matrix(bf16)", ("x86-64-v4",))

A need is a word that a target must have among its capabilities, but for `scratch(BYTES)`: it must have as much. What is
not `numeric fast` needs `numeric exact`: of a system's regions each by itself, of one without regions its functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from alphac.ir.core import Block, Module, walk
from alphac.ir.ops.define import definition
from alphac.ir.span import Span

SCRATCH = "scratch("
EXACT = "numeric exact"  # the capability: every operation rounded as docs/numerics.md says, subnormal numbers kept


@dataclass(frozen=True)
class Refusal:
    """`what` needs `missing`, which `targets` lack; `span` is where it is asked for, if it is in so many words."""

    what: str
    missing: str
    targets: tuple[str, ...]
    span: Span | None = None

    def text(self, endpoints: Mapping[str, Sequence[str]]) -> str:
        """For people; `endpoints`: by target, those of the fleet, if they have names."""
        lacking = [f"{t} ({', '.join(names)})" if (names := endpoints.get(t)) else t for t in self.targets]
        return f"{self.what} needs {self.missing}, which {' and '.join(lacking)} lack{'s' * (len(lacking) == 1)}"

    def __str__(self) -> str:
        return self.text({})


def admit(module: Module, capabilities: Mapping[str, frozenset[str]]) -> list[Refusal]:
    """Every refusal. `capabilities`: what each target of the plan can do; all run every region, on their shards."""
    needed: dict[tuple[str, str], Span | None] = {}
    for name, contract in module.regions.items():
        needed |= {(f"region `{name}`", need): contract.span for need in contract.requires}
        if contract.numeric != "fast":
            needed[f"region `{name}`", EXACT] = contract.span
    if not module.regions:
        needed |= {(f"function `{name}`", EXACT): None for name in module.functions}
    for name, function in module.functions.items():
        needed |= {(f"function `{name}`", need): None for need in _needs(function.block)}
    refusals: list[Refusal] = []
    for (what, need), span in needed.items():
        lacking = tuple(target for target, able in capabilities.items() if not provides(able, need))
        if lacking:
            refusals.append(Refusal(what, need, lacking, span))
    return refusals


def provides(capabilities: Iterable[str], need: str) -> bool:
    """Whether a need is among a target's capabilities."""
    if need.startswith(SCRATCH):
        most = max((_bytes(c) for c in capabilities if c.startswith(SCRATCH)), default=0)
        return _bytes(need) <= most
    return need in capabilities


def _bytes(scratch: str) -> int:
    return int(scratch.removeprefix(SCRATCH).removesuffix(")"))


def _needs(block: Block) -> Iterator[str]:
    """Capabilities of the ops in a block, and the element types they work on."""
    for op in walk(block):
        yield from sorted(definition(op).needs)
        for value in (*op.operands, *op.results):
            yield value.type.dtype.name
