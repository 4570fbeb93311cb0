"""The kernels' dialect: our translation means what Numba's does, and says so when a source is not in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numba_route import translated_by_numba
from session import Session

from alphac import pipeline
from alphac.backends import compile as compiling
from alphac.backends.kernels import TYPES
from alphac.backends.target import KernelSource
from alphac.backends.translate import translate
from alphac.backends.vector import SCALARS
from alphac.ir.errors import InternalError
from alphac.ir.typesys import F32

SYSTEM = """
system small
dim wide = 20, narrow = 3, batch = 12
grain 3 of batch
data points from "points.npz" { x: f32[wide] = x  label: i32[] = label  hold out test 25%  shuffle seed 1 }
param w: f32[wide, narrow] = normal(0.5)
param b: f32[narrow] = 0
region scores(x: f32[batch, wide]) -> f32[batch, narrow] { gelu(dropout(x, 0.25) @ w + b) }
learn w, b with adam(0.01) minimizing { mean(cross_entropy(scores(x), label)) }
evaluate accuracy on test = mean(argmax(scores(x), narrow) == label)
train on points for 2 epochs
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    x, label = random.normal(size=(36, 20)).astype(np.float32), random.integers(0, 3, 36).astype(np.int32)
    np.savez(tmp_path / "points.npz", x=x, label=label)
    path = tmp_path / "small.alpha"
    path.write_text(SYSTEM)
    return path


def trained(bundle: Path) -> dict[str, bytes]:
    with Session(bundle) as session:
        for step in range(4):
            session.step(step)
        return {name: value.tobytes() for name, value in session.states().items()}


def test_numba_makes_the_same_of_every_kernel(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours = trained(pipeline.compile_file(source, out=tmp_path / "ours").path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(compiling, "translate", translated_by_numba)
    numbas = trained(pipeline.compile_file(source, out=tmp_path / "numbas").path)
    assert len(ours) > 5 and ours == numbas


def kernel(body: str) -> KernelSource:
    text = "".join(f"    {line}\n" for line in body.split("\n"))
    arguments = "p0, shards, first, merges, scratch, thread, threads"
    return KernelSource("k_one", f"def k_one({arguments}):\n{text}", (F32,), namespace={**SCALARS, **TYPES})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("p0[0] = nowhere", "reads `nowhere` before it is set"),
        ("p0[0] = first", "i64 where float32 is wanted|int64 where float32 is wanted"),
        ("p0[0] = p0[0] % p0[1]", "is not in the dialect"),
        ("with p0: pass", "is not in the dialect"),
        ("for i in p0: pass", "is not in the dialect"),
        ("p0[0] = unknown(first)", "calls `unknown`"),
    ],
)
def test_what_is_not_in_the_dialect_is_refused(body: str, said: str):
    with pytest.raises(InternalError, match=said):
        translate(kernel(body))


def test_integers_that_are_known_are_folded_and_wrap():
    text = translate(kernel("n = first + ((6 & 12 | 1) ^ 3)\nm = 9223372036854775807 + 1\np0[0] = f32(n + m)"))
    assert ", 6" in text
    assert str(1 << 63) in text


def test_a_loop_without_turns_and_one_with_a_step():
    body = "n = 0\nfor i in range(first, shards, 3):\n    n += i\np0[0] = f32(n)"
    assert "phi" in translate(kernel(body))


def test_loops_over_whole_vectors_are_not_unrolled_before_they_are_vectorized():
    inner = "for i in range(8):\n    for j in range({}):\n        p0[8 * i + j] = f32(1)"
    assert "distinct" in translate(kernel(inner.format(16)))
    assert "distinct" not in translate(kernel(inner.format(10)))
