"""How long until a role learns? From the start of its process to the end of its first step.

    python benchmarks/startup.py [--starts N]

Compiles digits_mlp for one role (the kernels come from the user's cache if it was compiled before), starts the role
N times (9) as `alphac run` does, and reads the time at which it tells of its first step. The bundle's files are in the
page cache, as after `alphac compile`. Fails if the median is above 300 ms, or if a process has loaded the compiler,
numba or lark when it ends. Writes records/startup-DATE.json. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recording import write_record

from alphac.bench.startup import first_step

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "digits_mlp" / "digits_mlp.alpha"
STARTS, LIMIT, STEPS = 9, 0.3, 3
FOREIGN = ("numba", "lark", "alphac.ir", "alphac.backends", "alphac.frontend", "alphac.pipeline")
# What `python -m alphac.runtime.main` does; what it has loaded when it is done goes to the descriptor given first.
ROLE = """
import os, sys
from alphac.runtime.main import main
code = main(sys.argv[2:])
os.write(int(sys.argv[1]), "\\n".join(sys.modules).encode())
sys.exit(code)
"""


@dataclass(frozen=True)
class Start:
    """One start: seconds to the end of the first step, and the modules that were loaded at the end."""

    seconds: float
    modules: frozenset[str]

    @property
    def foreign(self) -> list[str]:
        """Modules that a role has no use for."""
        return sorted(m for m in self.modules if any((m + ".").startswith(f + ".") for f in FOREIGN))


def start_role(bundle: Path, out: Path) -> Start:
    """Start role 0 of a bundle, alone, for a few steps. Raises Diagnostics if it fails."""
    modules, modules_end = os.pipe()
    options = ["--role", "0", "--steps", str(STEPS), "--out", str(out)]
    command = [sys.executable, "-c", ROLE, str(modules_end), "role", str(bundle), *options]
    try:
        seconds = first_step(command, [modules_end])
    finally:
        os.close(modules_end)
    with os.fdopen(modules, "rb") as stream:
        return Start(seconds, frozenset(stream.read().decode().split()))


def compile_example(directory: Path) -> Path:
    """digits_mlp's bundle for one role."""
    bundle = directory / "digits_mlp.bundle"
    command = [sys.executable, "-m", "alphac.cli", "compile", str(EXAMPLE), "-o", str(bundle)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return bundle


def measure(starts: int) -> list[Start]:
    """Start the role so many times, one after the other, after one start that counts for nothing."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bundle = compile_example(directory)
        return [start_role(bundle, directory / f"run-{k}") for k in range(starts + 1)][1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=STARTS)
    starts = measure(parser.parse_args().starts)
    seconds = [s.seconds for s in starts]
    median, foreign = statistics.median(seconds), sorted({m for s in starts for m in s.foreign})
    result: dict[str, Any] = {
        "milliseconds": [round(1e3 * s, 1) for s in seconds],
        "median_milliseconds": round(1e3 * median, 1),
        "limit_milliseconds": round(1e3 * LIMIT),
        "foreign_modules": foreign,
        "modules": max(len(s.modules) for s in starts),
        "python": platform.python_version(),
    }
    path = write_record("startup", result)
    print(f"first step after {1e3 * median:.0f} ms (median of {len(seconds)}: {1e3 * min(seconds):.0f} to "
          f"{1e3 * max(seconds):.0f}), limit {1e3 * LIMIT:.0f} ms")  # fmt: skip
    print(f"foreign modules: {', '.join(foreign) or 'none'}\nwrote {path}")
    return 0 if median <= LIMIT and not foreign else 1


if __name__ == "__main__":
    sys.exit(main())
