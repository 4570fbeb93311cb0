"""CONTRIBUTING.md keeps its word: one new file makes an elementwise op, from the language to every role's kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[1]
PACKAGES = ("alphac", "ir", "backends", "runtime")
STEPS = 20
RATE = 0.5
SYSTEM = f"""
system contributed
dim features = 3, batch = 16
grain 4 of batch

data points from "points.npz" {{
    x: f32[features] = x
    y: f32[]         = y
}}

param w: f32[features] = 0.125

region guess(x: f32[batch, features]) -> f32[batch] {{ softsign(x @ w) }}

learn w with sgd({RATE}) minimizing {{ mean((guess(x) - y) * (guess(x) - y)) }}

train on points for {STEPS} steps
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the source with one file more: the listing in CONTRIBUTING.md, under the name that is given there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ((name, listing),) = re.findall(
        r"`(ir/ops/\w+\.py)`, whole:\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, symlinks=True, ignore=ignored)
    assert not (tmp_path / name).exists()
    (tmp_path / name).write_text(listing, encoding="utf-8")
    return tmp_path


def alphac(checkout: Path, *arguments: object) -> None:
    """Run the checkout's own `alphac`."""
    command = [sys.executable, "-m", "alphac.cli", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def points() -> tuple[np.ndarray, np.ndarray]:
    """32 points (two batches) and what a softsign of known weights makes of them."""
    x = (np.arange(96, dtype=np.float32).reshape(32, 3) * 7 % 11 - 5) / 5
    z = x @ np.array([0.5, -1.0, 2.0], np.float32)
    return x, (z / (1 + np.abs(z))).astype(np.float32)


def expected() -> np.ndarray:
    """The weights after all steps, in float64."""
    x, y = (column.astype(np.float64) for column in points())
    w = np.full(3, 0.125)
    for step in range(STEPS):
        rows = slice(step % 2 * 16, step % 2 * 16 + 16)
        z = x[rows] @ w
        error = z / (1 + np.abs(z)) - y[rows]
        w -= RATE * (2 / 16) * x[rows].T @ (error / (1 + np.abs(z)) ** 2)
    return w


def test_an_op_from_one_file_trains_on_two_roles(checkout: Path) -> None:
    (checkout / "contributed.alpha").write_text(SYSTEM, encoding="utf-8")
    x, y = points()
    np.savez(checkout / "points.npz", x=x, y=y)
    learned: list[np.ndarray] = []
    for roles in (1, 2):
        alphac(checkout, "compile", "contributed.alpha", "--roles", roles, "-o", f"{roles}.bundle")
        alphac(checkout, "run", f"{roles}.bundle", "--out", f"run{roles}")
        learned.append(load_file(checkout / f"run{roles}" / "parameters.safetensors")["w"])
    assert learned[0].tobytes() == learned[1].tobytes()
    np.testing.assert_allclose(learned[0], expected(), rtol=1e-5)
