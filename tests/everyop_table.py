"""All cases."""

from __future__ import annotations

from everyop_cases import Case, constants, elementwise, retyped, with_notes
from everyop_shapes import shapes

CASES: list[Case] = with_notes([*elementwise(), *retyped(), *constants(), *shapes()])
