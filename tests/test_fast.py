"""`numeric fast`: contractions in pairs of bf16 where the target has them, exact ones where it has not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from native import run
from session import Session
from test_kernels import Case, function_of, same_bits

from alphac import pipeline
from alphac.backends.emit import lower_programs
from alphac.backends.registry import capabilities, host_target, target, targets, targets_here
from alphac.backends.target import MATRIX_BF16
from alphac.diagnostics import Diagnostics
from alphac.ir.core import Function, Value
from alphac.ir.oracle import to_compute
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import F32, Dim, TensorType

BF16 = "x86-64-v4-bf16"
here = pytest.mark.skipif(BF16 not in targets_here(), reason="this processor has no AVX512-BF16")

BATCH = Dim("batch", 48, 8)
K, N, LONG, FEW = Dim("k", 70), Dim("n", 50), Dim("long", 1300), Dim("few", 5)
# operands' and result's axes; whether shards are combined; whether operands are computed while they are packed
SHAPES = [
    ((BATCH, K), (K, N), (BATCH, N), False, False),
    ((BATCH, K), (N, K), (BATCH, N), False, True),
    ((K, N), (K, FEW), (N, FEW), False, False),
    ((LONG, N), (LONG, K), (N, K), False, True),
    ((N, LONG), (LONG, FEW), (N, FEW), False, False),
    ((BATCH, K), (BATCH, N), (K, N), True, False),
    ((BATCH, LONG), (BATCH, FEW), (LONG, FEW), True, True),
    ((BATCH, N, K), (BATCH, FEW, K), (BATCH, N, FEW), False, False),
]


def contraction(shape: tuple, name: str = "contract_fast") -> Function:
    a, b, dims, combined, inlined = shape

    def make(builder: object, x: Value, y: Value) -> Value:
        if inlined:
            x, y = builder("neg", x), builder("abs", y)  # pyright: ignore
        z = builder(name, x, y, dims=dims)  # pyright: ignore
        return builder.combine(z) if combined else builder("neg", z)  # pyright: ignore

    return function_of([Case(name, (TensorType(F32, a), TensorType(F32, b)), make)])


def rounded(x: np.ndarray) -> np.ndarray:
    """f32 to the nearest bf16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def expected(shape: tuple, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The result on rounded operands in float64, and the sum of the terms' sizes."""
    a, b, dims, combined, inlined = shape
    letters = {d.name: chr(97 + i) for i, d in enumerate(dict.fromkeys((*a, *b)))}
    text = ",".join("".join(letters[d.name] for d in axes) for axes in (a, b))
    text += "->" + "".join(letters[d.name] for d in dims)
    x, y = (rounded(v).astype(np.float64) for v in (x, y))
    x, y = (-x, np.abs(y)) if inlined else (x, y)
    sign = 1 if combined else -1
    return sign * np.einsum(text, x, y), np.einsum(text, np.abs(x), np.abs(y))


@here
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("shares", [(8,), (3, 5)])
def test_pairs_of_bf16_are_added_up_in_f32(shape: tuple, shares: tuple[int, ...]):
    random = np.random.default_rng(3)
    x, y = (random.standard_normal([d.size for d in axes]).astype(np.float32) for axes in shape[:2])
    function = contraction(shape)
    program = schedule(function)
    code = lower_programs([program], target(BF16))
    assert any("pairs_" in source.source for source in code.sources.values())
    roles, _ = run(program, code, [x, y], 8, shares, 2)
    wanted, size = expected(shape, x, y)
    ((_, buffer),) = program.results
    for role in roles:
        part = wanted if buffer.role == "nodes" or buffer.per_shard == 0 else role.part(buffer, wanted)
        bound = size if part is wanted else role.part(buffer, size)
        found = to_compute(role.read(buffer), F32).reshape(part.shape)
        assert np.all(np.abs(found - part) <= bound * 2.0**-20)


@pytest.mark.parametrize("name", [n for n in targets_here() if MATRIX_BF16 not in capabilities(n)])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_without_them_the_contraction_is_exact(shape: tuple, name: str):
    same_bits(contraction(shape), name=name)


@here
def test_an_odd_number_of_terms_is_summed_exactly():
    odd = ((BATCH, Dim("k", 71)), (Dim("k", 71), N), (BATCH, N), False, False)
    same_bits(contraction(odd), name=BF16)


# ---------------------------------------------------------------------- from the source
SYSTEM = """
system fast
dim pixels = 64, hidden = 128, classes = 10, batch = 64
grain 4 of batch
data digits from "digits.npz" { image: f32[pixels] = images / 16  label: i32[] = labels  shuffle seed 1 }
param w1: f32[pixels, hidden] = glorot
param w2: f32[hidden, classes] = glorot
region hidden_of(image: f32[batch, pixels]) -> f32[batch, hidden] numeric MODE { relu(image @ w1) }
region logits(image: f32[batch, pixels]) -> f32[batch, classes] { hidden_of(image) @ w2 }
learn w1, w2 with adam(0.005) minimizing { mean(cross_entropy(logits(image), label)) }
train on digits for 4 epochs
"""
FAST = "fast(tolerance = 1e-2)"


@pytest.fixture
def source(tmp_path: Path):
    example = Path(__file__).parents[1] / "examples" / "data" / "digits.npz"
    (tmp_path / "digits.npz").write_bytes(example.read_bytes())

    def write(mode: str) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.alpha"
        path.write_text(SYSTEM.replace("MODE", mode))
        return path

    return write


@here
def test_a_fast_region_learns_as_an_exact_one_within_its_tolerance(source, tmp_path: Path):
    losses = []
    for mode in ("exact", FAST):
        bundle = pipeline.compile_file(source(mode), out=tmp_path / mode).path
        with Session(bundle) as session:
            losses.append([session.step(i)["loss"] for i in range(60)])
    exact, fast = np.array(losses)
    assert not np.array_equal(exact, fast)
    np.testing.assert_allclose(fast, exact, rtol=1e-2)
    assert fast[-1] < fast[0] / 3


def test_only_a_region_that_asks_for_it_is_fast(source, tmp_path: Path):
    texts = [pipeline.emit(source(m), "simplified", plan=pipeline.Plan.of(), overrides={}) for m in ("exact", FAST)]
    assert "contract_fast" not in texts[0]
    step = texts[1][texts[1].index("function step") :]
    assert step.count("contract_fast") == 2  # forward, and the gradient by w1
    assert step.count("contract(") == 3


def test_the_target_is_chosen_by_what_regions_ask_for():
    able = [n for n in targets_here() if MATRIX_BF16 in targets()[n].capabilities]
    assert (host_target(frozenset({MATRIX_BF16})).name in able) == bool(able)
    assert host_target().name not in able


def test_what_a_target_lacks_is_refused(source):
    path = source(f"{FAST} requires matrix(bf16)")
    plan = pipeline.Plan((1,), ("x86-64-v3",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(Diagnostics, match=r"region `hidden_of` needs matrix\(bf16\), which x86-64-v3 lacks"):
        pipeline.compile_file(path, plan=plan)
