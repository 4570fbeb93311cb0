"""How fast is a GPU? Contractions, exact ones and those by matrix instructions, beside PyTorch's where it is installed
for this GPU (f32 without TF32, and bf16) and beside what the GPU can do at most; and steps of the examples beside one
core of this machine.

    python benchmarks/gpu.py [--steps N]

Needs an NVIDIA GPU and the extra `cuda`, or an AMD GPU, ROCm and `lld-19`.
Writes records/gpu-DATE.json: which GPU, which driver, seconds, TFLOP/s, the part of the roofline.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Peak:
    """What a maker says of a GPU: FLOP/s of f32 and of dense matrices of bf16, bytes per second of its memory."""

    f32: float
    bf16: float
    memory: float

    def seconds(self, op: str, rows: int, terms: int, columns: int) -> float:
        """The least that a product of matrices in f32 can take: its operations or its memory."""
        flops = 2 * rows * terms * columns / (self.bf16 if op == "contract_fast" else self.f32)
        return max(flops, 4 * (rows * terms + terms * columns + rows * columns) / self.memory)


PEAKS = {
    "A100": Peak(19.5e12, 312e12, 2.04e12),
    "H100": Peak(66.9e12, 989e12, 3.35e12),
    "H200": Peak(66.9e12, 989e12, 4.8e12),
    "MI300X": Peak(163.4e12, 1307e12, 5.3e12),
}


def contraction(op: str, rows: int, terms: int, columns: int, gpu: str) -> dict[str, Any]:
    """Median seconds of one product of matrices, in f32, on random data."""
    m, k, n = Dim("m", rows), Dim("k", terms), Dim("n", columns)
    program = schedule(function_of([contracted(F32, (m, k), (k, n), (m, n), op=op)]))
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

    def run() -> None:
        driver.launch(launch)
        driver.read(places[0], word)  # waits

    median = timed(run)
    driver.close()
    result = {"op": op, "shape": [rows, terms, columns], "seconds": median}
    result["tflops"] = 2e-12 * rows * terms * columns / median
    peak = next((p for name, p in PEAKS.items() if name in gpu), None)
    result["of_roofline"] = peak.seconds(op, rows, terms, columns) / median if peak is not None else None
    result["torch_seconds"] = by_torch(op, rows, terms, columns)
    return result


def timed(run: Callable[[], None]) -> float:
    """The median of several runs, behind a few that do not count."""
    seconds: list[float] = []
    for _ in range(REPEATS + 3):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[3:])


def by_torch(op: str, rows: int, terms: int, columns: int) -> float | None:
    """The same by PyTorch: of operands that are bf16 already, where ours are rounded on the way."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    dtype = torch.bfloat16 if op == "contract_fast" else torch.float32
    x, y = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((rows, terms), (terms, columns)))

    def run() -> None:
        torch.matmul(x, y)
        torch.cuda.synchronize()

    return timed(run)


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
    gpu = str(device["gpu"])
    contractions = [contraction(op, *shape, gpu) for op in ("contract", "contract_fast") for shape in SIZES]
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
