"""The table of ops and targets in docs/targets.md is what the targets say of themselves."""

from __future__ import annotations

import pytest
from page import check_part

from alphac.backends.registry import targets
from alphac.backends.target import Target
from alphac.ir.ops import DEFINITIONS
from alphac.ir.passes.admit import EXACT


def verdict(needs: frozenset[str], there: Target) -> str:
    lacks = needs - there.capabilities
    if lacks:
        return f"refused: {', '.join(sorted(lacks))}"
    return "yes" if EXACT in there.capabilities else "fast only"


def table() -> str:
    """Ops that all targets judge alike, together; a target that lacks what an op needs says what."""
    names = sorted(targets())
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for op, definition in sorted(DEFINITIONS.items()):
        verdicts = [verdict(definition.needs, targets()[name]) for name in names]
        rows.setdefault((definition.shape, tuple(verdicts)), []).append(op)
    lines = [f"| ops | shape | {' | '.join(f'`{n}`' for n in names)} |", "|---" * (len(names) + 2) + "|"]
    for (shape, verdicts), ops in sorted(rows.items()):
        lines.append(f"| {' '.join(ops)} | {shape} | {' | '.join(verdicts)} |")
    return "\n".join(lines) + "\n"


def test_the_page_says_which_ops_a_target_has(request: pytest.FixtureRequest) -> None:
    check_part(request, "ops", table())
