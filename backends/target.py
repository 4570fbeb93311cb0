"""What a target is: an instruction set that kernels are lowered to and compiled for.

A target is data (triple, cpu, features, vector width, capabilities) and one hook, `lowering`, that turns a kernel of a
schedule into source. Targets are found by `alphac.backends.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from alphac.backends.gpu.matrix import Matrix
from alphac.ir.passes.admit import EXACT, scratch_of
from alphac.ir.schedule import Kernel
from alphac.ir.typesys import DType

MATRIX_BF16 = "matrix(bf16)"  # the capability: products of bf16 pairs, added up in f32
MATRIX = frozenset({"matrix", MATRIX_BF16})
CAPABILITIES = frozenset(  # of a target that takes every op in every dtype, and computes it exactly
    {EXACT, "elementwise", "index", "gather", "reduce", "contract", "scan", "scatter", "collective"}
    | {"f32", "f64", "bf16", "i32", "i64", "u8", "bool"}
)


@dataclass(frozen=True)
class Grid:
    """How many threads a GPU kernel can use: blocks of `threads`, one for every `each` of `count` pieces of work (of
    every owned shard, if it `grows`). A kernel works with any number of blocks."""

    threads: int
    count: int
    each: int
    grows: bool


@dataclass(frozen=True)
class KernelSource:
    """One kernel in the Numba dialect, ready to compile.

    name        symbol: `k_` and a digest of what the kernel computes, so that equal kernels are compiled once
    source      Python text that defines function `name` when executed in a copy of `namespace`
    parameters  element types of the buffers, in the order of `Kernel.buffers()`; each is passed as a raw pointer
    loops       how many loop indices follow the buffers
    scratch     bytes of scratch that one thread needs (the runtime aligns every thread's scratch to 64 bytes)
    alone       whether the thread that is told to be thread 0 does all of it, as it is little
    namespace   globals of the source: NumPy scalar types, SIMD intrinsics. Not part of the kernel's identity but for
                the digest of the files that make them
    integers    how many i64 follow these: six as below; on a GPU the first three
    shared      bytes of memory that a GPU's block shares
    grid        how many threads a GPU should start
    fitting     how many of its blocks are to fit into a multiprocessor, which limits a thread's registers
    tiles       on a GPU, of all iterations of tiles at once: of every axis its size (a shard's, if it grows with them)
    private     which buffers each iteration has of its own then

    Native signature: one pointer per parameter, then i64: `loops` indices (outermost first), shards owned, first shard,
    address of merges (i64 each), address of this thread's scratch, thread, threads. The function returns nothing.

    A buffer may be both stored and read if it is read at the stored index alone: a kernel loads all it needs for an
    index (or a vector of them) before it stores anything there, and one thread does both.
    """

    name: str
    source: str
    parameters: tuple[DType, ...]
    loops: int = 0
    scratch: int = 0
    namespace: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    integers: int = 6
    shared: int = 0
    grid: Grid | None = None
    fitting: int = 2
    alone: bool = False
    tiles: tuple[tuple[int, bool], ...] = ()
    private: tuple[bool, ...] = ()


Lowering = Callable[["Kernel", "Target"], KernelSource]
Entry = Callable[[KernelSource], str]
Link = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Target:
    """One instruction set.

    name          as in fleet files and bundles
    capabilities  what regions may need: ops' needs and dtypes by name
    lowering      kernel → source
    runs_here     whether this machine executes it, as a host that compiles for itself
    triple, cpu, features   what LLVM compiles for
    lanes         f32 elements in the vector register that code should use (16: AVX-512, 8: AVX2, 4: SSE or NEON);
                  explicit vector code must not use wider ones
    registers     how many vector registers there are
    pause         (intrinsic, i32 arguments) that relaxes the core in a spin loop
    needs         the processor's features, in LLVM's names, without which an object must not be loaded
    preference    among targets that run here, the highest is chosen
    tile          rows and vectors of contractions' register tiles; None: as the shape suggests
    attributes    LLVM function attributes given to every function
    streams       whether `lowering` takes kernels with stages
    forbidden     a regular expression of registers, as assembly writes them, that no code uses although the processor
                  has them; empty if it may use all
    device        the module of the runtime's devices that loads the code
    text          whether that loads assembly rather than an object
    printer       writes all kernels as text that the device's own compiler takes, in place of LLVM; None: LLVM does it
    entry         LLVM IR of what a kernel's source calls beside LLVM's own functions, and of its exported function,
                  which calls `NAME_thread`, the function that the source became; None: that is exported itself
    private       the address space that LLVM keeps a thread's own memory in
    matrix        a GPU's matrix instruction of bf16, if it has one
    linker        finds what makes an object loadable, where LLVM's own is not; raises ToolMissing
    """

    name: str
    capabilities: frozenset[str]
    lowering: Lowering = field(compare=False, repr=False)
    runs_here: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    triple: str = ""
    cpu: str = ""
    features: str = ""
    lanes: int = 1
    registers: int = 0
    pause: tuple[str, tuple[int, ...]] = ("", ())
    needs: tuple[str, ...] = ()
    preference: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    tile: tuple[int, int] | None = None
    forbidden: str = ""
    streams: bool = False
    device: str = "cpu"
    text: bool = False
    entry: Entry | None = field(default=None, compare=False, repr=False)
    printer: Callable[[Iterable[KernelSource]], str] | None = field(default=None, compare=False, repr=False)
    private: int = 0
    matrix: Matrix | None = None
    linker: Callable[[], Link] | None = field(default=None, compare=False, repr=False)

    @property
    def scratch(self) -> int:
        """Bytes that a region may require, which on a GPU a block has."""
        return scratch_of(self.capabilities)

    @property
    def is_gpu(self) -> bool:
        """Whether a segment is a list of launches rather than a function."""
        return self.device != "cpu"

    def lower(self, kernel: Kernel) -> KernelSource:
        """The source of one kernel."""
        return self.lowering(kernel, self)


def lower_for_vectors(kernel: Kernel, target: Target) -> KernelSource:
    """A processor's lowering: a kernel in the Numba dialect, for the target's vector width."""
    from alphac.backends import kernels

    return kernels.lower(kernel, target)


def lower_for_a_grid(kernel: Kernel, target: Target) -> KernelSource:
    """A GPU's lowering: a kernel in the Numba dialect, for one thread of a grid."""
    from alphac.backends.gpu import lower

    return lower.lower(kernel, target)
