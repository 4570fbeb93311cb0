"""Windows of a contraction look at a padded copy of what they slide over, so that each of their elements just lies
somewhere in memory: a kernel multiplies them where they are, and stores none.

before    %w = window(%x) {low = 1, …}             %y = contract(%w, %kernel)
after     %p = pad(%x)  %w = window(%p) {low = 0}  %y = contract(%w, %kernel)      readers of %x: slice(%p)

before    %u = unwindow(broadcast(%dy, kernel))    %dx = contract(%u, %kernel)
after     %p = pad(%dy)  %w = window(%p)  %u = slice(%w) {step = −1}  %dx = contract(%u, %kernel)

`unwindow` of what does not depend on its axis `kernel` is a window again, seen in the other direction; where the first
one took steps, elements stand that far apart, with zeros between. Later readers of what is padded read the inside of
the copy, so that nothing is stored twice. What windows are multiplied with is stored so that vectors of it can be
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from alphac.ir.builder import Builder
from alphac.ir.core import Block, Function, Module, Op, Value
from alphac.ir.ops.rules import attribute
from alphac.ir.passes.simplify import remove_dead
from alphac.ir.rewrite import ValueMap, clone_op, fresh, map_functions, remap
from alphac.ir.typesys import Dim


@dataclass(frozen=True)
class PadWindows:
    """See the module."""

    name: ClassVar[str] = "pad_windows"

    def run(self, module: Module) -> Module:
        return map_functions(module, _function)


def _function(function: Function) -> Function:
    block = _Rewrite(function.block).block({})
    remove_dead(block)
    return replace(function, block=block)


@dataclass(frozen=True)
class _Slide:
    """One axis of a base, and the window over it: element (o, κ) is the base at o · stride + κ · dilation − low, κ
    counted from the end if `reverse`. `spacing`: how far apart the base's elements are to be, with zeros between."""

    dim: Dim
    to: Dim
    kernel: Dim
    stride: int
    dilation: int
    low: int
    reverse: bool = False
    spacing: int = 1

    @property
    def extent(self) -> int:
        """Elements of the axis with the zeros between."""
        return (self.dim.size - 1) * self.spacing + 1

    @property
    def margins(self) -> tuple[int, int]:
        """How many elements it reads before the first and behind the last."""
        last = (self.to.size - 1) * self.stride + (self.kernel.size - 1) * self.dilation - self.low
        return max(0, self.low), max(0, last - self.extent + 1)


@dataclass(frozen=True)
class _Slides:
    """A contraction's operand: windows over axes of a base, innermost first; `value` is what is outside of it."""

    base: Value
    slides: tuple[_Slide, ...]
    value: float


@dataclass
class _Margin:
    """What is to stand around an axis."""

    low: int = 0
    high: int = 0
    spacing: int = 1


@dataclass
class _Frame:
    """The padded copy of a base that all its windows with one value outside share."""

    value: float
    margins: dict[str, _Margin] = field(default_factory=dict[str, _Margin])

    def admit(self, slides: _Slides) -> bool:
        """Widen the margins for some windows; False if these want other zeros between."""
        for s in slides.slides:
            known = self.margins.get(s.dim.name)
            if known is not None and known.spacing != s.spacing:
                return False
        for s in slides.slides:
            margin = self.margins.setdefault(s.dim.name, _Margin(spacing=s.spacing))
            low, high = s.margins
            margin.low, margin.high = max(margin.low, low), max(margin.high, high)
        return True


class _Rewrite:
    """One block, rewritten."""

    def __init__(self, old: Block) -> None:
        self.old = old
        self.operands: dict[Value, _Slides] = {}
        self.frames: dict[Value, _Frame] = {}
        for op in old.ops:
            for value in op.operands if op.name == "contract" else ():
                found = _slides(value)
                if found is None or value in self.operands:
                    continue
                frame = self.frames.setdefault(found.base, _Frame(found.value))
                if frame.value == found.value and frame.admit(found):
                    self.operands[value] = found
        self.copies: ValueMap = {}
        self.made: set[Value] = set()

    def block(self, mapping: ValueMap) -> Block:
        new = Block([fresh(a) for a in self.old.arguments])
        mapping.update(zip(self.old.arguments, new.arguments, strict=True))
        inside = {r for op in self.old.ops for r in op.results}
        for base in self.frames:
            if base not in inside:
                self.copies[base] = self.copy(Builder(new), base, remap((base,), mapping)[0])
        for op in self.old.ops:
            b = Builder(new, op.span)
            if op.name == "contract":
                for value in self.operands.keys() & set(op.operands) - self.made:
                    mapping[value] = self.windows(b, value)
                    self.made.add(value)
            blocks = tuple(_Rewrite(inner).block(mapping) for inner in op.blocks)
            operands = dict(mapping)
            if op.name == "contract":
                operands |= self.others(b, op, mapping)
            new.ops.append(clone_op(op, operands, blocks))
            mapping.update((r, operands[r]) for r in op.results)
            for base in op.results:
                if base in self.frames:
                    self.copies[base] = self.copy(b, base, mapping[base])
                    mapping[base] = self.inside(b, base)
        new.results = remap(self.old.results, mapping)
        return new

    def copy(self, b: Builder, base: Value, value: Value) -> Value:
        """The padded copy of a base."""
        frame = self.frames[base]
        for name, margin in frame.margins.items():
            value = _spaced(b, value, name, margin.spacing)
            dim = value.type.dim(name)
            to = Dim(f"{name}.padded", margin.low + dim.size + margin.high)
            value = b("pad", value, dim=name, low=margin.low, high=margin.high, to=to, value=frame.value)
        value.hint = base.hint
        return value

    def inside(self, b: Builder, base: Value) -> Value:
        """A base, out of its padded copy."""
        value = self.copies[base]
        for name, margin in self.frames[base].margins.items():
            dim = base.type.dim(name)
            value = b("slice", value, dim=f"{name}.padded", start=margin.low, step=margin.spacing, to=dim)
        return value

    def windows(self, b: Builder, operand: Value) -> Value:
        """An operand made of the padded copy."""
        found = self.operands[operand]
        value, frame = self.copies[found.base], self.frames[found.base]
        slid = {s.dim.name for s in found.slides}
        for name, margin in frame.margins.items():
            if name not in slid:
                dim = found.base.type.dim(name)
                value = b("slice", value, dim=f"{name}.padded", start=margin.low, step=margin.spacing, to=dim)
        for s in found.slides:
            low = s.low - frame.margins[s.dim.name].low
            value = b(
                "window",
                value,
                dim=f"{s.dim.name}.padded",
                to=s.to,
                kernel=s.kernel,
                stride=s.stride,
                low=low,
                dilation=s.dilation,
                value=found.value,
            )
            if s.reverse:
                value = b("slice", value, dim=s.kernel.name, start=s.kernel.size - 1, step=-1, to=s.kernel)
        return b.broadcast(value, operand.type.dims)

    def others(self, b: Builder, op: Op, mapping: ValueMap) -> ValueMap:
        """What windows are multiplied with, the axes that windows lack innermost: vectors lie along these."""
        found: ValueMap = {}
        for slid, other in (op.operands, op.operands[::-1]):
            if slid in self.operands and other not in self.operands:
                columns = [d for d in op.result.type.dims if other.type.has(d.name) and not slid.type.has(d.name)]
                rest = [d for d in other.type.dims if d not in columns]
                found[other] = b.broadcast(remap((other,), mapping)[0], (*rest, *columns))
        return found


def _spaced(b: Builder, value: Value, name: str, spacing: int) -> Value:
    """The elements along an axis `spacing` apart, zeros between."""
    if spacing == 1:
        return value
    dim, one = value.type.dim(name), Dim(f"{name}.one", 1)
    dims = tuple(d for x in value.type.dims for d in ((x, one) if x is dim else (x,)))
    wide = Dim(name, (dim.size - 1) * spacing + 1)
    value = b.broadcast(value, dims)
    value = b("unwindow", value, to=name, kernel=one.name, dim=wide, stride=spacing, low=0, dilation=1)
    return b("reshape", value, dims=tuple(d for d in value.type.dims if d is not one))


# ---------------------------------------------------------------------- what is rewritten
def _slides(operand: Value) -> _Slides | None:
    """The windows that a contraction's operand is made of, if any of them is read outside its base."""
    found = _windows(operand) or _unwindows(operand)
    if found is None or len({s.dim.name for s in found.slides}) < len(found.slides):
        return None
    outside = any(s.margins != (0, 0) or s.reverse for s in found.slides)
    return found if outside and all(d.size for d in found.base.type.dims) else None


def _windows(value: Value) -> _Slides | None:
    slides: list[_Slide] = []
    values: set[float] = set()
    while value.op is not None and value.op.name == "window":
        op = value.op
        value = op.operands[0]
        dim = value.type.dim(attribute(op.attributes, "dim", str))
        to, kernel = attribute(op.attributes, "to", Dim), attribute(op.attributes, "kernel", Dim)
        slides.append(_Slide(dim, to, kernel, *_geometry(op)))
        outside = op.attributes["value"]
        assert isinstance(outside, int | float)
        values.add(float(outside))
    # The axes of outer windows must be those of the base.
    if not slides or len(values) > 1 or any(s.dim not in value.type.dims for s in slides):
        return None
    return _Slides(value, tuple(reversed(slides)), values.pop())


def _geometry(op: Op) -> tuple[int, int, int]:
    """stride, dilation, low"""
    stride, dilation, low = (attribute(op.attributes, n, int) for n in ("stride", "dilation", "low"))
    return stride, dilation, low


def _unwindows(value: Value) -> _Slides | None:
    """unwindow(broadcast(x)): element (p, κ) is x at (p + low − κ · dilation) / stride; with κ counted from the end,
    that grows with κ."""
    slides: list[_Slide] = []
    while value.op is not None and value.op.name == "unwindow":
        op = value.op
        value = op.operands[0]
        to = value.type.dim(attribute(op.attributes, "to", str))
        kernel = value.type.dim(attribute(op.attributes, "kernel", str))
        dim = attribute(op.attributes, "dim", Dim)
        stride, dilation, low = _geometry(op)
        low = (kernel.size - 1) * dilation - low
        slides.append(_Slide(to, dim, kernel, 1, dilation, low, reverse=True, spacing=stride))
    if not slides or value.op is None or value.op.name != "broadcast":
        return None
    base = value.op.operands[0]
    added = {d.name for d in value.type.dims} - set(base.type.names)
    if added != {s.kernel.name for s in slides} or any(s.dim not in base.type.dims for s in slides):
        return None
    names = [d.name for d in base.type.dims if d.shards]
    if any(s.spacing > 1 for s in slides) and names and base.type.dims[0].name != names[0]:
        return None  # `reshape` wants the grain's axis first
    return _Slides(base, tuple(reversed(slides)), 0.0)
