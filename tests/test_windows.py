"""Contractions with windows in native code: padded copies keep the bits, and kernels read windows where they lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from scheduling import Draft
from test_kernels import RUNNABLE, drawn, same_bits

from alphac.backends import convolution
from alphac.backends.emit import lower_programs
from alphac.backends.registry import host_target
from alphac.backends.simd_windows import NAME
from alphac.ir.core import Function, Module
from alphac.ir.interpret import interpret
from alphac.ir.ops.define import DEFINITIONS
from alphac.ir.passes import partials
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.pad_windows import PadWindows
from alphac.ir.passes.project import schedule
from alphac.ir.passes.simplify import Simplify
from alphac.ir.typesys import BF16, BOOL, F32, F64, Dim, DType, TensorType
from alphac.ir.verify import verify

BATCH = Dim("batch", 16, 8)


@dataclass(frozen=True)
class Convolution:
    """conv2d with both gradients. Axes: b(atch) y x c(hannels in) o(ut) g(roup) m (kernel rows) n (columns)."""

    image: str = "byxc"
    kernel: str = "mnco"
    to: str = "byxo"
    rows: int = 9
    columns: int = 7
    down: int = 3
    across: int = 3
    channels: int = 6
    out: int = 16
    groups: int = 2
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    dtype: DType = F32

    def __str__(self) -> str:
        sizes = f"{self.channels}to{self.out}"
        return f"{self.image}-{sizes}-{self.down}x{self.across}-{self.stride}{self.padding}{self.dilation}-{self.dtype}"

    def _made(self, size: int, kernel: int) -> int:
        return (size + 2 * self.padding - self.dilation * (kernel - 1) - 1) // self.stride + 1

    def dims(self, axes: str, made: bool = False) -> tuple[Dim, ...]:
        rows, columns = self.rows, self.columns
        if made:
            rows, columns = self._made(rows, self.down), self._made(columns, self.across)
        sizes = {"y": rows, "x": columns, "m": self.down, "n": self.across, "c": self.channels, "o": self.out}
        return tuple(BATCH if a == "b" else Dim(a, {**sizes, "g": self.groups}[a]) for a in axes)

    def functions(self) -> tuple[Function, Function]:
        """The result and both gradients; without and with padded copies."""
        draft = Draft()
        b = draft.b
        to = self.dims(self.to, made=True)
        made = {d.name: d for d in to}
        x, kernel, dy = (
            draft.argument("column", n, TensorType(self.dtype, dims))
            for n, dims in (("x", self.dims(self.image)), ("k", self.dims(self.kernel)), ("dy", to))
        )
        attributes: dict[str, Any] = {
            "rows": "y", "columns": "x", "kernel_rows": "m", "kernel_columns": "n", "dims": to,
            "to_rows": made["y"], "to_columns": made["x"],
            "stride": self.stride, "padding": self.padding, "dilation": self.dilation,
        }  # fmt: skip
        image = b("neg", x)  # computed, so that others read the inside of the copy
        y = b("conv2d", image, kernel, **attributes)
        gradient = DEFINITIONS["conv2d"].gradient
        assert callable(gradient)
        dx, dk = gradient(b, y.op, b("abs", dy))
        assert dx is not None and dk is not None
        draft.result("output", "y", b("neg", b("add", y, dy)))
        draft.result("output", "dx", b("add", dx, b("mul", image, x)))
        draft.result("output", "dk", b.combine(dk))
        before = Simplify().run(Expand().run(Module("test", BATCH, functions={"step": draft.function()})))
        after = PadWindows().run(before)
        verify(after)
        return before.functions["step"], after.functions["step"]


CASES = [
    Convolution(),
    Convolution(dtype=F64, out=12, channels=33),
    Convolution(dtype=BF16),
    Convolution(rows=8, columns=30, channels=1),
    Convolution(stride=2, out=32),
    Convolution(stride=2, padding=2, dilation=2),
    Convolution(stride=3, padding=0, down=2, across=4),
    Convolution(padding=2, dilation=2, down=2, channels=12, out=48),
    Convolution(padding=0, down=9, across=7),
    Convolution(down=1, across=1, padding=0),
    Convolution(image="bcyx", kernel="ocmn", to="boyx"),
    Convolution(image="bygxc", kernel="mngco", to="bygxo"),
    Convolution(image="byxg", kernel="mng", to="byxg", groups=20),
    Convolution(image="cyxb", kernel="mnco", to="oyxb"),
    Convolution(image="byx", kernel="mno", rows=8, columns=8, out=4),
]


@cache
def made(case: Convolution) -> tuple[Function, Function]:
    return case.functions()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_padded_copies_keep_the_bits(case: Convolution):
    before, after = made(case)
    arrays = [drawn(v.type, i) for i, v in enumerate(before.block.arguments)]
    for x, y in zip(interpret(before, arrays, exact=True), interpret(after, arrays, exact=True), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits(case: Convolution):
    same_bits(made(case)[1])


@pytest.mark.parametrize("name", RUNNABLE)
def test_vector_widths_share_bits(name: str):
    for case in (CASES[0], CASES[3]):
        same_bits(made(case)[1], name=name)


@pytest.mark.parametrize("shares", [(8,), (1, 2, 5)], ids=str)
def test_every_share(shares: tuple[int, ...]):
    for threads in (1, 3):
        same_bits(made(CASES[0])[1], shares, threads)


@pytest.mark.parametrize("case", [Convolution(), Convolution(channels=33, out=12)], ids=str)
def test_terms_in_chunks(case: Convolution, monkeypatch: pytest.MonkeyPatch):
    """More terms than the tables, or what is packed, can hold."""
    monkeypatch.setattr(convolution, "TABLE", 300)
    monkeypatch.setattr(convolution, "PACKED", 1 << 10)
    monkeypatch.setattr(convolution, "BLOCK", 4 << 10)
    case = Convolution(case.image, rows=14, columns=11, channels=case.channels, out=case.out)
    same_bits(case.functions()[1])


def test_what_windows_are_multiplied_with_lies_in_vectors():
    """Of the kernel, the axis that the gradient by the image keeps is its innermost there, and nothing is packed."""
    program = schedule(made(Convolution(channels=16))[1])
    source = "\n".join(s.source for s in lower_programs([program], host_target()).sources.values())
    assert "multiply_" not in source and "panel" not in source


def test_windows_are_read_where_they_lie():
    """All three products of a convolution; what is stored is no larger than the padded images."""
    for case in (Convolution(channels=12), Convolution(channels=12, stride=2), CASES[7]):
        program = schedule(made(case)[1])
        sources = [s.source for s in lower_programs([program], host_target()).sources.values()]
        assert sum(re.search(NAME, s) is not None for s in sources) == 3
        most = max(b.type.size for b in program.buffers if b.role == "argument")
        assert all(b.type.size <= 4 * most for b in program.buffers)


def _tame(arrays: list[np.ndarray]) -> None:
    """Nothing out of the way."""


def _infinite(arrays: list[np.ndarray]) -> None:
    """What multiplies the zeros around an image is infinite or no number: so is the product."""
    arrays[1].flat[::7] = np.inf
    arrays[2].flat[::9] = np.nan


def _tiny(arrays: list[np.ndarray]) -> None:
    """Products are zeros, of either sign."""
    for array in arrays:
        array *= array.dtype.type(np.finfo(array.dtype).tiny)


@pytest.mark.parametrize("values", [_tame, _infinite, _tiny], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "case",
    [Convolution(rows=14, columns=14, channels=32, out=32), Convolution(channels=33, dtype=F64)],
    ids=str,
)
def test_terms_outside_an_image(case: Convolution, values: Any, monkeypatch: pytest.MonkeyPatch):
    """They are left out, where that leaves the bits."""
    monkeypatch.setattr(partials, "MUCH", 0)
    function = case.functions()[1]
    sources = [s.source for s in lower_programs([schedule(function)], host_target()).sources.values()]
    assert any("inside_" in s for s in sources)
    arrays = [drawn(v.type, i) for i, v in enumerate(function.block.arguments)]
    values(arrays)
    same_bits(function, arrays=arrays)


# ---------------------------------------------------------------------- pooling
@dataclass(frozen=True)
class Pooling:
    """Pooling along y, then along x, with its gradient; values with ties and NaNs."""

    axes: str = "byxc"
    kind: str = "max"
    size: int = 2
    stride: int = 2
    low: int = 0
    rows: int = 8
    columns: int = 10
    dtype: DType = F32

    def __str__(self) -> str:
        return f"{self.axes}-{self.kind}-{self.size}{self.stride}{self.low}-{self.rows}x{self.columns}-{self.dtype}"

    def function(self) -> Function:
        sizes = {"y": self.rows, "x": self.columns, "c": 16}
        draft = Draft()
        b = draft.b
        dims = tuple(BATCH if a == "b" else Dim(a, sizes[a]) for a in self.axes)
        x = draft.argument("column", "x", TensorType(self.dtype, dims))
        h = b("relu", x)
        made = [h]
        for name in "yx":
            size = (sizes[name] + 2 * self.low - self.size) // self.stride + 1
            to, kernel = Dim(f"{name}_to", size), Dim(f"{name}_in", self.size)
            outside = float("-inf") if self.kind == "max" else 0
            attributes: dict[str, Any] = {"stride": self.stride, "low": self.low, "dilation": 1, "value": outside}
            made.append(b("window", made[-1], dim=name, to=to, kernel=kernel, **attributes))
            made.append(b(f"reduce_{self.kind}", made[-1], over=(kernel.name,)))
        dy = draft.argument("column", "dy", made[-1].type)
        draft.result("output", "y", made[-1])
        features = Dim("features", made[-1].type.size // BATCH.size)
        if dims[0] == BATCH:
            draft.result("output", "flat", b("reshape", made[-1], dims=(BATCH, features)))
        for value in reversed(made[1:]):
            assert value.op is not None
            gradient = DEFINITIONS[value.op.name].gradient
            assert callable(gradient)
            (found,) = gradient(b, value.op, dy)
            assert found is not None
            dy = found
        draft.result("output", "dx", b("mul", dy, h))
        return Simplify().run(Module("test", BATCH, functions={"step": draft.function()})).functions["step"]


POOLINGS = [
    Pooling(),
    Pooling(kind="sum"),
    Pooling(rows=9, columns=11),
    Pooling(low=1),
    Pooling(size=3, stride=2, low=1, dtype=F64),
    Pooling(size=3, stride=1, rows=5, columns=4),
    Pooling(size=4, stride=4, rows=12, columns=8),
    Pooling(axes="bcyx"),
    Pooling(axes="yxcb", kind="sum", rows=6),
    Pooling(dtype=BF16),
    Pooling(dtype=BF16, kind="sum", low=1),
]


@pytest.mark.parametrize("case", POOLINGS, ids=str)
def test_pooling(case: Pooling):
    function = case.function()
    arrays = [drawn(v.type, i) for i, v in enumerate(function.block.arguments)]
    arrays[0] = np.round(arrays[0])
    arrays[0].flat[::37] = np.nan
    arrays[1].flat[::5] = -0.0
    same_bits(function, arrays=arrays)


@pytest.mark.parametrize("name", RUNNABLE)
def test_pooling_in_vector_widths(name: str):
    same_bits(POOLINGS[0].function(), name=name)


def test_pooling_stores_no_windows():
    """Nor positions of extremes, nor partial sums: only maps over what is pooled, and over what that gives."""
    program = schedule(POOLINGS[0].function())
    assert all(k.anchor is None for k in program.kernels())
    assert not [b for b in program.buffers if any(d.name.endswith("_in") for d in b.layout)]
    assert not [b for b in program.buffers if b.type.dtype != F32]


@pytest.mark.parametrize("dtype", [F32, BF16, BOOL], ids=str)
def test_padded_values(dtype: DType):
    """Inside and borders are stored apart."""
    draft = Draft()
    b = draft.b
    x = draft.argument("column", "x", TensorType(dtype, (Dim("y", 5), BATCH, Dim("x", 40), Dim("c", 3))))
    value = x
    for name, low, high in (("x", 2, 0), ("y", 1, 3), ("c", 0, 1)):
        to = Dim(f"{name}.wide", value.type.dim(name).size + low + high)
        value = b("pad", value, dim=name, low=low, high=high, to=to, value=1)
    draft.result("output", "y", value)
    again = b("pad", value, dim="y.wide", low=1, high=0, to=Dim("y.wider", 10), value=0)
    draft.result("output", "again", b("pad", again, dim="y.wider", low=0, high=2, to=Dim("y.widest", 12), value=0))
    same_bits(draft.function())
