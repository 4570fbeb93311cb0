"""Kernels in OpenCL C, run by PoCL on this machine's processor: every form of a kernel gives the oracle's bits."""

from __future__ import annotations

import pytest
from pocl import runs
from test_kernels import CONTRACTIONS, REDUCTIONS, SPECIALS, Case, function_of, same_bits

from alphac.backends.registry import target

pytestmark = runs


CASES = [*REDUCTIONS, *CONTRACTIONS, *SPECIALS]
EACH = 9  # of the forms, one in so many is quick enough for every run of the tests
PARAMETERS = [c if n % EACH == 0 else pytest.param(c, marks=pytest.mark.slow) for n, c in enumerate(CASES)]


@pytest.mark.parametrize("case", PARAMETERS, ids=str)
def test_every_form_has_the_oracles_bits(case: Case):
    same_bits(function_of([case]), (1, 2, 5), name=target("opencl-cpu"))
