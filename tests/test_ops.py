"""Every op of its own: reference against NumPy written out, exact bits near it, gradients against differences."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from gradcheck import Make, check_gradient, draw, run
from opcases import CASES, A, C, Case, tensor

from alphac.ir.builder import Builder
from alphac.ir.core import Value
from alphac.ir.ops import DEFINITIONS, NotDifferentiable
from alphac.ir.typesys import BF16, BOOL, F32, F64, I32, I64, U8, Dim, DType, TensorType

COMPARISONS = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
LOGIC = {"and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}
DIVISIONS = {"floordiv": lambda x, y: x // y if y else 0, "mod": lambda x, y: x % y if y else 0}
ELSEWHERE = {"uniform", "normal", "permutation", "conv2d", "grad", "loop", "tile", "require"}  # have tests of their own
MODULES = "elementwise index pieces gather window reduce special contract collective convolution random structure"


def test_every_op_of_these_modules_has_a_case() -> None:
    modules = {f"alphac.ir.ops.{m}" for m in MODULES.split()}
    ours = {n for n, d in DEFINITIONS.items() if d.reference.__module__ in modules}
    tested = {c.op for c in CASES} | {*COMPARISONS, *LOGIC, "not", *DIVISIONS} | ELSEWHERE
    assert ours == tested


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference(case: Case) -> None:
    (found,) = run(case.make, case.types, case.arrays())
    np.testing.assert_allclose(found, case.expected(*case.arrays()), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_exact_bits_are_near_the_reference(case: Case) -> None:
    (found,) = run(case.make, case.types, case.arrays(), exact=True)
    np.testing.assert_allclose(found, case.expected(*case.arrays()), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("case", [c for c in CASES if c.order], ids=str)
def test_gradient(case: Case) -> None:
    for order in range(1, case.order + 1):
        check_gradient(case.make, case.types, case.arrays(), order=order)


@pytest.mark.parametrize("dtype", [F32, BF16, I32, I64, U8], ids=str)
@pytest.mark.parametrize("case", [c for c in CASES if all(t.dtype == F64 for t in c.types)], ids=str)
def test_other_dtypes(case: Case, dtype: DType) -> None:
    """The same op in a narrower dtype: exact and reference agree within its precision, integers exactly."""
    types = [t.with_dtype(dtype) for t in case.types]
    inputs = [draw(t, seed=i, low=0 if dtype.kind == "uint" else -3, high=3) for i, t in enumerate(types)]
    if not dtype.is_float and case.op in ("div", "floor", "ceil", "round", "cast", "pad", "window", "constant", "iota"):
        return
    (reference,) = run(case.make, types, inputs)
    (exact,) = run(case.make, types, inputs, exact=True)
    tolerance = {F32: 1e-5, BF16: 2e-2}.get(dtype, 0)
    assert reference.dtype == exact.dtype
    np.testing.assert_allclose(
        exact.astype(np.float64), reference.astype(np.float64), rtol=tolerance, atol=tolerance * 20
    )


# ---------------------------------------------------------------------- comparison, logic, integer division
SPECIALS = np.array([-np.inf, -1.5, -0.0, 0.0, 1.5, np.inf, np.nan])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons(op: str, exact: bool) -> None:
    x, y = (g.ravel() for g in np.meshgrid(SPECIALS, SPECIALS))
    n = Dim("n", x.size)
    (found,) = run(lambda b, x, y: b(op, x, y), [tensor(n), tensor(n)], [x, y], exact=exact)
    assert found.dtype == bool
    np.testing.assert_array_equal(found, COMPARISONS[op](x, y))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [BOOL, U8, I64], ids=str)
def test_logic(dtype: DType, exact: bool) -> None:
    t = tensor(Dim("n", 40), dtype=dtype)
    x, y = draw(t, 0, 0, 100), draw(t, 1, 0, 100)
    for op, of in LOGIC.items():
        (found,) = run(lambda b, x, y, op=op: b(op, x, y), [t, t], [x, y], exact=exact)
        np.testing.assert_array_equal(found, of(x, y))
    (found,) = run(lambda b, x: b("not", x), [t], [x], exact=exact)
    np.testing.assert_array_equal(found, ~x)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("op", DIVISIONS)
def test_integer_division_rounds_down_and_by_zero_gives_zero(op: str, exact: bool) -> None:
    values = np.array([-(2**31), -7, -1, 0, 1, 3, 2**31 - 1])
    x, y = (g.ravel() for g in np.meshgrid(values, values))
    t = tensor(Dim("n", x.size), dtype=I32)
    (found,) = run(lambda b, x, y: b(op, x, y), [t, t], [x, y], exact=exact)
    expected = np.array([DIVISIONS[op](int(p), int(q)) for p, q in zip(x, y, strict=True)])
    np.testing.assert_array_equal(found, expected.astype(np.int32))  # -2^31 // -1 wraps


@pytest.mark.parametrize("exact", [False, True])
def test_casts_to_integers_truncate_and_saturate(exact: bool) -> None:
    x = np.array([np.nan, -np.inf, np.inf, -1e30, 1e30, -1.9, 2.9, 2.0**31, -(2.0**31), 255.5, 256, -0.0])
    for dtype in (I32, I64, U8):
        limits = np.iinfo(dtype.storage)
        expected = [0 if v != v else max(limits.min, min(limits.max, int(np.clip(v, -1e30, 1e30)))) for v in x]
        t = tensor(Dim("n", x.size))
        (found,) = run(lambda b, x, dtype=dtype: b("cast", x, dtype=dtype), [t], [x], exact=exact)
        np.testing.assert_array_equal(found, np.array(expected, dtype.storage))


@pytest.mark.parametrize("exact", [False, True])
def test_zeros_and_nans_of_extremes(exact: bool) -> None:
    n, t = Dim("n", 3), tensor(Dim("n", 3))
    x, y = np.array([-0.0, 0.0, np.nan]), np.array([0.0, -0.0, 1.0])
    lower, upper, top = run(
        lambda b, x, y: (b("minimum", x, y), b("maximum", x, y), b("reduce_max", x, over=(n.name,))),
        [t, t],
        [x, y],
        exact=exact,
    )
    assert np.isnan(lower[2]) and np.isnan(upper[2]) and np.isnan(top)
    if exact:
        assert np.signbit(lower[:2]).all() and not np.signbit(upper[:2]).any()


# ---------------------------------------------------------------------- canonical orders, written once more by hand
def _tree(parts: list[np.float32]) -> np.float32:
    if len(parts) == 1:
        return parts[0]
    left = 1
    while left * 2 < len(parts):
        left *= 2
    return _tree(parts[:left]) + _tree(parts[left:])


def _leaf(x: np.ndarray) -> np.float32:
    lanes = [np.float32(0)] * 16
    for i, v in enumerate(x):
        lanes[i % 16] = lanes[i % 16] + v
    for half in (8, 4, 2, 1):
        lanes = [lanes[l] + lanes[l + half] for l in range(half)]
    return lanes[0]


@pytest.mark.parametrize("n", [1, 15, 1024, 1025, 5000])
def test_order_of_a_sum(n: int) -> None:
    t = tensor(Dim("n", n), dtype=F32)
    x = draw(t, low=-1, high=3)
    (found,) = run(lambda b, x: b("reduce_sum", x, over=("n",)), [t], [x], exact=True)
    assert found == _tree([_leaf(x[i : i + 1024]) for i in range(0, n, 1024)])


def test_order_of_a_sum_over_the_grain() -> None:
    grain, a = Dim("batch", 6 * 700, 6), Dim("a", 2)
    t = tensor(a, grain, dtype=F32)
    x = draw(t, low=-1, high=3)
    partial, whole = run(
        lambda b, x: (p := b("reduce_sum", x, over=("a", "batch")), b("combine_sum", p)), [t], [x], exact=True
    )
    for shard in range(6):
        flat = x[:, shard * 700 : (shard + 1) * 700].T.ravel()  # the grain's axis outermost
        assert partial[shard] == _leaf(flat[:1024]) + _leaf(flat[1024:])
    assert whole == _tree(list(partial))


@pytest.mark.parametrize("k", [1, 256, 257, 1100])
def test_order_of_a_contraction(k: int) -> None:
    types = [tensor(A, Dim("k", k)), tensor(Dim("k", k), C)]
    x, y = (draw(t, seed) for seed, t in enumerate(types))
    # Small integers: products and sums of float64 are exact below 2^53, so fma is what Python computes.
    x, y = np.round(x * 2**24), np.round(y * 2**24)
    (found,) = run(lambda b, x, y: b("contract", x, y, dims=(A, C)), types, [x, y], exact=True)
    for i, j in np.ndindex(4, 5):
        leaves = []
        for start in range(0, k, 256):
            chain = Fraction(0)
            for p, q in zip(x[i, start : start + 256], y[start : start + 256, j], strict=True):
                chain = Fraction(float(Fraction(float(p)) * Fraction(float(q)) + chain))
            leaves.append(np.float64(float(chain)))
        assert found[i, j] == _tree(leaves)


@pytest.mark.parametrize("n", [3, 256, 600])
def test_order_of_a_scattered_sum(n: int) -> None:
    types = [tensor(Dim("n", n), dtype=I32), tensor(Dim("n", n), dtype=F32)]
    index, x = draw(types[0], low=0, high=3), draw(types[1], low=-1, high=3)
    (found,) = run(lambda b, i, x: b("scatter_add", i, x, dim=A, dims=(A,)), types, [index, x], exact=True)
    for place in range(4):
        leaves = []
        for start in range(0, n, 256):
            chain = np.float32(0)
            for i, v in zip(index[start : start + 256], x[start : start + 256], strict=True):
                chain = chain + v if i == place else chain
            leaves.append(chain)
        assert found[place] == _tree(leaves)


def test_bf16_is_summed_in_f32_and_rounded_once() -> None:
    t = tensor(Dim("n", 300), dtype=BF16)
    x = np.full(300, 1.0078125, np.float32)  # in bf16, 1 + 2^-7 added 300 times would stop at 256
    for exact in (False, True):
        total, product, scan = run(
            lambda b, x: (
                b("reduce_sum", x, over=("n",)),
                b("contract", x, x, dims=()),
                b("cumsum", x, dim="n", reverse=False),
            ),
            [t],
            [x],
            exact=exact,
        )
        assert (total, product) == (302, 304)  # 302.34 and 304.7, to 8 bits
        assert scan[-1] == 302 and np.all(np.diff(scan) >= 0)


# ---------------------------------------------------------------------- gradients that choose
@pytest.mark.parametrize("op", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("over", [("t",), ("batch", "t")])
def test_gradient_of_an_extreme_goes_to_the_first_of_equals(op: str, over: tuple[str, ...]) -> None:
    types = [tensor(Dim("t", 3), Dim("batch", 4, 2))]
    x = np.array([[1.0, 1, 2, 1], [1, 1, 2, 2], [1, 1, 1, 2]])
    if op == "reduce_min":
        x = -x
    found = _cotangent(lambda b, v: b(op, v, over=over), types, x)
    if over == ("t",):
        first = [[1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    else:  # per shard of two columns, the batch outermost
        first = [[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(found, first)


def test_gradient_of_an_extreme_goes_to_the_first_nan_and_the_first_shard() -> None:
    types = [tensor(Dim("shard", 3))]
    for values, first in (([1.0, 2, 2], 1), ([1, np.nan, np.nan], 1)):
        found = _cotangent(lambda b, v: b("combine_max", v), types, np.array(values))
        np.testing.assert_array_equal(found, np.arange(3) == first)


def test_gradients_at_kinks() -> None:
    t = [tensor(Dim("n", 2))]
    x = np.zeros(2)
    for make, expected in (
        (lambda b, v: b("relu", v), 0),
        (lambda b, v: b("abs", v), 0),
        (lambda b, v: b("maximum", v, b.like(0, v)), 1),  # ties go to the first operand
        (lambda b, v: b("maximum", b.like(0, v), v), 0),
        (lambda b, v: b("minimum", v, b.like(0, v)), 1),
    ):
        np.testing.assert_array_equal(_cotangent(make, t, x), np.full(2, expected))


def _cotangent(make: Make, types: list[TensorType], x: np.ndarray) -> np.ndarray:
    """The op's own gradient rule, at a cotangent of ones."""

    def both(b: Builder, v: Value) -> Value:
        y = make(b, v)
        assert y.op is not None
        rule = DEFINITIONS[y.op.name].gradient
        assert not isinstance(rule, NotDifferentiable)
        found = [g for o, g in zip(y.op.operands, rule(b, y.op, b.like(1, y)), strict=True) if o is v and g is not None]
        return found[0]

    return run(both, types, [x], exact=True)[0]
