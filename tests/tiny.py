"""For tests of the runtime: a whole bundle made by hand, so that nothing here depends on how the compiler compiles.

    grain 4 of batch = 8;  data points: x f32[3], label i64[];  state w f32[3] = 0.5, n i64[] = 0
    step        sums = the batch's sums of x, loss = mean of x @ w;  w' = 0.9 w + 0.01 sums, n' = n + 1
    evaluate.mean, finish.mean    the mean of x[:, 0] over a split
    region.scale   x -> y = x * w       region.loops   z[batch] -> trace[4]: what the runtime's loops count

Kernels are Numba text for `alphac.backends.compile`, segments are LLVM text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from alphac.backends.compile import compile_object
from alphac.backends.kernels import TYPES
from alphac.backends.registry import host_target
from alphac.backends.segment import declaration
from alphac.backends.target import KernelSource
from alphac.backends.team import support
from alphac.backends.vector import SCALARS
from alphac.ir.typesys import F32, I64
from alphac.runtime import bundle as b

BATCH, SHARDS, WIDTH, EXAMPLES, HELD_OUT = 8, 4, 3, 44, 0.25
ROWS = BATCH // SHARDS
IDENTITY = "ab" * 32
OBJECT = f"objects/{host_target().name}.o"

NAMES = {**SCALARS, **TYPES}
_TAIL = "shards, first, merges, scratch, thread, threads"
_TREE = """
        depth += 1
        for _ in range(merge[s]):
            depth -= 1
            for k in range({width}):
                {nodes}[(depth - 1) * {width} + k] = {nodes}[(depth - 1) * {width} + k] + {nodes}[depth * {width} + k]
"""
KERNELS: dict[str, tuple[tuple[Any, ...], str]] = {
    "start": ((F32, I64), "w, n|for k in range(3):\n    w[k] = f32(0.5)\nn[0] = 0"),
    "sums": (
        (F32, F32),
        "nodes, x|merge = memory(merges, i64, 0, 1)\ndepth = 0\nfor s in range(shards):\n"
        "    for k in range(3):\n        nodes[depth * 3 + k] = x[2 * s * 3 + k] + x[(2 * s + 1) * 3 + k]"
        + _TREE.format(width=3, nodes="nodes").replace("\n        ", "\n    "),
    ),
    "losses": (
        (F32, F32, F32),
        "nodes, x, w|merge = memory(merges, i64, 0, 1)\ndepth = 0\nfor s in range(shards):\n    total = f32(0.0)\n"
        "    for r in range(2 * s, 2 * s + 2):\n        for k in range(3):\n"
        "            total = total + x[r * 3 + k] * w[k]\n"
        "    nodes[depth] = total" + _TREE.format(width=1, nodes="nodes").replace("\n        ", "\n    "),
    ),
    "loss": ((F32, F32), "loss, nodes|loss[0] = nodes[0] / f32(8.0)"),
    "update": ((F32, F32), "w, sums|for k in range(3):\n    w[k] = w[k] * f32(0.9) + sums[k] * f32(0.01)"),
    "count": ((I64,), "n|n[0] = n[0] + 1"),
    "firsts": (
        (F32, F32, I64),
        "nodes, x, valid|merge = memory(merges, i64, 0, 1)\ndepth = 0\nfor s in range(shards):\n    total = f32(0.0)\n"
        "    for r in range(2 * s, 2 * s + 2):\n        if 2 * first + r < valid[0]:\n"
        "            total = total + x[r * 3]\n    nodes[depth] = total"
        + _TREE.format(width=1, nodes="nodes").replace("\n        ", "\n    "),
    ),
    "add": ((F32, F32, F32), "after, before, nodes|after[0] = before[0] + nodes[0]"),
    "mean": ((F32, F32, I64), "mean, total, count|mean[0] = total[0] / f32(count[0])"),
    "scale": ((F32, F32, F32), "y, x, w|for i in range(6 * shards):\n    y[i] = x[i] * w[mod(i, 3)]"),
    "trace": ((F32, F32), "trace, z|trace[i] = trace[i] * f32(10.0) + f32(j) + z[0]"),
}
LOOPED = {"trace": 2}
ALL_THREADS = """
def k_scale(y, x, w, shards, first, merges, scratch, thread, threads):
    for i in range(div(6 * shards * thread, threads), div(6 * shards * (thread + 1), threads)):
        y[i] = x[i] * w[mod(i, 3)]
"""


def kernel(name: str) -> KernelSource:
    """One kernel's source; all but `scale` work on thread 0 alone."""
    parameters, text = KERNELS[name]
    names, body = text.split("|")
    loops = ["i, ", "j, "][: LOOPED.get(name, 0)]
    lines = "\n".join(f"        {line}" for line in body.split("\n"))
    source = f"def k_{name}({names}, {''.join(loops)}{_TAIL}):\n    if thread == 0:\n{lines}\n"
    return KernelSource(f"k_{name}", ALL_THREADS if name == "scale" else source, parameters, len(loops), 0, NAMES)


def segment(name: str, *parts: tuple[str, tuple[int, ...]] | int, loops: int = 0) -> str:
    """A segment's text. A part is a kernel with its buffers, or the number of a buffer that a guard watches."""
    lines = [f"define i64 @{name}(ptr %t, i64 %thread, i64 %threads) {{", "entry:"]
    count = 0

    def load(entry: int, kind: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %a{count} = getelementptr i64, ptr %t, i64 {entry}")
        lines.append(f"  %v{count} = load {kind}, ptr %a{count}")
        return f"{kind} %v{count}"

    for number, part in enumerate(parts):
        if isinstance(part, int):
            pointer = load(16 + part, "ptr").split()[1]
            lines += [
                f"  %w{number} = load i32, ptr {pointer}",
                f"  %e{number} = and i32 %w{number}, 2139095040",
                f"  %b{number} = icmp eq i32 %e{number}, 2139095040",
                f"  br i1 %b{number}, label %out{number}, label %go{number}",
                f"out{number}:",
                "  ret i64 1",
                f"go{number}:",
            ]
            continue
        symbol, buffers = part
        arguments = [load(16 + n, "ptr") for n in buffers]
        arguments += [load(8 + n, "i64") for n in range(loops)]
        arguments += [load(n, "i64") for n in range(4)]
        lines.append(f"  call void @k_{symbol}({', '.join([*arguments, 'i64 %thread, i64 %threads'])})")
        lines += [
            f"  %s{number} = icmp ugt i64 %threads, 1",
            f"  br i1 %s{number}, label %meet{number}, label %met{number}",
            f"meet{number}:",
            "  call void @alphac_barrier(ptr %t, i64 %thread, i64 %threads)",
            f"  br label %met{number}",
            f"met{number}:",
        ]
    return "\n".join([*lines, "  ret i64 0", "}", ""])


TRACES = """
define i64 @s_traces(ptr %t, i64 %thread, i64 %threads) {
entry:
  %i_at = getelementptr i64, ptr %t, i64 8
  %j_at = getelementptr i64, ptr %t, i64 9
  br label %turn
turn:
  %n = phi i64 [ 0, %entry ], [ %next, %turn ]
  %i = udiv i64 %n, 3
  %up = urem i64 %n, 3
  %j = sub i64 2, %up
  store i64 %i, ptr %i_at
  store i64 %j, ptr %j_at
  call i64 @s_trace(ptr %t, i64 %thread, i64 %threads)
  %next = add i64 %n, 1
  %over = icmp eq i64 %next, 12
  br i1 %over, label %done, label %turn
done:
  ret i64 0
}
"""
SUMS, LOSSES, LOSS = ("sums", (3, 2)), ("losses", (4, 2, 0)), ("loss", (5, 4))
UPDATE, COUNT = ("update", (0, 3)), ("count", (1,))
SEGMENTS = {
    "s_initialize": segment("s_initialize", ("start", (0, 1))),
    "s_step": segment("s_step", SUMS, LOSSES, LOSS, 5, UPDATE, COUNT),
    "s_step_0": segment("s_step_0", SUMS, LOSSES),
    "s_step_1": segment("s_step_1", LOSS, 5, UPDATE, COUNT),
    "s_evaluate": segment("s_evaluate", ("firsts", (3, 0, 1)), ("add", (4, 2, 3))),
    "s_evaluate_0": segment("s_evaluate_0", ("firsts", (3, 0, 1))),
    "s_evaluate_1": segment("s_evaluate_1", ("add", (4, 2, 3))),
    "s_finish": segment("s_finish", ("mean", (2, 0, 1))),
    "s_scale": segment("s_scale", ("scale", (2, 0, 1))),
    "s_trace": segment("s_trace", ("trace", (1, 0)), loops=2),
    "s_traces": TRACES,
}


@cache
def code() -> bytes:
    """The object with all of it."""
    sources = [kernel(name) for name in KERNELS]
    declarations = [declaration(s.name, len(s.parameters), s.loops + 6) for s in sources]
    text = "\n".join([support(host_target()), *declarations, *SEGMENTS.values()])
    return compile_object(sources, text, host_target(), processes=1)


# ---------------------------------------------------------------------- records
def buffer(name: str, dtype: str, shape: tuple[int, ...], role: str, grows: bool = False) -> b.BufferRecord:
    return b.BufferRecord(name, dtype, shape, role, grows, shape[0] if grows else 0, name if role == "state" else "")


W, N = buffer("w", "f32", (WIDTH,), "state"), buffer("n", "i64", (), "state")
X = buffer("x", "f32", (ROWS, WIDTH), "argument", True)
SPAN = "tiny.alpha:7:5"


def port(kind: str, name: str, number: int, **attributes: Any) -> b.PortRecord:
    return b.PortRecord(kind, name, number, attributes)


def run(symbol: str, *kernels: tuple[str, tuple[int, ...], int], guard: int | None = None) -> b.StepRecord:
    records = tuple(b.KernelRecord(buffers, stores, n, SPAN) for n, buffers, stores in kernels)
    return b.StepRecord("segment", symbol, ((guard,),) if guard is not None else (), records)


def programs() -> dict[str, b.ProgramRecord]:
    states = (port("state", "w", 0), port("state", "n", 1))
    nodes = [buffer("sums", "f32", (WIDTH,), "nodes"), buffer("losses", "f32", (), "nodes")]
    step = b.ProgramRecord(
        "step",
        (W, N, X, *nodes, buffer("loss", "f32", (), "temporary")),
        (
            run("s_step_0", ("sums", (3, 2), 1), ("losses", (4, 2, 0), 1)),
            b.StepRecord("exchange", buffers=(3, 4), kinds=("sum", "sum")),
            run("s_step_1", ("loss", (5, 4), 1), ("update", (0, 3), 1), ("count", (1,), 1), guard=5),
        ),
        "s_step",
        (*states, port("column", "points.x", 2)),
        (*states, port("loss", "", 5)),
    )
    scalar = buffer("mean.0", "f32", (), "argument")
    evaluate = b.ProgramRecord(
        "evaluate.mean",
        (X, buffer("valid", "i64", (), "argument"), scalar, nodes[1], buffer("after", "f32", (), "temporary")),
        (
            run("s_evaluate_0", ("firsts", (3, 0, 1), 1)),
            b.StepRecord("exchange", buffers=(3,), kinds=("sum",)),
            run("s_evaluate_1", ("add", (4, 2, 3), 1)),
        ),
        "s_evaluate",
        (port("column", "points.x", 0), port("valid", "", 1), port("total", "mean.0", 2, start=0.0)),
        (port("total", "mean.0", 4),),
    )
    finish = b.ProgramRecord(
        "finish.mean",
        (scalar, buffer("count", "i64", (), "argument"), buffer("mean", "f32", (), "temporary")),
        (run("s_finish", ("mean", (2, 0, 1), 1)),),
        "s_finish",
        (port("total", "mean.0", 0), port("count", "", 1)),
        (port("metric", "mean", 2),),
    )
    loop = b.StepRecord("repeat", count=3, reverse=True, index=1, steps=(run("s_trace", ("trace", (1, 0), 1)),))
    made = (
        b.ProgramRecord("initialize", (W, N), (run("s_initialize", ("start", (0, 1), 2)),), "s_initialize", (), states),
        step,
        evaluate,
        finish,
        b.ProgramRecord(
            "region.scale",
            (X, W, buffer("y", "f32", (ROWS, WIDTH), "temporary", True)),
            (run("s_scale", ("scale", (2, 0, 1), 1)),),
            "s_scale",
            (port("input", "x", 0), port("state", "w", 1)),
            (port("output", "y", 2),),
        ),
        b.ProgramRecord(
            "region.loops",
            (buffer("z", "f32", (ROWS,), "argument", True), buffer("trace", "f32", (4,), "temporary")),
            (b.StepRecord("repeat", count=4, index=0, steps=(loop,)),),
            "s_traces",
            (port("input", "z", 0),),
            (port("output", "trace", 1),),
        ),
    )
    return {p.name: p for p in made}


def plan(program: b.ProgramRecord, shards: int) -> tuple[b.ProgramPlan, int]:
    """Every buffer has a place of its own; states come first."""
    places, end, offsets = {"w": 0, "n": 64}, 128, []
    for record in program.buffers:
        if record.role == "state":
            offsets.append(places[record.state])
        else:
            offsets.append(end)
            end += -(-record.bytes(shards, 4) // 64) * 64
    return b.ProgramPlan(tuple(offsets)), end


def role_class(shards: int) -> b.ClassRecord:
    plans = {name: plan(program, shards) for name, program in programs().items()}
    arena = max(end for _, end in plans.values())
    target = host_target()
    symbols = {name: tuple(_symbols(program.steps)) for name, program in programs().items()}
    return b.ClassRecord(shards, target.name, OBJECT, arena, 64, {name: p for name, (p, _) in plans.items()}, symbols)


def _symbols(steps: Iterable[b.StepRecord]) -> Iterator[str]:
    """Of all kernels, which are named after their op."""
    for step in steps:
        yield from (f"k_{kernel.op}" for kernel in step.kernels)
        yield from _symbols(step.steps)


def points(seed: int = 5) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = (draw.integers(-64, 64, (EXAMPLES, WIDTH)) / 8).astype(np.float32)
    return {"x": x, "label": draw.integers(0, 3, EXAMPLES)}


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An npz file."""
    np.savez(path, x=arrays["x"], label=arrays["label"])


def manifest(shares: tuple[int, ...] = (4,), **changes: Any) -> b.Manifest:
    """`shares`: the shards of each role."""
    sizes = sorted({*shares, SHARDS})
    firsts = [sum(shares[:k]) for k in range(len(shares))]
    columns = (b.ColumnRecord("x", "x", "f32", (WIDTH,)), b.ColumnRecord("label", "label", "i64", ()))
    made = b.Manifest(
        system="tiny",
        identity=IDENTITY,
        grain=b.GrainRecord("batch", BATCH, SHARDS),
        seed=0,
        states=(b.StateRecord("w", "f32", (WIDTH,), "param"), b.StateRecord("n", "i64", (), "state")),
        data={"points": b.DataRecord("points", "data/points.npz", "npz", columns, HELD_OUT, "label", 0, "random", 1)},
        training=b.TrainingRecord("points", epochs=5, checkpoint_epochs=2),
        evaluations=(b.EvaluationRecord("mean", "points", "test"),),
        programs=programs(),
        classes=tuple(role_class(size) for size in sizes),
        roles=tuple(
            b.RoleRecord(k, sizes.index(s), first, s) for k, (s, first) in enumerate(zip(shares, firsts, strict=True))
        ),
        solo=sizes.index(SHARDS),
    )
    return made._replace(**changes)


def write(
    path: Path, shares: tuple[int, ...] = (4,), arrays: dict[str, np.ndarray] | None = None, **changes: Any
) -> Path:
    """The bundle on disk."""
    data = path.parent / f"{path.name}.npz"
    save(data, arrays or points())
    made = manifest(shares, **changes)
    b.write_bundle(path, made, {OBJECT: code(), "data/points.npz": data})
    return path
