"""Programs to code and records: what the manifest says about each program, as plain data.

The records have the fields of the runtime's manifest (its StepRecord, BufferRecord and so on); the runtime may not be
imported here, so they are dicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alphac.backends.cache import Cache
from alphac.backends.compile import compile_object
from alphac.backends.gpu.entry import tiled
from alphac.backends.gpu.segment import Action, actions, packed
from alphac.backends.gpu.split import split
from alphac.backends.segment import Segment, declaration
from alphac.backends.target import KernelSource, Target
from alphac.backends.team import support
from alphac.ir.core import Op, Port, Value
from alphac.ir.ops.define import definition
from alphac.ir.passes.defer import defer
from alphac.ir.schedule import Buffer, Exchange, Guard, Kernel, Launch, Program, Repeat, Step, Tiles, strand_of
from alphac.ir.schedule_text import inlined_ops
from alphac.ir.typesys import DType

Record = dict[str, Any]
SegmentMaker = Callable[[str, Program, Mapping[Kernel, KernelSource], Sequence[Value]], Segment]
Lower = Callable[[Target, Kernel], KernelSource]
PARTIAL = {"div", "floordiv", "mod", "pow", "sqrt", "rsqrt", "log", "log1p", "exp", "expm1"}


@dataclass
class Code:
    """Programs lowered to a target: `records` by program, which are the same for all targets; the `symbols` of their
    kernels, by program, in the order of the segments; sources by symbol; the text of all segments (for a GPU, their
    `launches` instead), and the bytes of scratch that one thread needs; `whole`: the programs as a role runs them that
    owns all shards."""

    target: Target
    records: dict[str, Record]
    sources: dict[str, KernelSource]
    segments: str
    scratch: int
    launches: dict[str, list[Action]] = field(default_factory=dict[str, list[Action]])
    symbols: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    whole: dict[str, Program] = field(default_factory=dict[str, Program])

    def object(self, store: Cache | None = None, processes: int | None = None) -> bytes:
        """The object with every kernel and segment."""
        code = compile_object(self.sources.values(), self.segments, self.target, store, processes)
        return packed(self.target.name, self.launches, code) if self.target.is_gpu else code


def lower_programs(
    programs: Iterable[Program],
    target: Target,
    segment: SegmentMaker = Segment,
    strands: Collection[int] | None = None,
    lower: Lower = Target.lower,
) -> Code:
    """Lower every kernel and write every segment of some programs; `segment` makes the writer of one. `strands`: that a
    role owns shards of, all if left out; there is no code for others. `lower` makes the source of a kernel."""
    code = Code(target, {}, {}, "", 0)
    texts: list[str] = []
    for program in programs:
        sources: dict[Kernel, KernelSource] = {}
        parts: dict[Kernel, list[tuple[Kernel, KernelSource]]] = {}
        tiles = {launch.kernel: step for step in _tiles(program.steps) for launch in step.steps}
        whole = program if target.is_gpu else defer(program)
        for kernel in _owned(program.steps, strands):
            apart = split(kernel, target) if target.is_gpu and kernel not in tiles else (kernel,)
            found = [(part, lower(target, part)) for part in apart]
            if target.is_gpu and kernel in tiles:
                found = [(kernel, tiled(found[0][1], kernel, tiles[kernel]))]
            parts[kernel], sources[kernel] = found, found[-1][1]
            for _, source in found:
                code.sources[source.name] = source
                code.scratch = max(code.scratch, source.scratch)
        code.whole[program.name] = whole
        emitted = _Emission(program, sources, whole.steps)
        code.records[program.name] = emitted.record()
        code.symbols[program.name] = emitted.symbols
        for name, (part, outer) in emitted.segments.items():
            steps = _without(part, strands)
            if target.is_gpu:
                code.launches[name] = actions(steps, parts, emitted.number)
            else:
                texts.append(segment(name, program, sources, outer).text(steps))
    if not target.is_gpu:
        texts += [declaration(s.name, len(s.parameters), s.loops + s.integers) for s in code.sources.values()]
        code.segments = "\n".join([support(target), *texts])
    return code


def _without(steps: Sequence[Step], strands: Collection[int] | None) -> tuple[Step, ...]:
    """What is left to do for a role that owns shards of these strands only."""
    if strands is None:
        return tuple(steps)
    return tuple(step for step in steps if (strand := strand_of(step)) is None or strand in strands)


def _owned(steps: Sequence[Step], strands: Collection[int] | None) -> Iterator[Kernel]:
    for kernel, _ in _kernels(_without(steps, strands), ()):
        yield kernel


@dataclass
class _Emission:
    """One program's record, and its segments by name: their steps, and the indices of the loops around them that the
    runtime runs. `whole`: the steps of a role that owns all shards."""

    program: Program
    sources: Mapping[Kernel, KernelSource]
    whole: tuple[Step, ...]
    segments: dict[str, tuple[tuple[Step, ...], tuple[Value, ...]]] = field(
        default_factory=dict[str, tuple[tuple[Step, ...], tuple[Value, ...]]]
    )
    loops: dict[Value, int] = field(default_factory=dict[Value, int])  # numbers of loops by their indices
    symbols: list[str] = field(default_factory=list[str])  # of the kernels of its segments

    def __post_init__(self) -> None:
        self.number = {id(b): i for i, b in enumerate(self.program.buffers)}

    def record(self) -> Record:
        steps = self._steps(self.program.steps, ())
        return {
            "name": self.program.name,
            "buffers": [_buffer(b) for b in self.program.buffers],
            "steps": steps,
            "whole": self._whole(steps),
            "arguments": [self._port(p, b) for p, b in self.program.arguments],
            "results": [self._port(p, b) for p, b in self.program.results],
        }

    def _steps(self, steps: Sequence[Step], outer: tuple[Value, ...]) -> list[Record]:
        """Runs of steps of one strand without an exchange become segments."""
        records: list[Record] = []
        run: list[Step] = []
        strand: int | None = None

        def finish() -> None:
            nonlocal strand
            if run:
                records.append(self._segment(tuple(run), outer, strand or 0))
                run.clear()
            strand = None

        for step in steps:
            if isinstance(step, Exchange):
                finish()
                buffers = [self.number[id(b)] for b, _ in step.buffers]
                exchange = {"kind": "exchange", "strand": step.buffers[0][0].strand, "buffers": buffers}
                records.append({**exchange, "kinds": [k for _, k in step.buffers]})
            elif isinstance(step, Repeat) and _exchanges(step.steps):
                finish()
                inner = self._steps(step.steps, (*outer, step.index))
                loop = {"kind": "repeat", "count": step.count, "reverse": step.reverse, "index": len(outer)}
                records.append({**loop, "steps": inner})
            else:
                own = strand_of(step)
                if own is not None:
                    if strand not in (None, own):
                        finish()
                    strand = own
                run.append(step)
        finish()
        return records

    def _whole(self, steps: Sequence[Record]) -> str:
        """The segment of all steps. Without an exchange it is there already."""
        if len(steps) == 1 and steps[0]["kind"] == "segment":
            return steps[0]["symbol"]
        return self._function(self.whole, ()) if steps else ""

    def _function(self, steps: tuple[Step, ...], outer: tuple[Value, ...]) -> str:
        symbol = re.sub(r"\W", "_", f"segment_{self.program.name}_{len(self.segments)}")
        self.segments[symbol] = steps, outer
        return symbol

    def _segment(self, steps: tuple[Step, ...], outer: tuple[Value, ...], strand: int) -> Record:
        return {
            "kind": "segment",
            "strand": strand,
            "symbol": self._function(steps, outer),
            "guards": [[self.number[id(b)] for b in guard.buffers] for guard in _guards(steps)],
            "kernels": [self._kernel(k, loops) for k, loops in _kernels(steps, ())],
        }

    def _kernel(self, kernel: Kernel, loops: tuple[Repeat | Tiles, ...]) -> Record:
        op, span = _blamed(kernel)
        stored = {id(view.buffer) for _, view in kernel.stores}
        self.symbols.append(self.sources[kernel].name if kernel in self.sources else "")
        return {
            "buffers": [self.number[id(b)] for b in kernel.buffers()],
            "stores": len(stored),
            "op": op,
            "span": span,
            "loops": [record for loop in loops for record in self._loop(loop)],
        }

    def _loop(self, loop: Repeat | Tiles) -> Iterator[Record]:
        """The loops that a step stands for: tiles are one for each axis."""
        if isinstance(loop, Repeat):
            yield {"number": self._number(loop.index), "count": loop.count, "reverse": loop.reverse, "rows": 0}
        else:
            for dim, index in zip(loop.dims, loop.indices, strict=True):
                rows = dim.size // dim.shards if dim.shards else 0
                yield {"number": self._number(index), "count": dim.size, "reverse": False, "rows": rows}

    def _number(self, index: Value) -> int:
        return self.loops.setdefault(index, len(self.loops))

    def _port(self, port: Port, buffer: Buffer) -> Record:
        attributes = {name: _plain(value) for name, value in port.attributes}
        if buffer.per_shard and port.kind in ("input", "output"):
            attributes["axis"] = buffer.type.dims.index(buffer.layout[0])
        return {"kind": port.kind, "name": port.name, "buffer": self.number[id(buffer)], "attributes": attributes}


def _blamed(kernel: Kernel) -> tuple[str, str]:
    """Whom to name, and where it is written, when a kernel makes a bad number of good ones: the ops in it that have no
    finite result for some operands, or the op with a loop of its own, whose sums overflow."""
    suspects = [op for op in inlined_ops(kernel) if op.name in PARTIAL and not _divides_by_constant(op)]
    main = kernel.anchor or kernel.stores[0][0].op
    if main is not None and (not suspects or definition(main).shape == "contract"):
        suspects.append(main)
    names = list(dict.fromkeys(op.name for op in suspects)) or ["copy"]
    spans = [str(op.span) for op in suspects if op.span is not None]
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names), spans[0] if spans else ""


def _divides_by_constant(op: Op) -> bool:
    divisor = op.operands[-1].op
    while divisor is not None and divisor.name in ("broadcast", "cast"):
        divisor = divisor.operands[0].op
    return op.name == "div" and divisor is not None and divisor.name == "constant"


def _buffer(buffer: Buffer) -> Record:
    grows = buffer.per_shard > 0
    rows = 0
    if grows:
        first = buffer.layout[0]
        rows = first.size // first.shards if first.shards else 1
    return {
        "name": buffer.name,
        "dtype": buffer.type.dtype.name,
        "shape": [rows if grows and i == 0 else d.size for i, d in enumerate(buffer.layout)],
        "role": buffer.role,
        "grows": grows,
        "rows": rows,
        "state": buffer.port.name if buffer.role == "state" and buffer.port is not None else "",
        "strand": buffer.strand,
    }


def _plain(value: object) -> object:
    return value.name if isinstance(value, DType) else value


def _exchanges(steps: Iterable[Step]) -> bool:
    return any(isinstance(s, Exchange) or (isinstance(s, Repeat) and _exchanges(s.steps)) for s in steps)


def _tiles(steps: Iterable[Step]) -> Iterator[Tiles]:
    for step in steps:
        if isinstance(step, Tiles):
            yield step
        elif isinstance(step, Repeat):
            yield from _tiles(step.steps)


def _guards(steps: Iterable[Step]) -> Iterator[Guard]:
    for step in steps:
        if isinstance(step, Guard):
            yield step
        elif isinstance(step, Repeat):
            yield from _guards(step.steps)


def _kernels(
    steps: Iterable[Step], loops: tuple[Repeat | Tiles, ...]
) -> Iterator[tuple[Kernel, tuple[Repeat | Tiles, ...]]]:
    for step in steps:
        if isinstance(step, Launch):
            yield step.kernel, loops
        elif isinstance(step, Repeat | Tiles):
            yield from _kernels(step.steps, (*loops, step))
