"""Lowering: one kernel of a schedule becomes Numba source.

    map        every stored value at every index of its dims                       maps.py
    reduce     sums and extremes in leaves of 1,024 elements by 16 lanes           reduction.py
    contract   a register-tiled product in leaves of 256 terms                     contraction.py
    stream     several of these over the same rows, block by block                 stream.py
    special    argmax, argmin, cumsum, scatter_add                                 special.py
    combine    per-shard partials pushed through the shard tree                    reduction.py

What a kernel reads between its inputs and its anchor is inlined (evaluation.py), one line per scalar operation
(printer.py), with index ops folded away (indexing.py).
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from alphac.backends import contraction, maps, reduction, special, stream
from alphac.backends.evaluation import PARAMETERS, Frame
from alphac.backends.loops import vector_loops
from alphac.backends.printer import stored
from alphac.backends.target import KernelSource, Target
from alphac.backends.vector import SCALARS
from alphac.ir.core import Op
from alphac.ir.ops.define import definition
from alphac.ir.schedule import Kernel

TYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "boolean": np.bool_,
    "inf": float("inf"),
    "nan": float("nan"),
}


def lower(kernel: Kernel, target: Target) -> KernelSource:
    """The source of one kernel for a target. Its symbol is a digest of what it computes."""
    frame = Frame(kernel, target)
    anchor = kernel.anchor
    if kernel.stages:
        stream.emit_stream(frame)
    elif anchor is None:
        maps.emit_map(frame)
    elif definition(anchor).shape == "collective":
        inner = absorbed(kernel, anchor)
        if inner is None or definition(inner).shape != "contract":
            reduction.emit_combine(frame, anchor, inner)
        else:
            contraction.emit_contract(frame, inner, anchor)
    elif definition(anchor).shape == "reduce":
        reduction.emit_reduce(frame, anchor)
    elif definition(anchor).shape == "contract":
        contraction.emit_contract(frame, anchor, None)
    else:
        special.emit_special(frame, anchor)
    return _finish(frame)


def absorbed(kernel: Kernel, combine: Op) -> Op | None:
    """The op inside a combine kernel that makes the partials; None if they are read."""
    (partials,) = combine.operands
    return None if partials in kernel.reads else partials.op


# ---------------------------------------------------------------------- the function around the body
def _finish(frame: Frame) -> KernelSource:
    kernel = frame.kernel
    count = len(frame.buffers) + len(frame.arrays) + 1
    header: list[str] = []
    for i, buffer in enumerate(frame.buffers):
        name = frame.names[id(buffer)]
        header.append(f"    {name} = memory(p{i}, {stored(buffer.type.dtype)}, {i}, {count})  # {buffer.type}")
    if kernel.alone:
        header += ["    thread = 0", "    threads = 1"]
    offset = 0
    for i, array in enumerate(frame.arrays, len(frame.buffers)):
        place = f"scratch + {offset}" if offset else "scratch"
        header.append(f"    {array.name} = memory({place}, {stored(array.dtype)}, {i}, {count})")
        offset += -(-array.elements * array.dtype.bytes // 64) * 64
    body = frame.source.text()
    if re.search(r"\bmerge\[", body):
        header.append(f"    merge = memory(merges, i64, {count - 1}, {count})")
    parameters = [*(f"p{i}" for i in range(len(frame.buffers))), *frame.loops.values(), *PARAMETERS]
    text = "\n".join([*header, *(f"    {line}" for line in body.split("\n"))])
    name = f"k_{_digest(frame, parameters, text)}"
    signature = f"def {name}({', '.join(parameters)}):"
    return KernelSource(
        name=name,
        source=f'{signature}\n    """{describe(kernel)}"""\n{text}\n',
        parameters=tuple(b.type.dtype for b in frame.buffers),
        loops=len(frame.loops),
        scratch=offset,
        alone=frame.alone,
        namespace={**SCALARS, **TYPES, **vector_loops(body, frame.target.lanes), **frame.functions, **frame.intrinsics},
    )


def _digest(frame: Frame, parameters: list[str], text: str) -> str:
    return hashlib.sha256(f"{frame.target.lanes} {parameters}\n{plain(frame, text)}".encode()).hexdigest()[:20]


def plain(frame: Frame, text: str) -> str:
    """A source without what is there for readers: comments, and names of buffers."""
    found = re.sub(r"  # .*", "", text)
    for i, buffer in enumerate(frame.buffers):
        found = re.sub(rf"\b{frame.names[id(buffer)]}\b", f"b{i}", found)
    return found


def describe(kernel: Kernel) -> str:
    """What a kernel stores, of what."""
    stores = ", ".join(f"{v.hint or (v.op.name if v.op else 'value')}: {v.type}" for v, _ in kernel.stores)
    if kernel.anchor is None:
        return stores
    operands = ", ".join(str(v.type) for v in kernel.anchor.operands)
    return f"{stores} = {kernel.anchor.name}({operands})"
