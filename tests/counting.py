"""How many instructions a program's native code executes: the same on every machine, however busy.

The program's object and a `main` of ours, which fills the arguments and calls the segments, are linked into an
executable that valgrind runs. Valgrind knows no AVX-512: the code is x86-64-v3's, the floor of the x86-64 targets."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from alphac.backends.emit import Code, lower_programs
from alphac.backends.registry import target
from alphac.ir.passes.plan_memory import buffer_bytes, place_states, plan_memory
from alphac.ir.schedule import Buffer, Program, merges

TARGET = "x86-64-v3"
TOOLS = ("valgrind", "cc")
TABLE = 16  # entries before the buffers

# Floats get numbers from −0.5 to 0.5, integers 0 to 3, whatever they mean.
FILLS = """
define internal void @fill(ptr %at, i64 %count, i1 %floats) {
entry:
  %any = icmp ugt i64 %count, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %low = and i64 %i, 255
  %wide = uitofp i64 %low to float
  %scaled = fmul float %wide, 0x3F70000000000000
  %number = fsub float %scaled, 5.0e-01
  %bits = bitcast float %number to i32
  %small = and i64 %i, 3
  %integer = trunc i64 %small to i32
  %value = select i1 %floats, i32 %bits, i32 %integer
  %place = getelementptr i32, ptr %at, i64 %i
  store i32 %value, ptr %place
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def missing_tool() -> str | None:
    """What this machine lacks for counting, if anything."""
    return next((tool for tool in TOOLS if shutil.which(tool) is None), None)


def count(program: Program, shards: int, folder: Path) -> int:
    """Instructions that one run of the program executes, as the only role, on one thread; exchanges are left out."""
    code = lower_programs([program], target(TARGET))
    steps = code.records[program.name]["steps"]
    paths = {"kernels.o": code.object(), "main.o": _object(_main(program, code, shards))}
    for name, content in paths.items():
        (folder / name).write_bytes(content)
    counted = [f"--toggle-collect={symbol}" for symbol in sorted(set(_symbols(steps)))]
    _call(["cc", "-no-pie", *(str(folder / name) for name in paths), "-o", str(folder / "main")])
    said = _call(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *counted, str(folder / "main")])
    found = re.search(r"Collected : (\d+)", said)
    assert found is not None, said
    return int(found[1])


def _call(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def _symbols(steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    for step in steps:
        if step["kind"] == "segment":
            yield step["symbol"]
        yield from _symbols(step.get("steps", ()))


def _object(text: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine().emit_object(llvm.parse_assembly(text))


def _main(program: Program, code: Code, shards: int) -> str:
    """`main`, in LLVM IR: an arena, a table, and calls."""
    states, base = place_states([program], shards)
    plan = plan_memory(program, shards, states, base, code.scratch)
    joined = ", ".join(f"i64 {n}" for n in merges(shards, 0, shards))
    entries = [
        *(f"i64 {n}" for n in (shards, 0)),
        *(f"i64 ptrtoint (ptr @{name} to i64)" for name in ("merges", "scratch")),
        f"i64 {plan.scratch}",
        "i64 ptrtoint (ptr @barrier to i64)",
        *["i64 0"] * (TABLE - 6),
        *(
            f"i64 ptrtoint (ptr {_place(buffer, offset)} to i64)"
            for buffer, offset in zip(program.buffers, plan.offsets, strict=True)
        ),
    ]
    lines = [
        f"  call void @fill(ptr {_place(buffer, offset)}, i64 {buffer_bytes(buffer, shards) // 4}, "
        f"i1 {int(buffer.type.dtype.is_float)})"
        for buffer, offset in zip(program.buffers, plan.offsets, strict=True)
        if buffer.role in ("state", "argument")
    ]
    lines += _runs(code.records[program.name]["steps"])
    symbols = sorted(set(_symbols(code.records[program.name]["steps"])))
    return "\n".join(
        [
            FILLS,
            f"@arena = internal global [{plan.arena} x i8] zeroinitializer, align 64",
            f"@scratch = internal global [{plan.scratch + 64} x i8] zeroinitializer, align 64",
            "@barrier = internal global [128 x i8] zeroinitializer, align 64",
            f"@merges = internal global [{shards} x i64] [{joined}], align 64",
            f"@table = internal global [{len(entries)} x i64] [{', '.join(entries)}], align 64",
            *(f"declare i64 @{symbol}(ptr, i64, i64)" for symbol in symbols),
            "define i32 @main() {",
            *lines,
            "  ret i32 0",
            "}",
        ]
    )


def _place(buffer: Buffer, offset: int) -> str:
    memory = "scratch" if buffer.role == "private" else "arena"
    return f"getelementptr (i8, ptr @{memory}, i64 {offset})"


def _runs(steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    for step in steps:
        if step["kind"] == "segment":
            yield f"  call i64 @{step['symbol']}(ptr @table, i64 0, i64 1)"
        elif step["kind"] == "repeat":
            for index in reversed(range(step["count"])) if step["reverse"] else range(step["count"]):
                yield f"  store i64 {index}, ptr getelementptr (i64, ptr @table, i64 {8 + step['index']})"
                yield from _runs(step["steps"])
