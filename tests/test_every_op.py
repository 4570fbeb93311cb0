"""Every op of the IR as native code: values, bits, text, gradients, for every dtype that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from everyop_cases import CHUNKS, Case
from everyop_native import Batch, part
from everyop_real import bound, errors, signs_of_zeros, wrapped, ZERO_SIGNS, FLOAT
from everyop_table import CASES
from numpy.typing import NDArray

from alphac.backends.registry import host_target
from alphac.ir.core import Function, Module
from alphac.ir.interpret import interpret
from alphac.ir.typesys import DType

Array = NDArray[Any]


@pytest.fixture(scope="session")
def native(request: pytest.FixtureRequest) -> Iterator[Batch]:
    """The functions of all cases that were collected, compiled together for this machine."""
    cases = {
        case
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        if isinstance(case := item.callspec.params.get("case"), Case)
    }
    with Batch({str(c): c.function for c in CASES if c in cases}, host_target()) as batch:
        yield batch


def same_bits(found: Array, expected: Array) -> bool:
    """All NaNs are one; zeros are two."""
    if expected.dtype.kind != "f":
        return np.array_equal(found, expected)
    same = (found == expected) & (np.signbit(found) == np.signbit(expected))
    return bool((same | (np.isnan(found) & np.isnan(expected))).all())


# ---------------------------------------------------------------------- values
def check_values(case: Case, inputs: Sequence[Array], results: Sequence[Array]) -> None:
    slack = case.slack(*inputs) if case.slack is not None else None
    for i, (value, found, real) in enumerate(zip(case.function.block.results, results, case.real(*inputs), strict=True)):
        dtype = value.type.dtype
        if not dtype.is_float:
            expected = real if real.dtype != object else wrapped(real, dtype)
            np.testing.assert_array_equal(found, expected)
        elif slack is not None:
            distance = np.abs(found.astype(real.dtype) - real).astype(np.float64)
            assert (distance <= slack[i]).all(), (distance - slack[i]).max()
        else:
            off = errors(found, real, dtype)
            worst = int(np.argmax(off))
            allowed = 0 if case.ulp is None else bound(case.ulp, dtype)
            at = [x.ravel()[worst] for x in inputs if x.size == off.size]
            assert off[worst] <= allowed, (off[worst], at, found.ravel()[worst], real.ravel()[worst])
            if case.op in FLOAT and case.op not in ZERO_SIGNS:
                assert not signs_of_zeros(found, inputs, case.op).any()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case: Case, native: Batch) -> None:
    inputs = case.given(0)
    check_values(case, inputs, native.whole(str(case), inputs, shards=case.shards))


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c.many], ids=str)
def test_values_at_many_points(case: Case, native: Batch) -> None:
    for chunk in range(1, CHUNKS):
        inputs = case.given(chunk)
        check_values(case, inputs, native.whole(str(case), inputs, shards=case.shards))


# ---------------------------------------------------------------------- bits
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits(case: Case, native: Batch) -> None:
    """The oracle's, whoever owns the shards, with one thread and with three."""
    inputs = case.given(0)
    expected = interpret(case.written, inputs, exact=True)
    for shares in case.shares:
        for threads in (1, 3):
            for i, held in enumerate(native.run(str(case), inputs, case.shards, shares, threads)):
                for role, found in held:
                    assert same_bits(found, part(role, i, expected[i])), (shares, threads, i, role.first)
