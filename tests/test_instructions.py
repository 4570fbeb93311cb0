"""No kernel executes more instructions than it did: a guard against slower code that needs no clock.

tests/instructions/ holds what is counted: every region of kernels.alpha, and a training step. counts.json has what was
counted last; `pytest tests/test_instructions.py --update-golden` writes it, after a change that was meant."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import count, missing_tool

from alphac import pipeline
from alphac.ir.schedule import Program

HERE = Path(__file__).parent / "instructions"
COUNTS = HERE / "counts.json"
ALLOWED = 1.03  # times what was counted last
PREFIX = "region."
KERNELS = pipeline.schedules(pipeline.simplify(pipeline.parse_and_elaborate(HERE / "kernels.alpha", {})))
REGIONS = [name.removeprefix(PREFIX) for name in KERNELS if name.startswith(PREFIX)]

pytestmark = [
    pytest.mark.skipif(missing_tool() is not None, reason=f"this machine has no {missing_tool()}"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="counts x86-64 instructions, on x86-64"),
]


def recorded() -> dict[str, Any]:
    return json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else {"instructions": {}}


def check(name: str, program: Program, shards: int, folder: Path, update: bool) -> None:
    """Count, and compare with what was counted last, or write it down."""
    found, before = count(program, shards, folder), recorded()
    if update:
        versions = {package: version(package) for package in ("llvmlite", "numba")}
        counts = dict(sorted({**before["instructions"], name: found}.items()))
        COUNTS.write_text(json.dumps({"versions": versions, "instructions": counts}, indent=1) + "\n", encoding="utf-8")
        return
    last = before["instructions"][name]
    assert found <= ALLOWED * last, (
        f"{name} executes {found:,} instructions, {100 * found / last - 100:.1f} % more than recorded; recorded with "
        f"llvmlite {before['versions']['llvmlite']}, this is {version('llvmlite')}"
    )


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", REGIONS)
def test_a_kernel_executes_no_more(name: str, tmp_path: Path, update: bool) -> None:
    check(name, KERNELS[PREFIX + name], 8, tmp_path, update)


def test_a_training_step_executes_no_more(tmp_path: Path, update: bool) -> None:
    source = tmp_path / "training.alpha"
    source.write_bytes((HERE / "training.alpha").read_bytes())
    images, labels = np.zeros((16, 14, 14, 4), np.float32), np.zeros(16, np.int32)
    np.savez(tmp_path / "training.npz", images=images, labels=labels)
    module = pipeline.simplify(pipeline.differentiate(pipeline.parse_and_elaborate(source, {})))
    check("training", pipeline.schedules(module)["step"], 8, tmp_path, update)
