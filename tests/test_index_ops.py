"""Index ops at drawn shapes: bodies, run by the oracle, say the same as the references; adjoints are adjoint."""

from __future__ import annotations

import numpy as np
from gradcheck import draw, run
from hypothesis import given, settings
from hypothesis import strategies as st

from alphac.ir.typesys import F64, I64, Dim, TensorType

SIZES = st.lists(st.integers(1, 4), max_size=4)


def _dims(prefix: str, sizes: list[int]) -> tuple[Dim, ...]:
    return tuple(Dim(f"{prefix}{i}", n) for i, n in enumerate(sizes))


@given(sizes=SIZES, order=st.randoms(use_true_random=False), cut=st.integers(0, 4), ones=st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_reshape(sizes: list[int], order, cut: int, ones: int) -> None:
    """Any regrouping of prime factors, with axes of size 1 put in."""
    cut = min(cut, len(sizes))
    left = [int(np.prod(sizes[:cut])), *sizes[cut:]] + [1] * ones
    shuffled = sizes[:]
    order.shuffle(shuffled)
    for target in (left, [1] * ones + sizes, shuffled, [int(np.prod(sizes))]):
        source = TensorType(I64, _dims("s", sizes))
        x = np.arange(source.size).reshape(source.shape)
        dims = _dims("t", target)
        (found,) = run(lambda b, x, dims=dims: b("reshape", x, dims=dims), [source], [x], exact=True)
        np.testing.assert_array_equal(found, x.reshape([d.size for d in dims]))


GEOMETRY = {
    "size": st.integers(1, 9),
    "to": st.integers(1, 6),
    "kernel": st.integers(1, 4),
    "stride": st.integers(1, 4),
    "low": st.integers(-3, 4),
    "dilation": st.integers(1, 3),
}


@given(**GEOMETRY)
@settings(max_examples=60, deadline=None)
def test_windows(size: int, to: int, kernel: int, stride: int, low: int, dilation: int) -> None:
    """<window x, y> = <x, sum of unwindow y>, <unwindow y, z> = <y, window_at z>; bodies equal references."""
    dim, out, k = Dim("d", size), Dim("o", to), Dim("k", kernel)
    shared = {"stride": stride, "low": low, "dilation": dilation}
    types = [TensorType(F64, (dim,)), TensorType(F64, (k, out)), TensorType(F64, (dim, k))]
    inputs = [draw(t, i) for i, t in enumerate(types)]

    def make(b, x, y, z):
        return (
            b("window", x, dim="d", to=out, kernel=k, value=0, **shared),
            b("unwindow", y, to="o", kernel="k", dim=dim, **shared),
            b("window_at", z, dim="d", to=out, kernel="k", **shared),
        )

    (window, unwindow, window_at) = run(make, types, inputs)
    for body, reference in zip(run(make, types, inputs, exact=True), (window, unwindow, window_at), strict=True):
        np.testing.assert_array_equal(body, reference)
    x, y, z = inputs
    np.testing.assert_allclose((window * y.T).sum(), (x * unwindow.sum(0)).sum(), atol=1e-12)
    np.testing.assert_allclose((unwindow * z.T).sum(), (y * window_at.T).sum(), atol=1e-12)


@given(size=st.integers(1, 9), start=st.integers(0, 8), step=st.sampled_from([-3, -2, -1, 1, 2, 3]), data=st.data())
@settings(max_examples=40, deadline=None)
def test_slices(size: int, start: int, step: int, data) -> None:
    start = min(start, size - 1)
    most = (size - 1 - start) // step + 1 if step > 0 else start // -step + 1
    to = Dim("d", data.draw(st.integers(1, most)))
    t = TensorType(F64, (Dim("a", 2), Dim("d", size)))
    (found,) = run(lambda b, x: b("slice", x, dim="d", start=start, step=step, to=to), [t], [x := draw(t)], exact=True)
    np.testing.assert_array_equal(found, x[:, [start + i * step for i in range(to.size)]])
