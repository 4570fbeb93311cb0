"""Every op on a simulated GPU, in every dtype that it takes: the oracle's bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import simulated
from everyop_bits import check_bits
from everyop_cases import Case
from everyop_native import Batch, collected_cases
from everyop_table import CASES

from alphac.ir.typesys import F32

pytestmark = pytest.mark.skipif(not simulated.can_simulate(), reason="the simulator switches stacks of x86-64 Linux")


def _first() -> list[Case]:
    """Of every op one case, in f32 if it takes that."""
    found: dict[str, Case] = {}
    for case in sorted(CASES, key=lambda c: c.dtype != F32):
        found.setdefault(case.op, case)
    return list(found.values())


FIRST = _first()
PARAMETERS = [c if c in FIRST else pytest.param(c, marks=pytest.mark.slow) for c in CASES]


@pytest.fixture(scope="module")
def gpu(request: pytest.FixtureRequest) -> Iterator[Batch]:
    """The collected cases, compiled together."""
    collected = {id(case) for case, file in collected_cases(request.session) if file == request.path}
    with Batch({str(c): c.function for c in CASES if id(c) in collected}, simulated.simulated()) as batch:
        yield batch


@pytest.mark.parametrize("case", PARAMETERS, ids=str)
def test_bits(case: Case, gpu: Batch) -> None:
    check_bits(gpu, str(case), case.given(0), case.bits, case.shards, threads=(1,))
