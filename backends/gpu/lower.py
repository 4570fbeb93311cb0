"""Lowering for a GPU: one kernel of a schedule becomes Numba source for one thread of a grid.

map        a thread for every element                                  here
reduce     16 threads for the lanes of a leaf                          reduction.py, leaves.py
contract   a block for a tile of the result                            contraction.py, matrix_contraction.py
scatter    a block for a row of the table                             scatter.py
special    a thread for every pass                                     ../special.py
combine    what makes the partials, shard after shard
"""

from __future__ import annotations

import hashlib

from alphac.backends.evaluation import physical
from alphac.backends.gpu import leaves
from alphac.backends.gpu.contraction import Contraction
from alphac.backends.gpu.frame import ARGUMENTS, GpuFrame
from alphac.backends.gpu.matrix_contraction import MatrixContraction, suits_matrix
from alphac.backends.gpu.reduction import Block, reduction
from alphac.backends.gpu.scatter import scatter
from alphac.backends.kernels import TYPES, absorbed, describe, plain
from alphac.backends.reduction import Elements, Partials, Read, combine_partials, store_partials
from alphac.backends.special import emit_special
from alphac.backends.target import KernelSource, Target
from alphac.backends.vector import SCALARS
from alphac.ir.core import Op
from alphac.ir.errors import InternalError
from alphac.ir.ops.define import definition
from alphac.ir.schedule import Kernel


def lower(kernel: Kernel, target: Target) -> KernelSource:
    """The source of one kernel. Its symbol is a digest of what it computes."""
    if kernel.stages:
        raise InternalError(f"kernel `{kernel.name}` is a stream, which a GPU does not take")
    frame, anchor = GpuFrame(kernel, target), kernel.anchor
    if anchor is None:
        frame.split(physical(kernel.stores[0][0].type), lambda index, flat: frame.store_all(index))
    elif definition(anchor).shape == "contract":
        _contraction(frame, anchor, None)
    elif definition(anchor).shape == "collective":
        inner = absorbed(kernel, anchor)
        if inner is not None and definition(inner).shape == "contract":
            _contraction(frame, inner, anchor)
        else:
            combine_partials(frame, anchor, _partials(frame, anchor, inner))
    elif kernel.stores[0][1].buffer.role == leaves.ROLE:
        leaves.emit_leaves(frame, anchor)
    elif definition(anchor).shape == "reduce" or anchor.name == "scatter_add":
        store_partials(frame, anchor, _partials(frame, anchor, anchor))
    else:
        emit_special(frame, anchor)
    return _finish(frame)


def _contraction(frame: GpuFrame, op: Op, combine: Op | None) -> None:
    kind = MatrixContraction if suits_matrix(frame, op) else Contraction
    kind(frame, op, combine).emit()


def _partials(frame: GpuFrame, anchor: Op, inner: Op | None) -> Partials:
    """What makes an op's results, or the partials that it combines."""
    if inner is None:
        return Read(frame, anchor)
    if definition(inner).shape != "reduce":
        return scatter(frame, inner, combined=inner is not anchor)
    if inner.result in frame.kernel.reads:
        return leaves.Tree(frame, Elements(frame, inner, combined=False))
    made = reduction(frame, inner, combined=inner is not anchor)
    if isinstance(made, Block):
        made.prepare()
    return made


def _finish(frame: GpuFrame) -> KernelSource:
    body = frame.source.text()
    names = [*(f"p{i}" for i in range(len(frame.buffers))), *frame.loops.values(), *ARGUMENTS]
    text = "\n".join(f"    {line}" for line in [*frame.header(body), *body.split("\n")])
    identity = f"{frame.shared_bytes} {frame.grid} {frame.fitting} {names}\n{plain(frame, text)}"
    name = f"k_{hashlib.sha256(identity.encode()).hexdigest()[:20]}"
    return KernelSource(
        name=name,
        source=f'def {name}({", ".join(names)}):\n    """{describe(frame.kernel)}"""\n{text}\n',
        parameters=tuple(b.type.dtype for b in frame.buffers),
        loops=len(frame.loops),
        integers=len(ARGUMENTS),
        shared=frame.shared_bytes,
        grid=frame.grid,
        fitting=frame.fitting,
        namespace={**SCALARS, **TYPES, **frame.functions, **frame.intrinsics},
    )
