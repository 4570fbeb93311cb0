"""Do contractions reach what the machine allows, at whatever shape?

Twenty at random: m, n and k log-uniform in 16 … 4096 with m · n · k at least 2²², every layout, 1 to 16 of them in a
batch, f32, one thread. What the machine allows is measured in the same run: chains of fma in registers, and a sum over
memory that no cache holds; a contraction is bound by one of the two, its vectorized axis rounded up to 16. Exit code 1
if the median is below 80 % of that, or any below 50 %.

    .venv/bin/python benchmarks/contractions.py [--seed N] [--count N]
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from recording import write_record

from alphac.backends.cache import Cache
from alphac.backends.registry import host_target
from alphac.backends.target import Target
from alphac.backends.timing import seconds
from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Port, Value
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import F32, Dim, TensorType

LOW, HIGH, LEAST, MOST = 16, 4096, 1 << 22, 1 << 35  # of m, n and k; of their product, with the batch
LAYOUTS = ("NN", "NT", "TN")
MEDIAN, MINIMUM = 0.8, 0.5
BUDGET = 1.0  # seconds for one contraction


@dataclass(frozen=True)
class Product:
    """[batch, m, k] by [batch, k, n]; a T in the layout: the operand's last two axes are exchanged."""

    layout: str
    batch: int
    m: int
    n: int
    k: int

    def function(self) -> Function:
        batch = (Dim("batch", self.batch),) if self.batch > 1 else ()
        m, n, k = Dim("m", self.m), Dim("n", self.n), Dim("k", self.k)
        left, right = (m, k) if self.layout[0] == "N" else (k, m), (k, n) if self.layout[1] == "N" else (n, k)
        block = Block()
        block.arguments = [Value(TensorType(F32, (*batch, *d)), name) for d, name in ((left, "a"), (right, "b"))]
        result = Builder(block)("contract", *block.arguments, dims=(*batch, m, n))
        block.results = (result,)
        return Function("step", block, (Port("state", "a"), Port("state", "b")), (Port("output", "c"),))

    def allowed(self, flops: float, bandwidth: float) -> float:
        """The least seconds it can take."""
        columns = -(-self.n // 16) * 16
        moved = 4 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)
        return max(2 * self.batch * self.m * columns * self.k / flops, moved / bandwidth)


def drawn(count: int, seed: int) -> list[Product]:
    """Products at random."""
    source = random.Random(seed)
    found: list[Product] = []
    while len(found) < count:
        m, n, k = (round(LOW * (HIGH / LOW) ** source.random()) for _ in range(3))
        batch = min(source.randint(1, 16), MOST // (m * n * k))
        if m * n * k >= LEAST and batch:
            found.append(Product(source.choice(LAYOUTS), batch, m, n, k))
    return found


def fma_rate(target: Target) -> float:
    """Floating-point operations a second of chains of fma on vectors in registers."""
    turns, chains, lanes = 1 << 20, 12, target.lanes
    vector = f"<{lanes} x float>"
    sums = "\n".join(f"  %s{i} = phi {vector} [ zeroinitializer, %entry ], [ %n{i}, %loop ]" for i in range(chains))
    steps = "\n".join(
        f"  %n{i} = call {vector} @llvm.fma({vector} %x, {vector} %x, {vector} %s{i})" for i in range(chains)
    )
    totals = "\n".join(f"  %t{i} = fadd {vector} {'%n0' if i == 1 else f'%t{i - 1}'}, %n{i}" for i in range(1, chains))
    name = f"llvm.fma.v{lanes}f32"
    text = f"""
declare {vector} @{name}({vector}, {vector}, {vector})
define void @chains(ptr %place, i64 %turns) {{
entry:
  %x = load {vector}, ptr %place, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{sums}
{steps.replace("@llvm.fma(", f"@{name}(")}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %turns
  br i1 %more, label %loop, label %done
done:
{totals}
  store {vector} %t{chains - 1}, ptr %place, align 4
  ret void
}}"""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("chains"))
    place = np.full(64, 1e-3, np.float32)
    return 2 * lanes * chains * turns / min(_seconds(lambda: function(place.ctypes.data, turns)) for _ in range(10))


def read_rate() -> float:
    """Bytes a second of a sum over memory."""
    memory = np.ones(1 << 26, np.float32)
    return memory.nbytes / min(_seconds(memory.sum) for _ in range(5))


def _seconds(work: object) -> float:
    start = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - start


def main() -> int:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description="Do contractions reach what the machine allows?")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    target = host_target()
    flops, bandwidth = fma_rate(target), read_rate()
    print(f"seed {options.seed}: fma {flops / 1e9:.1f} GFLOP/s, memory {bandwidth / 1e9:.1f} GB/s, one thread")
    rows: list[dict[str, object]] = []
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for p in drawn(options.count, options.seed):
            (kernel,) = schedule(p.function()).kernels()
            (taken,) = seconds(kernel, [target.lower(kernel)], target, 1, BUDGET, Cache(Path(directory)))
            shares.append(p.allowed(flops, bandwidth) / taken)
            rate = 2 * p.batch * p.m * p.n * p.k / taken
            rows.append({**vars(p), "seconds": taken, "share": round(shares[-1], 3)})
            shape = f"{p.batch:3} × {p.m} × {p.n} × {p.k}"
            print(f"{p.layout}  {shape:25} {taken * 1e3:9.3f} ms {rate / 1e9:7.1f} GFLOP/s {shares[-1]:6.0%}")
    median, least = statistics.median(shares), min(shares)
    print(f"median {median:.0%} (at least {MEDIAN:.0%}), minimum {least:.0%} (at least {MINIMUM:.0%})")
    write_record(
        "contractions",
        {"seed": options.seed, "flops": flops, "bandwidth": bandwidth, "median": median, "minimum": least, "all": rows},
    )
    return 0 if median >= MEDIAN and least >= MINIMUM else 1


if __name__ == "__main__":
    sys.exit(main())
