"""The shipped examples that run on every target: all that ask for no capability."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
EVERYWHERE = sorted(p.parent.name for p in EXAMPLES.glob("*/*.alpha") if "requires" not in p.read_text("utf-8"))
