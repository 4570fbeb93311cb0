"""For tests: Metal's framework without Apple. It takes what `MetalDriver` says to it, checks that, and runs kernels on
this machine's processor: their text is C++ but for a few words, which a header explains to g++; a block's threads are
the simulator's coroutines.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from simulated import Simulator

from alphac.runtime.devices.gpu import Launch

HEADER = """
#include <cmath>
#include <cstdint>
#include <cstring>
using namespace std;
#define device
#define constant const
#define threadgroup
#define thread
#define kernel extern "C"
typedef unsigned char uchar;
typedef float float2 __attribute__((vector_size(8), may_alias));
typedef float float4 __attribute__((vector_size(16), may_alias));
typedef int int2 __attribute__((vector_size(8), may_alias));
typedef int int4 __attribute__((vector_size(16), may_alias));
typedef long long2 __attribute__((vector_size(16), may_alias));
struct uint3 { unsigned x, y, z; };
template <class To, class From> To as_type(From x) {
    static_assert(sizeof(To) == sizeof(From), "of one width");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static int popcount(unsigned x) { return __builtin_popcount(x); }
namespace mem_flags { enum { mem_threadgroup = 1, mem_device = 2 }; }
static int64_t* state;
static void threadgroup_barrier(int) { reinterpret_cast<void (*)(int64_t*)>(state[3])(state); }
typedef void (*Kernel)(uchar*, const int64_t*, uint3, uint3, uint3);
extern "C" void start(int64_t* given, int64_t* launch) {
    state = given;
    const uint3 own = {(unsigned)given[0], 0, 0};
    const uint3 group = {(unsigned)given[1], (unsigned)given[8], 0}, groups = {(unsigned)given[2], 1, 1};
    reinterpret_cast<Kernel>(launch[0])((uchar*)launch[1], launch + 2, own, group, groups);
}
"""
FAMILY = "#include <metal_stdlib>\nusing namespace metal;\n"
COMMAND = ("g++", "-std=c++17", "-O1", "-ffp-contract=off", "-march=native", "-fno-strict-aliasing", "-w")


def can_compile() -> bool:
    return shutil.which("g++") is not None


def compiled(text: str, directory: Path) -> Path | str:
    """A library of the text's kernels, or what the compiler says."""
    assert text.startswith(FAMILY)
    # A block's memory is declared by a kernel and shared by its threads: for coroutines, a static variable.
    text = re.sub(r"^( +)threadgroup (uchar shared\[)", r"\1static \2", text, flags=re.MULTILINE)
    text = re.sub(r" \[\[\w+(\(\d+\))?\]\]", "", text)
    name = directory / f"k{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    source, library = name.with_suffix(".cpp"), name.with_suffix(".so")
    source.write_text(HEADER + text.removeprefix(FAMILY))
    done = subprocess.run(
        [*COMMAND, "-shared", "-fPIC", "-o", str(library), str(source)], capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else library


class _Options:
    """MTLCompileOptions before macOS 15 (`old`) or since."""

    def __init__(self, old: bool) -> None:
        self.safe = False
        if old:
            self.setFastMathEnabled_ = lambda fast: setattr(self, "safe", not fast)
        else:
            self.setMathMode_ = lambda mode: setattr(self, "safe", mode == "safe")


class _Buffer:
    def __init__(self, size: int) -> None:
        self.raw = np.full(size + 64, 0xA5, np.uint8)
        self.bytes = self.raw[-self.raw.ctypes.data % 64 :][:size]

    def length(self) -> int:
        return self.bytes.nbytes

    def contents(self) -> _Buffer:
        return self

    def as_buffer(self, size: int) -> Any:
        assert size == self.length()
        return self.bytes.data


class _Named:
    """A function of a library, and its pipeline."""

    def __init__(self, address: int, most: int) -> None:
        self.address, self.most = address, most

    def maxTotalThreadsPerThreadgroup(self) -> int:  # noqa: N802
        return self.most


class _Library:
    def __init__(self, path: Path, owner: Double) -> None:
        self.loaded, self.owner = ctypes.CDLL(str(path)), owner
        self.start = ctypes.cast(self.loaded.start, ctypes.c_void_p).value or 0

    def newFunctionWithName_(self, name: str) -> _Named | None:  # noqa: N802
        try:
            found = ctypes.cast(getattr(self.loaded, name), ctypes.c_void_p)
        except AttributeError:
            return None
        return _Named(found.value or 0, self.owner.most)


class _Commands:
    """A command buffer and its only encoder: what is dispatched runs when somebody waits for it."""

    def __init__(self, owner: Double) -> None:
        self.owner = owner
        self.todo: list[tuple[_Named, _Buffer, bytes, Any, Any]] = []
        self.state = "encoding"

    def computeCommandEncoder(self) -> _Commands:  # noqa: N802
        return self

    def setComputePipelineState_(self, pipeline: _Named) -> None:  # noqa: N802
        self.pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer: _Buffer, offset: int, index: int) -> None:  # noqa: N802
        assert (offset, index) == (0, 0)
        self.buffer = buffer

    def setBytes_length_atIndex_(self, given: bytes, length: int, index: int) -> None:  # noqa: N802
        assert (len(given), index) == (length, 1)
        self.given = bytes(given)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, grid: Any, block: Any) -> None:  # noqa: N802
        self.todo.append((self.pipeline, self.buffer, self.given, grid, block))

    def endEncoding(self) -> None:  # noqa: N802
        self.state = "encoded"

    def commit(self) -> None:
        assert self.state == "encoded"
        self.state = "committed"

    def waitUntilCompleted(self) -> None:  # noqa: N802
        assert self.state == "committed"
        for each in self.todo:
            self.owner.run(*each)
        self.todo.clear()

    def status(self) -> int:
        return self.owner.status

    def error(self) -> str:
        return "Caused GPU Hang Error"


class Double(ModuleType):
    """The module `Metal` of a machine with one GPU. `most`: threads that a block may have; `status`: of what has run,
    4 if all is well."""

    MTLMathModeSafe, MTLResourceStorageModeShared = "safe", "shared"

    def __init__(self, directory: Path, old: bool = False) -> None:
        super().__init__("Metal")
        self.directory, self.old, self.most, self.status = directory, old, 1024, 4
        self.library: _Library | None = None
        self.MTLCompileOptions = self

    # ------------------------------------------------------------------ the module, its classes, and the device
    def MTLCreateSystemDefaultDevice(self) -> Double | None:  # noqa: N802
        return self if self.most else None

    def alloc(self) -> Double:
        return self

    def init(self) -> _Options:
        return _Options(self.old)

    def name(self) -> str:
        return "Apple Double"

    def MTLSizeMake(self, *sides: int) -> tuple[int, ...]:  # noqa: N802
        return sides

    def newCommandQueue(self) -> Double:  # noqa: N802
        return self

    def commandBuffer(self) -> _Commands:  # noqa: N802
        return _Commands(self)

    def newBufferWithLength_options_(self, size: int, mode: str) -> _Buffer | None:  # noqa: N802
        assert mode == "shared"
        return _Buffer(size) if size < 1 << 40 else None

    def newLibraryWithSource_options_error_(self, text: str, options: _Options, error: None) -> Any:  # noqa: N802
        assert options.safe, "Metal's compiler is fast and loose unless told otherwise"
        made = compiled(text, self.directory)
        if isinstance(made, str):
            return None, made
        self.library = _Library(made, self)
        return self.library, None

    def newComputePipelineStateWithFunction_error_(self, function: _Named, error: None) -> Any:  # noqa: N802
        return function, None

    # ------------------------------------------------------------------ the GPU
    def run(self, pipeline: _Named, buffer: _Buffer, given: bytes, grid: Sequence[int], block: Sequence[int]) -> None:
        assert self.library is not None
        arguments = (pipeline.address, buffer.bytes.ctypes.data, *np.frombuffer(given, np.int64).tolist())
        _simulator().launch(Launch(self.library.start, grid[0], grid[1], block[0], arguments))


_simulators: list[Simulator] = []


def _simulator() -> Simulator:
    """Without kernels of its own."""
    if not _simulators:
        _simulators.append(Simulator(b""))
    return _simulators[0]
