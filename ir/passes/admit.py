"""Admission: can every role's target run what the system asks of it?

Each region is admitted by its own needs, and each function by those of its ops and element types; a refusal names what
is missing and every target that lacks it. Nothing is admitted by falling back to another target.

before: region `project` requires matrix(bf16); roles on x86-64-v4 (lacks it) and gpu (has it)
after:  Refusal("region `project`", "matrix(bf16)", ("x86-64-v4",))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from alphac.ir.core import Block, Module, walk
from alphac.ir.ops.define import definition


@dataclass(frozen=True)
class Refusal:
    """`what` needs `missing`, which `targets` lack."""

    what: str
    missing: str
    targets: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.what} needs {self.missing}, which {' and '.join(self.targets)} lack{'s' * (len(self.targets) == 1)}"
        )


def admit(module: Module, capabilities: Mapping[str, frozenset[str]]) -> list[Refusal]:
    """Every refusal. `capabilities`: what each target of the plan can do; all run every region, on their shards."""
    needed: dict[tuple[str, str], None] = {}
    for name, contract in module.regions.items():
        needed |= {(f"region `{name}`", need): None for need in contract.requires}
    for name, function in module.functions.items():
        needed |= {(f"function `{name}`", need): None for need in _needs(function.block)}
    refusals: list[Refusal] = []
    for what, need in needed:
        lacking = tuple(target for target, able in capabilities.items() if need not in able)
        if lacking:
            refusals.append(Refusal(what, need, lacking))
    return refusals


def _needs(block: Block) -> Iterator[str]:
    """Capabilities of the ops in a block, and the element types they work on."""
    for op in walk(block):
        yield from sorted(definition(op).needs)
        for value in (*op.operands, *op.results):
            yield value.type.dtype.name
