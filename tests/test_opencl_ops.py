"""Every op in OpenCL C, in every dtype that it takes, run by PoCL on this machine's processor: the oracle's bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from everyop_bits import check_bits
from everyop_cases import Case
from everyop_native import Batch, collected_cases
from everyop_table import CASES
from pocl import runs
from test_gpu_ops import FIRST

from alphac.backends.registry import target

pytestmark = runs
EACH = 6  # of the ops' first cases, one in so many is quick enough for every run of the tests
PARAMETERS = [c if c in FIRST[::EACH] else pytest.param(c, marks=pytest.mark.slow) for c in CASES]


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Batch]:
    """The collected cases, compiled together."""
    collected = {id(case) for case, file in collected_cases(request.session) if file == request.path}
    with Batch({str(c): c.function for c in CASES if id(c) in collected}, target("opencl-cpu")) as batch:
        yield batch


@pytest.mark.parametrize("case", PARAMETERS, ids=str)
def test_bits(case: Case, device: Batch) -> None:
    check_bits(device, str(case), case.given(0), case.bits, case.shards, threads=(1,))
