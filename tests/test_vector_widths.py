"""The same bits from code for 16, 8 and 4 lanes, which really is code for 16, 8 and 4 lanes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from everyop_bits import check_bits
from everyop_cases import Case
from everyop_native import Batch, collected_cases
from everyop_table import CASES

from alphac.backends.compile import assembly
from alphac.backends.emit import lower_programs
from alphac.backends.registry import target
from alphac.ir.ops import DEFINITIONS
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import F32, U8

WIDTHS = {"x86-64-v4": "zmm", "x86-64-v3": "ymm", "x86-64-v3-128": "xmm"}
REGISTERS = tuple(WIDTHS.values())  # widest first


def _representative() -> list[Case]:
    """Of every op and dtype one case, but of index ops, which only move, in f32 and u8; of sums and products in f32,
    whose kernels differ most with the width, all."""
    seen: set[tuple[str, str]] = set()
    found: list[Case] = []
    for case in CASES:
        key = (case.op, case.dtype.name)
        moves = DEFINITIONS[case.op].shape == "index" and case.dtype not in (F32, U8)
        if (key not in seen and not moves) or key in (("contract", "f32"), ("reduce_sum", "f32")):
            found.append(case)
        seen.add(key)
    return found


REPRESENTATIVE = _representative()
PARAMETERS = [c if c in REPRESENTATIVE else pytest.param(c, marks=pytest.mark.slow) for c in CASES]


def needed(name: str) -> None:
    """Skip where the processor lacks what the target needs."""
    if not target(name).runs_here():
        pytest.skip(f"this processor does not run {name}, which needs {', '.join(target(name).needs)}")


@pytest.fixture(scope="module", params=WIDTHS)
def width(request: pytest.FixtureRequest) -> Iterator[Batch]:
    """The collected cases, compiled together for each target in turn."""
    needed(request.param)
    collected = {id(case) for case, file in collected_cases(request.session) if file == request.path}
    with Batch({str(c): c.function for c in CASES if id(c) in collected}, target(request.param)) as batch:
        yield batch


@pytest.mark.parametrize("case", PARAMETERS, ids=str)
def test_bits(case: Case, width: Batch) -> None:
    """The oracle's, from every target, so the same from all."""
    check_bits(width, str(case), case.given(0), case.bits, case.shards, threads=(1,))


VECTORIZED = ("exp-f32", "tanh-f32", "add-u8", "contract-f32-nn_64_64_64", "reduce_sum-f32-of_1025", "mul-f64")


@pytest.mark.parametrize("case", [c for c in CASES if str(c) in VECTORIZED], ids=str)
@pytest.mark.parametrize("name", WIDTHS)
def test_code_uses_vectors_of_its_width(name: str, case: Case) -> None:
    """The widest registers in the machine code are the target's. The code is compiled on any processor."""
    code = lower_programs([schedule(case.function)], target(name))
    assert widest(assembly(code.sources.values(), code.segments, target(name))) == WIDTHS[name]


@pytest.mark.parametrize("width", ["x86-64-v3-128"], indirect=True)
def test_no_code_of_four_lanes_uses_wider_registers(width: Batch) -> None:
    """In none of the cases, although the processor has such registers."""
    text = assembly(width.code.sources.values(), width.code.segments, width.code.target)
    assert widest(text) == WIDTHS[width.code.target.name]


def widest(text: str) -> str:
    return next(r for r in REGISTERS if re.search(rf"%{r}\d", text))
