"""uniform, normal, permutation: the same numbers wherever they are drawn, distributed as they say."""

from __future__ import annotations

import numpy as np
import pytest
from gradcheck import run

from alphac.ir.ops import TypeRuleError
from alphac.ir.ops.philox import feistel
from alphac.ir.oracle import Oracle
from alphac.ir.typesys import BF16, F32, F64, I32, I64, U32, Dim, DType, TensorType

COUNTERS = [TensorType(I64), TensorType(I64)]
BATCH, A = Dim("batch", 30, 5), Dim("a", 7)
DTYPES = [F32, F64, BF16]


def _draw(op: str, step: int = 0, iteration: int = 0, exact: bool = True, **attributes: object) -> np.ndarray:
    given = {"seed": 1, "stream": 2, **attributes}
    return run(lambda b, s, i: b(op, s, i, **given), COUNTERS, [step, iteration], exact=exact)[0]


def test_known_answers() -> None:
    """Philox4x32-10 of an all-zero key and counter starts with 6627e8d5 e169c58d (Random123's known answers)."""
    (found,) = _draw("uniform", seed=0, stream=0, dims=(Dim("n", 1),), dtype=F64)
    assert found == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["uniform", "normal"])
def test_bits_are_near_the_reference(op: str, dtype: DType) -> None:
    for step, iteration in ((0, 0), (2**40 + 3, 17)):
        exact, reference = (
            _draw(op, step, iteration, exact, seed=-1, stream=2**33, dims=(BATCH, A), dtype=dtype)
            for exact in (True, False)
        )
        assert exact.shape == (30, 7)
        tolerance = {F32: 1e-6, F64: 1e-14, BF16: 1e-2}[dtype] if op == "normal" else 0
        np.testing.assert_allclose(exact, reference, rtol=tolerance, atol=tolerance)


def test_numbers_depend_on_the_whole_counter_and_key() -> None:
    base = {"dims": (A,), "dtype": F32}
    draws = [
        _draw("uniform", **base),
        _draw("uniform", 1, **base),
        _draw("uniform", 0, 1, **base),
        _draw("uniform", seed=2, **base),
        _draw("uniform", stream=3, **base),
    ]
    assert len({d.tobytes() for d in draws}) == len(draws)
    # The flat index is row-major over the dims, the grain's axis included: a wider batch begins with the same numbers.
    wide = _draw("uniform", dims=(Dim("batch", 60, 5), A), dtype=F32)
    np.testing.assert_array_equal(wide[:30], _draw("uniform", dims=(BATCH, A), dtype=F32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_distributions(dtype: DType) -> None:
    n = Dim("n", 40_000)
    u = _draw("uniform", dims=(n,), dtype=dtype).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    slack = 2**-9 if dtype == BF16 else 0  # multiples of 2^-8 have mean 1/2 - 2^-9
    assert abs(u.mean() - 0.5 + slack) < 0.006 and abs(u.var() - 1 / 12) < 0.003
    z = _draw("normal", dims=(n,), dtype=dtype).astype(np.float64)
    assert np.isfinite(z).all() and abs(z.mean()) < 0.02 and abs(z.var() - 1) < 0.03
    assert abs((z**4).mean() - 3) < 0.2 and abs((np.abs(z) < 1).mean() - 0.6827) < 0.01


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 10, 97, 256])
def test_permutations_are_permutations(size: int) -> None:
    dim = Dim("n", size)
    found = _draw("permutation", 3, 1, dim=dim)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(np.sort(found), np.arange(size))
    np.testing.assert_array_equal(found, _draw("permutation", 3, 1, exact=False, dim=dim))
    if size > 4:
        assert (found != _draw("permutation", 4, 1, dim=dim)).any()


def test_permutations_of_four_are_equally_likely() -> None:
    k, keys = Oracle(), 24_000
    key = k.lanes(np.arange(keys)[:, None], U32)
    found = feistel(k, k.lanes(np.arange(4)[None, :], I64), 4, key, k.lanes(np.uint32(7), U32)).array
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi-squared, 23 degrees: beyond once in 30,000


@pytest.mark.parametrize(
    "types, attributes, message",
    [
        ([TensorType(I32), TensorType(I64)], {"dims": (A,), "dtype": F32}, r"each an i64\[\], not i32\[\]"),
        (COUNTERS, {"dims": (A,), "dtype": I32}, "`uniform` takes floats, not i32"),
    ],
)
def test_refusals(types: list[TensorType], attributes: dict[str, object], message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        run(lambda b, s, i: b("uniform", s, i, seed=1, stream=2, **attributes), types, [0, 0])


def test_a_permutation_of_the_grain_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="`permutation` cannot work along `batch`"):
        _draw("permutation", dim=BATCH)
