"""A role's process starts from NumPy, llvmlite and the runtime alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOREIGN = (
    "numba",
    "lark",
    "typer",
    "rich",
    "scipy",
    "alphac.ir",
    "alphac.backends",
    "alphac.frontend",
    "alphac.pipeline",
)
# A role as it is started by the launcher, which says at its end what it has loaded.
ROLE = """
import sys
from alphac.runtime.main import main
code = main(sys.argv[1:])
print(*sorted(sys.modules))
sys.exit(code)
"""


def test_a_role_loads_no_compiler(bundle: Callable[..., Path], tmp_path: Path) -> None:
    """Not even when it has initialized, trained, evaluated and saved."""
    options = ["--role", "0", "--steps", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", ROLE, "role", str(bundle("digits_mlp")), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run/parameters.safetensors").exists()
    loaded = done.stdout.split()
    assert {"numpy", "llvmlite.binding", "alphac.runtime.executor"} <= set(loaded)
    assert [name for name in loaded if any((name + ".").startswith(f + ".") for f in FOREIGN)] == []
