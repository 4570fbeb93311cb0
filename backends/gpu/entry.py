"""What stands between a launch and the function of one thread.

A launch gives the buffers' pointers, the indices of the loops around it, shards owned, first shard, and the address of
merges. Within `Tiles` all iterations are one launch, whose grid has a second axis: it gives no indices of the tiles'
axes but the first iteration and the bytes from one iteration's private buffers to the next one's.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from alphac.backends.target import KernelSource
from alphac.ir.schedule import Kernel, Tiles


def tiled(source: KernelSource, kernel: Kernel, tiles: Tiles) -> KernelSource:
    """The kernel for all iterations of `tiles` at once."""
    count = len(tiles.indices)
    assert kernel.loops[len(kernel.loops) - count :] == tiles.indices
    sizes = tuple((d.size // d.shards if d.shards else d.size, bool(d.shards)) for d in tiles.dims)
    private = tuple(b.role == "private" for b in kernel.buffers())
    digest = hashlib.sha256(f"{sizes} {private}".encode()).hexdigest()[:8]
    return replace(source, name=f"{source.name}_{digest}", tiles=sizes, private=private)


def integers(source: KernelSource) -> int:
    """How many i64 a launch gives behind the pointers."""
    return source.loops - len(source.tiles) + source.integers + (2 if source.tiles else 0)


def call(source: KernelSource, pointers: list[str]) -> str:
    """LLVM IR that calls `NAME_thread`. `pointers` are generic ones; integers are called `%i0`, `%i1` and so on."""
    outer = source.loops - len(source.tiles)
    given = [f"%i{n}" for n in range(integers(source))]
    loops, fixed = given[:outer], given[outer : outer + source.integers]
    lines: list[str] = []
    if source.tiles:
        base, stride = given[-2:]
        lines += ["%y0 = call i64 @gpu_tile()", f"%y = add i64 %y0, {base}", f"%away = mul i64 %y, {stride}"]
        for n, (pointer, private) in enumerate(zip(pointers, source.private, strict=True)):
            if private:
                lines.append(f"%own{n} = getelementptr i8, ptr {pointer}, i64 %away")
        pointers = [f"%own{n}" if p else q for n, (q, p) in enumerate(zip(pointers, source.private, strict=True))]
        found, rest = [], "%y"
        for n, (size, _) in reversed(list(enumerate(source.tiles[1:], 1))):
            lines += [f"%at{n} = urem i64 {rest}, {size}", f"%rest{n} = udiv i64 {rest}, {size}"]
            found, rest = [f"%at{n}", *found], f"%rest{n}"
        size, grows = source.tiles[0]
        lines += [f"%skip = mul i64 {fixed[1]}, {size if grows else 0}", f"%at0 = add i64 {rest}, %skip"]
        loops = [*loops, "%at0", *found]
    passed = ", ".join([*(f"ptr {p}" for p in pointers), *(f"i64 {i}" for i in (*loops, *fixed))])
    return "".join(f"  {line}\n" for line in [*lines, f"call void @{source.name}_thread({passed})", "ret void"])


def declaration(source: KernelSource) -> str:
    """Of the thread's function."""
    types = ["ptr"] * len(source.parameters) + ["i64"] * (source.loops + source.integers)
    return f"declare void @{source.name}_thread({', '.join(types)})\n"


def exported(source: KernelSource, convention: str, attributes: str = "") -> str:
    """LLVM IR of the kernel that a driver launches, of that calling convention: buffers are in global memory
    (`addrspace(1)`, as all GPUs of LLVM have it), and none overlaps another."""
    pointers = [f"%p{i}" for i in range(len(source.parameters))]
    casts = "".join(f"  %g{p[1:]} = addrspacecast ptr addrspace(1) {p} to ptr\n" for p in pointers)
    taken = [f"ptr addrspace(1) noalias align 16 {p}" for p in pointers]
    taken += [f"i64 %i{n}" for n in range(integers(source))]
    return (
        f"{declaration(source)}define {convention} void @{source.name}({', '.join(taken)}) {attributes} {{\n"
        f"{casts}{call(source, [f'%g{p[1:]}' for p in pointers])}}}\n"
    )
