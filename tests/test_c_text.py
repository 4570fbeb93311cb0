"""Kernels as text in C: they read like their sources, wrap where integers wrap, and take no name that C has."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from test_kernels import READABLE, function_of

from alphac.backends.c.expressions import Text, infix, literal
from alphac.backends.c.language import METAL, OPENCL, Language
from alphac.backends.c.printer import written
from alphac.backends.gpu.intrinsics import FUNCTIONS
from alphac.backends.kernels import TYPES
from alphac.backends.registry import target
from alphac.backends.target import KernelSource
from alphac.backends.vector import SCALARS
from alphac.ir.errors import InternalError
from alphac.ir.passes.project import schedule
from alphac.ir.typesys import F32, I32


@pytest.mark.parametrize("language", [OPENCL, METAL], ids=lambda v: v.name.split()[0])
@pytest.mark.parametrize("shape", ["map", "contract"])
def test_text_reads_like_its_source(shape: str, language: Language, golden: Callable[[str, str], None]) -> None:
    (kernel,) = schedule(function_of([READABLE[shape]]), streams=False).kernels()
    text = written([target("opencl").lower(kernel)], language)
    name = "opencl" if language is OPENCL else "metal"
    golden(f"kernels/{shape}_{name}.txt", re.sub(r"\bk_[0-9a-f]{20}", "k", text))


def kernel(body: str, *names: str) -> str:
    """The text of a kernel of these lines; `names` of its buffers, of f32, but for the last one, of i32."""
    lines = [
        f"{name} = memory(p{i}, {'i32' if i == len(names) - 1 else 'f32'}, {i}, 9)" for i, name in enumerate(names)
    ]
    text = "".join(f"    {line}\n" for line in [*lines, *body.split("\n")])
    arguments = ", ".join([*(f"p{i}" for i in range(len(names))), "shards", "first", "merges"])
    dtypes = (*[F32] * (len(names) - 1), I32)
    namespace = {**SCALARS, **TYPES, **FUNCTIONS}
    source = KernelSource("k_one", f"def k_one({arguments}):\n{text}", dtypes, namespace=namespace, integers=3)
    return written([source], OPENCL)


def test_names_that_c_has_are_changed() -> None:
    text = kernel("kernel[0] = half[1]\nkernel_[0] = float4[1]", "kernel", "kernel_", "half", "float4", "n")
    assert "__global float* restrict kernel_,\n    __global float* restrict kernel__,\n" in text
    assert "kernel_[0] = half_[1];" in text and "kernel__[0] = float4_[1];" in text
    assert "__global const float* restrict half_," in text, "what is never stored is const"


def test_indices_are_plain_and_data_wrap() -> None:
    text = kernel("for e1 in range(first, shards * 1000):\n    n[e1 * 12 - 1] = n[e1] * n[e1 + 1] + 7", "n")
    assert "n[e1 * 12 - 1] = (uint)n[e1] * n[e1 + 1] + 7;" in text
    assert "const long end_1 = shards * 1000;" in text and "for (long e1 = first; e1 < end_1; ++e1) {" in text


def test_a_loops_bound_is_computed_once() -> None:
    text = kernel("top = 0\nfor e1 in range(top + 3):\n    top = top + e1\nn[0] = i32(top)", "n")
    assert "const long end_1 = (long)((ulong)top + 3);" in text and "e1 < end_1" in text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("n[0] = i32(unknown(first))", "calls `unknown`"),
        ("n[0] = i32(address(n, 3))", "`address` has no form in C"),
        ("m = memory(first + 8, i32, 0, 1)\nn[0] = m[0]", "computes an address"),
    ],
)
def test_what_has_no_form_is_refused(body: str, said: str) -> None:
    with pytest.raises(InternalError, match=said):
        kernel(body, "n")


def test_numbers_keep_their_values() -> None:
    from numba.core import types as t

    shown = {
        (0.1, t.float32): "0.1f",
        (0.1, t.float64): "0.1",
        (-3, t.float32): "-3.0f",
        (float("-inf"), t.float32): "-INFINITY",
        (float("nan"), t.float64): "(double)NAN",
        (-(1 << 31), t.int32): "(-2147483647 - 1)",
        (-(1 << 63), t.int64): "(-9223372036854775807L - 1)",
        (1 << 40, t.int64): "1099511627776L",
        (-1, t.uint64): "18446744073709551615UL",
        (300, t.uint8): "44",
        (True, t.boolean): "true",
    }
    assert {key: str(literal(*key)) for key in shown} == shown
    x, y = Text("x"), Text("y")
    assert str(infix("*", infix("+", x, y, t.uint32), y, t.uint32)) == "(x + y) * y"
    assert str(infix("-", x, infix("-", x, y, t.float32), t.float32)) == "x - (x - y)"
    assert str(infix("*", x, y, t.uint8)) == "(uchar)(x * y)"
