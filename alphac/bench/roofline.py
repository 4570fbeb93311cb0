"""What this machine can do: fused multiply-adds in registers, and bytes streamed from each level of memory.

Both are measured with loops of our own, written as LLVM IR for the widest vectors of this host's target, on as many
threads as asked for. A kernel's limit is the longer of the times that its arithmetic and its bytes take at these rates.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from alphac.backends.registry import host_target
from alphac.backends.target import Target
from alphac.bench.cores import hold_thread

CHAINS = 12  # independent sums: more than the latency of an fma times how many a cycle starts
STREAMS = 8  # vectors per turn of a streaming loop
SIZES = (16 << 10, 128 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20)  # bytes streamed, all threads together
TRIALS, TRIAL = 5, 0.02  # the best of so many trials of about so many seconds
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class Roofline:
    """Rates of so many threads: float32 operations a second, and bytes a second by bytes touched."""

    threads: int
    flops: float
    bandwidth: dict[int, float]

    def rate(self, touched: float) -> float:
        """Bytes a second, at most, for something that touches so many bytes: what was measured for the largest size
        that is not larger."""
        sizes = sorted(self.bandwidth)
        return self.bandwidth[max((s for s in sizes if s <= touched), default=sizes[0])]

    def limit(self, flops: float, touched: float) -> float:
        """Seconds that so many operations and bytes take at least."""
        return max(flops / self.flops, touched / self.rate(touched))


def measure(threads: int) -> Roofline:
    """Measure this machine. Run it in a process that is held to the cores that it speaks of."""
    target = host_target()
    engine = _engine("\n".join((_fma(target), _read(target), _triad(target))), target)
    functions = {name: FUNCTION(engine.get_function_address(name)) for name in ("fma", "read", "triad")}
    vector = 4 * target.lanes
    buffers = [np.ones(3 * SIZES[-1] // threads // 4 + vector, np.float32) for _ in range(threads)]

    def rate(name: str, count: int, work: float) -> float:
        """Work per second of `count` turns on every thread, over and over; `work` is that of one pass."""
        return threads * work * _passes_per_second(functions[name], [b.ctypes.data for b in buffers], count)

    flops = rate("fma", 1000, 1000 * CHAINS * 2 * target.lanes)
    bandwidth: dict[int, float] = {}
    for size in SIZES:
        turns = size // threads // vector // STREAMS
        streamed = turns * STREAMS * vector
        bandwidth[size] = max(rate("read", turns, streamed), rate("triad", turns // 3, streamed // 3 * 3))
    return Roofline(threads, flops, bandwidth)


def _passes_per_second(function: Any, buffers: list[int], count: int) -> float:
    """The best rate at which all threads together make one pass each."""
    passes = 1
    while (seconds := _run(function, buffers, count, passes)) < TRIAL:
        passes = max(2 * passes, int(passes * TRIAL / max(seconds, 1e-6)))
    return passes / min(_run(function, buffers, count, passes) for _ in range(TRIALS))


def _run(function: Any, buffers: list[int], count: int, passes: int) -> float:
    """Seconds from the first thread's start to the last one's end."""
    start, spans = threading.Barrier(len(buffers)), list[tuple[float, float]]()

    def work(number: int, buffer: int) -> None:
        hold_thread(number)
        start.wait()
        began = time.perf_counter()
        function(buffer, count, passes)
        spans.append((began, time.perf_counter()))

    threads = [threading.Thread(target=work, args=item) for item in enumerate(buffers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(end for _, end in spans) - min(began for began, _ in spans)


# ---------------------------------------------------------------------- the loops
def _engine(text: str, target: Target) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    attributes = " ".join(f'"{k}"="{v}"' for k, v in target.attributes)
    module = llvm.parse_assembly(f"{text}\nattributes #0 = {{ nounwind {attributes} }}\n")
    described = llvm.Target.from_triple(target.triple)
    machine = described.create_target_machine(cpu=target.cpu, features=target.features, opt=3)
    return llvm.create_mcjit_compiler(module, machine)


def _loops(name: str, carried: list[str], turn: str, sums: int, lanes: int) -> str:
    """`void NAME(ptr buffer, i64 count, i64 passes)`: `turn` is repeated `count` times in every pass, %i counting; it
    turns vectors %a0 … into %b0 …, which are stored at the end so that nobody leaves the loop out."""
    vector = f"<{lanes} x float>"
    outer = "".join(f"  %o{k} = phi {vector} [zeroinitializer, %entry], [%b{k}, %next]\n" for k in range(sums))
    inner = "".join(f"  %a{k} = phi {vector} [%o{k}, %pass], [%b{k}, %turn]\n" for k in range(sums))
    kept = "".join(
        f"  %q{k} = getelementptr {vector}, ptr %buffer, i64 {k}\n  store {vector} %b{k}, ptr %q{k}, align 4\n"
        for k in range(sums)
    )
    return f"""
define void @{name}(ptr %buffer, i64 %count, i64 %passes) #0 {{
entry:
{"".join(carried)}  br label %pass
pass:
  %p = phi i64 [0, %entry], [%p1, %next]
{outer}  br label %turn
turn:
  %i = phi i64 [0, %pass], [%i1, %turn]
{inner}{turn}  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %turn, label %next
next:
  %p1 = add i64 %p, 1
  %again = icmp ult i64 %p1, %passes
  br i1 %again, label %pass, label %end
end:
{kept}  ret void
}}
"""


def _fma(target: Target) -> str:
    """a = x·x + a on registers alone."""
    vector = f"<{target.lanes} x float>"
    call = f"call {vector} @llvm.fma.v{target.lanes}f32({vector} %x, {vector} %x, {vector}"
    turn = "".join(f"  %b{k} = {call} %a{k})\n" for k in range(CHAINS))
    declared = f"declare {vector} @llvm.fma.v{target.lanes}f32({vector}, {vector}, {vector})\n"
    return declared + _loops("fma", [f"  %x = load {vector}, ptr %buffer, align 4\n"], turn, CHAINS, target.lanes)


def _read(target: Target) -> str:
    """The sum of everything."""
    vector = f"<{target.lanes} x float>"
    turn = f"  %at = mul i64 %i, {STREAMS}\n" + "".join(
        f"  %k{k} = add i64 %at, {k}\n  %r{k} = getelementptr {vector}, ptr %buffer, i64 %k{k}\n"
        f"  %v{k} = load {vector}, ptr %r{k}, align 4\n  %b{k} = fadd {vector} %a{k}, %v{k}\n"
        for k in range(STREAMS)
    )
    return _loops("read", [], turn, STREAMS, target.lanes)


def _triad(target: Target) -> str:
    """a = b + c, the three arrays one behind the other."""
    vector = f"<{target.lanes} x float>"
    places = "".join(
        f"  %{name}_ = mul i64 %count, {n * STREAMS}\n  %{name} = getelementptr {vector}, ptr %buffer, i64 %{name}_\n"
        for n, name in ((1, "second"), (2, "third"))
    )
    turn = f"  %at = mul i64 %i, {STREAMS}\n" + "".join(
        f"  %k{k} = add i64 %at, {k}\n"
        + "".join(
            f"  %{name}{k} = getelementptr {vector}, ptr %{base}, i64 %k{k}\n"
            for name, base in (("x", "buffer"), ("y", "second"), ("z", "third"))
        )
        + f"  %u{k} = load {vector}, ptr %y{k}, align 4\n  %w{k} = load {vector}, ptr %z{k}, align 4\n"
        f"  %s{k} = fadd {vector} %u{k}, %w{k}\n  store {vector} %s{k}, ptr %x{k}, align 4\n"
        for k in range(STREAMS)
    )
    return _loops("triad", [places], turn, 0, target.lanes)
