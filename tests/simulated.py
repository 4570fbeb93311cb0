"""For tests: a GPU on this machine's processor. Kernels are those of every GPU target, compiled for the host; a block's
threads are coroutines, each on a stack of its own, that run in turn from barrier to barrier.

The exported function of a kernel is `NAME(state, arguments)`, run once by every thread; `state` is nine words: the
thread's number, the block's, how many blocks there are, the function that a barrier calls, the block's memory, where
the scheduler waits, the threads' stack pointers, which of them are done, and the tile's number.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from matrix_double import library

from alphac.backends.gpu import THREADS
from alphac.backends.gpu.entry import call, declaration, integers
from alphac.backends.gpu.matrix import Matrix
from alphac.backends.registry import host_target, target
from alphac.backends.target import MATRIX, KernelSource, Target
from alphac.runtime.devices.gpu import Launch

STACK = 1 << 16  # bytes of a thread's stack
SHARED = 1 << 16
BLOCKS = 3  # at most so many are started, so that most kernels stride over the grid

_LIBRARY = """
@state = internal global ptr null
define i64 @gpu_local() {
  %s = load ptr, ptr @state
  %n = load i64, ptr %s
  ret i64 %n
}
define i64 @gpu_block() {
  %s = load ptr, ptr @state
  %p = getelementptr i64, ptr %s, i64 1
  %n = load i64, ptr %p
  ret i64 %n
}
define i64 @gpu_blocks() {
  %s = load ptr, ptr @state
  %p = getelementptr i64, ptr %s, i64 2
  %n = load i64, ptr %p
  ret i64 %n
}
define i64 @gpu_tile() {
  %s = load ptr, ptr @state
  %p = getelementptr i64, ptr %s, i64 8
  %n = load i64, ptr %p
  ret i64 %n
}
define void @gpu_barrier() {
  %s = load ptr, ptr @state
  %p = getelementptr i64, ptr %s, i64 3
  %yield = load ptr, ptr %p
  call void %yield(ptr %s)
  ret void
}
define ptr @gpu_shared(i64 %at) {
  %s = load ptr, ptr @state
  %p = getelementptr i64, ptr %s, i64 4
  %base = load ptr, ptr %p
  %place = getelementptr i8, ptr %base, i64 %at
  ret ptr %place
}
"""

# Switching stacks: what a function must preserve is pushed, and popped from where the other one stands.
_RUNTIME = """
module asm ".globl sim_switch"
module asm "sim_switch:"
module asm "pushq %rbp"
module asm "pushq %rbx"
module asm "pushq %r12"
module asm "pushq %r13"
module asm "pushq %r14"
module asm "pushq %r15"
module asm "movq %rsp, (%rdi)"
module asm "movq %rsi, %rsp"
module asm "popq %r15"
module asm "popq %r14"
module asm "popq %r13"
module asm "popq %r12"
module asm "popq %rbx"
module asm "popq %rbp"
module asm "ret"
declare void @sim_switch(ptr, i64)
@here = internal global ptr null
@function = internal global ptr null
@arguments = internal global ptr null

define void @sim_yield(ptr %state) {
  %n = load i64, ptr %state
  %places = getelementptr i64, ptr %state, i64 6
  %pointers = load ptr, ptr %places
  %mine = getelementptr i64, ptr %pointers, i64 %n
  %waits = getelementptr i64, ptr %state, i64 5
  %scheduler = load i64, ptr %waits
  call void @sim_switch(ptr %mine, i64 %scheduler)
  ret void
}

define void @sim_start() {
  %state = load ptr, ptr @here
  %function = load ptr, ptr @function
  %arguments = load ptr, ptr @arguments
  call void %function(ptr %state, ptr %arguments)
  %n = load i64, ptr %state
  %places = getelementptr i64, ptr %state, i64 7
  %done = load ptr, ptr %places
  %mine = getelementptr i64, ptr %done, i64 %n
  store i64 1, ptr %mine
  call void @sim_yield(ptr %state)
  unreachable
}

define i64 @sim_block(ptr %state, ptr %function, ptr %arguments, i64 %threads) {
entry:
  store ptr %state, ptr @here
  store ptr %function, ptr @function
  store ptr %arguments, ptr @arguments
  %places = getelementptr i64, ptr %state, i64 6
  %pointers = load ptr, ptr %places
  %flags = getelementptr i64, ptr %state, i64 7
  %done = load ptr, ptr %flags
  %waits = getelementptr i64, ptr %state, i64 5
  br label %round
round:
  %rounds = phi i64 [ 0, %entry ], [ %more, %over ]
  br label %turn
turn:
  %n = phi i64 [ 0, %round ], [ %following, %next ]
  %left = phi i64 [ 0, %round ], [ %still, %next ]
  %flag = getelementptr i64, ptr %done, i64 %n
  %before = load i64, ptr %flag
  %ended = icmp ne i64 %before, 0
  br i1 %ended, label %next, label %go
go:
  store i64 %n, ptr %state
  %mine = getelementptr i64, ptr %pointers, i64 %n
  %pointer = load i64, ptr %mine
  call void @sim_switch(ptr %waits, i64 %pointer)
  %after = load i64, ptr %flag
  %waiting = sub i64 1, %after
  br label %next
next:
  %adds = phi i64 [ 0, %turn ], [ %waiting, %go ]
  %still = add i64 %left, %adds
  %following = add i64 %n, 1
  %last = icmp eq i64 %following, %threads
  br i1 %last, label %over, label %turn
over:
  %more = add i64 %rounds, 1
  %none = icmp eq i64 %still, 0
  %all = icmp eq i64 %still, %threads
  %uneven = xor i1 %all, true
  %stop = or i1 %none, %uneven
  br i1 %stop, label %leave, label %round
leave:
  ret i64 %still
}
"""


def _entry(source: KernelSource, matrix: Matrix | None) -> str:
    count = len(source.parameters)
    names = [*(f"%p{n}" for n in range(count)), *(f"%i{n}" for n in range(integers(source)))]
    lines = [f"  %a{i} = getelementptr i64, ptr %arguments, i64 {i}" for i in range(len(names))]
    lines += [f"  {v} = load {'ptr' if i < count else 'i64'}, ptr %a{i}" for i, v in enumerate(names)]
    instruction = library(matrix) if matrix is not None else ""
    return (
        f"{_LIBRARY}\n{instruction}{declaration(source)}"
        f"define void @{source.name}(ptr %state, ptr %arguments) {{\n"
        "  store ptr %state, ptr @state\n" + "\n".join(lines) + f"\n{call(source, names[:count])}}}\n"
    )


def simulated(matrix: Matrix | None = None) -> Target:
    """The target: kernels of a GPU for this machine, with a matrix instruction or without."""
    host, like = host_target(), target("cuda-sm90")
    return replace(
        like, name=f"simulated-{matrix.name}" if matrix else "simulated", triple=host.triple, cpu=host.cpu,
        features=host.features, text=False, device="simulated", attributes=host.attributes, matrix=matrix,
        entry=lambda source: _entry(source, matrix), capabilities=like.capabilities - (set() if matrix else MATRIX),
    )  # fmt: skip


def can_simulate() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and platform.system() == "Linux"


@cache
def _scheduler() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_RUNTIME), machine)
    engine.finalize_object()
    return engine


class Simulator:
    """A GPU with the kernels of an object (without its line of JSON). It is a runtime's `Driver` too."""

    def __init__(self, kernels: bytes) -> None:
        scheduler = _scheduler()
        kinds = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        self._block = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(scheduler.get_function_address("sim_block"))
        self._start = scheduler.get_function_address("sim_start")
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        if kernels:
            self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(kernels))
        self._engine.finalize_object()
        self._stacks = np.zeros(STACK * THREADS // 8, np.int64)
        self._shared = np.full(SHARED, 0xA5, np.uint8)
        self._pointers, self._done = np.zeros(THREADS, np.int64), np.zeros(THREADS, np.int64)
        self._state = np.zeros(9, np.int64)
        shared = -(-self._shared.ctypes.data // 16) * 16
        self._state[3:8] = (
            scheduler.get_function_address("sim_yield"), shared, 0, self._pointers.ctypes.data, self._done.ctypes.data,
        )  # fmt: skip
        self._memory: dict[int, np.ndarray] = {}
        self.launches = 0

    # ------------------------------------------------------------------ a `Driver`
    def allocate(self, size: int) -> int:
        raw = np.zeros(size + 64, np.uint8)
        address = -(-raw.ctypes.data // 64) * 64
        self._memory[address] = raw
        return address

    def write(self, address: int, data: np.ndarray) -> None:
        ctypes.memmove(address, np.ascontiguousarray(data).ctypes.data, data.nbytes)

    def read(self, address: int, into: np.ndarray) -> None:
        ctypes.memmove(into.ctypes.data, address, into.nbytes)

    def function(self, symbol: str) -> int:
        found = self._engine.get_function_address(symbol)
        assert found, symbol
        return found

    def launch(self, launch: Launch) -> None:
        self.launches += 1
        given = np.array(launch.arguments, np.int64)
        blocks = min(launch.blocks, BLOCKS)
        for tile, block in np.ndindex(launch.tiles, blocks):
            self._state[1:3] = block, blocks
            self._state[8] = tile
            self._done[:] = 0
            tops = self._stacks.ctypes.data + STACK * np.arange(1, launch.threads + 1) - 64
            tops -= tops % 16
            self._pointers[: launch.threads] = tops - 64  # six registers are popped; then `ret` finds `sim_start`
            self._stacks[(tops - 16 - self._stacks.ctypes.data) // 8] = self._start
            left = self._block(self._state.ctypes.data, launch.function, given.ctypes.data, launch.threads)
            assert not left, f"{left} of {launch.threads} threads wait at a barrier that the others do not reach"

    def record(self, launches: Sequence[Launch]) -> Callable[[], None]:
        def run() -> None:
            for launch in launches:
                self.launch(launch)

        return run

    def describe(self) -> dict[str, str | int]:
        return {"device": "simulated"}

    def close(self) -> None:
        self._memory.clear()
