"""conv2d against SciPy: strides, padding, dilation, groups, orders of axes, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradcheck import check_gradient, draw, run
from scipy.signal import correlate

from alphac.ir.builder import Builder
from alphac.ir.core import Value
from alphac.ir.ops import TypeRuleError
from alphac.ir.typesys import F32, F64, Dim, DType, TensorType

BATCH, IN, OUT = Dim("batch", 4, 2), Dim("in", 3), Dim("out", 2)
ROWS, COLUMNS, KERNEL_ROWS, KERNEL_COLUMNS = Dim("y", 7), Dim("x", 6), Dim("ky", 3), Dim("kx", 2)


def _to(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _attributes(stride: int, padding: int, dilation: int, *leading: Dim) -> dict[str, Any]:
    rows = Dim("y", _to(ROWS.size, KERNEL_ROWS.size, stride, padding, dilation))
    columns = Dim("x", _to(COLUMNS.size, KERNEL_COLUMNS.size, stride, padding, dilation))
    return {
        "rows": "y",
        "columns": "x",
        "kernel_rows": "ky",
        "kernel_columns": "kx",
        "to_rows": rows,
        "to_columns": columns,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "dims": (*leading, rows, columns),
    }


def _expected(x: np.ndarray, kernel: np.ndarray, stride: int, padding: int, dilation: int) -> np.ndarray:
    """[batch, in, y, x] and [out, in, ky, kx], by SciPy's correlate."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    spread = np.zeros((*kernel.shape[:2], *(dilation * (n - 1) + 1 for n in kernel.shape[2:])))
    spread[:, :, ::dilation, ::dilation] = kernel
    planes = [[correlate(image, k, mode="valid", method="direct")[0] for k in spread] for image in x]
    return np.array(planes)[:, :, ::stride, ::stride]


GEOMETRIES = [(1, 0, 1), (1, 1, 1), (2, 1, 1), (2, 2, 2), (1, 2, 2), (3, 0, 1)]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_against_scipy(geometry: tuple[int, int, int]) -> None:
    types = [TensorType(F64, (BATCH, IN, ROWS, COLUMNS)), TensorType(F64, (OUT, IN, KERNEL_ROWS, KERNEL_COLUMNS))]
    x, kernel = (draw(t, i) for i, t in enumerate(types))
    attributes = _attributes(*geometry, BATCH, OUT)
    for exact in (False, True):
        (found,) = run(lambda b, x, k: b("conv2d", x, k, **attributes), types, [x, kernel], exact=exact)
        np.testing.assert_allclose(found, _expected(x, kernel, *geometry), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("geometry", [(1, 1, 1), (2, 1, 1), (2, 2, 2)], ids=str)
def test_gradient(geometry: tuple[int, int, int]) -> None:
    small = Dim("batch", 2, 2)
    types = [TensorType(F64, (small, IN, ROWS, COLUMNS)), TensorType(F64, (OUT, IN, KERNEL_ROWS, KERNEL_COLUMNS))]
    attributes = _attributes(*geometry, small, OUT)
    check_gradient(lambda b, x, k: b("conv2d", x, k, **attributes), types, [draw(t, i) for i, t in enumerate(types)])


def test_gradients_are_one_contraction_each() -> None:
    """Implicit GEMM: no sums but the contractions."""
    seen: list[str] = []

    def make(b: Builder, x: Value, k: Value) -> Value:
        from alphac.ir.ops import DEFINITIONS

        y = b("conv2d", x, k, **_attributes(1, 1, 1, BATCH, OUT))
        start = len(b.block.ops)
        gradient = DEFINITIONS["conv2d"].gradient
        assert callable(gradient)
        dx, dk = gradient(b, y.op, y)
        assert dx is not None and dk is not None
        assert dx.type == x.type and dk.type.names == ("shard", *k.type.names)
        seen.extend(op.name for op in b.block.ops[start:])
        return dx

    types = [TensorType(F32, (BATCH, IN, ROWS, COLUMNS)), TensorType(F32, (OUT, IN, KERNEL_ROWS, KERNEL_COLUMNS))]
    run(make, types, [draw(t, i) for i, t in enumerate(types)])
    assert seen.count("contract") == 2 and not {"reduce_sum", "scatter_add"} & set(seen)


def test_groups_share_an_axis() -> None:
    group = Dim("group", 2)
    types = [
        TensorType(F64, (BATCH, ROWS, COLUMNS, group, IN)),
        TensorType(F64, (KERNEL_ROWS, KERNEL_COLUMNS, group, IN, OUT)),
    ]
    x, kernel = (draw(t, i) for i, t in enumerate(types))
    attributes = _attributes(2, 1, 1, BATCH)
    attributes["dims"] = (*attributes["dims"], group, OUT)
    (found,) = run(lambda b, x, k: b("conv2d", x, k, **attributes), types, [x, kernel])
    for g in range(2):
        images = x[:, :, :, g].transpose(0, 3, 1, 2)
        part = _expected(images, kernel[:, :, g].transpose(3, 2, 0, 1), 2, 1, 1)
        np.testing.assert_allclose(found[:, :, :, g], part.transpose(0, 2, 3, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"to_rows": Dim("y", 3)}, "makes 7 of the 7 elements of `y`; `y` is 3"),
        ({"stride": 0}, "stride 0"),
        ({"rows": "batch"}, "`batch`, the grain's axis"),
        ({"kernel_rows": "in_"}, "has no axis `in_`"),
        ({"dims": (OUT,)}, "keeps the grain's axis"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    types = [_typed(BATCH, IN, ROWS, COLUMNS), _typed(OUT, IN, KERNEL_ROWS, KERNEL_COLUMNS)]
    with pytest.raises(TypeRuleError, match=message):
        run(lambda b, x, k: b("conv2d", x, k, **(_attributes(1, 1, 1, BATCH, OUT) | change)), types, [])


def _typed(*dims: Dim, dtype: DType = F64) -> TensorType:
    return TensorType(dtype, dims)
