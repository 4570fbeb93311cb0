"""Every op of the IR as native code: values, bits, text, gradients, for every dtype that it takes.

`CASES` says what is judged (everyop_cases.py and everyop_shapes.py); a new elementwise op has its cases by being
defined, once everyop_real.py knows what it is in the reals.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everyop_bits import check_bits, same_bits
from everyop_cases import CHUNKS, Case
from everyop_gradients import GRADIENTS, Gradient
from everyop_native import Batch, collected_cases
from everyop_real import FLOAT, ZERO_SIGNS, bound, errors, signs_of_zeros, wrapped
from everyop_table import CASES
from gradcheck import differences
from numpy.typing import NDArray
from scipy import stats

from alphac.backends.registry import host_target
from alphac.ir.core import Module, walk
from alphac.ir.interpret import interpret
from alphac.ir.ops import DEFINITIONS, TypeRuleError
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.project import schedule
from alphac.ir.text import print_module
from alphac.ir.text_parse import parse_module
from alphac.ir.typesys import BF16, F32, F64, LANGUAGE_DTYPES, DType
from alphac.ir.verify import verify

Array = NDArray[Any]


@pytest.fixture(scope="session")
def native(request: pytest.FixtureRequest) -> Iterator[Batch]:
    """The functions of all cases and gradients that were collected, compiled together for this machine."""
    collected = {id(case) for case, _ in collected_cases(request.session)}
    with Batch({str(c): c.function for c in (*CASES, *GRADIENTS) if id(c) in collected}, host_target()) as batch:
        yield batch


# ---------------------------------------------------------------------- nothing is left out
def test_every_op_has_a_case() -> None:
    elsewhere = {"tile", "require"}  # tests/test_tile.py, tests/test_strands.py
    judged = {c.op for c in CASES} | ({"grad"} if GRADIENTS else set()) | elsewhere
    assert judged == set(DEFINITIONS)


def test_every_dtype_that_an_op_takes_has_a_case() -> None:
    judged = {(c.op, c.dtype) for c in CASES}
    others = ((c, d) for c in CASES for d in LANGUAGE_DTYPES.values() if (c.op, d) not in judged)
    assert not {(c.op, d.name) for c, d in others if takes(c, d)}


def takes(case: Case, dtype: DType) -> bool:
    """Whether the case's op takes that dtype where the case has its own."""
    found = [o for o in walk(case.written.block) if o.name == case.op]
    for op in found:
        types = [v.type.with_dtype(dtype) if v.type.dtype == case.dtype else v.type for v in op.operands]
        attributes = {n: dtype if v == case.dtype else v for n, v in op.attributes.items()}
        if op.blocks or (types, attributes) == ([v.type for v in op.operands], dict(op.attributes)):
            continue  # a loop's block is of its dtype
        try:
            DEFINITIONS[case.op].result(types, attributes, op.blocks)
        except TypeRuleError:
            continue
        return True
    return False


def test_every_op_has_a_gradient_or_none() -> None:
    """What no gradient case covers has no gradient: its rule gives no cotangent, or it has no float operands."""
    without = {n for n, d in DEFINITIONS.items() if n not in {g.op for g in GRADIENTS}}
    logic = {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "floordiv", "mod"}
    drawn = {"uniform", "normal", "permutation", "constant", "iota", "argmax", "argmin", "stop_gradient"}
    assert without == logic | drawn | {"grad", "tile", "require"}


# ---------------------------------------------------------------------- values
def check_values(case: Case, inputs: Sequence[Array], results: Sequence[Array]) -> None:
    slack = case.slack(*inputs) if case.slack is not None else None
    values = case.function.block.results
    for i, (value, found, real) in enumerate(zip(values, results, case.real(*inputs), strict=True)):
        dtype = value.type.dtype
        if not dtype.is_float:
            np.testing.assert_array_equal(found, wrapped(real, dtype) if real.dtype == object else real)
        elif slack is not None:
            distance = np.asarray(np.abs(found.astype(real.dtype) - real)).astype(np.float64)
            assert (distance <= slack[i]).all(), (distance - slack[i]).max()
        else:
            off = errors(found, real, dtype)
            worst = int(np.argmax(off))
            at = [x.ravel()[worst] for x in inputs if x.size == off.size]
            allowed = 0 if case.ulp is None else bound(case.ulp, dtype)
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


def test_wide_bounds_are_justified_in_the_docs() -> None:
    text = (Path(__file__).parents[1] / "docs" / "numerics.md").read_text(encoding="utf-8")
    assert not [n for n, d in DEFINITIONS.items() if d.ulp > 2 and f"Why {n}'s bound is above 2" not in text]


@pytest.mark.peers
@pytest.mark.parametrize("case", [c for c in CASES if (c.ulp or 0) > 2 and c.dtype in (F32, F64)], ids=str)
def test_a_wide_bound_is_no_worse_than_a_peer(case: Case, native: Batch) -> None:
    """Of more than 2 ulp, on the same inputs: the largest error is not above PyTorch's."""
    torch = importlib.import_module("torch")
    peers = {"gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
    ours, theirs = 0.0, 0.0
    for chunk in range(CHUNKS):
        inputs = case.given(chunk)
        (real,), (found,) = case.real(*inputs), native.whole(str(case), inputs, shards=case.shards)
        finite = np.isfinite(inputs[0])
        their = peers[case.op](*map(torch.from_numpy, inputs)).numpy()
        ours = max(ours, errors(found, real, case.dtype)[finite].max())
        theirs = max(theirs, errors(their, real, case.dtype)[finite].max())
    assert ours <= theirs


# ---------------------------------------------------------------------- bits, text
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits(case: Case, native: Batch) -> None:
    check_bits(native, str(case), case.given(0), case.bits, case.shards)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_text(case: Case, native: Batch) -> None:
    """A function comes back from text as it was, down to the kernels that it is lowered to."""
    text = print_module(Module("test", None, functions={"test": case.written}))
    module = parse_module(text)
    verify(module)
    assert print_module(module) == text
    program = schedule(Expand().run(module).functions["test"])
    assert [native.code.target.lower(k).name for k in program.kernels()] == native.symbols(str(case))


# ---------------------------------------------------------------------- gradients
SLOW = [pytest.mark.slow]


@pytest.mark.parametrize("case", [pytest.param(g, marks=SLOW if g.dtype == BF16 else ()) for g in GRADIENTS], ids=str)
def test_gradient_bits(case: Gradient, native: Batch) -> None:
    """Of the expanded and simplified function, against the oracle's of the function as it was differentiated."""
    expected = interpret(case.written, case.inputs, exact=True)
    check_bits(native, str(case), case.inputs, expected, case.shards)


@pytest.mark.parametrize("case", [g for g in GRADIENTS if g.dtype == F64], ids=str)
def test_gradient_is_the_limit_of_differences(case: Gradient, native: Batch) -> None:
    arrays = [np.asarray(x) for x in case.inputs]

    def at(values: Sequence[Array]) -> list[Array]:
        return native.whole(str(case), values, shards=case.shards)

    _, *found = at(arrays)
    floats = [i for i, t in enumerate(case.types) if t.dtype.is_float]
    for i, gradient in zip(floats, found, strict=True):
        expected = differences(lambda values: float(at(values)[0]), arrays, i)
        np.testing.assert_allclose(gradient, expected, rtol=2e-6, atol=2e-6, err_msg=f"argument {i}")


# ---------------------------------------------------------------------- random numbers
DRAWN = [c for c in CASES if c.op in ("uniform", "normal")]


@pytest.mark.parametrize("case", DRAWN, ids=str)
def test_distribution(case: Case, native: Batch) -> None:
    """Kolmogorov and Smirnov's test, at 1 in 1,000; bf16 within its rounding."""
    drawn = native.whole(str(case), case.given(0), shards=case.shards)[0].astype(np.float64).ravel()
    if case.op == "uniform":
        assert drawn.min() >= 0 and drawn.max() < 1
    cumulative = stats.uniform.cdf if case.op == "uniform" else stats.norm.cdf
    distance = stats.kstest(drawn, cumulative).statistic
    rounding = 2.0**-8 if case.dtype not in (F32, F64) else 0
    assert distance < 1.95 / np.sqrt(drawn.size) + rounding
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / np.sqrt(drawn.size)
    other = native.whole(str(case), case.given(1), shards=case.shards)[0].astype(np.float64).ravel()  # of the next step
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 4 / np.sqrt(drawn.size)


@pytest.mark.parametrize("case", DRAWN, ids=str)
def test_numbers_do_not_depend_on_who_draws_them(case: Case, native: Batch) -> None:
    whole = native.whole(str(case), case.given(0), shards=32)[0]
    rows = len(whole) // 32
    for first, shares in ((3, (3, 3, 26)), (31, (31, 1)), (0, (1, 31))):
        ((role, found),) = [h for h in native.run(str(case), case.given(0), 32, shares)[0] if h[0].first == first]
        assert same_bits(found, whole[first * rows : (first + role.count) * rows])
