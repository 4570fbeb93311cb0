"""How long a kernel takes on this machine, alone on one thread, for a role that owns everything."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from alphac.backends.cache import Cache
from alphac.backends.compile import compile_object
from alphac.backends.target import KernelSource, Target
from alphac.ir.schedule import Buffer, Kernel, merges

LINE = 64


def seconds(
    kernel: Kernel, sources: Sequence[KernelSource], target: Target, shards: int, budget: float, store: Cache
) -> list[float]:
    """The least time of each of a kernel's sources. They take turns, on the same random operands, until `budget`
    seconds have passed."""
    loaded = _Loaded(compile_object(sources, "", target, store))
    memory = [_filled(b, shards) for b in kernel.buffers()]
    table = np.array(merges(shards, 0, shards), np.int64)
    scratch = _aligned(max(s.scratch for s in sources))
    pointers = [m.ctypes.data for m in memory]
    integers = [*[0] * len(kernel.loops), shards, 0, table.ctypes.data, scratch.ctypes.data, 0, 1]
    types = [ctypes.c_void_p] * len(pointers) + [ctypes.c_int64] * len(integers)
    functions = [ctypes.CFUNCTYPE(None, *types)(loaded.address(s.name)) for s in sources]
    for function in functions:
        function(*pointers, *integers)
    best = [float("inf")] * len(functions)
    end = time.perf_counter() + budget
    while True:
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function(*pointers, *integers)
            best[i] = min(best[i], time.perf_counter() - start)
        if time.perf_counter() > end:
            return best


@dataclass
class _Loaded:
    """An object in this process."""

    data: bytes

    def __post_init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(self.data))
        self.engine.finalize_object()

    def address(self, symbol: str) -> int:
        return self.engine.get_function_address(symbol)


def _aligned(size: int) -> np.ndarray:
    raw = np.zeros(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size]


def _filled(buffer: Buffer, shards: int) -> np.ndarray:
    """A buffer's memory; its numbers are random, of about 1, indices 0."""
    elements = buffer.per_shard * shards if buffer.per_shard else buffer.fixed
    if buffer.role == "nodes":
        elements = buffer.fixed * (shards.bit_length() + 1)
    dtype = buffer.type.dtype
    memory = _aligned(elements * dtype.bytes).view(dtype.storage)
    if dtype.is_float and dtype.bits > 16:
        memory[:] = np.random.default_rng(0).random(elements, np.float32) - np.float32(0.5)
    return memory
