"""In what OpenCL C and the Metal Shading Language differ: words, and how a launch reaches a thread's function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from alphac.backends.gpu import THREADS
from alphac.backends.gpu.entry import integers
from alphac.backends.target import KernelSource

_NUMBERS = ("local_number", "block_number", "block_count")  # what a thread's function is told of where it is


@dataclass(frozen=True)
class Language:
    """One of the two. `bits`: the function that takes bits as another type, with the type's name in it; `kernel`: a
    kernel's declaration, with its NAME and ARGUMENTS; `given`: how it finds its arguments, if not by their names."""

    name: str
    header: str
    everywhere: str  # the address spaces: of buffers, of a block, of a thread
    block: str
    thread: str
    restrict: str
    bits: str
    barrier: str
    aligned: str
    kernel: str
    argument: str
    numbers: tuple[str, str, str, str]  # of the thread, its block, the blocks, the tile
    given: str = ""
    double: str = ""  # what a text with f64 says first
    soft: bool = False  # whether it has no f64, so that f64 is made of integers (soft64.py)

    def as_bits(self, type_name: str) -> str:
        """The function that takes bits as a value of a type."""
        return self.bits.format(type_name)

    def entry(self, source: KernelSource, types: Sequence[str]) -> str:
        """The function that is launched: it calls `NAME_thread`. `types`: of the buffers' elements."""
        outer = source.loops - len(source.tiles)
        pointers = [f"p{n}" for n in range(len(types))]
        numbers = [f"i{n}" for n in range(integers(source))]
        names = [*pointers, *numbers]
        arguments = "".join(self.argument.format(name) for name in names)
        lines = [self.given.format(type="long", name=n, number=i) for i, n in enumerate(names)] if self.given else []
        if source.shared:
            lines.append(f"{self.block} uchar shared[{source.shared}] {self.aligned};")
        loops, fixed = numbers[:outer], numbers[outer : outer + source.integers]
        away = ""
        if source.tiles:
            found, rest = [], "tile"
            lines.append(f"const long tile = {self.numbers[3]} + {numbers[-2]};")
            for n, (size, _) in reversed(list(enumerate(source.tiles[1:], 1))):
                lines.append(f"const long at{n} = {rest} % {size}, rest{n} = {rest} / {size};")
                found, rest = [f"at{n}", *found], f"rest{n}"
            size, grows = source.tiles[0]
            loops = [*loops, f"{rest} + {fixed[1]} * {size}" if grows else rest, *found]
            away = f" + tile * {numbers[-1]}"
        private = source.private or (False,) * len(types)
        passed = [
            f"({self.everywhere} {type_}*)(memory + {p}{away if own else ''})"
            for type_, p, own in zip(types, pointers, private, strict=True)
        ]
        passed += [*loops, *fixed[:-1], f"({self.everywhere} const long*)(memory + {fixed[-1]})"]
        passed += [*self.numbers[:3], *(["shared"] if source.shared else [])]
        lines.append(f"{source.name}_thread({', '.join(passed)});")
        head = self.kernel.format(NAME=source.name, ARGUMENTS=arguments, THREADS=THREADS)
        return f"{head} {{\n" + "".join(f"    {line}\n" for line in lines) + "}\n"

    def tail(self, source: KernelSource) -> list[str]:
        """The parameters of a thread's function that say where it is."""
        own = [f"const long {name}" for name in _NUMBERS]
        return [*own, *([f"{self.block} uchar* shared"] if source.shared else [])]


OPENCL = Language(
    name="OpenCL C",
    header="#pragma OPENCL FP_CONTRACT OFF\n",
    double="#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n",
    everywhere="__global",
    block="__local",
    thread="__private",
    restrict="restrict",
    bits="as_{}",
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    aligned="__attribute__((aligned(16)))",
    kernel="__kernel __attribute__((reqd_work_group_size({THREADS}, 1, 1)))\n"
    "void {NAME}(__global uchar* memory{ARGUMENTS})",
    argument=", const long {}",
    numbers=("get_local_id(0)", "get_group_id(0)", "get_num_groups(0)", "get_group_id(1)"),
)

METAL = Language(
    name="the Metal Shading Language",
    header="#include <metal_stdlib>\nusing namespace metal;\n#pragma METAL fp math_mode(safe)\n"
    "#pragma METAL fp contract(off)\n",
    everywhere="device",
    block="threadgroup",
    thread="thread",
    restrict="__restrict",
    bits="as_type<{}>",
    soft=True,
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);",
    aligned="__attribute__((aligned(16)))",
    kernel="kernel void {NAME}(device uchar* memory [[buffer(0)]], constant long* given [[buffer(1)]],\n"
    "    uint3 own [[thread_position_in_threadgroup]], uint3 group [[threadgroup_position_in_grid]],\n"
    "    uint3 groups [[threadgroups_per_grid]])",
    argument="",
    given="const {type} {name} = given[{number}];",
    numbers=("own.x", "group.x", "groups.x", "group.y"),
)
