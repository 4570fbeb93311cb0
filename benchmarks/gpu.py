"""How fast is a GPU? Contractions in exact mode, and steps of the examples beside one core of this machine.

    python benchmarks/gpu.py [--steps N]

Needs an NVIDIA GPU and the extra `cuda`, or an AMD GPU, ROCm and `lld-19`.
Writes records/gpu-DATE.json: which GPU, which driver, seconds, TFLOP/s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from recording import write_record

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from hardware import DRIVERS, described, hardware  # noqa: E402
from session import Session  # noqa: E402
from test_kernels import contracted, function_of  # noqa: E402

from alphac.backends.emit import lower_programs  # noqa: E402
from alphac.backends.registry import host_target  # noqa: E402
from alphac.ir.passes.project import schedule  # noqa: E402
from alphac.ir.typesys import F32, Dim  # noqa: E402
from alphac.pipeline import Plan, compile_file  # noqa: E402
from alphac.runtime.devices.gpu import Launch  # noqa: E402

SIZES = ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 1024, 8192), (256, 784, 128))
REPEATS = 20
EXAMPLES = ("digits_mlp", "digits_cnn", "char_gpt")


def contraction(rows: int, terms: int, columns: int) -> dict[str, Any]:
    """Median seconds of one product of matrices, in f32, on random data."""
    m, k, n = Dim("m", rows), Dim("k", terms), Dim("n", columns)
    program = schedule(function_of([contracted(F32, (m, k), (k, n), (m, n))]))
    code = lower_programs([program], hardware())
    (action,) = next(iter(code.launches.values()))
    driver = DRIVERS[code.target.device](code.object().split(b"\n", 1)[1], code.target.name, code.target.needs)
    random = np.random.default_rng(0)
    places: list[int] = []
    for number in action["buffers"]:
        data = random.standard_normal(program.buffers[number].type.size, np.float32)
        places.append(driver.allocate(data.nbytes))
        driver.write(places[-1], data)
    threads, count, each, _ = action["grid"]
    function, word = driver.function(action["launch"]), np.zeros(1, np.float32)
    launch = Launch(function, -(-count // each), 1, threads, (*places, 1, 0, places[0]))
    seconds: list[float] = []
    for _ in range(REPEATS + 3):
        began = time.perf_counter()
        driver.launch(launch)
        driver.read(places[0], word)  # waits
        seconds.append(time.perf_counter() - began)
    driver.close()
    median = statistics.median(seconds[3:])
    return {"shape": [rows, terms, columns], "seconds": median, "tflops": 2e-12 * rows * terms * columns / median}


def steps(example: str, directory: Path, count: int) -> dict[str, Any]:
    """Seconds of a step, and whether both learned the same bits."""
    result: dict[str, Any] = {"example": example, "steps": count}
    states: list[dict[str, bytes]] = []
    for kind, there in (("cpu", host_target()), ("gpu", hardware())):
        source = ROOT / "examples" / example / f"{example}.alpha"
        plan = Plan((Fraction(1),), (there.name,))
        bundle = compile_file(source, out=directory / f"{example}-{kind}", plan=plan).path
        with Session(bundle) as session:
            session.step(0)
            began = time.perf_counter()
            for number in range(1, count + 1):
                session.step(number)
            states.append({name: state.tobytes() for name, state in session.states().items()})
            result[f"{kind}_seconds"] = (time.perf_counter() - began) / count
    return {**result, "same_bits": states[0] == states[1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    count = parser.parse_args().steps
    device = described()
    if isinstance(device, str):
        print(device)
        return 1
    contractions = [contraction(*shape) for shape in SIZES]
    with tempfile.TemporaryDirectory() as directory:
        examples = [steps(example, Path(directory), count) for example in EXAMPLES]
    result = {"device": device, "target": hardware().name, "contractions": contractions, "examples": examples}
    path = write_record("gpu", result)
    for row in (*contractions, *examples):
        print(row)
    print(f"{device['gpu']}: wrote {path}")
    return 0 if all(e["same_bits"] for e in examples) else 1


if __name__ == "__main__":
    sys.exit(main())
